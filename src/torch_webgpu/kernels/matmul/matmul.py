"""Matrix products: which kernel, which tile, how many parts.

``y = a @ b`` with a (B, M, K), b (B, K, N) and y (B, M, N), any strides, all read in place; then the epilogue.
Arguments of the operation: a and b, what the epilogue reads, its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import NamedTuple

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, PointKernel, arithmetic, constant, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch, Lowered
from torch_webgpu.wgsl.tiling import doubles, power_of_two

from . import halves, scaled
from .blocked import add_sums, lower_product, with_sum
from .epilogue import Epilogue
from .matrix_tile import config_for
from .operand import COORDINATES, FOUR, Sides, Strided, matrix_draft
from .problem import Problem
from .store_sums import accumulator, add_partials
from .tile import (
    HALF,
    HUGE,
    LARGE,
    MEDIUM,
    NARROW_SLICED,
    SMALL_SLICED,
    Blocking,
    Tile,
    block_params,
)

TILES = (HUGE, LARGE, HALF, MEDIUM, NARROW_SLICED, SMALL_SLICED)
ANY_TILE = 16
ROW_LANES = 64
LEAST_LANES = 32
SOFTWARE_LANES, SOFTWARE_ROWS = 8, 4
MOST_LOADS = 8
"""Of a lane that are underway at once."""
COLUMN_LANES = 8
LEAST_QUADS, MOST_QUADS, SOFTWARE_QUADS = 4, 16, 32
COLUMN_THREADS = 1024
UNITS = 128
"""Workgroups of which a large GPU's compute units have one each."""
MATVEC_THREADS = 256
BUSY_THREADS = 1 << 17
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


class Family(NamedTuple):
    """What products have in common that can be computed by the same tiles: ``dtypes`` of their operands, the sizes that
    are not their columns, ``precision`` (see :func:`extern`).
    """

    dtypes: tuple[str, str]
    slices: int
    rows: int
    length: int
    precision: str


def family_of(op: Operation, target: Target) -> Family | None:
    """None for what is no product that subgroup matrices could compute: for most in float32, and with vectors."""
    body = op.body
    if not isinstance(body, Extern) or body.lower is not lower_matmul:
        return None
    (a, b), precision = op.inputs[:2], precision_of(op) or "highest"
    slices, m, n, k = product_of(op).sizes
    operand = "" if a.dtype != b.dtype else "f16" if a.dtype == "bf16" or halves.COUNTS[precision] else a.dtype
    if m <= 1 or n <= 1 or config_for(target, operand) is None:
        return None
    return Family((a.dtype, b.dtype), slices, m, k, precision)


def columns_of(op: Operation) -> int:
    """Of a product's result."""
    return product_of(op).sizes[2]


def beside(op: Operation, columns: int) -> Operation:
    """A product that is computed beside others of its family, which have so many columns together."""
    assert isinstance(op.body, Extern)
    body = replace(op.body, arguments=(precision_of(op) or "highest", columns))
    return Operation(op.name, op.args, op.n_outputs, body, op.param_kinds)


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


@dataclass(frozen=True)
class MatrixProblem(Problem):
    """A product of matrices. ``precision``: the setting of :mod:`.halves`. ``joint_sizes``: as if the columns of those
    beside it were its own (or the rows, where it is transposed).
    """

    precision: str = "highest"
    joint_sizes: tuple[int, int, int, int] | None = None

    @property
    def name(self) -> str:
        return "matmul"

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return TILES

    @property
    def tile_sizes(self) -> tuple[int, int, int, int]:
        return self.joint_sizes or self.sizes

    @property
    def halves(self) -> int:
        if self.dtype == "bf16":
            if self.tensors is None or scaled.operand_for(self.dtype, prod(self.tile_sizes)) == self.dtype:
                return 0
            return int(halves.is_worth_copying(*self.tile_sizes, *self.tensors))
        return halves.COUNTS[self.precision]

    def kernel(self) -> Draft:
        # Few parameters, so that they fit into the immediates of any adapter; Dawn's are 64 bytes.
        kernel = matrix_draft(self.dtype, self.sizes[0])
        for operand in self.operands:
            operand.bind(kernel)
        return kernel

    def places(self) -> tuple[str, ...]:
        return PLACE, STORED

    def widths(self, most: int) -> dict[int, int]:
        return self.epilogue.widths(2, self.target, most)

    def split_sum(self, splits: int) -> tuple[Launch, int]:
        e, (slices, m, n, _) = self.epilogue, self.sizes
        kernel = PointKernel("matmul_split_sum", self.target, COORDINATES)
        kernel.add(arithmetic(self.dtype, "add"), *e.text(kernel.params))
        for binding, arg in e.inputs():
            kernel.binding(binding, arg)
        e.give_outputs(kernel)
        size = add_partials(kernel, self.partials, self.kind, slices, splits, m, n)
        place = "Place(slice, m, n), split_total(slice, m, n)"
        body = f"fn values(slice: u32, m: u32, n: u32) -> Values {{ return result({place}); }}"
        return kernel.launch(body), size


def lower_matmul(
    op: Operation, alias: tuple[int, ...], target: Target, precision: str = "highest", columns: int = 0
) -> Lowered:
    """``columns``: of the products beside it (see :func:`beside`)."""
    p = product_of(op)
    slices, m, n, k = p.sizes
    joint = (slices, m, n + columns, k)
    if n > 1 and (m == 1 or by_columns(p.layout(op.outputs[0]))):
        p, joint = p.transposed(), (slices, n + columns, m, k)
        m, n = n, m
    operands = Strided("a", p.args["a"], p.a), Strided("b", p.args["b"], p.b)
    epilogue = Epilogue(op, alias, COORDINATES, p.layout)
    problem = MatrixProblem(p.a.dtype, p.sizes, operands, epilogue, target, precision, joint)
    if n == 1:
        return matvec(problem)
    return lower_product(problem) or any_arithmetic(problem)


def by_columns(y: Spec) -> bool:
    """Whether the neighbours in memory are those of a column. Kernels store several neighbours of a row at once."""
    (_, m, n), (_, row, column) = y.shape, y.strides
    return m > 1 and n > 1 and row == 1 and column > 1


def element_kernel(problem: Problem, sides: Sides, splits: int) -> Draft:
    """A kernel that loads the operands as ``sides`` say, and stores sums or ``splits`` parts of these."""
    kernel = problem.kernel()
    kernel.add(*problem.loads(sides, FOUR))
    add_sums(kernel, problem, splits)
    return kernel


def by_elements(sides: Sides) -> Sides:
    """The same operands, loaded number by number."""
    a, b = sides
    return replace(a, runs=False), replace(b, runs=False)


def any_arithmetic(problem: Problem) -> Lowered:
    kernel, sizes = element_kernel(problem, by_elements(problem.sides(FOUR.length)), 1), problem.sizes
    grid = block_params(kernel.params, Blocking(Tile(ANY_TILE, ANY_TILE, ANY_TILE, 1, 1), 1, sizes[3]), *sizes)
    body = [wgsl_source("matmul/matmul_any")]
    return Lowered((kernel.build(f"matmul_{problem.dtype}", body, ANY_TILE**2, grid),))


@dataclass(frozen=True)
class MatVec:
    """Which kernel, the constants of its text, and how many sums a workgroup computes over how many lanes each.

    ``sides``: how the operands are loaded; ``run``: how many elements along the sum a lane loads at once.
    """

    name: str
    text: str
    constants: tuple[tuple[str, int | bool], ...]
    sides: Sides
    outputs: int
    lanes: int
    run: int = 1
    threads: int = MATVEC_THREADS


def matvec_kernel(problem: Problem) -> MatVec:
    """Four elements at a time if the matrix allows that, along whichever of its dimensions is contiguous."""
    m = problem.sizes[1]
    a, b = sides = problem.sides(FOUR.length)
    if problem.kind == "f" and a.runs:
        if a.k_major and b.runs:
            return matvec_rows(problem, sides)
        if not a.k_major:
            return matvec_columns(problem, (a, replace(b, runs=False)))
    lanes = MATVEC_THREADS if m == 1 else ROW_LANES if a.k_major else COLUMN_LANES
    outputs = MATVEC_THREADS // lanes
    constants = (("OUTPUTS", outputs), ("LANES", lanes), ("K_MAJOR", a.k_major))
    return MatVec("matvec", wgsl_source("matmul/matvec"), constants, by_elements(sides), outputs, lanes)


def matvec_rows(problem: Problem, sides: Sides) -> MatVec:
    """On a GPU so many lanes share a row, up to a workgroup, that all loads of each are underway at once: what a lane
    has to ask for after these takes as long again. On a CPU few lanes share some rows, and load the vector once.
    """
    _, m, _, k = problem.sizes
    target, runs = problem.target, -(-k // FOUR.length)
    most = 1 if target.software else MOST_LOADS
    if m == 1:
        lanes, rows = MATVEC_THREADS, 1
    elif target.software:
        lanes, rows = SOFTWARE_LANES, SOFTWARE_ROWS
    else:
        lanes, rows = max(LEAST_LANES, power_of_two(-(-runs // MOST_LOADS))), 1
    subgroup = target.subgroup_size if target.subgroup_size and lanes % target.subgroup_size == 0 else 0
    unrolled = at_once(-(-runs // lanes), most)
    text = render("matmul/matvec_rows", lanes=lanes, rows=rows, unrolled=unrolled, subgroup=subgroup)
    outputs = MATVEC_THREADS // lanes * rows
    constants = (("THREADS", MATVEC_THREADS), ("OUTPUTS", outputs), ("LANES", lanes))
    return MatVec("matvec_rows", text, constants, sides, outputs, lanes, FOUR.length)


def matvec_columns(problem: Problem, sides: Sides) -> MatVec:
    """On a GPU few neighbours share a workgroup where there would be few workgroups, and as many lanes share each of
    them, up to the largest workgroup, as have all their loads underway at once.
    """
    slices, m, _, k = problem.sizes
    target = problem.target
    quads, most, threads = SOFTWARE_QUADS, 1, MATVEC_THREADS
    if not target.software:
        quads, most = MOST_QUADS, MOST_LOADS
        while quads > LEAST_QUADS and slices * -(-m // (FOUR.length * quads)) < UNITS:
            quads //= 2
        threads = max(threads, min(COLUMN_THREADS, target.workgroup_threads, quads * power_of_two(-(-k // most))))
    lanes = threads // quads
    subgroup = target.subgroup_size if quads < target.subgroup_size else 0
    text = render(
        "matmul/matvec_columns",
        unrolled=at_once(-(-k // lanes), most),
        subgroup=subgroup,
        parts=threads // subgroup if subgroup else lanes,
        distances=doubles(quads, subgroup),
    )
    constants = (("QUADS", quads), ("LANES", lanes))
    return MatVec("matvec_columns", text, constants, sides, FOUR.length * quads, lanes, threads=threads)


def at_once(loads: int, most: int) -> int:
    """How many of a lane's loads are underway at once: alike in all steps, and at most ``most``."""
    return -(-loads // -(-loads // most)) if loads else 1


def is_small(p: Problem) -> bool:
    """Whether reading the matrix takes no longer than a second launch, so that sums had better not be split."""
    slices, m, _, k = p.sizes
    return slices * m * k <= SMALL_MATRIX


def matvec_splits(p: Problem, kernel: MatVec) -> int:
    """Into how many parts the sums are split: enough to keep a large GPU busy."""
    slices, m, _, k = p.sizes
    groups = slices * -(-m // kernel.outputs)
    if p.target.software or (is_small(p) and groups >= FEW_GROUPS and k <= FEW_LOADS * kernel.lanes * kernel.run):
        return 1
    # Each lane gets a few loads at least, in groups of four elements.
    return max(1, min(BUSY_THREADS // kernel.threads // groups, k // (16 * kernel.lanes)))


def matvec(problem: Problem) -> Lowered:
    """N = 1."""
    sizes = problem.sizes
    choice = matvec_kernel(problem)
    chunk = -(-sizes[3] // matvec_splits(problem, choice) // 4) * 4
    chosen = Blocking(Tile(choice.outputs, 1, 1, 1, 1), -(-sizes[3] // chunk), chunk)
    kernel = element_kernel(problem, choice.sides, chosen.splits)
    grid = block_params(kernel.params, chosen, *sizes)
    prelude = [constant(name, value) for name, value in choice.constants]
    launch = kernel.build(choice.name, [*prelude, choice.text], choice.threads, grid)
    return with_sum(problem, chosen.splits, launch)
