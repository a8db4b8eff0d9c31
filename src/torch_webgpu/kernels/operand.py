"""Operands of blocked products: how they lie in memory, and the functions that read them.

Neighbours that lie side by side are *groups*: every line of them is whole, and starts where groups of the buffer do.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Spec

RUN_BYTES = 16
"""The most that a thread moves at once."""


def run_of(dtype: str) -> int:
    """How many numbers ``RUN_BYTES`` hold."""
    return RUN_BYTES // BY_NAME[dtype].itemsize


def in_groups(spec: Spec, inner: int, size: int = 4) -> bool:
    """Whether every line along dimension ``inner`` consists of groups of ``size`` that lie like those of the buffer."""
    others = [stride for d, stride in enumerate(spec.strides) if d != inner and spec.shape[d] != 1]
    dense = spec.strides[inner] == 1 and spec.shape[inner] % size == 0
    return dense and spec.aligned and all(stride % size == 0 for stride in others)


def k_major(spec: Spec, inner: int, outer: int) -> bool:
    """Whether dimension ``inner``, which is summed over, is closer together in memory than ``outer``."""
    return spec.strides[inner] < spec.strides[outer] or spec.shape[outer] == 1


@dataclass(frozen=True)
class Side:
    """How operand ``x`` ("a" or "b") of a blocked product travels.

    ``k_major``: it is contiguous along the sum, not across it; ``runs``: it lies in groups of 16 bytes, which are
    loaded as they are, not gathered from their numbers.
    """

    x: str
    k_major: bool
    runs: bool


def load_run(name: str, dtype: str, element: str) -> str:
    """WGSL of the 16 bytes from ``element`` of binding ``name`` on, as a ``vec4<u32>``."""
    if BY_NAME[dtype].itemsize == 1:  # which start at multiples of 4 bytes (see Spec)
        return f"vec4<u32>({', '.join(f'{name}_load_word(({element}) / 4u + {e}u)' for e in range(4))})"
    return f"{name}_load_words4(({element}) / {run_of(dtype)}u)"


def reader(side: Side, name: str, dtype: str) -> str:
    """``<x>_run`` or ``<x>_value`` of an operand whose rows and steps are element numbers of ``name`` to be added."""
    if side.runs:
        load = load_run(name, dtype, "row + step")
        return f"fn {side.x}_run(row: u32, step: u32) -> vec4<u32> {{ return {load}; }}"
    return f"fn {side.x}_value(row: u32, step: u32) -> T {{ return {name}_load(row + step); }}"
