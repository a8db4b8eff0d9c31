"""Matrix products: which kernel, which tile, how many parts.

``y = alpha * (a @ b) + beta * c`` with a (B, M, K), b (B, K, N), c and y (B, M, N), any strides, all read in place.
Arguments of the operation: a, b, optionally c; then y. Its scalars: alpha and, with c, beta; none if the product is plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Operation, Spec
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.lower.lower import Launch, Lowered
from torch_webgpu.wgsl.builder import ParamList
from torch_webgpu.wgsl.kernel import Binding, Kernel, Mode
from torch_webgpu.wgsl.link import HostCaps

from .points import PointKernel, arithmetic, constant, locator, source
from .tile import BUSY_GROUPS, MIN_SPLIT_K, Grid, Plan, Tile, block_params, block_text, plan

COORDINATES = ("slice", "m", "n")
# The dtype that partial sums are kept in, by compute kind.
ACCUMULATOR = {"i": "i32", "u": "u32", "l": "i64", "f": "f32", "d": "f64", "c": "c64"}
ANY_TILE = 16
ROW_LANES = 64
COLUMN_LANES = 8
MATVEC_THREADS = 256

PLAIN = "fn result(slice: u32, m: u32, n: u32, v: T) -> T { return v; }"
SCALED = "fn result(slice: u32, m: u32, n: u32, v: T) -> T {{ return t_mul({alpha}, v); }}"
ADDED = (
    "fn result(slice: u32, m: u32, n: u32, v: T) -> T "
    "{{ return t_add(t_mul({alpha}, v), t_mul({beta}, c_load(c_at(slice, m, n)))); }}"
)
STORE_SUM = """fn finish_one(slice: u32, split: u32, m: u32, n: u32, v: T) {
  y_store(y_at(slice, m, n), result(slice, m, n, v));
}"""
STORE_PARTIAL = """fn finish_one(slice: u32, split: u32, m: u32, n: u32, v: T) {
  partials_store(((slice * P.splits + split) * P.m + m) * P.n + n, v);
}"""
FINISH = """fn finish(slice: u32, split: u32, m: u32, n: u32, v: vec4<f32>) {
  if (m >= P.m) { return; }
  if (n < P.n) { finish_one(slice, split, m, n, v.x); }
  if (n + 1u < P.n) { finish_one(slice, split, m, n + 1u, v.y); }
  if (n + 2u < P.n) { finish_one(slice, split, m, n + 2u, v.z); }
  if (n + 3u < P.n) { finish_one(slice, split, m, n + 3u, v.w); }
}"""
# Two elements share a word: n is even, and so is P.n.
FINISH_WORDS = """fn finish(slice: u32, split: u32, m: u32, n: u32, v: vec4<f32>) {
  if (m >= P.m) { return; }
  if (n < P.n) { finish_word(slice, m, n, v.x, v.y); }
  if (n + 2u < P.n) { finish_word(slice, m, n + 2u, v.z, v.w); }
}
fn finish_word(slice: u32, m: u32, n: u32, low: f32, high: f32) {
  let word = DTYPE_pack(DTYPE_pack(0u, 0u, result(slice, m, n, low)), 1u, result(slice, m, n + 1u, high));
  y_store_word(y_at(slice, m, n) / 2u, word);
}"""


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
            self.bindings.append(Binding("partials", ACCUMULATOR[self.p.kind], "read_write"))
            self.order.append(self.p.args["y"] + 1)
            self.text.append(STORE_PARTIAL)
            return
        if self.p.c is not None:
            self.bind("c", self.p.c)
        self.text.append(epilogue(self.p, self.params))
        self.text.append(locator(self.params, "y", self.p.args["y"], COORDINATES, self.p.y.strides))
        self.bindings.append(Binding("y", self.p.y.dtype, "read_write", mode))
        self.order.append(self.p.args["y"])
        self.text.append(STORE_SUM)

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
    accumulator = ACCUMULATOR[p.kind]
    kernel = PointKernel("matmul_split_sum", caps, COORDINATES)
    kernel.add(arithmetic(p.y.dtype, "add", "mul"))
    kernel.binding(Binding("partials", accumulator), p.args["y"] + 1)
    for name, value in (("splits", chosen.splits), ("rows", m), ("columns", n)):
        kernel.param(name, value)
    if p.c is not None:
        kernel.input("c", p.args["c"], p.c)
    kernel.add(epilogue(p, kernel.params))
    kernel.output("y", p.args["y"], p.y)
    size = slices * chosen.splits * m * n * BY_NAME[accumulator].itemsize
    return Lowered((first, kernel.launch(source("split_sum"))), (size,))


def blocked(p: Product, caps: HostCaps) -> Lowered:
    slices, m, n, k = p.sizes
    chosen = plan(slices, m, n, k)
    words = writes_words(p, caps) and chosen.splits == 1
    w = _Writer(p, chosen.splits > 1)
    w.operands()
    w.result("word" if words else "plain")
    grid = block_params(w.params, chosen, slices, m, n, k)
    tile = chosen.tile
    finish = FINISH_WORDS.replace("DTYPE", p.y.dtype) if words else FINISH
    main = block_text(tile, k_major(p.a, 2, 1), k_major(p.b, 1, 2), k % tile.k != 0)
    launch = w.launch(f"matmul_{tile.m}x{tile.n}", [source("matmul"), finish, main], tile.threads, grid)
    return with_splits(p, caps, chosen, launch)


def writes_words(p: Product, caps: HostCaps) -> bool:
    """Whether neighbouring columns of the output always fill a 32-bit word."""
    y = p.y
    packed = y.dtype == "bf16" or (y.dtype == "f16" and not caps.float16)
    even = y.strides[0] % 2 == 0 and y.strides[1] % 2 == 0 and y.shape[2] % 2 == 0
    return packed and y.aligned and y.strides[2] == 1 and even


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


def matvec(p: Product, caps: HostCaps) -> Lowered:
    """N = 1."""
    slices, m, n, k = p.sizes
    along_k = k_major(p.a, 2, 1)
    lanes = MATVEC_THREADS if m == 1 else ROW_LANES if along_k else COLUMN_LANES
    outputs = MATVEC_THREADS // lanes
    groups = slices * -(-m // outputs)
    splits = min(max(1, BUSY_GROUPS // groups), max(1, k // (4 * MIN_SPLIT_K)))
    chunk = -(-k // splits)
    chosen = Plan(Tile(outputs, 1, 1, 1, 1), splits, chunk)
    w = _Writer(p, splits > 1)
    w.operands()
    w.result()
    grid = block_params(w.params, chosen, slices, m, n, k)
    prelude = [constant("OUTPUTS", outputs), constant("LANES", lanes), constant("K_MAJOR", along_k)]
    launch = w.launch("matvec", [*prelude, source("matvec")], MATVEC_THREADS, grid)
    return with_splits(p, caps, chosen, launch)
