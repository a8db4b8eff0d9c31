"""Functions of ``torch.webgpu.functional`` and methods ``x.webgpu.name``, with handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch_webgpu.errors import NotRegisteredError, did_you_mean
from torch_webgpu.extend import functional

from .handle import RegistrationHandle


def register_function(name: str, function: Callable[..., Any], *, replace: bool = False) -> RegistrationHandle:
    """Makes ``function`` callable as ``torch.webgpu.functional.<name>``, until the handle is unregistered.

    Raises AlreadyRegisteredError, a ValueError, for a name that is taken, unless ``replace``.
    """
    functional.register_function(name, function, replace=replace)
    return RegistrationHandle(
        f"torch.webgpu.functional.{name}", partial(_remove, functional.functions(), functional.unregister_function,
                                                   name, function)
    )  # fmt: skip


def register_method(name: str, function: Callable[..., Any], *, replace: bool = False) -> RegistrationHandle:
    """Makes ``function(x, …)`` callable as ``x.webgpu.<name>(…)``, until the handle is unregistered.

    Raises AlreadyRegisteredError, a ValueError, for a name that is taken, unless ``replace``.
    """
    functional.register_method(name, function, replace=replace)
    return RegistrationHandle(
        f"x.webgpu.{name}", partial(_remove, functional.methods(), functional.unregister_method, name, function)
    )


def _remove(table: Any, unregister: Callable[[str], None], name: str, function: Callable[..., Any]) -> None:
    if table.get(name) is function:  # else another one has its place by now
        unregister(name)


unregister_function = functional.unregister_function
unregister_method = functional.unregister_method


def has_function(name: str) -> bool:
    """Whether ``torch.webgpu.functional`` has a function of this name."""
    return name in functional.functions()


def has_method(name: str) -> bool:
    """Whether tensors have a method ``x.webgpu.<name>``."""
    return name in functional.methods()


def get_function(name: str) -> Callable[..., Any]:
    """A registered function. NotRegisteredError, a LookupError that says *did you mean*, where there is none."""
    return _get("function", name, functional.functions())


def get_method(name: str) -> Callable[..., Any]:
    """A registered method, as the function that was registered. NotRegisteredError, a LookupError, for none."""
    return _get("method", name, functional.methods())


def _get(what: str, name: str, table: Any) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = table[name]
    except KeyError:
        raise NotRegisteredError(f"no {what} {name!r} is registered{did_you_mean(name, table)}") from None
    return found


def list_functions() -> list[str]:
    """The names of the registered functions, in the order of their registration."""
    return list(functional.functions())


def list_methods() -> list[str]:
    """The names of the registered methods, in the order of their registration."""
    return list(functional.methods())
