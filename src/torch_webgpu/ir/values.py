"""What a body may be made of: functions of modules, and values. It is a key of caches, so it must say all it does.

A closure reads variables that its key does not name, and kernels that differ only in these would be taken for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from .expr import Expr

ATOMS = (type(None), bool, int, float, complex, str, bytes, Enum, type, Expr, torch.dtype)
"""Types whose equal values mean the same; a class stands for itself."""


class NotAValueError(TypeError):
    """What was to decide a kernel's code is not told by its key."""


def check_function(name: str, function: Any) -> None:
    """Raises NotAValueError unless ``function``, of an operation of this name, is one of a module that reads no
    variables of another function; or one in C; or an object that is a value (:func:`check_values`) with ``__call__``.
    """
    if isinstance(function, FunctionType):
        if function.__closure__ is None and "<locals>" not in function.__qualname__:
            return
        read = ", ".join(function.__code__.co_freevars) or "no variables of it"
        raise NotAValueError(
            f"{name}: {function.__qualname__} is defined in another function (and reads {read}), so that no cache can "
            "tell it from the next one of that name. Define it in the module, and pass what it reads in `arguments`"
        )
    if isinstance(function, BuiltinFunctionType):
        if function.__self__ is None or isinstance(function.__self__, ModuleType):
            return
    elif callable(function) and is_dataclass(function):
        check_values(name, [function])
        return
    raise NotAValueError(
        f"{name}: {function!r} is no function of a module. Pass one, and what it is called with in `arguments`"
    )


def check_values(name: str, values: Iterable[Any]) -> None:
    """Raises NotAValueError for what is no value: one is immutable, and equal to another one exactly if both mean the
    same. Numbers, strings, data types, expressions, functions of modules; tuples and frozen dataclasses of values.
    """
    for value in values:
        if isinstance(value, ATOMS):
            continue
        if isinstance(value, (tuple, frozenset)):
            check_values(name, value)
        elif is_dataclass(value):
            parameters: Any = type(value).__dict__["__dataclass_params__"]
            if not (parameters.frozen and parameters.eq):
                raise NotAValueError(f"{name}: {type(value).__name__} is no value: it can change, or has no equality")
            check_values(name, [getattr(value, field.name) for field in fields(value)])
        elif callable(value):
            check_function(name, value)
        else:
            raise NotAValueError(
                f"{name}: {type(value).__name__} is no value: {value!r}. Pass what the code depends on as numbers, "
                "strings, tuples and frozen dataclasses"
            )
