"""Matrix products: which kernel, which tile, how many parts.

``y = a @ b`` with a (B, M, K), b (B, K, N) and y (B, M, N), any strides, all read in place; then the epilogue.
Arguments of the operation: a and b, what the epilogue reads, its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, PointKernel, arithmetic, constant, wgsl_source
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.launch import Launch, Lowered

from . import halves, matrix_tile, scaled
from .epilogue import FINISH, NOT_TOGETHER, Epilogue
from .halves import Halved
from .matrix_tile import MatrixTile, config_for, matrix_block_text, tiles_for
from .operand import FOUR, Side, in_groups, k_major, reader, run_of, words_of
from .register_tile import block_text, in_runs, most_together
from .scaled import MATRIX
from .store_sums import accumulator, add_partials, partials_together, store_sums
from .tile import HALF, HUGE, LARGE, LIGHT, MEDIUM, SMALL, Blocking, Tile, block_params, blocking

COORDINATES = ("slice", "m", "n")
TILES = (HUGE, LARGE, HALF, MEDIUM, LIGHT, SMALL)
ANY_TILE = 16
ROW_LANES = 64
COLUMN_LANES = 8
QUAD_LANES = 16
MATVEC_THREADS = 256
BUSY_THREADS = 1 << 18
"""As many threads as a large GPU needs to read memory at full speed; sums are split to reach it."""
SMALL_MATRIX = 1 << 23
"""Elements of a matrix that an H200 reads in 8 µs; a second launch takes 6."""
FEW_GROUPS = 16
"""Workgroups below which even a small matrix is not read at once."""
FEW_LOADS = 64
"""Loads of a lane, one after the other, that take as long as a second launch."""

PLACE = "fn place(slice: u32, m: u32, n: u32) -> Place { return Place(slice, m, n); }"
STORED = "fn is_stored(slice: u32, m: u32, n: u32) -> bool { return true; }"


@cache
def extern(dtype: str, scalars: int = 0, result_dtype: str | None = None, precision: str | None = None) -> Extern:
    """A product of operands of ``dtype``: ``a @ b``, with a scalar ``alpha * (a @ b)``, with two, and a third input,
    ``alpha * (a @ b) + beta * c``. ``result_dtype``: the output's, if it is not the operands'. ``precision``: the
    setting of :mod:`.halves` that it is computed under, if that decides anything.
    """
    result = ops.acc(0, accumulator(dtype))
    if scalars:
        result = ops.param(0, result.dtype) * result
    if scalars == 2:
        result += ops.param(1, result.dtype) * ops.to_dtype(ops.load(2, dtype), result.dtype)
    arguments = () if precision is None else (precision,)
    return Extern(lower_matmul, arguments, operands=2, epilogue=(ops.to_dtype(result, result_dtype or dtype),))


def precision_of(op: Operation) -> str | None:
    """The setting that decided how an operation is computed; None of most."""
    body = op.body
    return body.arguments[0] if isinstance(body, Extern) and body.lower is lower_matmul and body.arguments else None  # type: ignore[return-value]


@dataclass(frozen=True)
class Product:
    """A product's operands as (B, M, K) and (B, K, N) layouts, ``args`` their places in the operation.

    ``row`` and ``column``: a and b were vectors. ``flipped``: it is computed as ``yᵀ = bᵀ @ aᵀ``.
    """

    a: Spec
    b: Spec
    row: bool
    column: bool
    flipped: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, N, K."""
        return (self.a.shape[0], self.a.shape[1], self.b.shape[2], self.a.shape[2])

    @property
    def args(self) -> dict[str, int]:
        return {"a": 1, "b": 0} if self.flipped else {"a": 0, "b": 1}

    @property
    def kind(self) -> str:
        return BY_NAME[self.a.dtype].kind

    def transposed(self) -> Product:
        return Product(flip(self.b), flip(self.a), self.row, self.column, not self.flipped)

    def layout(self, spec: Spec) -> Spec:
        """A layout over the output's shape as (B, M, N)."""
        found = lift(spec, self.row, self.column)
        return flip(found) if self.flipped else found


def flip(spec: Spec) -> Spec:
    (s, m, n), (ts, tm, tn) = spec.shape, spec.strides
    return spec._replace(shape=(s, n, m), strides=(ts, tn, tm))


def lift(spec: Spec, as_row: bool, as_column: bool) -> Spec:
    """A vector as a row or a column, a matrix as a batch of one."""
    shape, strides = spec.shape, spec.strides
    if as_column:
        shape, strides = (*shape, 1), (*strides, 0)
    if as_row:
        shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], 0, strides[-1])
    missing = 3 - len(shape)
    return spec._replace(shape=(1,) * missing + shape, strides=(0,) * missing + strides)


def product_of(op: Operation) -> Product:
    a, b = op.inputs[:2]
    row, column = len(a.shape) == 1, len(b.shape) == 1
    return Product(lift(a, row, False), lift(b, False, column), row, column)


def operands(p: Product, dense: Collection[str] = ()) -> Draft:
    """A kernel that reads the operands. ``dense``: coordinates along which a stride of 1 takes no parameter."""
    kernel = Draft(COORDINATES, frozenset({"slice"}) if p.sizes[0] == 1 else frozenset())
    kernel.add(arithmetic(p.a.dtype, "add", "mul"))
    for name, spec in (("a", p.a), ("b", p.b)):
        kernel.input(name, p.args[name], spec, dense)
    return kernel


def draft(
    p: Product,
    epilogue: Epilogue | None,
    partials: int,
    widths: Mapping[int, int] = NOT_TOGETHER,
    dense: Collection[str] = (),
) -> Draft:
    """The kernel that multiplies, but for its body; no epilogue leaves partial sums."""
    # Few parameters, so that they fit into the immediates of any adapter; Dawn's are 64 bytes.
    kernel = operands(p, dense)
    store_sums(kernel, epilogue, p.kind, partials, (PLACE, STORED), widths)
    return kernel


def lower_matmul(op: Operation, alias: tuple[int, ...], target: Target, precision: str = "highest") -> Lowered:
    p = product_of(op)
    _, m, n, _ = p.sizes
    if n > 1 and (m == 1 or by_columns(p.layout(op.outputs[0]))):
        p = p.transposed()
        m, n = n, m
    e = Epilogue(op, alias, COORDINATES, p.layout)
    if n == 1:
        return matvec(p, e, target)
    lowered = on_halves(p, e, target, halves.COUNTS[precision]) if precision != "highest" else None
    if lowered is not None:
        return lowered
    config = matrices_for(p, target)
    if config is not None and (tiles := tiles_for(target, config)):
        return on_matrices(p, e, target, config, tiles)
    return blocked(p, e, target) if p.kind == "f" else any_arithmetic(p, e)


def by_columns(y: Spec) -> bool:
    """Whether the neighbours in memory are those of a column. Kernels store several neighbours of a row at once."""
    (_, m, n), (_, row, column) = y.shape, y.strides
    return m > 1 and n > 1 and row == 1 and column > 1


def matrices_for(p: Product, target: Target) -> MatrixConfig | None:
    """The subgroup matrices that multiply the operands; None where the adapter has none that do."""
    if p.a.dtype != p.b.dtype:
        return None
    return config_for(target, scaled.operand_for(p.a.dtype, prod(p.sizes)))


def with_splits(p: Product, e: Epilogue, target: Target, splits: int, first: Launch) -> Lowered:
    """``first``, followed by the addition of partial sums if it leaves any."""
    if splits == 1:
        return Lowered((first,))
    slices, m, n, _ = p.sizes
    kernel = PointKernel("matmul_split_sum", target, COORDINATES)
    kernel.add(arithmetic(p.a.dtype, "add"), *e.text(kernel.params))
    for binding, arg in e.inputs():
        kernel.binding(binding, arg)
    e.give_outputs(kernel)
    size = add_partials(kernel, len(e.op.args), p.kind, slices, splits, m, n)
    place = "Place(slice, m, n), split_total(slice, m, n)"
    body = f"fn values(slice: u32, m: u32, n: u32) -> Values {{ return result({place}); }}"
    return Lowered((first, kernel.launch(body)), (size,))


def blocked(p: Product, e: Epilogue, target: Target) -> Lowered:
    slices, m, n, k = p.sizes
    chosen = blocking(slices, m, n, k, TILES, target.software)
    split, partials = chosen.splits > 1, len(e.op.args)
    a, b = in_runs(chosen.tile, *sides_of(p, FOUR.length), target.software)
    most = most_together(chosen.tile, b)
    widths = {partials: partials_together(n, most)} if split else e.widths(2, target, most)
    together = max(widths.values())
    w = draft(p, None if split else e, partials, widths, MATRIX)
    grid = block_params(w.params, chosen, slices, m, n, k)
    tile = chosen.tile
    heavy = target.software or (e.heavy and not split)
    w.add(wgsl_source("matmul/matmul"), *(reader(side, side.x, FOUR) for side in (a, b)))
    ahead = reads_ahead(e, widths, target)
    main = block_text(tile, a, b, k % tile.k != 0, together, heavy, ahead)
    body = [*([] if together > 1 else [FINISH]), main]
    launch = w.build(f"matmul_{tile.m}x{tile.n}", body, tile.threads, grid)
    return with_splits(p, e, target, chosen.splits, launch)


def reads_ahead(e: Epilogue, widths: Mapping[int, int], target: Target) -> bool:
    """Whether what the epilogue reads is worth asking for ahead: software has nothing to wait for."""
    return bool(e.given(widths)) and not target.software


def on_matrices(p: Product, e: Epilogue, target: Target, config: MatrixConfig, tiles: Sequence[MatrixTile]) -> Lowered:
    """:func:`blocked`, multiplied by subgroups."""
    slices, m, n, k = p.sizes
    chosen = matrix_tile.blocking(slices, m, n, k, tiles)
    sides = a, b = sides_of(p, run_of(p.a.dtype))
    w = read_operands(p, sides)
    is_scaled, scales = p.a.dtype != config.operand, len(e.op.args) + (chosen.splits > 1)
    if is_scaled:
        scaled.read_scales(w, scales)
    main = partial(matrix_block_text, chosen.tile, config, a, b, target, k % chosen.tile.k != 0, scaled=is_scaled)
    lowered = multiplied(w, p, e, target, config, chosen, k, main)
    if lowered is None:
        return blocked(p, e, target)
    if not is_scaled:
        return lowered
    return scaled.after(scaled.largest_launch(read_operands(p, sides), parts_of(p, sides), p.a.dtype, scales), lowered)


def on_halves(p: Product, e: Epilogue, target: Target, count: int) -> Lowered | None:
    """:func:`on_matrices` of float32, as ``count`` halves of each number; None where an adapter cannot."""
    found = halves.choose(target, count)
    if found is None:
        return None
    config, tiles = found
    slices, m, n, k = p.sizes
    sides, step = sides_of(p, run_of(p.a.dtype)), max(tile.k for tile in tiles)
    given = [
        Halved.of(side, spec, rows, k, count, config, step)
        for side, spec, rows in zip(sides, (p.a, p.b), (m, n), strict=True)
    ]
    if not all(operand.fits(target) for operand in given):
        return None
    length = count * given[0].padded
    chosen = matrix_tile.blocking(slices, m, n, length, tiles)
    own = 1 if chosen.splits > 1 else 0
    scales, *temporaries = [len(e.op.args) + own + t for t in range(3)]
    w = Draft(COORDINATES)
    w.add(arithmetic(p.a.dtype, "add", "mul"))
    for operand, temporary in zip(given, temporaries, strict=True):
        operand.read(w, temporary)
    scaled.read_scales(w, scales)
    a, b = [operand.read_side for operand in given]
    main = partial(matrix_block_text, chosen.tile, config, a, b, target, False, halves=count)
    lowered = multiplied(w, p, e, target, config, chosen, length, main)
    if lowered is None:
        return None
    largest = scaled.largest_launch(read_operands(p, sides), parts_of(p, sides), p.a.dtype, scales)
    halving = halves.halving_launch(read_operands(p, sides), given, scales, temporaries)
    sizes = (*lowered.temporaries, scaled.SCALES_BYTES, *(operand.size_bytes for operand in given))
    return Lowered((largest, halving, *lowered.launches), sizes, (own,))


def multiplied(
    w: Draft,
    p: Product,
    e: Epilogue,
    target: Target,
    config: MatrixConfig,
    chosen: Blocking[MatrixTile],
    length: int,
    main: Callable[..., str],
) -> Lowered | None:
    """The launches of a product on subgroup matrices by ``w``, which has its operands, and sums of this ``length``.
    ``main(together=…)`` writes the kernel's main. None if it takes more buffers than the adapter binds.
    """
    slices, m, n, _ = p.sizes
    split, partials = chosen.splits > 1, len(e.op.args)
    widths = {partials: partials_together(n)} if split else e.widths(2, target, 4)
    together = max(widths.values())
    store_sums(w, None if split else e, p.kind, partials, (PLACE, STORED), widths)
    if len(w.bindings) > target.max_buffers:
        return None
    grid = block_params(w.params, chosen, slices, m, n, length)
    tile = chosen.tile
    body = [*([] if together > 1 else [FINISH]), main(together=together, ahead=reads_ahead(e, widths, target))]
    launch = w.build(f"matmul_matrices_{tile.m}x{tile.n}", body, tile.threads(config), grid)
    return with_splits(p, e, target, chosen.splits, launch)


def sides_of(p: Product, run: int) -> tuple[Side, Side]:
    """Both operands, in groups of ``run`` where they lie so."""
    return side_of("a", p.a, 2, 1, run), side_of("b", p.b, 1, 2, run)


def read_operands(p: Product, sides: Sequence[Side]) -> Draft:
    """:func:`operands`, and the functions that read their words (see :mod:`.matrix_tile`)."""
    kernel = operands(p, MATRIX)
    kernel.add(wgsl_source("matmul/matmul"), *(reader(side, side.x, words_of(p.a.dtype)) for side in sides))
    return kernel


def parts_of(p: Product, sides: Sequence[Side]) -> list[scaled.Part]:
    slices, m, n, k = p.sizes
    return [scaled.Part.of(side, slices, rows, k) for side, rows in zip(sides, (m, n), strict=True)]


def side_of(x: str, spec: Spec, inner: int, outer: int, run: int) -> Side:
    """Operand ``x``, which is summed over along dimension ``inner``, in groups of ``run`` where it lies so."""
    major = k_major(spec, inner, outer)
    return Side(x, major, in_groups(spec, inner if major else outer, run))


def any_arithmetic(p: Product, e: Epilogue) -> Lowered:
    slices, m, n, k = p.sizes
    w = draft(p, e, 0)
    grid = block_params(w.params, Blocking(Tile(ANY_TILE, ANY_TILE, ANY_TILE, 1, 1), 1, k), slices, m, n, k)
    return Lowered((w.build(f"matmul_{p.a.dtype}", [wgsl_source("matmul/matmul_any")], ANY_TILE**2, grid),))


@dataclass(frozen=True)
class MatVec:
    """Which kernel, its constants, and how many sums a workgroup computes over how many lanes each.

    ``run``: how many elements along the sum a lane loads at once.
    """

    body: str
    constants: tuple[tuple[str, int | bool], ...]
    outputs: int
    lanes: int
    run: int = 1


def matvec_kernel(p: Product) -> MatVec:
    """Four elements at a time if the matrix allows that, along whichever of its dimensions is contiguous."""
    _, m, _, _ = p.sizes
    along_k = k_major(p.a, 2, 1)
    if p.kind == "f" and in_groups(p.a, 2 if along_k else 1):
        if along_k and in_groups(p.b, 1):
            lanes = MATVEC_THREADS if m == 1 else ROW_LANES
            outputs = MATVEC_THREADS // lanes
            return MatVec("matvec_rows", (("OUTPUTS", outputs), ("LANES", lanes)), outputs, lanes, 4)
        if not along_k:
            lanes = 2 * QUAD_LANES if is_small(p) else QUAD_LANES
            quads = MATVEC_THREADS // lanes
            return MatVec("matvec_columns", (("QUADS", quads), ("LANES", lanes)), 4 * quads, lanes)
    lanes = MATVEC_THREADS if m == 1 else ROW_LANES if along_k else COLUMN_LANES
    outputs = MATVEC_THREADS // lanes
    return MatVec("matvec", (("OUTPUTS", outputs), ("LANES", lanes), ("K_MAJOR", along_k)), outputs, lanes)


def is_small(p: Product) -> bool:
    """Whether reading the matrix takes no longer than a second launch, so that sums had better not be split."""
    slices, m, _, k = p.sizes
    return slices * m * k <= SMALL_MATRIX


def matvec_splits(p: Product, kernel: MatVec, target: Target) -> int:
    """Into how many parts the sums are split: enough to keep a large GPU busy."""
    slices, m, _, k = p.sizes
    groups = slices * -(-m // kernel.outputs)
    if target.software or (is_small(p) and groups >= FEW_GROUPS and k <= FEW_LOADS * kernel.lanes * kernel.run):
        return 1
    # Each lane gets a few loads at least, in groups of four elements.
    return max(1, min(BUSY_THREADS // MATVEC_THREADS // groups, k // (16 * kernel.lanes)))


def matvec(p: Product, e: Epilogue, target: Target) -> Lowered:
    """N = 1."""
    slices, m, n, k = p.sizes
    kernel = matvec_kernel(p)
    chunk = -(-k // matvec_splits(p, kernel, target) // 4) * 4
    chosen = Blocking(Tile(kernel.outputs, 1, 1, 1, 1), -(-k // chunk), chunk)
    w = draft(p, e if chosen.splits == 1 else None, len(e.op.args))
    grid = block_params(w.params, chosen, slices, m, n, k)
    prelude = [constant(name, value) for name, value in kernel.constants]
    launch = w.build(kernel.body, [*prelude, wgsl_source(f"matmul/{kernel.body}")], MATVEC_THREADS, grid)
    return with_splits(p, e, target, chosen.splits, launch)
