"""What fuses and what must not, on recordings written by hand: no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from torch_webgpu.compiler.fuse import fuser as fusion
from torch_webgpu.compiler.fuse import traffic
from torch_webgpu.compiler.fuse.fuser import fuse
from torch_webgpu.compiler.fuse.nodes import FusedNode, FusionLimits
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.graph import Argument, Call
from torch_webgpu.ir.operation import Extern, Operation, Pointwise, Reduction, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul.matmul import lower_matmul
from torch_webgpu.wgsl.code_size import MAX_CODE, code_size

MATRIX = Spec("f32", (6, 6), (6, 1))
TRANSPOSED = Spec("f32", (6, 6), (1, 6))
COLUMN = Spec("f32", (6, 1), (1, 1))
ROW = Spec("f32", (6,), (1,))
BATCHED = Spec("f32", (2, 3, 6), (18, 6, 1))


class Recording:
    """Builds recordings over allocations named by letters; a place is an allocation's start unless offset."""

    def __init__(self) -> None:
        self.nodes: list[Call] = []
        self.allocations: dict[str, int] = {}
        self.places: dict[tuple[str, int], int] = {}

    def use(self, name: str, offset: int = 0) -> Argument:
        allocation = self.allocations.setdefault(name, len(self.allocations))
        return Argument(self.places.setdefault((name, offset), len(self.places)), allocation)

    def pointwise(self, out: str, *inputs: str, specs: tuple[Spec, ...] | None = None, target: Spec = MATRIX) -> None:
        specs = specs or (MATRIX,) * len(inputs)
        total: Expr = ops.constant(1.0, "f32")
        for k, spec in enumerate(specs):
            total = ops.add(total, ops.load(k, spec.dtype))
        op = Operation("add", (*specs, target), 1, Pointwise((total,)))
        self.nodes.append(Call(op, tuple(self.use(name) for name in (*inputs, out))))

    def unary(self, out: str, source: str, row: str) -> None:
        op = Operation(row, (MATRIX, MATRIX), 1, Pointwise((getattr(ops, row)(ops.load(0, "f32")),)))
        self.nodes.append(Call(op, (self.use(source), self.use(out))))

    def total(self, out: str, source: str, target: Spec = COLUMN) -> None:
        body = Reduction((6, 6), (1,), (ops.load(0, "f32"),), ("sum",), (ops.acc(0, "f32"),))
        self.nodes.append(Call(Operation("sum", (MATRIX, target), 1, body), (self.use(source), self.use(out))))

    def extern(self, out: str, *inputs: str) -> None:
        op = Operation("mm", (MATRIX,) * (len(inputs) + 1), 1, Extern(lower_matmul))
        self.nodes.append(Call(op, tuple(self.use(name) for name in (*inputs, out))))

    def product(self, out: str, *inputs: str) -> None:
        body = Extern(lower_matmul, operands=2, epilogue=(ops.acc(0, "f32"),))
        op = Operation("mm", (MATRIX,) * (len(inputs) + 1), 1, body)
        self.nodes.append(Call(op, tuple(self.use(name) for name in (*inputs, out))))

    def fill(self, out: str) -> None:
        op = Operation("fill", (ROW,), 1, Pointwise((ops.param(0, "f32"),)), ("f",))
        self.nodes.append(Call(op, (self.use(out),)))

    def fuse(self, live: Iterable[str], **limits: int) -> list[FusedNode]:
        alive = frozenset(self.allocations[name] for name in live)
        return fuse(self.nodes, alive, FusionLimits(**limits))

    def groups(self, live: Iterable[str], **limits: int) -> list[tuple[int, ...]]:
        return [step.nodes for step in self.fuse(live, **limits)]


def test_a_chain_is_one_kernel_that_writes_only_its_end() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", "a")
    r.pointwise("d", "c")
    (step,) = r.fuse("ad")
    assert step.nodes == (0, 1, 2)
    assert step.sources == ((0, 0), (2, 1)), "a is read, d is written, b and c do not exist"


def test_what_lives_on_is_written() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b")
    (step,) = r.fuse("abc")
    assert step.op.n_outputs == 2


def test_what_nobody_sees_is_not_computed() -> None:
    r = Recording()
    r.pointwise("b", "a")
    assert r.fuse("a") == []


def test_a_transposed_read_is_not_fused_with_a_write_in_place() -> None:
    r = Recording()
    r.pointwise("b", "a", specs=(TRANSPOSED,))
    r.pointwise("a", "a")
    assert r.groups("ab") == [(0,), (1,)]


def test_a_write_in_place_after_reads_of_the_same_elements_is_fused() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("a", "a")
    assert r.groups("ab") == [(0, 1)]


def test_a_transposed_read_of_a_result_waits_for_it() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", specs=(TRANSPOSED,))
    assert r.groups("abc") == [(0,), (1,)]


def test_an_independent_node_joins_across_a_hand_written_kernel() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.extern("m", "x", "y")
    r.pointwise("c", "b")
    assert r.groups("abcmxy") == [(0, 2), (1,)]


def test_a_node_does_not_overtake_what_it_depends_on() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.extern("m", "b", "y")
    r.pointwise("c", "b", "m")
    assert r.groups("abcmy") == [(0,), (1,), (2,)]


def test_a_write_does_not_overtake_a_read() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.extern("m", "a", "y")
    r.pointwise("a", "b")
    assert r.groups("abmy") == [(0,), (1,), (2,)]


def test_a_reduction_takes_its_producer_and_its_consumers() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.total("s", "b")
    r.pointwise("c", "b", "s", specs=(MATRIX, COLUMN))
    r.pointwise("t", "s", specs=(COLUMN,), target=COLUMN)
    (step,) = r.fuse("act")
    assert isinstance(step.op.body, Reduction)
    assert (len(step.op.body.roots), len(step.op.body.maps)) == (1, 1)


def test_a_row_that_broadcasts_along_the_other_dimension_is_not_the_reductions() -> None:
    r = Recording()
    r.total("s", "a", target=ROW)
    r.pointwise("c", "a", "s", specs=(MATRIX, ROW))
    assert r.groups("acs") == [(0,), (1,)]


def test_a_producer_that_lives_on_is_written_once_by_itself() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.total("s", "b")
    assert r.groups("abs") == [(0,), (1,)]


def test_limits_are_kept() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b")
    assert r.groups("abc", window=0) == [(0,), (1,)]
    assert r.groups("abc", buffers=2) == [(0,), (1,)]
    assert r.groups("abc", min_numel=37) == [(0,), (1,)]


def test_what_a_chain_never_stores_takes_no_buffer() -> None:
    """Adapters with eight buffers run long chains in one kernel, too."""
    r = Recording()
    names = "abcdefghijklm"
    for source, out in pairwise(names):
        r.pointwise(out, source)
    assert r.groups("am", buffers=3) == [tuple(range(12))]
    # One that lives on is stored.
    r.pointwise("n", "g", "m")
    assert [len(step.sources) for step in r.fuse("agn", buffers=3)] == [3]
    assert all(len(step.sources) == 2 for step in r.fuse("agn", buffers=2)[:1])


def test_large_tensors_take_several_buffers() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b")
    assert r.groups("abc", buffers=5, binding_bytes=144) == [(0, 1)]
    assert r.groups("abc", buffers=5, binding_bytes=100) == [(0,), (1,)]


def test_a_group_that_refuses_says_why() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", specs=(TRANSPOSED,))
    assert r.fuse("abc")[1].reason == "it uses a tensor of the group in another order"


def test_a_product_takes_its_consumers() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "m", "r")
    r.pointwise("c", "b")
    (step,) = r.fuse("cxyr")
    assert step.nodes == (0, 1, 2)
    assert isinstance(step.op.body, Extern)
    assert step.sources == ((0, 0), (0, 1), (1, 1), (2, 1)), "the operands, the residual, the end of the chain"


def test_a_result_of_a_product_that_lives_on_is_written_as_well() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "m")
    (step,) = r.fuse("bmxy")
    assert step.op.n_outputs == 2


def test_an_epilogue_does_not_write_an_operand() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("x", "m")
    assert r.groups("xy") == [(0,), (1,)]


def test_an_epilogue_uses_its_product() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "a")
    assert r.groups("abmxy") == [(0,), (1,)]


def test_an_epilogue_reads_few_tensors_of_the_products_size() -> None:
    r = Recording()
    r.product("m", "x", "y")
    for k in range(5):
        r.pointwise("m", "m", f"r{k}")
    assert r.groups("m", buffers=20) == [(0, 1, 2, 3), (4, 5)]


def test_a_transposed_read_of_a_product_waits_for_it() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "m", specs=(TRANSPOSED,))
    assert r.groups("bxy") == [(0,), (1,)]


def test_a_dead_product_is_not_computed() -> None:
    r = Recording()
    r.product("m", "x", "y")
    assert r.fuse("xy") == []


def test_a_reduction_does_not_absorb_a_product() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "m")
    r.total("s", "b")
    assert r.groups("sxy") == [(0, 1), (2,)]


def test_a_reduction_computes_what_it_is_of_where_a_product_is_stored_anyway() -> None:
    """The squares of an RMS norm, of a sum that is read again."""
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("h", "m", "r")
    r.pointwise("b", "h")
    r.pointwise("c", "b")
    r.total("s", "c")
    r.pointwise("d", "h", "s", specs=(MATRIX, COLUMN))
    assert r.groups("hdxy") == [(0, 1), (2, 3, 4, 5)]
    assert r.groups("dxy") == [(0, 1), (2, 3, 4, 5)], "its other reader is no part of the product's kernel"


def test_a_product_computes_what_is_stored_for_others_than_a_reduction() -> None:
    r = Recording()
    r.product("m", "x", "y")
    r.pointwise("b", "m")
    r.total("s", "b")
    assert r.groups("bmsxy") == [(0, 1), (2,)], "it is needed by itself"
    r.product("n", "b", "y")
    assert r.groups("mnsxy") == [(0, 1), (2,), (3,)], "another product reads it"


def test_views_are_seen_through() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", "a", specs=(BATCHED, BATCHED), target=BATCHED)
    r.pointwise("d", "c")
    (step,) = r.fuse("ad")
    assert step.nodes == (0, 1, 2)
    assert len(step.op.args) == 2


def test_a_group_takes_a_shape_in_which_a_node_broadcasts() -> None:
    """One number for each row of a batch has no strides over the (6, 6) points."""
    per_row = Spec("f32", (1, 3, 1), (1, 1, 1))
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", "p", specs=(BATCHED, per_row), target=BATCHED)
    assert r.groups("acp") == [(0, 1)]


def test_a_reduction_takes_a_producer_of_another_shape() -> None:
    r = Recording()
    r.pointwise("b", "a", specs=(BATCHED,), target=BATCHED)
    r.total("s", "b")
    assert r.groups("as") == [(0, 1)]


def test_transposed_elementwise_operations_join_in_the_order_of_memory() -> None:
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "b", specs=(TRANSPOSED,), target=TRANSPOSED)
    assert r.groups("ac") == [(0, 1)]


def test_a_transposed_group_is_turned_for_what_follows_it() -> None:
    r = Recording()
    r.pointwise("b", "a", specs=(TRANSPOSED,), target=TRANSPOSED)
    r.pointwise("c", "b", "d")
    (step,) = r.fuse("acd")
    assert [spec.strides for spec in step.op.args] == [(6, 1)] * 3


def test_what_shares_nothing_with_a_reduction_joins_it_in_the_order_of_memory(monkeypatch) -> None:
    """Its threads are neighbours along a row; small tensors are not worth a dispatch of their own."""
    r = Recording()
    r.total("s", "a")
    r.pointwise("c", "b", specs=(TRANSPOSED,), target=TRANSPOSED)
    r.pointwise("d", "b", target=TRANSPOSED)
    assert r.groups("abcds") == [(0, 1, 2)]
    monkeypatch.setattr(fusion, "ORDERED_NUMEL", MATRIX.shape[0] * MATRIX.shape[1])
    first, second = r.fuse("abcds")
    assert (first.nodes, second.nodes) == ((0, 1), (2,))
    assert {spec.strides for spec in first.op.args if spec.shape == MATRIX.shape} == {MATRIX.strides}


def test_a_reduction_does_not_write_against_the_order_of_memory(monkeypatch) -> None:
    monkeypatch.setattr(fusion, "ORDERED_NUMEL", 1)
    r = Recording()
    r.total("s", "a")
    r.pointwise("c", "a", target=TRANSPOSED)
    assert r.groups("acs") == [(0,), (1,)]
    r = Recording()
    r.pointwise("b", "a")
    r.pointwise("c", "a", target=TRANSPOSED)
    assert r.groups("abc") == [(0, 1)]  # which reads once what both use


def test_what_is_filled_with_a_number_is_not_read() -> None:
    r = Recording()
    r.fill("z")
    r.extern("m", "x", "y")
    r.pointwise("b", "z", "a", specs=(ROW, MATRIX))
    first, second = r.fuse("abmxy")
    assert first.nodes == (1,)
    assert second.nodes == (2,)
    assert second.scalars == (0,)
    assert [n for n, _ in second.sources] == [2, 2], "a and b"


def test_what_is_filled_and_written_again_is_read() -> None:
    r = Recording()
    r.fill("z")
    r.extern("z", "x", "y")
    r.pointwise("b", "z", specs=(ROW,), target=ROW)
    assert r.fuse("bxy")[-1].sources == ((2, 0), (2, 1))


def test_more_elements_than_were_filled_are_read() -> None:
    r = Recording()
    r.fill("z")
    r.pointwise("b", "z", "a")
    assert r.groups("abz") == [(0,), (1,)]


def heavy_chain(*rows: str) -> Recording:
    r = Recording()
    for n, row in enumerate(rows):
        r.unary(f"t{n + 1}", f"t{n}", row)
    return r


def test_functions_of_much_code_do_not_pile_up_in_a_kernel() -> None:
    count = 2 * MAX_CODE // code_size([ops.bessel_y0(ops.load(0, "f32"))])
    r = heavy_chain(*["bessel_y0"] * count)
    steps = r.fuse([f"t{count}"])
    assert 1 < len(steps) <= 4
    assert [step.reason for step in steps[1:]] == ["together they would take long to compile"] * (len(steps) - 1)
    for step in steps:
        assert code_size(step.op.body.roots) <= MAX_CODE  # type: ignore[union-attr]


def test_what_is_little_code_joins_what_is_much() -> None:
    names = ["exp", "lgamma", *["tanh", "exp", "log"] * 4, "sigmoid"]
    assert len(heavy_chain(*names).fuse([f"t{len(names)}"])) == 1
    assert len(heavy_chain("exp", *["bessel_y0"] * 3, "exp").fuse(["t5"])) == 1


def test_a_chain_of_ordinary_functions_is_one_kernel() -> None:
    names = ["tanh", "exp", "erf", "sigmoid", "sin", "log1p", "sqrt", "cos", "expm1"] * 4
    assert len(heavy_chain(*names).fuse([f"t{len(names)}"])) == 1


def test_a_reduction_does_not_take_in_more_code_than_a_kernel_should_have() -> None:
    def steps(count: int) -> list[FusedNode]:
        r = heavy_chain(*["bessel_y0"] * count)
        r.nodes.append(Call(heavy_sum(), (r.use(f"t{count}"), r.use("sum"))))
        return r.fuse(["sum"])

    assert len(steps(2)) == 1
    (*_, last) = steps(MAX_CODE // code_size([ops.bessel_y0(ops.load(0, "f32"))]))
    assert last.reason == "together they would take long to compile"


def test_a_scan_takes_in_only_what_it_can_have_several_copies_of() -> None:
    def steps(row: str) -> list[FusedNode]:
        r = heavy_chain(row)
        body = Reduction((6, 6), (1,), (ops.load(0, "f32"),), ("sum",), (), (ops.acc(0, "f32"),), running=True)
        r.nodes.append(Call(Operation("cumsum", (MATRIX, MATRIX), 1, body), (r.use("t1"), r.use("out"))))
        return r.fuse(["out"])

    assert len(steps("exp")) == 1
    _, scan = steps("bessel_y0")
    assert scan.reason == "a scan's kernel with it would take long to compile"


def heavy_sum() -> Operation:
    value = ops.bessel_y0(ops.load(0, "f32"))
    return Operation("sum", (MATRIX, COLUMN), 1, Reduction((6, 6), (1,), (value,), ("sum",), (ops.acc(0, "f32"),)))


def test_the_epilogue_of_a_product_is_little_code() -> None:
    def steps(count: int) -> list[FusedNode]:
        r = Recording()
        r.product("t0", "a", "b")
        for n in range(count):
            r.unary(f"t{n + 1}", f"t{n}", "bessel_y0")
        return r.fuse(["a", "b", f"t{count}"])

    assert len(steps(1)) == 1
    first, second = steps(2)
    assert (first.nodes, second.nodes) == ((0, 1), (2,))
    assert second.reason == "a product's kernel with it would take long to compile"


def test_what_is_large_does_not_join_a_kernel_long_before_it_is_read(monkeypatch) -> None:
    """It would be stored and read again: its readers compute it where they need it."""

    def recording(source: str) -> Recording:
        r = Recording()
        r.pointwise("b", "a")
        for k in range(3):
            r.extern(f"m{k}", "a", "a")
        r.pointwise("c", source)
        return r

    products = [(1,), (2,), (3,)]
    assert recording("d").groups("bc") == [(0, 4), *products]
    monkeypatch.setattr(traffic, "LARGE_NUMEL", 36)
    monkeypatch.setattr(traffic, "FAR", 3)
    assert recording("d").groups("bc") == [(0,), *products, (4,)]
    assert recording("a").groups("bc") == [(0, 4), *products], "what they have in common is read once"


def test_a_product_does_not_store_a_wider_type_for_what_reads_more_beside_it(monkeypatch) -> None:
    half = Spec("f16", (6, 6), (6, 1))

    def recording() -> Recording:
        r = Recording()
        body = Extern(lower_matmul, operands=2, epilogue=(ops.acc(0, "f32"),))
        r.nodes.append(Call(Operation("mm", (half, half, half), 1, body), (r.use("a"), r.use("b"), r.use("c"))))
        wide = Operation("copy", (half, MATRIX), 1, Pointwise((ops.to_dtype(ops.load(0, "f16"), "f32"),)))
        r.nodes.append(Call(wide, (r.use("c"), r.use("w"))))
        return r

    alone, together = recording(), recording()
    alone.pointwise("d", "w")
    together.pointwise("d", "w", "x")
    monkeypatch.setattr(fusion, "MAX_EPILOGUE_TENSORS", 0)
    monkeypatch.setattr(fusion, "MAX_LARGE_EPILOGUE_TENSORS", 0)
    assert together.groups("d") == [(0, 1), (2,)]
    monkeypatch.setattr(traffic, "LARGE_NUMEL", 36)
    assert together.groups("d") == [(0,), (1, 2)]
    assert alone.groups("d") == [(0, 1, 2)]
    assert recording().groups("w") == [(0, 1)], "a gradient in float32, which nothing reads here"
