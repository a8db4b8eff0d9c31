"""Pointwise kernels: from expressions and layouts to a launch.

Sizes, strides, offsets and scalars are parameters, so one kernel serves every shape of the same rank and kind of
layout. Each thread owns a run of consecutive points, so that it owns whole 32-bit words of packed outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Operation, Pointwise, Spec
from torch_webgpu.layout import Shape, broadcast_strides, collapse, iteration_order

from .builder import Packed, bind, packed_text, per_point, store_mode
from .code_size import MAX_UNROLLED, code_size
from .expr import convert, emit_stored
from .indexing import QUAD, Indexing
from .launch import Launch, ParamList
from .quad_runs import build_runs, takes_runs
from .quads import QuadWriter, build_quads
from .transposed import build_transposed, find_turn


def build_pointwise(op: Operation, alias: tuple[int, ...], native_f16: bool) -> Launch:
    """A pointwise operation. ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    body = op.body
    assert isinstance(body, Pointwise)
    shape = op.outputs[0].shape
    leaves = [e for e in walk(body.roots) if e.op in ("load", "param", "index", "linear")]
    in_order = any(e.op == "index" for e in leaves)
    linear = any(e.op == "linear" for e in leaves)
    first = Spec("f32", shape, tuple(range(len(shape), 0, -1))) if linear else op.outputs[0]
    sizes, strides, dims = points(shape, op.args, first, in_order)
    params = ParamList()
    indexing = Indexing(sizes, strides, params, dims)
    one_by_one = QUAD * code_size(body.roots) > MAX_UNROLLED
    by_four = not one_by_one and moves_by_four(op, indexing)
    outputs = range(op.n_inputs, len(op.args))
    turns = by_four and not linear and not in_order and all(indexing.layout(k) == "linear" for k in outputs)
    if turns and (turn := find_turn(op, sizes, strides)) is not None:
        return build_transposed(QuadWriter(op, alias, indexing), turn)
    numel = params.add("numel", prod(shape))
    if by_four:
        writer = QuadWriter(op, alias, indexing)
        return build_runs(writer, numel) if takes_runs(writer) else build_quads(writer, numel)

    modes = {k: store_mode(op.args[k], indexing.layout(k), native_f16) for k in outputs}
    bindings, names, order = bind(op.args, alias, op.n_inputs, modes)
    scalars = params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])

    def leaf(e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            return convert(f"{names[k]}_load({indexing.element(k, k)})", op.args[k].dtype, e.dtype, fits=True)
        if e.op == "param":
            return scalars[e.args[0]]
        return "i" if e.op == "linear" else indexing.index(e.args[0])

    lines, values = emit_stored(body.roots, [spec.dtype for spec in op.outputs], leaf)
    strided = any(indexing.layout(k) == "strided" for k in range(len(op.args)))
    coordinates = indexing.coordinates() if strided or in_order else []
    stores = [
        f"  packed.y{k} = {value};" if modes[k] == "word" else f"  {names[k]}_store({indexing.element(k, k)}, {value});"
        for k, value in zip(outputs, values, strict=True)
    ]
    words = [Packed(names[k], op.args[k].dtype, f"y{k}", indexing.offset(k, k)) for k in outputs if modes[k] == "word"]
    run = max((word.per_word for word in words), default=1)
    point = [*coordinates, *lines, *stores]
    text = packed_text(words, point, numel, run, one_by_one) if words else per_point(point, numel)
    return params.launch(op.name, text, bindings, order, -(-prod(shape) // run))


def moves_by_four(op: Operation, indexing: Indexing) -> bool:
    """Whether every output lies in iteration order and starts at a multiple of four, or consists of groups of four as
    parts of tensors do (what ``cat`` fills, say), and some can be moved by fours.

    64-bit outputs are stored one by one. Of several dimensions the innermost must consist of groups of four.
    """
    outputs = {k: spec for k, spec in enumerate(op.args) if k >= op.n_inputs}

    def in_groups(k: int, spec: Spec) -> bool:
        layout, is_wide = indexing.layout(k), BY_NAME[spec.dtype].itemsize > 4
        if layout == "linear":
            return spec.aligned or is_wide
        return layout == "strided" and (is_wide or indexing.in_fours(k, spec))

    even = indexing.rank == 1 or indexing.sizes[-1] % QUAD == 0
    narrow = any(BY_NAME[spec.dtype].itemsize <= 4 for spec in outputs.values())
    return even and narrow and all(in_groups(k, spec) for k, spec in outputs.items())


def points(
    shape: Shape, args: Sequence[Spec], first: Spec, in_order: bool
) -> tuple[Shape, list[Shape], Mapping[int, int]]:
    """The iteration space of ``args`` broadcast to ``shape``, in the memory order of ``first``; ``in_order`` with all
    dimensions but those of size 1, and where each of them is.
    """
    strides = [broadcast_strides(spec.shape, spec.strides, shape) for spec in args]
    if not in_order:
        order = iteration_order(shape, broadcast_strides(first.shape, first.strides, shape))
        return *collapse(shape, strides, order), {}
    dims = [d for d, size in enumerate(shape) if size != 1]
    if not dims:
        return (1,), [(0,) for _ in strides], {}
    sizes, steps = tuple([shape[d] for d in dims]), [tuple([s[d] for d in dims]) for s in strides]
    return sizes, steps, {d: k for k, d in enumerate(dims)}
