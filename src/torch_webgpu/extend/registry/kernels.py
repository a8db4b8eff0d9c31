"""Kernels: the functions that PyTorch's dispatcher calls for an operator and a type of device, and a program's own.

A registration is one with ``torch.library``, and its handle takes it back.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_webgpu.aten.dispatch.torch_abi import KERNELS
from torch_webgpu.aten.dispatch.torch_dispatcher import is_registered, key_of, operator_names, origin, overloads_of
from torch_webgpu.errors import (
    AlreadyRegisteredError,
    KernelSignatureError,
    NotRegisteredError,
    OpKindError,
    RegistrationFailedError,
    did_you_mean,
)

from .coverage import check_dtype
from .handle import RegistrationHandle
from .operators import OpKind, get_op_kind, has_op, overload_of, qualified, registered_kernels

Operator = str | OpOverload | OpOverloadPacket
SCALAR_OVERLOADS = ("Scalar", "Tensor_Scalar")
"""What PyTorch calls the overload of a binary operator whose second operand is a number."""


@dataclass(frozen=True)
class KernelInfo:
    """What is called for an operator on a type of device.

    ``name``: the overload's full name ("aten::add.Tensor"). ``kind``: the operator's. ``origin``: the module of
    ``torch_webgpu.aten`` that has it, "registered" for a program's own, else where PyTorch says it was registered.
    """

    name: str
    device: str
    kind: OpKind
    origin: str
    overload: OpOverload
    key: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls this kernel, past autograd and autocast: for tests and measurements."""
        return self.overload._op_dk(getattr(torch.DispatchKey, self.key), *args, **kwargs)


_lock = threading.RLock()


def register_kernel(
    name: Operator, kernel: Callable[..., Any], *, device: str = "webgpu", replace: bool = False
) -> RegistrationHandle:
    """Registers what is called for an operator on a type of device: ``torch.library.impl`` with a handle.

    ``kernel`` takes the arguments of the operator's schema and returns what that says; a kernel of
    ``torch.webgpu.compile_shader`` takes the place of an operator that only writes its arguments. Once the handle's
    ``unregister`` is called, what was there before is called again.

    Raises NotRegisteredError, a LookupError, where there is no such operator; AlreadyRegisteredError where it has a
    kernel for the device, unless ``replace``; KernelSignatureError, a TypeError, for a function of other arguments.
    """
    overload = overload_of(name)
    full, key = full_name(overload), _key(device)
    check_signature(kernel, overload)
    with _lock:
        if is_registered(overload, key) and not replace:
            raise AlreadyRegisteredError(
                f"{full} has a kernel for {device} already ({_info(overload, device, key).origin}): pass replace=True, "
                "or unregister it first"
            )
        return _register(overload, kernel, device, key)


def _register(overload: OpOverload, kernel: Callable[..., Any], device: str, key: str) -> RegistrationHandle:
    full = full_name(overload)
    namespace, _, rest = full.partition("::")
    library = torch.library.Library(namespace, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # C++ warns of kernels that replace others
            library.impl(rest, kernel, key, allow_override=True)
    except RuntimeError as error:
        library._destroy()
        raise RegistrationFailedError(f"PyTorch refuses a kernel for {full} on {device}: {error}") from error

    def remove() -> None:
        with _lock:
            handles = registered_kernels[full, device]
            handles.remove(handle)
            if not handles:
                del registered_kernels[full, device]
            library._destroy()  # PyTorch calls the last of those that are left

    handle = RegistrationHandle(f"{full} on {device}", remove)
    registered_kernels.setdefault((full, device), []).append(handle)
    return handle


def unregister_kernel(name: Operator, *, device: str = "webgpu") -> None:
    """Takes back what :func:`register_kernel` registered last. NotRegisteredError, a LookupError, for nothing."""
    full = full_name(overload_of(name))
    with _lock:
        if (full, device) not in registered_kernels:
            mine = [one for one, where in registered_kernels if where == device]
            raise NotRegisteredError(f"this program registered no kernel for {full} on {device}" + (
                did_you_mean(full, mine) if mine else ""
            ))  # fmt: skip
        registered_kernels[full, device][-1].unregister()


def has_kernel(name: Operator, *, device: str = "webgpu") -> bool:
    """Whether an operator has a kernel of its own for a type of device; False also where there is no operator."""
    return has_op(name) and is_registered(overload_of(name), _key(device))


def get_kernel(name: Operator, *, device: str = "webgpu", dtype: torch.dtype | None = None) -> KernelInfo:
    """The kernel of an operator. NotRegisteredError, a LookupError, where it has none, or there is no operator.

    ``dtype``: raises DTypeNotSupportedError, a TypeError, where the webgpu kernel is not for tensors of this dtype.
    """
    overload, key = overload_of(name), _key(device)
    if not is_registered(overload, key):
        raise NotRegisteredError(
            f"{full_name(overload)} has no kernel for {device}: get_op_info({qualified(name)[0]!r}).way says how it "
            "runs there"
        )
    if dtype is not None and device == "webgpu":
        check_dtype(overload, dtype)
    return _info(overload, device, key)


def list_kernels(*, device: str = "webgpu", namespace: str | None = None) -> list[str]:
    """The full names of all overloads that have kernels of their own for a type of device, in order."""
    return [kernel.name for kernel in _all(device, namespace)]


def find_kernel(predicate: Callable[[KernelInfo], bool], *, device: str = "webgpu") -> KernelInfo | None:
    """The first kernel, in the order of names, that ``predicate`` is true of; None where there is none."""
    return next((kernel for kernel in _all(device, None) if predicate(kernel)), None)


def register_scalar_kernel(
    name: Operator, kernel: Callable[..., Any], *, device: str = "webgpu", replace: bool = False
) -> RegistrationHandle:
    """:func:`register_kernel` for the overload of a binary operator whose second operand is a number."""
    return register_kernel(_scalar_overload(name), kernel, device=device, replace=replace)


def has_scalar_kernel(name: Operator, *, device: str = "webgpu") -> bool:
    """Whether a binary operator has a kernel for a number as its second operand."""
    try:
        return has_kernel(_scalar_overload(name), device=device)
    except (LookupError, OpKindError):
        return False


def get_scalar_kernel(name: Operator, *, device: str = "webgpu") -> KernelInfo:
    """The kernel of a binary operator for a number as its second operand. OpKindError, a TypeError, where the operator
    takes none.
    """
    return get_kernel(_scalar_overload(name), device=device)


def _scalar_overload(name: Operator) -> OpOverload:
    operator, _ = qualified(name)
    there = overloads_of(operator)
    found = next((there[one] for one in SCALAR_OVERLOADS if one in there), None)
    if found is None:
        raise OpKindError(f"{operator} is {get_op_kind(operator)}, and has no overload with a number as second operand")
    return found


def check_signature(kernel: Callable[..., Any], overload: OpOverload) -> None:
    """KernelSignatureError where ``kernel`` cannot be called with the arguments of the schema."""
    if not callable(kernel):
        raise KernelSignatureError(f"a kernel of {full_name(overload)} has to be a function, not {kernel!r}")
    entry = getattr(kernel, "entry", None)
    positional = [a.name for a in overload._schema.arguments if not a.kwarg_only]
    keywords = {a.name: None for a in overload._schema.arguments if a.kwarg_only}
    if entry is not None and hasattr(entry, "resources"):  # of compile_shader, whose kernels take what is bound
        if overload._schema.returns or len(entry.resources) != len(positional):
            raise KernelSignatureError(
                f"the entry point {entry.name!r} takes {len(entry.resources)} arguments and returns nothing, but the "
                f"schema is {overload._schema}"
            )
        return
    try:
        signature = inspect.signature(kernel)
    except (TypeError, ValueError):  # of C's functions
        return
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        raise KernelSignatureError(
            f"{getattr(kernel, '__name__', kernel)}{signature} is not called as {full_name(overload)} is: {error}. The "
            f"schema is {overload._schema}"
        ) from None


def full_name(overload: OpOverload) -> str:
    """The name of an overload as the dispatcher has it: without ".default"."""
    return overload.name()


def _key(device: str) -> str:
    try:
        return key_of(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is no type of device: {str(error).splitlines()[0]}") from None


def _info(overload: OpOverload, device: str, key: str) -> KernelInfo:
    full = full_name(overload)
    if (full, device) in registered_kernels:
        where = "registered"
    elif device == "webgpu" and overload in KERNELS:
        where = KERNELS[overload]
    else:
        where = origin(torch.library.get_kernel(overload, key))
    return KernelInfo(full, device, get_op_kind(overload), where, overload, key)


def _all(device: str, namespace: str | None) -> Any:
    key = _key(device)
    for name in operator_names():
        if namespace is None or name.startswith(f"{namespace}::"):
            for overload in overloads_of(name).values():
                if is_registered(overload, key):
                    yield _info(overload, device, key)
