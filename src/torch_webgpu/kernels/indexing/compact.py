"""Stream compaction: what lies where a mask is true, or its coordinates, in row-major order.

First the true elements of each block of the mask are counted, and the counts added up; the host reads the last of those
sums and makes the result. Then each block writes what it has from the sum of those before it on.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, arithmetic
from torch_webgpu.kernels.template import render
from torch_webgpu.layout import Shape
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import bind, store_mode
from torch_webgpu.wgsl.indexing import Indexing
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered, ParamList, Source

BLOCK = 16 * WORKGROUP
"""Neighbours of a mask that a workgroup has."""


def blocks_of(n: int) -> int:
    """The blocks of a mask of ``n`` elements."""
    return -(-n // BLOCK)


def lower_starts(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For arguments (contiguous mask (n), int32 starts (``blocks_of(n) + 1``)): how many true elements there are before
    each block, and in all.
    """
    blocks = blocks_of(op.args[0].shape[0])
    params = _Params(op, mask=0, starts=1)
    bindings = (Binding("mask", "bool"), Binding("starts", "i32", "read_write"))
    count = params.launch_part("count", [params.four_at("mask")], bindings, (0, 1), blocks)
    params = _Params(op, starts=1)
    params.add("blocks", blocks)
    return Lowered((count, params.launch_part("starts", [], bindings[1:], (1,), 1)))


def lower_coordinates(op: Operation, alias: tuple[int, ...], target: Target, shape: Shape) -> Lowered:
    """For arguments (contiguous mask, its starts, int64 coordinates of shape ``(n, len(shape))``): a row for each true
    element of the mask, which has ``shape``. Rows beyond ``n`` are dropped.
    """
    params = _Params(op, mask=0, starts=1, out=2)
    row_stride, column_stride = (params.add(f"{k}_stride", s) for k, s in zip(("row", "column"), op.args[2].strides))
    bindings, names, order = bind(op.args, alias, 2, {2: "plain"})
    lines = [
        *Indexing(shape, [], params).coordinates(),
        *[
            f"  {names[2]}_store(P.out_offset + row * {row_stride} + {d}u * {column_stride}, i64_from_u32(c{d}));"
            for d in range(len(shape))
        ],
    ]
    return _rows(params, names[0], names[1], lines, bindings, order)


def lower_selected(op: Operation, alias: tuple[int, ...], target: Target, shape: Shape, strides: Shape) -> Lowered:
    """For arguments (data, contiguous mask, its starts, the selected elements): each element where the mask is true.

    The data has ``strides`` over ``shape``. What is beyond the number of the selected is dropped.
    """
    params = _Params(op, mask=1, starts=2, out=3)
    bindings, names, order = bind(op.args, alias, 3, {3: store_mode(op.args[3], "strided", target.float16)})
    indexing = Indexing(shape, [strides], params)
    lines = [
        *(indexing.coordinates() if indexing.layout(0) == "strided" else ()),
        f"  {names[3]}_store(P.out_offset + row, {names[0]}_load({indexing.element(0, 0)}));",
    ]
    return _rows(params, names[1], names[2], lines, bindings, order)


def lower_run_begins(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For arguments (elements (n), contiguous bool (n)): which elements differ from the one before, the first too."""
    elements, begins = op.args
    kernel = PointKernel(op.name, target, ("w",))
    kernel.add(arithmetic(elements.dtype, "ne"))
    kernel.input("x", 0, elements)
    kernel.output("begins", 1, begins)
    differs = "t_ne(x_load(x_at(w)), x_load(x_at(max(w, 1u) - 1u)))"
    return Lowered((kernel.launch(f"fn values(w: u32) -> Values {{ return Values(w == 0u || {differs}); }}"),))


class _Params(ParamList):
    """The parameters of a launch over a mask: its elements and blocks, rows of the result, and offsets of arguments."""

    def __init__(self, op: Operation, **arguments: int) -> None:
        super().__init__()
        for name, k in arguments.items():
            self.add(f"{name}_offset", Source("offset", k))
        if "mask" in arguments:
            self.mask = op.args[arguments["mask"]]
            self.add("n", self.mask.shape[0])
            self.add("blocks", blocks_of(self.mask.shape[0]))
        if "out" in arguments:
            self.add("rows", op.args[arguments["out"]].shape[0])

    def four_at(self, name: str) -> str:
        """WGSL of the mask's elements from a multiple of four on, whose binding is ``name``."""
        first = "P.mask_offset + i"
        if self.mask.aligned:
            value = f"{name}_load4(({first}) / 4u)"
        else:
            value = (
                f"vec4({', '.join(f'{name}_load(min({first} + {k}u, P.mask_offset + P.n - 1u))' for k in range(4))})"
            )
        return f"fn four_at(i: u32) -> vec4<bool> {{ return {value}; }}"

    def launch_part(
        self, part: str, prelude: Sequence[str], bindings: Sequence[Binding], order: Sequence[int], workgroups: int
    ) -> Launch:
        text = "\n".join([*prelude, render("indexing/compact", part=part, threads=WORKGROUP)])
        return self.launch(f"compact_{part}", text, bindings, order, workgroups * WORKGROUP)


def _rows(
    params: _Params, mask: str, starts: str, lines: Sequence[str], bindings: Sequence[Binding], order: Sequence[int]
) -> Lowered:
    """The launch that does ``lines`` for each true element ``i``, which is that of ``row``."""
    prelude = [
        params.four_at(mask),
        f"fn start_of(block: u32) -> u32 {{ return u32({starts}_load(P.starts_offset + block)); }}",
        "fn put(row: u32, i: u32) {",
        *lines,
        "}",
    ]
    blocks = blocks_of(params.mask.shape[0])
    return Lowered((params.launch_part("write", prelude, bindings, order, blocks),))
