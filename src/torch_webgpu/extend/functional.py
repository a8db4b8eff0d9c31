"""``torch.webgpu.functional``, and methods of tensors in a name space of their own: ``x.webgpu.swiglu(y)``.

``x.webgpu()`` moves a tensor to the device, as PyTorch has it for every device. PyTorch's class of tensors is not ours
to give methods to; what is registered here is found behind that name only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from types import MappingProxyType
from typing import Any

from torch_webgpu.errors import AlreadyRegisteredError, NotRegisteredError, did_you_mean

_functions: dict[str, Callable[..., Any]] = {}
_methods: dict[str, Callable[..., Any]] = {}
at_first_method: list[Callable[[], None]] = []
"""What is called when the first method is registered, once."""


def register_function(name: str, function: Callable[..., Any], *, replace: bool = False) -> None:
    """Makes ``function`` callable as ``torch.webgpu.functional.<name>``.

    Raises AlreadyRegisteredError for a name that is taken, unless ``replace``.
    """
    _check(name, function)
    if name in _functions and not replace:
        raise AlreadyRegisteredError(f"torch.webgpu.functional.{name} is registered already: pass replace=True")
    if name not in _functions and name in globals():
        raise AlreadyRegisteredError(f"torch.webgpu.functional.{name} is part of torch.webgpu")
    _functions[name] = function


def unregister_function(name: str) -> None:
    """Removes a function. NotRegisteredError for a name that has none."""
    if name not in _functions:
        raise NotRegisteredError(f"no function {name!r} is registered{did_you_mean(name, _functions)}")
    del _functions[name]


def functions() -> Mapping[str, Callable[..., Any]]:
    """The registered functions by their names."""
    return MappingProxyType(_functions)


def register_method(name: str, function: Callable[..., Any], *, replace: bool = False) -> None:
    """Makes ``function(x, …)`` callable as ``x.webgpu.<name>(…)``, of tensors of any device.

    Raises AlreadyRegisteredError for a name that is taken, unless ``replace``.
    """
    _check(name, function)
    if name in _methods and not replace:
        raise AlreadyRegisteredError(f"the method x.webgpu.{name} is registered already: pass replace=True")
    _methods[name] = function
    for call in at_first_method:
        call()


def unregister_method(name: str) -> None:
    """Removes a method. NotRegisteredError for a name that has none."""
    if name not in _methods:
        raise NotRegisteredError(f"no method {name!r} is registered{did_you_mean(name, _methods)}")
    del _methods[name]


def methods() -> Mapping[str, Callable[..., Any]]:
    """The registered methods by their names."""
    return MappingProxyType(_methods)


def _check(name: str, function: Callable[..., Any]) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"{name!r} is no name of a function: letters, digits and underscores, the first no underscore")
    if not callable(function):
        raise TypeError(f"{name}: {function!r} cannot be called")


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _functions:
        return _functions[name]
    raise AttributeError(f"torch.webgpu.functional has no {name!r}{did_you_mean(name, _functions)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_functions))


class Methods:
    """``x.webgpu``: calling it moves the tensor ``x``, its attributes are the registered methods, bound to ``x``."""

    def __init__(self, tensor: Any, move: Callable[..., Any]) -> None:
        self._tensor, self._move = tensor, move

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._move(self._tensor, *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return _methods[name].__get__(self._tensor)
        except KeyError:
            raise AttributeError(f"there is no method x.webgpu.{name}{did_you_mean(name, _methods)}") from None
        except AttributeError:  # what is callable, and no function
            tensor, method = self._tensor, _methods[name]
            return lambda *args, **kwargs: method(tensor, *args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted((*super().__dir__(), *_methods))


class Accessor:
    """The attribute ``webgpu`` of PyTorch's tensors, in the place of the function of that name."""

    from_torch_webgpu = True  # what patches of PyTorch are known by

    def __init__(self, move: Callable[..., Any]) -> None:
        self.move = move
        update_wrapper(self, move)  # ``torch.overrides`` asks every attribute of tensors for its name

    def __get__(self, tensor: Any, owner: type) -> Any:
        return self if tensor is None else Methods(tensor, self.move)

    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self.move(tensor, *args, **kwargs)
