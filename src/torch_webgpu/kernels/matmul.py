"""Matrix products: which kernel, which tile, how many parts.

``y = alpha * (a @ b) + beta * c`` with a (B, M, K), b (B, K, N), c and y (B, M, N), any strides, all read in place.
Arguments of the operation: a, b, optionally c; then y. Its scalars: alpha and, with c, beta; none for a plain product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Operation, Spec
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.wgsl.builder import ParamList
from torch_webgpu.wgsl.kernel import Binding, Kernel, Mode
from torch_webgpu.wgsl.launch import Launch, Lowered
from torch_webgpu.wgsl.link import HostCaps

from .points import PointKernel, arithmetic, constant, locator, source
from .store import STORE_PARTIAL, add_partials, finish, partials_binding, store_sum, writes_words
from .tile import HUGE, LARGE, LIGHT, MEDIUM, SMALL, Grid, Plan, Tile, block_params, block_text, plan

COORDINATES = ("slice", "m", "n")
TILES = (HUGE, LARGE, MEDIUM, LIGHT, SMALL)
ANY_TILE = 16
ROW_LANES = 64
COLUMN_LANES = 8
QUAD_LANES = 16
MATVEC_THREADS = 256
BUSY_THREADS = 1 << 18
"""As many threads as a large GPU needs to read memory at full speed; sums are split to reach it."""

PLAIN = "fn result(slice: u32, m: u32, n: u32, v: T) -> T { return v; }"
PLACE = "fn place(slice: u32, m: u32, n: u32) -> u32 { return y_at(slice, m, n); }"
STORED = "fn is_stored(slice: u32, n: u32) -> bool { return true; }"
SCALED = "fn result(slice: u32, m: u32, n: u32, v: T) -> T {{ return t_mul({alpha}, v); }}"
ADDED = (
    "fn result(slice: u32, m: u32, n: u32, v: T) -> T "
    "{{ return t_add(t_mul({alpha}, v), t_mul({beta}, c_load(c_at(slice, m, n)))); }}"
)


@dataclass(frozen=True)
class Product:
    """A product's arguments as (B, M, N)-shaped layouts; ``args``: their places in the operation."""

    a: Spec
    b: Spec
    c: Spec | None
    y: Spec
    kinds: tuple[str, ...]
    args: dict[str, int]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, N, K."""
        return (*self.y.shape, self.a.shape[2])  # type: ignore[return-value]

    @property
    def kind(self) -> str:
        return BY_NAME[self.y.dtype].kind

    def transposed(self) -> Product:
        """The same product as ``yᵀ = bᵀ @ aᵀ``."""

        def flip(spec: Spec) -> Spec:
            (s, m, n), (ts, tm, tn) = spec.shape, spec.strides
            return spec._replace(shape=(s, n, m), strides=(ts, tn, tm))

        c = None if self.c is None else flip(self.c)
        args = {**self.args, "a": self.args["b"], "b": self.args["a"]}
        return Product(flip(self.b), flip(self.a), c, flip(self.y), self.kinds, args)


def product_of(op: Operation) -> Product:
    """The operation's arguments, vectors made matrices and matrices batches of one."""
    a, b, *rest = op.inputs
    y = op.outputs[0]

    def lift(spec: Spec, as_row: bool, as_column: bool) -> Spec:
        shape, strides = spec.shape, spec.strides
        if as_column:
            shape, strides = (*shape, 1), (*strides, 0)
        if as_row:
            shape, strides = (1, *shape), (0, *strides)
        missing = 3 - len(shape)
        return spec._replace(shape=(1,) * missing + shape, strides=(0,) * missing + strides)

    row, column = len(a.shape) == 1, len(b.shape) == 1
    c = None
    if rest:
        (given,) = rest
        c = lift(
            given._replace(shape=y.shape, strides=broadcast_strides(given.shape, given.strides, y.shape)), row, column
        )
    places = {"a": 0, "b": 1, "c": 2, "y": op.n_inputs}
    return Product(lift(a, row, False), lift(b, False, column), c, lift(y, row, column), op.param_kinds, places)


class _Writer:
    """Collects the bindings, parameters and text of one kernel of a product."""

    def __init__(self, p: Product, partials: bool) -> None:
        self.p = p
        self.params = ParamList()
        self.partials = partials
        self.bindings: list[Binding] = []
        self.order: list[int] = []
        self.text: list[str] = []

    def bind(self, name: str, spec: Spec) -> None:
        self.bindings.append(Binding(name, spec.dtype))
        self.order.append(self.p.args[name])
        self.text.append(locator(self.params, name, self.p.args[name], COORDINATES, spec.strides))

    def operands(self) -> None:
        self.text.append(arithmetic(self.p.y.dtype, "add", "mul"))
        self.bind("a", self.p.a)
        self.bind("b", self.p.b)

    def result(self, mode: Mode = "plain") -> None:
        """``finish_one``: into the output, or into the partial sums."""
        if self.partials:
            self.bindings.append(partials_binding(self.p.kind, "read_write"))
            self.order.append(self.p.args["y"] + 1)
            self.text.append(STORE_PARTIAL)
            return
        if self.p.c is not None:
            self.bind("c", self.p.c)
        self.text.append(epilogue(self.p, self.params))
        self.text.append(locator(self.params, "y", self.p.args["y"], COORDINATES, self.p.y.strides))
        self.bindings.append(Binding("y", self.p.y.dtype, "read_write", mode))
        self.order.append(self.p.args["y"])
        self.text += [PLACE, STORED, store_sum("y")]

    def launch(self, name: str, body: Sequence[str], threads: int, grid: Grid) -> Launch:
        text = "\n".join([*self.text, *body])
        kernel = Kernel(
            name, text, tuple(self.bindings), tuple(self.params.params), workgroup_size=(threads, 1, 1), trusted=True
        )
        return Launch(kernel, tuple(self.order), tuple(self.params.values), grid)


def epilogue(p: Product, params: ParamList) -> str:
    """``fn result``: what becomes of a finished sum."""
    if not p.kinds:
        return PLAIN
    scalars = params.scalars(p.kinds, range(len(p.kinds)))
    if p.c is None:
        return SCALED.format(alpha=scalars[0])
    return ADDED.format(alpha=scalars[0], beta=scalars[1])


def lower_matmul(op: Operation, alias: tuple[int, ...], caps: HostCaps) -> Lowered:
    p = product_of(op)
    _, m, n, _ = p.sizes
    if m == 1 and n > 1:
        p = p.transposed()
        m, n = n, m
    if n == 1:
        return matvec(p, caps)
    return blocked(p, caps) if p.kind == "f" else any_arithmetic(p)


def with_splits(p: Product, caps: HostCaps, chosen: Plan, first: Launch) -> Lowered:
    """``first``, followed by the addition of partial sums if it leaves any."""
    if chosen.splits == 1:
        return Lowered((first,))
    slices, m, n, _ = p.sizes
    kernel = PointKernel("matmul_split_sum", caps, COORDINATES)
    kernel.add(arithmetic(p.y.dtype, "add", "mul"))
    if p.c is not None:
        kernel.input("c", p.args["c"], p.c)
    kernel.add(epilogue(p, kernel.params))
    kernel.output("y", p.args["y"], p.y)
    size = add_partials(kernel, p.args["y"] + 1, p.kind, slices, chosen.splits, m, n)
    body = "fn values(slice: u32, m: u32, n: u32) -> Values { return Values(split_total(slice, m, n)); }"
    return Lowered((first, kernel.launch(body)), (size,))


def blocked(p: Product, caps: HostCaps) -> Lowered:
    slices, m, n, k = p.sizes
    chosen = plan(slices, m, n, k, TILES, caps.software)
    words = chosen.splits == 1 and writes_words(p.y, 2, caps)
    w = _Writer(p, chosen.splits > 1)
    w.operands()
    w.result("word" if words else "plain")
    grid = block_params(w.params, chosen, slices, m, n, k)
    tile = chosen.tile
    main = block_text(tile, k_major(p.a, 2, 1), k_major(p.b, 1, 2), k % tile.k != 0, words)
    launch = w.launch(
        f"matmul_{tile.m}x{tile.n}", [source("matmul"), finish("y", p.y.dtype, words), main], tile.threads, grid
    )
    return with_splits(p, caps, chosen, launch)


def k_major(spec: Spec, inner: int, outer: int) -> bool:
    """Whether dimension ``inner``, which is summed over, is closer together in memory than ``outer``."""
    return spec.strides[inner] < spec.strides[outer] or spec.shape[outer] == 1


def any_arithmetic(p: Product) -> Lowered:
    slices, m, n, k = p.sizes
    w = _Writer(p, False)
    w.operands()
    w.result()
    grid = block_params(w.params, Plan(Tile(ANY_TILE, ANY_TILE, ANY_TILE, 1, 1), 1, k), slices, m, n, k)
    return Lowered((w.launch(f"matmul_{p.y.dtype}", [source("matmul_any")], ANY_TILE**2, grid),))


@dataclass(frozen=True)
class MatVec:
    """Which kernel, its constants, and how many sums a workgroup computes over how many lanes each."""

    body: str
    constants: tuple[tuple[str, int | bool], ...]
    outputs: int
    lanes: int


def matvec_kernel(p: Product) -> MatVec:
    """Four elements at a time if the matrix allows that, along whichever of its dimensions is contiguous."""
    _, m, _, _ = p.sizes
    along_k = k_major(p.a, 2, 1)
    if p.kind == "f" and in_fours(p.a, 2 if along_k else 1):
        if along_k and in_fours(p.b, 1):
            lanes = MATVEC_THREADS if m == 1 else ROW_LANES
            outputs = MATVEC_THREADS // lanes
            return MatVec("matvec_rows", (("OUTPUTS", outputs), ("LANES", lanes)), outputs, lanes)
        if not along_k:
            quads = MATVEC_THREADS // QUAD_LANES
            return MatVec("matvec_columns", (("QUADS", quads), ("LANES", QUAD_LANES)), 4 * quads, QUAD_LANES)
    lanes = MATVEC_THREADS if m == 1 else ROW_LANES if along_k else COLUMN_LANES
    outputs = MATVEC_THREADS // lanes
    return MatVec("matvec", (("OUTPUTS", outputs), ("LANES", lanes), ("K_MAJOR", along_k)), outputs, lanes)


def in_fours(spec: Spec, inner: int) -> bool:
    """Whether every line along dimension ``inner`` consists of groups of four that lie like those of the buffer."""
    others = [stride for d, stride in enumerate(spec.strides) if d != inner and spec.shape[d] != 1]
    dense = spec.strides[inner] == 1 and spec.shape[inner] % 4 == 0
    return dense and spec.aligned and all(stride % 4 == 0 for stride in others)


def matvec(p: Product, caps: HostCaps) -> Lowered:
    """N = 1."""
    slices, m, n, k = p.sizes
    kernel = matvec_kernel(p)
    groups = slices * -(-m // kernel.outputs)
    # Each lane gets a few loads at least, in groups of four elements.
    splits = 1 if caps.software else max(1, min(BUSY_THREADS // MATVEC_THREADS // groups, k // (16 * kernel.lanes)))
    chunk = -(-k // splits // 4) * 4
    chosen = Plan(Tile(kernel.outputs, 1, 1, 1, 1), -(-k // chunk), chunk)
    w = _Writer(p, chosen.splits > 1)
    w.operands()
    w.result()
    grid = block_params(w.params, chosen, slices, m, n, k)
    prelude = [constant(name, value) for name, value in kernel.constants]
    launch = w.launch(kernel.body, [*prelude, source(kernel.body)], MATVEC_THREADS, grid)
    return with_splits(p, caps, chosen, launch)
