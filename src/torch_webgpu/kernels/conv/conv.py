"""Convolutions in one to three dimensions: forward, adjoint and weight gradient, as blocked products or one by one.

With x (N, C, *size), y (N, O, *size) and w (O, C / groups, *kernel), all of any strides:

* ``forward``: y = conv(x, w)
* ``adjoint``: x = convᵀ(y, w), which is a transposed convolution, and the gradient of the other's input
* ``weight``: the gradient of w from x and the gradient at y

each with an epilogue. Arguments of the operation: the operands, what the epilogue reads, its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd, prod
from operator import attrgetter

from torch_webgpu.caches import memoized
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul import matrix_tile, scaled
from torch_webgpu.kernels.matmul.epilogue import FINISH, NOT_TOGETHER, Epilogue
from torch_webgpu.kernels.matmul.matmul import lower_matmul
from torch_webgpu.kernels.matmul.matrix_tile import (
    HALF,
    LOW,
    QUARTER,
    MatrixTile,
    config_for,
    matrix_block_text,
    tiles_for,
)
from torch_webgpu.kernels.matmul.operand import FOUR, Run, Side, in_groups, reader, words_of
from torch_webgpu.kernels.matmul.register_tile import block_text, in_runs, most_together
from torch_webgpu.kernels.matmul.store_sums import accumulator, add_partials, partials_together, store_sums
from torch_webgpu.kernels.matmul.tile import LARGE, LIGHT, SMALL, block_params, blocking
from torch_webgpu.kernels.points import SPATIAL, Draft, PointKernel, absent, arithmetic, spatial, wgsl_source
from torch_webgpu.layout import is_dense
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.launch import MAX_GROUPS, Launch, Lowered

from .conv_pointwise import as_product
from .conv_problem import Conv, Geometry, conv_of

# Rows and columns take more registers here than in a matrix product: what HUGE and MEDIUM leave does not hold them.
TILES = (LARGE, LIGHT, SMALL)
# The same on matrices, where an operand is gathered from its numbers.
GATHERING = (HALF, QUARTER, LOW)
FEW_ROWS = 4
"""Up to so many channels in a group a blocked product is mostly padding, and slower unless sums are longer than …"""
SHORT_SUM = 128
WEIGHT_THREADS = 128
POSITIONS = (2, 3, 4)
"""The dimensions of a tensor that are positions, or taps."""
READ_THROUGH = {
    "forward": ("conv/conv_x",),
    "adjoint": ("conv/conv_phases", "conv/conv_y"),
    "weight": ("conv/conv_x",),
}


@memoized("convolutions", 1024)
def extern(mode: str, geometry: Geometry, dtype: str, bias: bool) -> Extern:
    """Operands: (x, w) for "forward", (y, w) for "adjoint", (y, x) for "weight", all of ``dtype``.

    ``bias``: a third input, which broadcasts to the output, is added.
    """
    result = ops.acc(0, accumulator(dtype))
    if bias:
        result += ops.to_dtype(ops.load(2, dtype), result.dtype)
    return Extern(lower_conv, (mode, geometry), operands=2, epilogue=(ops.to_dtype(result, dtype),))


def lower_conv(op: Operation, alias: tuple[int, ...], target: Target, mode: str, geometry: Geometry) -> Lowered:
    c = conv_of(op, mode, geometry)
    product = as_product(op, c) if c.kind == "f" else None
    if product is not None:
        return lower_matmul(product, alias, target)
    e = Epilogue(op, alias, SPATIAL, partial(spatial, dims=c.dims), absent(c.dims))
    few = c.rows <= FEW_ROWS and (c.depth * c.taps <= SHORT_SUM or c.mode == "weight")
    if c.kind == "f" and not few:
        return blocked(c, e, target)
    return Lowered((weight_direct(c, e) if mode == "weight" else direct(c, e, target),))


def direct(c: Conv, e: Epilogue, target: Target) -> Launch:
    kernel = point_kernel(f"conv_{c.mode}", c, e, target)
    for name in c.operands:
        kernel.input(name, c.args[name], c.specs[name])
    kernel.param("n" if c.flipped else "m", c.rows)
    e.give_outputs(kernel)
    kernel.add(*map(wgsl_source, READ_THROUGH[c.mode]))
    return kernel.launch(wgsl_source(f"conv/conv_{c.mode}_direct"))


def point_kernel(name: str, c: Conv, e: Epilogue, target: Target, phases: tuple[int, ...] | None = None) -> PointKernel:
    """A kernel whose ``values`` calls the epilogue's ``result``."""
    kernel = PointKernel(name, target, SPATIAL, absent(c.dims))
    kernel.add(*c.prelude(kernel.params, phases), wgsl_source("conv/conv"), *e.text(kernel.params))
    for binding, arg in e.inputs():
        kernel.binding(binding, arg)
    return kernel


def roles(c: Conv) -> list[str]:
    """What :mod:`..matmul.tile` asks of the product's operands a and b, by what they are."""
    text = []
    for role, x in (("linear", "b" if c.flipped else "a"), ("window", "a" if c.flipped else "b")):
        kind, own = {"linear": "u32", "window": "Window"}[role], x.upper()
        text += [f"alias {own}Row = {kind};", f"alias {own}Step = {kind};"]
        text.append(f"fn {x}_row(slice: u32, at: u32) -> {own}Row {{ return {role}_row(slice, at); }}")
        text.append(f"fn {x}_step(slice: u32, k: u32) -> {own}Step {{ return {role}_step(slice, k); }}")
    return text


def places(c: Conv) -> list[str]:
    """What :mod:`..matmul.epilogue` asks of the elements that sums belong to."""
    channel, column = ("n", "m") if c.flipped else ("m", "n")
    return [
        wgsl_source(f"conv/conv_{c.mode}_store"),
        f"fn place(slice: u32, m: u32, n: u32) -> Place {{ return element(slice, {channel}, {column}); }}",
        f"fn is_stored(slice: u32, m: u32, n: u32) -> bool {{ return is_element(slice, {column}); }}",
    ]


def draft(c: Conv, epilogue: Epilogue | None, partials: int = 0, widths: Mapping[int, int] = NOT_TOGETHER) -> Draft:
    """A kernel that stores sums by their row and column, but for its body; no epilogue leaves partial sums."""
    kernel = Draft(SPATIAL, absent(c.dims))
    kernel.add(*c.prelude(kernel.params, c.phases), wgsl_source("conv/conv"))
    for name in c.operands:
        kernel.input(name, c.args[name], c.specs[name])
    kernel.add(*map(wgsl_source, READ_THROUGH[c.mode]))
    store_sums(kernel, epilogue, c.kind, partials, places(c), widths)
    return kernel


def blocked(c: Conv, e: Epilogue, target: Target) -> Lowered:
    config = matrices_for(c, target)
    if config is not None and (tiles := tiles_for(target, config)):
        return on_matrices(c, e, target, config, tiles)
    return on_registers(c, e, target)


def matrices_for(c: Conv, target: Target) -> MatrixConfig | None:
    """The subgroup matrices that multiply the operands; None where the adapter has none that do."""
    operand = scaled.operand_for(c.dtype, prod(c.sizes))
    specs = [c.specs[name] for name in c.operands]
    if operand != c.dtype and not all(is_dense(s.shape, s.strides) for s in specs):
        return None
    return config_for(target, operand)


def on_registers(c: Conv, e: Epilogue, target: Target) -> Lowered:
    """The product by tiles whose sums each thread keeps by itself."""
    slices, m, n, k = c.sizes
    chosen = blocking(slices, m, n, k, TILES, target.software)
    split, partials = chosen.splits > 1, len(e.op.args)
    found = sides(c, FOUR.length)
    a, b = sorted(found, key=attrgetter("x"))
    a, b = in_runs(chosen.tile, a, b, target.software)
    linear, window = (b, a) if c.flipped else (a, b)
    most = most_together(chosen.tile, b)
    widths = {partials: partials_together(n, most)} if split else widths_of(c, e, target, most)
    together = max(widths.values(), default=1)
    w = draft(c, None if split else e, partials, widths)
    grid = block_params(w.params, chosen, slices, m, n, k)
    w.add(*body_of(c, linear, window, FOUR))
    heavy = target.software or (e.heavy and not split)
    main = block_text(chosen.tile, a, b, k % chosen.tile.k != 0, together, heavy)
    body = [*([] if together > 1 else [FINISH]), main]
    name = f"conv_{c.mode}_{chosen.tile.m}x{chosen.tile.n}"
    first = w.build(name, body, chosen.tile.threads, grid)
    return split_sum(c, e, target, chosen.splits, first) if split else Lowered((first,))


def widths_of(c: Conv, e: Epilogue, target: Target, most: int) -> dict[int, int]:
    """How many neighbours of each output are stored at once: columns of the sums are channels of a group or positions
    of the output, in order, but for those of weights and of phases.
    """
    if c.flipped:
        return e.widths(1, target, gcd(c.rows, most))
    return {} if c.mode == "weight" or prod(c.phases) > 1 else e.widths(4, target, most)


def on_matrices(c: Conv, e: Epilogue, target: Target, config: MatrixConfig, tiles: Sequence[MatrixTile]) -> Lowered:
    """:func:`blocked`, multiplied by subgroups."""
    slices, m, n, k = c.sizes
    words = words_of(c.dtype)
    linear, window = sides(c, words.length)
    a, b = sorted((linear, window), key=attrgetter("x"))
    if not (a.runs and b.runs):
        tiles = [tile for tile in tiles if tile in GATHERING] or tiles
    chosen = matrix_tile.blocking(slices, m, n, k, tiles)
    tile, split, partials = chosen.tile, chosen.splits > 1, len(e.op.args)
    widths = {partials: partials_together(n)} if split else widths_of(c, e, target, 4)
    together = max(widths.values(), default=1)
    w = draft(c, None if split else e, partials, widths)
    grid = block_params(w.params, chosen, slices, m, n, k)
    w.add(*body_of(c, linear, window, words))
    is_scaled, scales = c.dtype != config.operand, partials + split
    if is_scaled:
        scaled.read_scales(w, scales)
        if len(w.bindings) > target.max_buffers:
            return on_registers(c, e, target)
    main = matrix_block_text(tile, config, a, b, target, k % tile.k != 0, together, is_scaled)
    body = [*([] if together > 1 else [FINISH]), main]
    first = w.build(f"conv_{c.mode}_matrices_{tile.m}x{tile.n}", body, tile.threads(config), grid)
    lowered = split_sum(c, e, target, chosen.splits, first) if split else Lowered((first,))
    return lowered if not is_scaled else after_scales(c, lowered, scales)


def after_scales(c: Conv, product: Lowered, scales: int) -> Lowered:
    """The product after what finds the scales of its operands, which are dense."""
    looker = Draft(("slice", *scaled.MATRIX), frozenset({"slice"}))
    looker.add(arithmetic(c.dtype, "add", "mul"))
    names = (c.window, c.linear) if c.flipped else (c.linear, c.window)
    parts = [scaled.flat(looker, x, c.args[name], c.specs[name]) for x, name in zip("ab", names, strict=True)]
    looker.add(wgsl_source("matmul/matmul"))
    return scaled.after(scaled.largest_launch(looker, parts, c.dtype, scales), product)


def body_of(c: Conv, linear: Side, window: Side, run: Run) -> list[str]:
    """What the product's body says of its operands."""
    return [wgsl_source(f"conv/conv_{c.mode}"), *roles(c), reader(linear, c.linear, run), window_reader(window, c, run)]


def sides(c: Conv, run: int) -> tuple[Side, Side]:
    """How the linear operand and that of windows travel, in groups of ``run`` where they lie so."""
    linear, window = c.specs[c.linear], c.specs[c.window]
    mine, other = ("b", "a") if c.flipped else ("a", "b")
    if c.mode == "forward":
        order = (*POSITIONS, 1) if c.taps_outside else (1, *POSITIONS)
        a = Side(mine, True, in_groups(merged(linear, order), 1, run))
    elif c.mode == "adjoint":
        rows = in_groups(linear, 1, run)
        a = Side(mine, not rows, rows)
    elif c.channels_last("y"):
        a = Side(mine, False, in_groups(linear, 1, run) and c.rows % run == 0)
    else:
        a = Side(mine, True, in_groups(merged(linear, POSITIONS), 2, run))
    if c.taps_outside:  # neighbours are channels that meet the same tap
        runs = in_groups(window, 1, run) and c.depth % run == 0
    else:  # neighbours are positions of an image
        runs = c.pointwise and in_groups(merged(window, POSITIONS), 2, run)
    return a, Side(other, c.taps_outside != (c.mode == "weight"), runs)


def merged(spec: Spec, dims: Sequence[int]) -> Spec:
    """``spec`` with the dimensions ``dims``, in this order, as one at its end, which is still (stride 0) if there is no
    stride for it.
    """
    others = [d for d in range(len(spec.shape)) if d not in dims]
    stride = expected = 1
    for d in reversed(dims):
        if spec.shape[d] != 1 and spec.strides[d] != expected:
            stride = 0
        expected *= spec.shape[d]
    shape = (*(spec.shape[d] for d in others), expected)
    return spec._replace(shape=shape, strides=(*(spec.strides[d] for d in others), stride))


def window_reader(side: Side, c: Conv, run: Run) -> str:
    """:func:`..matmul.operand.reader` of an operand that is read through windows: what is outside is zero."""
    x, name = side.x, c.window
    if not side.runs:
        return f"fn {x}_value(row: Window, step: Window) -> T {{ return {name}_value(row, step); }}"
    return f"""fn {x}_run(row: Window, step: Window) -> {run.type} {{
  let found = {name}_element(row, step);
  if (!found.inside) {{ return {run.type}(); }}
  return {run.loaded(name, "found.number")};
}}"""


def split_sum(c: Conv, e: Epilogue, target: Target, splits: int, first: Launch) -> Lowered:
    """``first``, followed by the addition of the partial sums it leaves."""
    slices, m, n, _ = c.sizes
    kernel = point_kernel(f"conv_{c.mode}_split_sum", c, e, target, c.phases)
    if c.mode == "adjoint":
        kernel.add(wgsl_source("conv/conv_phases"))
    e.give_outputs(kernel)
    size = add_partials(kernel, len(e.op.args), c.kind, slices, splits, m, n)
    place = "column, channel" if c.flipped else "channel, column"
    total = "fn total_of(slice: u32, channel: u32, column: u32) -> T"
    kernel.add(f"{total} {{ return split_total(slice, {place}); }}")
    return Lowered((first, kernel.launch(wgsl_source(f"conv/conv_{c.mode}_sum"))), (size,))


def weight_direct(c: Conv, e: Epilogue) -> Launch:
    slices, m, n, k = c.sizes
    w = draft(c, e)
    groups = slices * m * n
    for name, value in (("m", m), ("k", k), ("groups", groups)):
        w.params.add(name, value)
    rows = -(-groups // MAX_GROUPS)
    return w.build(
        "conv_weight", [wgsl_source("conv/conv_weight_direct")], WEIGHT_THREADS, (-(-groups // rows), rows, 1)
    )
