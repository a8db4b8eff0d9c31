"""The parts of a plan as JSON has them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

from .steps import Clear, Offset, Random, Scalar, Step, TensorSpec, Word

_SOURCES: dict[str, type[Offset] | type[Scalar] | type[Random]] = {"offset": Offset, "scalar": Scalar, "random": Random}


def spec_from_data(data: Sequence[Any]) -> TensorSpec:
    buffer, byte_offset, dtype, shape, strides = data
    return TensorSpec(buffer, byte_offset, dtype, tuple(shape), tuple(strides))


def kernel_to_data(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "body": kernel.body,
        "bindings": [[b.name, b.dtype, b.access, b.mode] for b in kernel.bindings],
        "params": [[p.name, p.type] for p in kernel.params],
        "workgroup_size": list(kernel.workgroup_size),
        "trusted": kernel.trusted,
    }


def kernel_from_data(data: dict[str, Any], trusted: bool) -> Kernel:
    """A kernel; ``trusted``: it may say that its indices are all in range."""
    return Kernel(
        data["name"],
        data["body"],
        tuple([Binding(*b) for b in data["bindings"]]),
        tuple([Param(*p) for p in data["params"]]),
        tuple(data["workgroup_size"]),
        trusted and data["trusted"] is True,
    )


def step_to_data(step: Step | Clear) -> list[Any]:
    if isinstance(step, Clear):
        return [step.buffer, step.size_bytes]
    return [step.kernel, list(step.bindings), [_word_to_data(w) for w in step.words], list(step.grid)]


def step_from_data(data: Sequence[Any]) -> Step | Clear:
    if len(data) == 2:
        return Clear(*data)
    kernel, bindings, words, grid = data
    return Step(kernel, tuple(bindings), tuple([_word_from_data(w) for w in words]), tuple(grid))


def _word_to_data(word: Word) -> int | list[Any]:
    return word if isinstance(word, int) else [type(word).__name__.lower(), *astuple(word)]


def _word_from_data(data: int | Sequence[Any]) -> Word:
    return data if isinstance(data, int) else _SOURCES[data[0]](*data[1:])
