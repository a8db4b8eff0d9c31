"""Operands of blocked products: how they lie in memory, and the functions that read them.

Neighbours that lie side by side are *groups*: every line of them is whole, and starts where groups of the buffer do.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Spec

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

    ``k_major``: it is contiguous along the sum, not across it; ``runs``: it lies in groups that are loaded at once (see
    :class:`Run`), not gathered from their numbers.
    """

    x: str
    k_major: bool
    runs: bool


@dataclass(frozen=True)
class Run:
    """Neighbours that are loaded at once: how many numbers, the WGSL type that holds them, and the expression that
    loads those from ``{element}`` of binding ``{name}`` on.
    """

    length: int
    type: str
    load: str

    def loaded(self, name: str, element: str) -> str:
        return self.load.format(name=name, element=element)


FOUR = Run(4, "vec4<T>", "{name}_load4(({element}) / 4u)")
"""Four numbers, in the type that products are computed in."""


def words_of(dtype: str) -> Run:
    """``RUN_BYTES`` as they lie in memory."""
    length = run_of(dtype)
    if BY_NAME[dtype].itemsize == 4:
        return Run(length, "vec4<u32>", "bitcast<vec4<u32>>({name}_load4(({element}) / 4u))")
    if BY_NAME[dtype].itemsize == 1:  # which start at multiples of 4 bytes (see Spec)
        words = ", ".join(f"{{name}}_load_word(({{element}}) / 4u + {e}u)" for e in range(4))
        return Run(length, "vec4<u32>", f"vec4<u32>({words})")
    return Run(length, "vec4<u32>", f"{{name}}_load_words4(({{element}}) / {length}u)")


def reader(side: Side, name: str, run: Run) -> str:
    """``<x>_run`` or ``<x>_value`` of an operand whose rows and steps are element numbers of ``name`` to be added."""
    if side.runs:
        return f"fn {side.x}_run(row: u32, step: u32) -> {run.type} {{ return {run.loaded(name, 'row + step')}; }}"
    return f"fn {side.x}_value(row: u32, step: u32) -> T {{ return {name}_load(row + step); }}"
