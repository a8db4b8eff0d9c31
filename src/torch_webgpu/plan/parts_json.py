"""The parts of a plan as JSON has them, and back.

What is read is of the form that is written here, or ValueError says what is not; whether the parts fit together is for
:mod:`.verify` to say. A plan's text ends with a digest of all else in it, which finds what was damaged. It keeps nobody
from writing another plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from hashlib import sha256
from reprlib import repr as shown
from typing import Any, TypeVar

from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

from .steps import BufferSpec, Clear, Label, Offset, Random, Scalar, Step, TensorSpec, Word

Part = TypeVar("Part")
_SOURCES: dict[str, type[Offset] | type[Scalar] | type[Random]] = {"offset": Offset, "scalar": Scalar, "random": Random}
_KERNEL_KEYS = ("name", "body", "bindings", "params", "workgroup_size", "trusted")


# The whole text


def sealed(data: Mapping[str, object]) -> str:
    """Data as JSON, with a digest of it."""
    text = json.dumps(data, separators=(",", ":"))
    return f'{text[:-1]},"digest":"{_digest(text)}"}}'


def unsealed(text: str, format_: int, keys: Sequence[str]) -> dict[str, Any]:
    """The data that :func:`sealed` wrote, of this format and with these keys. ValueError for anything else."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_float=_refuse, parse_constant=_refuse)
        if not isinstance(data, dict) or "format" not in data:
            raise ValueError("its text is no JSON object with a format")
        if type(data["format"]) is not int or data["format"] != format_:
            raise ValueError(f"it is of format {shown(data['format'])}; this version reads format {format_}")
        digest = data.pop("digest", None)
        if digest is None:
            raise ValueError("it has no digest: its end is missing")
        if digest != _digest(json.dumps(data, separators=(",", ":"))):
            raise ValueError("this plan was changed after it was written: its digest is of another text")
    except RecursionError:
        raise ValueError("its text is nested too deeply") from None
    _check_keys(data, keys, "it")
    return data


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("an object of its text has one key twice")
    return data


def _refuse(text: str) -> Any:
    raise ValueError(f"{shown(text)} is no whole number")


def _check_keys(data: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    if missing := [key for key in keys if key not in data]:
        raise ValueError(f"{what} has no {', '.join(missing)}")
    if unknown := [key for key in data if key not in keys]:
        raise ValueError(f"{what} has {shown(unknown)}, which are not known")


# Values


def items(value: Any, what: str, count: int | None = None) -> list[Any]:
    """A list; ``count``: of so many values. ValueError for anything else, as of the functions below."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"{what} is {shown(value)}, which is no list{'' if count is None else f' of {count} values'}")
    return value


def integer(value: Any, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is {shown(value)}, which is no whole number")
    return value


def integers(value: Any, what: str) -> tuple[int, ...]:
    return tuple([integer(number, f"a number of {what}") for number in items(value, what)])


def text(value: Any, what: str) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shown(value)}, which is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {shown(value)}, which has half a character") from None
    return value


def flag(value: Any, what: str) -> bool:
    if type(value) is not int or value not in (0, 1):
        raise ValueError(f"{what} is {shown(value)}, which is neither 0 nor 1")
    return value == 1


def parts(value: Any, what: str, read: Callable[[Any, str], Part]) -> tuple[Part, ...]:
    """The values of a list, each read with what it is called."""
    return tuple([read(part, f"{what} {number}") for number, part in enumerate(items(value, f"the list of {what}s"))])


# Parts


def buffer_to_data(buffer: BufferSpec) -> list[Any]:
    return [buffer.size_bytes, buffer.role, int(buffer.donated), buffer.name]


def buffer_from_data(data: Any, what: str) -> BufferSpec:
    size, role_text, donated, name = items(data, what, 4)
    role: Any = text(role_text, f"the role of {what}")  # which ones there are is for verify to say
    return BufferSpec(
        integer(size, f"the size of {what}"),
        role,
        flag(donated, f"whether {what} is donated"),
        text(name, f"the name of {what}"),
    )


def spec_from_data(data: Any, what: str) -> TensorSpec:
    buffer, byte_offset, dtype, shape, strides = items(data, what, 5)
    return TensorSpec(
        integer(buffer, f"the buffer of {what}"),
        integer(byte_offset, f"the start of {what}"),
        text(dtype, f"the dtype of {what}"),
        integers(shape, f"the shape of {what}"),
        integers(strides, f"the strides of {what}"),
    )


def number_and_text(data: Any, what: str) -> tuple[int, str]:
    number, value = items(data, what, 2)
    return integer(number, f"the number of {what}"), text(value, f"the text of {what}")


def label_from_data(data: Any, what: str) -> Label:
    operation, size = items(data, what, 2)
    return Label(text(operation, f"the operation of {what}"), integer(size, f"the size of {what}"))


def kernel_to_data(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "body": kernel.body,
        "bindings": [[b.name, b.dtype, b.access, b.mode, *([b.type] if b.type else [])] for b in kernel.bindings],
        "params": [[p.name, p.type] for p in kernel.params],
        "workgroup_size": list(kernel.workgroup_size),
        "trusted": kernel.trusted,
    }


def kernel_from_data(data: Any, what: str, trusted: bool) -> Kernel:
    """A kernel; ``trusted``: it may say that its indices are all in range."""
    if not isinstance(data, dict):
        raise ValueError(f"{what} is {shown(data)}, which is no kernel")
    _check_keys(data, _KERNEL_KEYS, what)
    if type(data["trusted"]) is not bool:
        raise ValueError(f"whether {what} is trusted is {shown(data['trusted'])}, which is neither true nor false")
    size: Any = integers(data["workgroup_size"], f"the workgroup size of {what}")
    return Kernel(
        text(data["name"], f"the name of {what}"),
        text(data["body"], f"the body of {what}"),
        parts(data["bindings"], f"{what}'s binding", _binding),
        parts(data["params"], f"{what}'s parameter", _param),
        size,
        trusted and data["trusted"],
    )


def _binding(data: Any, what: str) -> Binding:
    count = 5 if isinstance(data, list) and len(data) == 5 else 4  # the fifth is the type of a variable
    names: list[Any] = [text(value, f"a part of {what}") for value in items(data, what, count)]
    return Binding(*names)


def _param(data: Any, what: str) -> Param:
    names: list[Any] = [text(value, f"a part of {what}") for value in items(data, what, 2)]
    return Param(*names)


def step_to_data(step: Step | Clear) -> list[Any]:
    if isinstance(step, Clear):
        return [step.buffer, step.size_bytes]
    return [step.kernel, list(step.bindings), [_word_to_data(w) for w in step.words], list(step.grid)]


def step_from_data(data: Any, what: str) -> Step | Clear:
    if len(items(data, what)) == 2:
        return Clear(*integers(data, what))
    kernel, bindings, words, grid = items(data, what, 4)
    size: Any = integers(grid, f"the grid of {what}")
    return Step(
        integer(kernel, f"the kernel of {what}"),
        integers(bindings, f"the buffers of {what}"),
        tuple([_word_from_data(word, what) for word in items(words, f"the parameters of {what}")]),
        size,
    )


def _word_to_data(word: Word) -> int | list[Any]:
    return word if isinstance(word, int) else [type(word).__name__.lower(), *astuple(word)]


def _word_from_data(data: Any, what: str) -> Word:
    if type(data) is int:
        return data
    kind, *numbers = items(data, f"a parameter of {what}") or [None]
    source = _SOURCES.get(kind) if isinstance(kind, str) else None
    if source is None or len(numbers) != len(fields(source)):
        raise ValueError(f"a parameter of {what} is {shown(data)}, which is none")
    return source(*integers(numbers, f"a parameter of {what}"))
