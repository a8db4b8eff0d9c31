"""Forward and backward of operators by name: definitions and derivatives through ``torch.library``, with handles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_dispatcher import parsed_schema
from torch_webgpu.errors import (
    AlreadyRegisteredError,
    InvalidConfigError,
    NotRegisteredError,
    RegistrationFailedError,
)

from .handle import RegistrationHandle
from .kernels import Operator, full_name, register_kernel, register_scalar_kernel
from .operators import autograd_of, has_op, overload_of

_lock = threading.RLock()
_formulas: dict[str, tuple[Callable[..., Any], RegistrationHandle]] = {}
"""The derivatives that the program registered, by the full names of overloads."""
_defined: dict[str, RegistrationHandle] = {}
"""The operators that the program made: they stay when a handle is dropped, as PyTorch's hooks do."""


def register_forward(
    name: Operator,
    kernel: Callable[..., Any],
    *,
    device: str = "webgpu",
    schema: str | None = None,
    fake: Callable[..., Any] | None = None,
    replace: bool = False,
) -> RegistrationHandle:
    """Registers what computes an operator on a type of device, and the operator itself where there is none.

    Args:
        name: an operator of PyTorch's ("add.Tensor") or of a name space of the program's own ("mylib::scale").
        kernel: takes the arguments of the schema.
        schema: of a new operator, as "(Tensor x, float by) -> Tensor"; what the annotations of ``kernel`` say if it is
            not given.
        fake: of a new operator: what its results look like, for ``torch.compile`` (``torch.library.register_fake``).
        replace: whether a kernel that is there makes room.

    Raises as :func:`register_kernel`; InvalidConfigError, a ValueError, for a schema that cannot be read, or of an
    operator that exists.
    """
    if has_op(name):
        if schema is not None or fake is not None:
            raise InvalidConfigError(f"{name} exists, with the schema {overload_of(name)._schema}: it takes no other")
        return register_kernel(name, kernel, device=device, replace=replace)
    if not isinstance(name, str) or "::" not in name or name.startswith("aten::"):
        overload_of(name)  # raises what there is in its place
    return _define(str(name), kernel, device, schema, fake)


def _define(
    name: str, kernel: Callable[..., Any], device: str, schema: str | None, fake: Callable[..., Any] | None
) -> RegistrationHandle:
    namespace, _, base = name.partition("::")
    try:
        text = torch.library.infer_schema(kernel, mutates_args=()) if schema is None else schema
        parsed_schema(f"{base}{text}")
    except (ValueError, RuntimeError) as error:
        raise InvalidConfigError(f"{name} has no schema: {error}") from error
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        library.define(f"{base}{text}", tags=(torch.Tag.pt2_compliant_tag,))
        inner = register_kernel(name, kernel, device=device)
        if fake is not None:
            torch.library.register_fake(name, fake, lib=library)
    except RuntimeError as error:
        library._destroy()
        raise RegistrationFailedError(f"PyTorch refuses the operator {name}{text}: {error}") from error
    except BaseException:
        library._destroy()
        raise

    def remove() -> None:
        with _lock:
            if base in _formulas_of(namespace):
                _formulas[name][1].unregister()
            inner.unregister()
            library._destroy()
            del _defined[name]

    handle = _defined[name] = RegistrationHandle(name, remove)
    return handle


def _formulas_of(namespace: str) -> list[str]:
    return [name.partition("::")[2] for name in _formulas if name.startswith(f"{namespace}::")]


def register_scalar_forward(
    name: Operator, kernel: Callable[..., Any], *, device: str = "webgpu", replace: bool = False
) -> RegistrationHandle:
    """:func:`register_forward` for a number as the second operand of a binary operator. OpKindError, a TypeError, where
    the operator takes none.
    """
    return register_scalar_kernel(name, kernel, device=device, replace=replace)


def register_backward(
    name: Operator, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None
) -> RegistrationHandle:
    """Registers the derivative of an operator of the program's own: ``torch.library.register_autograd`` with a handle.

    ``backward(ctx, *grads)`` returns a gradient for each argument, ``setup_context(ctx, inputs, output)`` keeps what it
    needs.

    Raises AlreadyRegisteredError, a ValueError, where the operator has a derivative, as all of PyTorch's have;
    NotRegisteredError, a LookupError, where there is no such operator; RegistrationFailedError, a RuntimeError, where
    PyTorch refuses it, as for operators that write into their arguments.
    """
    overload = overload_of(name)
    full = full_name(overload)
    with _lock:
        if autograd_of(overload) != "none":
            raise AlreadyRegisteredError(f"{full} has a derivative already: it is {describe(overload)}")
        library = torch.library.Library(full.partition("::")[0], "FRAGMENT")
        try:
            torch.library.register_autograd(full, backward, setup_context=setup_context, lib=library)
        except (RuntimeError, NotImplementedError) as error:
            library._destroy()
            raise RegistrationFailedError(f"PyTorch refuses a derivative of {full}: {error}") from error

        def remove() -> None:
            with _lock:
                _formulas.pop(full, None)
                library._destroy()

        handle = RegistrationHandle(f"the derivative of {full}", remove)
        _formulas[full] = backward, handle
        return handle


register_autograd = register_backward


def unregister_autograd(name: Operator) -> None:
    """Takes back what :func:`register_autograd` registered. NotRegisteredError, a LookupError, if that is nothing."""
    full = full_name(overload_of(name))
    with _lock:
        if full not in _formulas:
            raise NotRegisteredError(f"this program registered no derivative of {full}")
        _formulas[full][1].unregister()


def has_autograd(name: Operator) -> bool:
    """Whether gradients flow through an operator; False also where there is no operator."""
    return has_op(name) and autograd_of(overload_of(name)) != "none"


def get_autograd(name: Operator) -> Callable[..., Any] | str:
    """The program's ``backward`` of an operator; of others, in words, where its derivative is from.

    NotRegisteredError, a LookupError, where it has none, or there is no such operator.
    """
    overload = overload_of(name)
    if autograd_of(overload) == "none":
        raise NotRegisteredError(f"{full_name(overload)} has no derivative: register_autograd gives it one")
    formula = _formulas.get(full_name(overload))
    return describe(overload) if formula is None else formula[0]


def describe(overload: OpOverload) -> str:
    """Where the derivative of an overload is from."""
    if full_name(overload) in _formulas:
        return "one that the program registered"
    if autograd_of(overload) == "composed":
        return "composed of those of the operators that it calls"
    if overload._schema.name.startswith("aten::"):
        return "PyTorch's (derivatives.yaml)"
    return "registered with torch.library"
