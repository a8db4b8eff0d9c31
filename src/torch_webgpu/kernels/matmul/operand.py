"""Operands of blocked products: what a product asks of them, and those that are strided tensors.

Neighbours that lie side by side are *groups*: every line of them is whole, and starts where groups of the buffer do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.points import Draft, arithmetic, wgsl_source

RUN_BYTES = 16
"""The most that a thread moves at once."""
MATRIX = ("m", "n")
"""The coordinates of one matrix."""
COORDINATES = ("slice", *MATRIX)


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


Sides = tuple[Side, Side]
"""Those of a and b."""


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


@dataclass(frozen=True)
class Scale:
    """The powers of two that an operand is multiplied by, and the sums of its products by the inverse.

    ``by_line``: each row of a, or column of b, has one of its own, whose exponent is in argument ``argument``, and the
    operand lies in memory multiplied (:mod:`.halves`). Otherwise the operand has one, which the bits of its largest
    magnitude there decide, and the product multiplies what it loads (:mod:`.scaled`).
    """

    argument: int
    by_line: bool


class Operand(Protocol):
    """What a blocked product asks of operand ``x``: "a", of which it wants rows, or "b", of which it wants columns.

    All that a product knows of its operands is here: what lies in memory in another way, as a window of an image or
    packed bits with scales of their own, is a class that has these, and no product's text knows of it.
    """

    @property
    def x(self) -> str: ...

    @property
    def dtype(self) -> str:
        """What its elements are loaded as."""
        ...

    @property
    def element_bytes(self) -> float:
        """What an element takes in memory: a part of a byte, if bits are packed. It is for cost models of products that
        wait for memory; that of :mod:`.tile` counts multiplications alone.
        """
        ...

    @property
    def scale(self) -> Scale | None:
        """Of the operand or of its lines. Scales of other parts, which need not be powers of two, are the business of
        ``load``.
        """
        ...

    @property
    def tensor(self) -> Strided | None:
        """A tensor of the same elements, in any order, from which a launch finds the operand's scale, or writes it as
        halves; None where there is none.
        """
        ...

    def side(self, run: int) -> Side:
        """How it travels, in groups of ``run`` where it lies so."""
        ...

    def bind(self, kernel: Draft) -> None:
        """Gives ``kernel`` the operand's bindings, its parameters, and the functions that locate its elements."""
        ...

    def load(self, side: Side, run: Run) -> Sequence[str]:
        """The WGSL that loads its elements, ``side`` being how they travel for the chosen tile:

        * ``alias <X>Row``, ``fn <x>_row(slice: u32, row: u32) -> <X>Row``: what is fixed for a row (or column)
        * ``alias <X>Step``, ``fn <x>_step(slice: u32, k: u32) -> <X>Step``: what is fixed for a position of the sum
        * ``fn <x>_value(row: <X>Row, step: <X>Step) -> T`` or, if ``side.runs``,
          ``fn <x>_run(row: <X>Row, step: <X>Step) -> <run.type>``: the ``run.length`` elements from there on

        A text that it has in common with the other operand, such as a file that is about both, is there once.
        """
        ...


def load_texts(operands: Iterable[Operand], sides: Sides, run: Run) -> list[str]:
    """The WGSL that loads the elements of all ``operands``."""
    side_of = {side.x: side for side in sides}
    return [*dict.fromkeys(text for operand in operands for text in operand.load(side_of[operand.x], run))]


def reader(side: Side, name: str, run: Run) -> str:
    """``<x>_run`` or ``<x>_value`` of an operand whose rows and steps are element numbers of ``name`` to be added."""
    if side.runs:
        return f"fn {side.x}_run(row: u32, step: u32) -> {run.type} {{ return {run.loaded(name, 'row + step')}; }}"
    return f"fn {side.x}_value(row: u32, step: u32) -> T {{ return {name}_load(row + step); }}"


@dataclass(frozen=True)
class Strided:
    """Operand ``x`` that is a tensor, argument ``arg``: a (B, M, K) or b (B, K, N), of any strides."""

    x: str
    arg: int
    spec: Spec

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def scale(self) -> None:
        return None

    @property
    def element_bytes(self) -> float:
        return BY_NAME[self.dtype].itemsize

    @property
    def tensor(self) -> Strided:
        return self

    @property
    def inner(self) -> int:
        """The dimension that is summed over."""
        return {"a": 2, "b": 1}[self.x]

    @property
    def outer(self) -> int:
        return 3 - self.inner

    @property
    def slices(self) -> int:
        return self.spec.shape[0]

    @property
    def rows(self) -> int:
        """Columns, of b."""
        return self.spec.shape[self.outer]

    @property
    def k(self) -> int:
        return self.spec.shape[self.inner]

    def side(self, run: int) -> Side:
        major = k_major(self.spec, self.inner, self.outer)
        return Side(self.x, major, in_groups(self.spec, self.inner if major else self.outer, run))

    def bind(self, kernel: Draft) -> None:
        kernel.input(self.x, self.arg, self.spec, MATRIX)

    def load(self, side: Side, run: Run) -> list[str]:
        """``matmul.wgsl`` is about both operands. The other one declares ``<x>_at`` and ``<x>_delta`` as well."""
        return [wgsl_source("matmul/matmul"), reader(side, self.x, run)]


def matrix_draft(dtype: str, slices: int) -> Draft:
    """A kernel over matrices of ``dtype``, as yet without operands."""
    kernel = Draft(COORDINATES, frozenset({"slice"}) if slices == 1 else frozenset())
    kernel.add(arithmetic(dtype, "add", "mul"))
    return kernel


def tensors_draft(tensors: Sequence[Strided]) -> tuple[Draft, Sides]:
    """A kernel that reads the words of a and b, which are of one type, and how they travel."""
    a, b = tensors
    run = words_of(a.dtype)
    sides = a.side(run.length), b.side(run.length)
    kernel = matrix_draft(a.dtype, a.slices)
    for tensor in tensors:
        tensor.bind(kernel)
    kernel.add(*load_texts(tensors, sides, run))
    return kernel, sides
