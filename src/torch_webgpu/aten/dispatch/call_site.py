"""Which function of PyTorch's the program called, and where, as of an operator that is running: for what people read.

``torch.linalg.cond`` runs ``aten._linalg_svd.U``, which nobody called. The Python stack tells where the program ends
and PyTorch begins. What was called there is a Python function of PyTorch's, whose frame is on the stack, or one in C,
which only the program's source names; where neither tells, the operator's name does. This takes a millisecond: not
for every call.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from linecache import getlines
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.overrides import get_testing_overrides, resolve_name

OURS = __name__.partition(".")[0]
PYTORCH = frozenset({"torch", OURS, *sys.stdlib_module_names})
"""The top-level packages that are no part of the program; Python's own stand between PyTorch's decorators."""

AUTOGRAD = "torch.autograd"
VARIANTS = ("_ex", "_impl", "_helper", "_forward", "_cpu")
"""What operators' names may have more than those of the functions that call them."""


class Called(NamedTuple):
    """A function by its public name, and the program's frame that called it: None where nothing of it is running."""

    function: str
    frame: FrameType | None


def called(operator: str) -> Called:
    """What the program called, as of the operator of this name (``aten._linalg_svd.U``) that is running."""
    inner: list[FrameType] = []  # PyTorch's and ours, the innermost first
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and top_package(frame) in PYTORCH:
        inner.append(frame)
        frame = frame.f_back
    if any(module_of(f).startswith(AUTOGRAD) for f in inner):
        return Called(public_name(operator), frame)
    function = next((name for f in reversed(inner) if (name := python_functions().get(f.f_code))), None)
    if function is None:
        outermost = next(f for f in reversed(inner) if top_package(f) == OURS)
        function = function_in_source(outermost.f_back)
    return Called(function or public_name(operator), frame)


def program_line() -> str:
    """The line of the program that runs now, as ``train.py:33``; empty in a thread that runs none of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and top_package(frame) in PYTORCH:
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "torch")  # code that PyTorch generates is in no module


def top_package(frame: FrameType) -> str:
    return module_of(frame).partition(".")[0]


def functions() -> Iterator[tuple[Callable[..., Any], str]]:
    """PyTorch's public functions and methods, and their names."""
    for function in get_testing_overrides():
        name = resolve_name(function)
        if name is not None and not name.rpartition(".")[2].startswith("_"):
            yield function, name.replace("torch.functional.", "torch.")


@cache
def python_functions() -> dict[CodeType, str]:
    """The public names of those that are written in Python."""
    found = ((inspect.unwrap(function), name) for function, name in functions())
    return {f.__code__: name for f, name in found if inspect.isfunction(f) and not is_generic(f)}


def is_generic(function: Any) -> bool:
    """Whether it is what PyTorch makes several functions with, as ``torch.nn.functional.max_pool2d``."""
    return function.__module__ == "torch._jit_internal"


@cache
def functions_by_name() -> dict[str, str]:
    """Their public names by those that operators have, ``linalg_svd``; functions before methods."""
    names: dict[str, str] = {}
    for function, name in functions():
        for key in (getattr(function, "__name__", ""), name.rpartition(".")[2]):
            if key not in names or names[key].startswith("torch.Tensor."):
                names[key] = name
    return names


def public_name(operator: str) -> str:
    """The function that an operator is for: ``torch.linalg.svd`` for ``aten._linalg_svd.U``."""
    namespace, _, rest = operator.replace("::", ".").partition(".")
    name = rest.partition(".")[0]
    if namespace != "aten":
        return f"{namespace}.{name}"
    plain = name.strip("_")
    forward, backward, _ = plain.partition("_backward")
    for candidate in (forward, *[forward.removesuffix(v) for v in VARIANTS], f"{forward}_"):
        if found := functions_by_name().get(candidate):
            return f"the gradient of {found}" if backward else found
    if backward:
        return f"the gradient of {forward}"
    return f"torch.{name}" if hasattr(torch, name) else plain


def function_in_source(frame: FrameType | None) -> str | None:
    """The function of PyTorch's in C that a frame is calling, as its source names it; None where that tells nothing."""
    node = expression_at(frame) if frame is not None else None
    if frame is None or not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        value = {**frame.f_globals, **frame.f_locals}.get(node.func.id)
        return public_name_of(value)
    if not isinstance(node.func, ast.Attribute):
        return None
    leaf, owner = node.func.attr, module_named(node.func.value, frame)
    if owner is not None:
        return public_name_of(getattr(owner, leaf, None))
    return public_name_of(getattr(torch.Tensor, leaf, None))


def public_name_of(value: Any) -> str | None:
    """A function's public name, if it is one of PyTorch's."""
    return next((name for function, name in functions() if function is value), None)


def module_named(node: ast.expr, frame: FrameType) -> ModuleType | None:
    """The module that an expression like ``torch.linalg`` names in a frame; nothing of the program's is run for it."""
    if isinstance(node, ast.Name):
        value = {**frame.f_globals, **frame.f_locals}.get(node.id)
    elif isinstance(node, ast.Attribute):
        owner = module_named(node.value, frame)
        value = None if owner is None else vars(owner).get(node.attr)
    else:
        return None
    return value if isinstance(value, ModuleType) else None


def expression_at(frame: FrameType) -> ast.expr | None:
    """What a frame is evaluating, from its source."""
    positions = frame.f_code.co_positions()
    line, last, column, end = next(islice(positions, frame.f_lasti // 2, None), (None, None, None, None))
    lines = [text.encode() for text in getlines(frame.f_code.co_filename, frame.f_globals)]
    if line is None or last is None or column is None or end is None or last > len(lines):
        return None
    source = lines[line - 1 : last]
    source[-1] = source[-1][:end]
    source[0] = source[0][column:]
    try:
        return ast.parse(b"(" + b"".join(source) + b")", mode="eval").body
    except SyntaxError:
        return None
