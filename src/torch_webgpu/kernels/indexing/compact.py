"""Stream compaction: what lies where a mask is true, or its coordinates, in row-major order."""

from __future__ import annotations

from math import prod

from torch_webgpu.ir.operation import Operation
from torch_webgpu.layout import Shape
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import bind, per_point, store_mode
from torch_webgpu.wgsl.indexing import Indexing
from torch_webgpu.wgsl.launch import Lowered, ParamList, Source


def lower_coordinates(op: Operation, alias: tuple[int, ...], target: Target, shape: Shape) -> Lowered:
    """For arguments (mask, its inclusive running count as int32, int64 coordinates of shape ``(n, len(shape))``).

    Mask and running count are contiguous with ``prod(shape)`` elements. Row ``count - 1`` of the coordinates is written
    for every true element; rows beyond ``n`` are dropped.
    """
    params = ParamList()
    numel = params.add("numel", prod(shape))
    rows = params.add("rows", op.args[2].shape[0])
    row_stride, column_stride = (params.add(f"{k}_stride", s) for k, s in zip(("row", "column"), op.args[2].strides))
    mask, count, out = (params.add(name, Source("offset", k)) for k, name in enumerate(("mask", "count", "out")))
    bindings, names, order = bind(op.args, alias, 2, {2: "plain"})
    indexing = Indexing(shape, [], params)
    stores = [
        f"  {names[2]}_store({out} + row * {row_stride} + {d}u * {column_stride}, i64_from_u32(c{d}));"
        for d in range(len(shape))
    ]
    lines = [
        f"  if (!{names[0]}_load({mask} + i)) {{ return; }}",
        f"  let row = u32({names[1]}_load({count} + i)) - 1u;",
        f"  if (row >= {rows}) {{ return; }}",
        *indexing.coordinates(),
        *stores,
    ]
    return Lowered((params.launch(op.name, per_point(lines, numel), bindings, order, prod(shape)),))


def lower_selected(op: Operation, alias: tuple[int, ...], target: Target, shape: Shape, strides: Shape) -> Lowered:
    """For arguments (data, mask, its inclusive running count as int32, the selected elements).

    The data has ``strides`` over ``shape``; mask and running count are contiguous with as many elements. Element
    ``count - 1`` of the selected is written for every true one; what is beyond their number is dropped.
    """
    params = ParamList()
    numel = params.add("numel", prod(shape))
    rows = params.add("rows", op.args[3].shape[0])
    mask, count, out = (params.add(name, Source("offset", k)) for k, name in enumerate(("mask", "count", "out"), 1))
    mode = store_mode(op.args[3], "strided", target.float16)
    bindings, names, order = bind(op.args, alias, 3, {3: mode})
    indexing = Indexing(shape, [strides], params)
    lines = [
        f"  if (!{names[1]}_load({mask} + i)) {{ return; }}",
        f"  let row = u32({names[2]}_load({count} + i)) - 1u;",
        f"  if (row >= {rows}) {{ return; }}",
        *(indexing.coordinates() if indexing.layout(0) == "strided" else ()),
        f"  {names[3]}_store({out} + row, {names[0]}_load({indexing.element(0, 0)}));",
    ]
    return Lowered((params.launch(op.name, per_point(lines, numel), bindings, order, prod(shape)),))
