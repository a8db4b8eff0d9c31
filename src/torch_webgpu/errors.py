"""The exceptions this package raises, each one a subclass of what PyTorch users already catch."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import torch

OutOfMemoryError = torch.OutOfMemoryError


class WebGPUError(RuntimeError):
    """Anything that goes wrong below PyTorch: adapters, devices, pipelines, queues."""


class NoAdapterError(WebGPUError):
    """No WebGPU adapter is usable on this machine."""


class DeviceLostError(WebGPUError):
    """The adapter's device is gone (driver reset, unplugged); its tensors are gone with it."""


class ShaderCompileError(WebGPUError):
    """WGSL that the host's compiler refuses. The message carries the numbered source."""


class ShaderSyntaxError(ShaderCompileError):
    """WGSL that cannot be read: a character that begins no token, or a bracket without its other half."""

    def __init__(self, problem: str, line: int, column: int, source: str) -> None:
        """``line`` and ``column`` count from 1; ``source`` is that line."""
        super().__init__(f"line {line}, column {column}: {problem}\n  {source}\n  {' ' * (column - 1)}^")
        self.line = line
        self.column = column


class ForkError(WebGPUError):
    """The device was used in a forked child; GPU handles do not survive a fork."""


class TraceError(WebGPUError):
    """What a traced function does cannot be a plan: it needs a value, or memory, before the plan has run."""


class RequirementError(WebGPUError):
    """A plan needs a feature or a limit that the adapter does not have."""


def different_devices(one: torch.device, other: torch.device) -> RuntimeError:
    """PyTorch's error for an operator whose tensors are not all on one device."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!"
    )


class FallbackError(NotImplementedError):
    """An operator would have run on the CPU while TORCH_WEBGPU_FALLBACK=error."""


class UnsupportedDtypeError(TypeError):
    """The adapter, or WGSL, has no such type."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest of the ``known`` ones, if any is near."""
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
