"""The exceptions this package raises, each one a subclass of what PyTorch users already catch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

OutOfMemoryError = torch.OutOfMemoryError


class WebGPUError(RuntimeError):
    """Anything that goes wrong below PyTorch: adapters, devices, pipelines, queues."""


class NoAdapterError(WebGPUError):
    """No WebGPU adapter is usable on this machine."""


class AddressError(WebGPUError):
    """A tensor of more elements, or bytes, than kernels have numbers for."""


class FlagError(ValueError):
    """An environment variable of this package that is not known, or whose value cannot be read."""


class DeviceLostError(WebGPUError):
    """The adapter's device is gone (driver reset, unplugged); its tensors are gone with it."""


class ShaderCompileError(WebGPUError):
    """WGSL that the host's compiler refuses. The message carries the numbered source.

    ``line``, ``column``: where in the program's own text (:func:`torch.webgpu.compile_shader`), counted from 1, if that
    is known; else None.
    """

    def __init__(self, message: str = "", line: int | None = None, column: int | None = None, *rest: str) -> None:
        super().__init__(message, line, column, *rest)  # as they are: an error that is kept is copied
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return str(self.args[0])


class ShaderSyntaxError(ShaderCompileError):
    """WGSL that cannot be read: a character that begins no token, or a bracket without its other half."""

    def __init__(self, problem: str, line: int, column: int, source: str) -> None:
        """``line`` and ``column`` count from 1; ``source`` is that line."""
        super().__init__(problem, line, column, source)

    def __str__(self) -> str:
        problem, line, column, source = self.args
        return f"line {line}, column {column}: {problem}\n  {source}\n  {' ' * (column - 1)}^"


class BindingError(WebGPUError, ValueError):
    """A kernel's binding that does not exist, that its text cannot use like this, or that a target cannot hold."""


class ForkError(WebGPUError):
    """The device was used in a forked child; GPU handles do not survive a fork."""


class OutOfRangeError(IndexError, RuntimeError):
    """An index out of range, of an operator whose CPU kernel raises RuntimeError where others raise IndexError."""


class TraceError(WebGPUError):
    """What a traced function does cannot be a plan: it needs a value, or memory, before the plan has run."""


class ExportError(WebGPUError):
    """What :func:`torch.webgpu.export` was given cannot become a folder for the web."""


class RequirementError(WebGPUError):
    """A plan needs a feature or a limit that the adapter does not have."""


class RegistryError(Exception):
    """What ``torch.webgpu.registry`` refuses; its subclasses are also what Python calls such an error."""


class AlreadyRegisteredError(RegistryError, ValueError):
    """A name that is taken. Whoever means to replace what has it unregisters that first."""


class NotRegisteredError(RegistryError, LookupError):
    """A name that nothing is registered under. The message has the nearest names that there are."""


class InvalidConfigError(RegistryError, ValueError):
    """A value to be registered that contradicts itself, or lacks something."""


class KernelSignatureError(RegistryError, TypeError):
    """A kernel that cannot be called with the arguments of its operator's schema."""


class OpKindError(RegistryError, TypeError):
    """An operator of another kind than what was asked of it is for."""


class DTypeNotSupportedError(RegistryError, TypeError):
    """A dtype that an operator, or a kernel, is not for."""


class RegistrationFailedError(RegistryError, RuntimeError):
    """What was to be registered could not be loaded or started; ``__cause__`` is the error."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest of the ``known`` ones, if any is near.

    Where none is, capital letters count as small ones.
    """
    from difflib import get_close_matches  # not before something is wrong: every program would wait for the import

    known = list(known)
    spelt = {one.lower(): one for one in known}
    near = get_close_matches(name, known, n=1)
    near = near or [spelt[one] for one in get_close_matches(name.lower(), spelt, n=1)]
    return f" (did you mean {near[0]!r}?)" if near else ""


_LISTS_NAMES = (
    re.compile(r"Expected one of (?P<known>.+) device type at start of device string: (?P<name>\w+)"),
    re.compile(r"Unexpected optimization option (?P<name>\S+), known options are \[(?P<known>.*)\]"),
    re.compile(r"Unrecognized mode=(?P<name>\S+), should be one of: (?P<known>.+)"),
)
"""PyTorch's errors about an unknown name that list the known ones."""


def meant_by(message: str) -> str:
    """:func:`did_you_mean` of PyTorch's own error ``message``, if it is about an unknown name."""
    for pattern in _LISTS_NAMES:
        if found := pattern.search(message):
            known = found["known"].replace("privateuseone", "webgpu")  # which PyTorch lists by its first name
            return did_you_mean(found["name"], [name.strip(" '") for name in known.split(",")])
    return ""


ON_ONE_DEVICE = "Expected all tensors to be on the same device"


def different_devices(one: torch.device, other: torch.device) -> RuntimeError:
    """PyTorch's error for an operator whose tensors are not all on one device."""
    return RuntimeError(f"{ON_ONE_DEVICE}, but found at least two devices, {one} and {other}!")


class FallbackError(NotImplementedError):
    """An operator would have run on the CPU while TORCH_WEBGPU_FALLBACK=error."""


class UnsupportedDtypeError(TypeError):
    """The adapter, or WGSL, has no such type."""
