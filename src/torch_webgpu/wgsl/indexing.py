"""Index arithmetic: the number of a thread, the coordinates of a point, the numbers of the elements that lie there.

A point's row-major number in its iteration space comes apart into coordinates by division; an argument's element number
is its offset plus coordinates times strides. Memory moves at full speed only in 16-byte pieces, so elements are moved
in *fours* where they are groups of four of their buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Spec
from torch_webgpu.layout import Shape, contiguous_strides

from .launch import WORKGROUP, ParamList, Source

QUAD = 4
LANES = "xyzw"
ENTRY = f"@compute @workgroup_size({WORKGROUP})"
GROUPS = (
    ENTRY,
    "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
    "        @builtin(local_invocation_index) lid: u32) {",
    "  let group = wid.y * nwg.x + wid.x;",
)
"""How an entry point begins: ``group`` is the number of its workgroup, ``lid`` that of a thread there."""
MAIN = (*GROUPS, f"  let t = group * {WORKGROUP}u + lid;")


def ahead(number: str, count: int) -> str:
    """``number`` plus ``count``."""
    return f"{number} + {count}u" if count else number


def split_number(number: str, axes: Iterable[tuple[str, str, str]], slowest: str) -> list[str]:
    """Statements that split a row-major number into coordinates.

    ``axes``: from the fastest on, what the coordinate is called, what the rest is called, and the size; ``slowest``:
    what the coordinate is called that has no size.
    """
    lines = []
    for coordinate, rest, size in axes:
        lines += [f"  let {coordinate} = {number} % {size};", f"  let {rest} = {number} / {size};"]
        number = rest
    return [*lines, f"  let {slowest} = {number};"]


def stride_terms(
    coordinates: Mapping[int, str], strides: Shape, param: Callable[[int], str], dense: Sequence[int]
) -> list[str]:
    """What the ``coordinates`` of some dimensions add to an element number.

    ``param``: the WGSL of a dimension's stride, for which a stride of 1 in the dimensions ``dense`` has no need.
    """
    return [
        coordinate if strides[d] == 1 and d in dense else f"{coordinate} * {param(d)}"
        for d, coordinate in coordinates.items()
        if strides[d]
    ]


def in_fours(spec: Spec, stride: int, others: Iterable[tuple[int, int]]) -> bool:
    """Whether every four neighbours along a dimension with this stride are a group of four of their buffer.

    ``others``: the strides and sizes of the other dimensions.
    """
    movable = stride == 1 and spec.aligned and BY_NAME[spec.dtype].itemsize <= 4
    return movable and all(s % QUAD == 0 for s, n in others if n > 1)


def all_inside(base: str, numel: str) -> str:
    """Which of the four points from ``base`` on exist."""
    return f"vec4<bool>({', '.join(f'{base} + {e}u < {numel}' for e in range(QUAD))})"


@dataclass(frozen=True)
class Quad:
    """An argument's elements at four consecutive points: WGSL of their numbers, one if it is always the same.

    ``fours``: they are elements 4g to 4g + 3 of the buffer.
    """

    elements: tuple[str, ...]
    fours: bool = False

    @property
    def group(self) -> str:
        """The number of their group of four."""
        return f"({self.elements[0]}) / {QUAD}u"


class Indexing:
    """How each argument's element number follows from a point's row-major number ``i`` in the iteration space.
    ``dims``: where the dimensions that the operation counts are in it, if it asks for coordinates.
    """

    def __init__(
        self, sizes: Shape, strides: Sequence[Shape], params: ParamList, dims: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.sizes = sizes
        self.strides = strides
        self.params = params
        self.rank = len(sizes)
        self.dims = dims

    def layout(self, k: int) -> str:
        """ "linear" (element ``i``), "scalar" (always element 0) or "strided"."""
        if all(s == 0 or n == 1 for s, n in zip(self.strides[k], self.sizes, strict=True)):
            return "scalar"
        return "linear" if self.strides[k] == contiguous_strides(self.sizes) else "strided"

    def coordinates(self) -> list[str]:
        """Statements that split ``i`` into coordinates ``c0…``."""
        last = self.rank - 1
        if not last:
            return ["  let c0 = i;"]
        axes = [(f"c{d}", f"r{d - 1}", self.params.add(f"n{d}", self.sizes[d])) for d in range(last, 0, -1)]
        return [f"  let r{last} = i;", *split_number(f"r{last}", axes, "c0")]

    def index(self, dim: int) -> str:
        """The WGSL of a coordinate as the operation counts dimensions."""
        return f"i32(c{self.dims[dim]})" if dim in self.dims else "0i"

    def element(self, k: int, arg: int) -> str:
        """The WGSL of argument ``k``'s element number; ``arg`` is the argument its offset belongs to."""
        offset = self.offset(k, arg)
        kind = self.layout(k)
        if kind == "scalar":
            return offset
        if kind == "linear":
            return f"{offset} + i"
        return " + ".join([offset, *self.terms(k, {d: f"c{d}" for d in range(self.rank)})])

    def offset(self, k: int, arg: int) -> str:
        return self.params.add(f"o{k}", Source("offset", arg))

    def stride(self, k: int, d: int) -> str:
        return self.params.add(f"t{k}_{d}", self.strides[k][d])

    def terms(self, k: int, coordinates: Mapping[int, str]) -> list[str]:
        """What the ``coordinates`` of some dimensions add to argument ``k``'s element number."""
        return stride_terms(coordinates, self.strides[k], lambda d: self.stride(k, d), (self.rank - 1,))

    def quad(self, k: int, spec: Spec, first: Mapping[int, str], linear: str = "", limit: str = "") -> Quad:
        """Argument ``k``'s elements at four points, ``first`` being the coordinates of the first of them.

        ``linear``: the number of the first, if known. ``limit``: the last coordinate there is, if the innermost
        dimension need not consist of whole groups of four.
        """
        offset, last, layout = self.offset(k, k), self.rank - 1, self.layout(k)
        if layout == "scalar":
            return Quad((offset,))
        if linear and layout == "linear":
            head, coordinate = [offset], linear
        else:
            head, coordinate = [offset, *self.terms(k, {d: c for d, c in first.items() if d != last})], first[last]
        inner = self.strides[k][-1]
        if not inner:
            return Quad((" + ".join(head),))
        fours = self.in_fours(k, spec)
        step = "" if inner == 1 else f" * {self.stride(k, last)}"
        elements = []
        for e in range(QUAD):
            at = ahead(coordinate, e)
            if limit and not fours:
                at = f"min({at}, {limit})"
            elif step:
                at = f"({at})"
            elements.append(" + ".join([*head, at + step]))
        return Quad(tuple(elements), fours)

    def in_fours(self, k: int, spec: Spec, inner: int = -1) -> bool:
        """Whether argument ``k``'s elements along dimension ``inner`` are groups of four of its buffer."""
        inner %= self.rank
        others = [(s, n) for d, (s, n) in enumerate(zip(self.strides[k], self.sizes, strict=True)) if d != inner]
        whole = self.rank == 1 or self.sizes[inner] % QUAD == 0
        return whole and in_fours(spec, self.strides[k][inner], others)
