"""How reductions and scans are tiled and written, without a GPU."""

from __future__ import annotations

import pytest

from torch_webgpu.ir.combine import COMBINES, accumulators
from torch_webgpu.ir.operation import Operation, Reduction, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.wgsl.reduction import build_reduction
from torch_webgpu.wgsl.tiling import space_of


def spec(*shape: int, dtype: str = "f32", strides: tuple[int, ...] | None = None) -> Spec:
    return Spec(dtype, shape, strides or contiguous_strides(shape))


def reduction(
    x: Spec, dims: tuple[int, ...], combine: str = "sum", *, maps: bool = False, running: bool = False
) -> Operation:
    """One that stores its first accumulator, per output or at every point."""
    value = ops.load(0, x.dtype)
    result = (ops.acc(0, accumulators((value,), (combine,))[0]),)
    kept = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    out = spec(*(x.shape if maps else kept), dtype=x.dtype)
    body = Reduction(x.shape, dims, (value,), (combine,), () if maps else result, result if maps else (), running)
    return Operation(f"test::{combine}", (x, out), 1, body)


def build(op: Operation, subgroup: int = 0):
    return build_reduction(op, tuple(range(len(op.args))), subgroup)


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("combine", sorted(COMBINES.keys() - {"any", "all", "xor"}))
def test_sizes_are_no_part_of_the_text(dims, combine):
    one, two = (build(reduction(spec(*shape), dims, combine)).launches for shape in ((200, 640), (202, 644)))
    assert [b.kernel.key for b in one] == [b.kernel.key for b in two]
    assert one[0].values != two[0].values


def test_few_outputs_of_many_elements_are_split():
    stages = build(reduction(spec(1 << 24), (0,)))
    first, second = stages.launches
    assert len(stages.temporaries) == 1
    assert first.grid[0] * 4 == stages.temporaries[0]
    assert second.grid == (1, 1, 1)


@pytest.mark.parametrize(("shape", "dims"), [((5,), (0,)), ((1 << 16, 64), (1,)), ((64, 1 << 16), (0,))])
def test_small_or_wide_reductions_are_not_split(shape, dims):
    assert len(build(reduction(spec(*shape), dims)).launches) == 1


def test_aligned_rows_are_read_in_fours():
    assert "x0_load4" in build(reduction(spec(30, 64), (1,))).launches[0].kernel.body
    assert "x0_load4" not in build(reduction(spec(30, 63), (1,))).launches[0].kernel.body
    assert "x0_load4" not in build(reduction(spec(30, 64, strides=(65, 1)), (1,))).launches[0].kernel.body
    assert "x0_load4" not in build(reduction(spec(30, 64)._replace(aligned=False), (1,))).launches[0].kernel.body


def test_inner_dimensions_that_do_not_collapse_are_read_in_fours():
    images = reduction(spec(4, 3, 8, 8), (0, 2, 3))
    assert space_of(images, images.body).reduced == (4, 64)
    assert "x0_load4" in build(images).launches[0].kernel.body


def test_maps_of_short_rows_read_them_once():
    body = build(reduction(spec(30, 4096), (1,), "logsumexp", maps=True)).launches[0].kernel.body
    assert body.count("load_run(row,") == 4
    assert "for (" not in body


def test_maps_of_long_rows_read_them_twice():
    """Both times in batches of loads, and then what is left of them."""
    body = build(reduction(spec(3000, 50_000), (1,), "logsumexp", maps=True)).launches[0].kernel.body
    assert body.count("for (") == 2 * 2


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("shape", [(3, 5000), (1 << 22,), (300, 700)])
def test_barriers_are_in_uniform_control_flow(shape, running):
    """None inside a conditional; the only loop around one is the scan's, whose bounds are uniform."""
    for built in build(reduction(spec(*shape), (len(shape) - 1,), maps=running, running=running)).launches:
        main = built.kernel.body[built.kernel.body.index("fn main") :]
        open_blocks: list[str] = []
        for line in main.splitlines()[2:]:
            if "workgroupBarrier" in line:
                assert all("var block = start; block < end" in block for block in open_blocks), line
            if line.rstrip().endswith("{"):
                open_blocks.append(line)
            elif line.strip() == "}" and open_blocks:
                open_blocks.pop()


def test_positions_keep_the_order_of_dimensions():
    transposed = spec(6, 7, strides=(1, 6))
    ordered = reduction(transposed, (0, 1), "argmax")
    free = reduction(transposed, (0, 1), "max")
    assert space_of(ordered, ordered.body).reduced == (6, 7)
    assert space_of(free, free.body).reduced == (42,)


@pytest.mark.parametrize("combine", ["logsumexp", "welford"])
def test_rows_in_registers_are_reduced_in_rounds(combine):
    """A sum or a maximum in each, without merging whole states; rows that are split or read twice merge states."""
    short = build(reduction(spec(30, 4096), (1,), combine, maps=True)).launches[0].kernel.body
    assert "states0: array<f32" in short
    assert "states1: array<f32" in short
    assert "fn merge(" not in short
    uneven = build(reduction(spec(30, 4092), (1,), combine, maps=True)).launches[0].kernel.body
    assert "< P.extent)" in uneven
    assert "fn merge(" in build(reduction(spec(3000, 50_000), (1,), combine, maps=True)).launches[0].kernel.body


@pytest.mark.parametrize("combine", ["sum", "argmax", "logsumexp", "welford"])
@pytest.mark.parametrize("maps", [False, True])
def test_lanes_of_one_subgroup_need_no_workgroup_memory(combine, maps):
    """A row of 512 has 32 lanes, one of 2,048 has more."""
    bodies = [
        build(reduction(spec(300, n), (1,), combine, maps=maps), subgroup).launches[0].kernel.body
        for n, subgroup in ((512, 32), (512, 16), (512, 0), (2048, 32))
    ]
    shuffles = ["subgroupShuffleXor" in body for body in bodies]
    assert shuffles == [True, False, False, False]
    assert ["var<workgroup>" in body for body in bodies] == [not found for found in shuffles]
    assert ["@subgroup_size(32)" in body for body in bodies] == shuffles


def test_states_that_cannot_be_shuffled_and_rows_across_lanes_take_workgroup_memory():
    for op in (reduction(spec(300, 512, dtype="i64"), (1,)), reduction(spec(512, 300), (0,))):
        assert "subgroup" not in build(op, 32).launches[0].kernel.body
