"""Pointwise kernels as text: which layouts are told apart, how outputs are written, what travels as a parameter."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from torch_webgpu.ir.operation import Operation, Pointwise, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import MAX_GROUPS, WORKGROUP, Launch, Source, grid_for
from torch_webgpu.wgsl.link import link
from torch_webgpu.wgsl.pointwise import build_pointwise

NATIVE = Target(int64=True, float16=True, float64=True, immediates_bytes=128, max_binding_bytes=1 << 27)
PORTABLE = Target(int64=False, float16=False, float64=False, immediates_bytes=0, max_binding_bytes=1 << 27)


def dense(dtype: str, *shape: int) -> Spec:
    return Spec(dtype, shape, contiguous_strides(shape))


def build(*specs: Spec, outputs: int = 1, alias: tuple[int, ...] = (), native_f16: bool = False) -> Launch:
    """The sum of all inputs, cast to each output's dtype."""
    inputs = specs[:-outputs]
    total = ops.load(0, inputs[0].dtype)
    for k, spec in enumerate(inputs[1:], 1):
        total = total + ops.load(k, spec.dtype)
    roots = tuple(ops.to_dtype(total, spec.dtype) for spec in specs[-outputs:])
    op = Operation("test", specs, outputs, Pointwise(roots))
    return build_pointwise(op, alias or tuple(range(len(specs))), native_f16)


def names(built: Launch) -> list[str]:
    return [p.name for p in built.kernel.params]


def modes(built: Launch) -> list[str]:
    return [b.mode for b in built.kernel.bindings]


def test_contiguous_operands_need_no_coordinates() -> None:
    built = build(dense("f32", 4, 5), dense("f32", 4, 5), dense("f32", 4, 5))
    offsets = {f"o{k}": Source("offset", k) for k in range(3)}
    assert dict(zip(names(built), built.values)) == {"numel": 20, **offsets}
    assert "%" not in built.kernel.body


def test_one_kernel_serves_all_shapes_of_a_rank() -> None:
    def add_row(n: int, m: int) -> Launch:
        return build(dense("f32", n, m), dense("f32", m), dense("f32", n, m))

    for one, two in (((4, 5), (7, 901)), ((4, 8), (7, 900))):
        assert add_row(*one).kernel.key == add_row(*two).kernel.key
        assert add_row(*one).values != add_row(*two).values


def test_rows_of_whole_groups_are_moved_by_four() -> None:
    bias = build(dense("f32", 6, 8), dense("f32", 8), dense("f32", 6, 8)).kernel.body
    for access in ("x0_load4", "x1_load4", "y2_store4"):
        assert access in bias
    column = build(dense("f32", 6, 8), dense("f32", 6, 1), dense("f32", 6, 8)).kernel.body
    assert "x0_load4" in column
    assert column.count("x1_load(") == 1
    assert "y2_store4" not in build(dense("f32", 6, 9), dense("f32", 9), dense("f32", 6, 9)).kernel.body


def test_inputs_across_the_output_are_turned_in_tiles() -> None:
    across = Spec("f32", (64, 96), (1, 64))
    turned = build(across, dense("f32", 64, 96)).kernel.body
    for part in ("var<workgroup> tile0", "x0_load4", "y1_store4"):
        assert part in turned
    assert "x0_load4" not in build(across._replace(aligned=False), dense("f32", 64, 96)).kernel.body
    assert "tile0" not in build(Spec("f32", (3, 96), (1, 3)), dense("f32", 3, 96)).kernel.body
    assert "tile0" not in build(Spec("i64", (64, 96), (1, 64)), dense("f32", 64, 96)).kernel.body


def test_operands_in_one_memory_order_collapse() -> None:
    channels_last = Spec("f32", (2, 3, 4, 5), (60, 1, 15, 3))
    assert names(build(channels_last, channels_last)) == ["numel", "o0", "o1"]
    transposed = Spec("f32", (4, 5), (1, 4))
    assert "c1" in build(transposed, dense("f32", 4, 5)).kernel.body


def test_a_broadcast_scalar_is_loaded_at_its_offset() -> None:
    built = build(dense("f32", 6), Spec("f32", (), ()), dense("f32", 6))
    assert "x1_load(P.o1)" in built.kernel.body


TRANSPOSED = Spec("f32", (4, 6), (1, 4))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (dense("f32", 4, 6), "plain"),
        (dense("i64", 4, 6), "plain"),
        (dense("u8", 4, 6), "word"),
        (dense("f16", 4, 6), "word"),
        (Spec("u8", (4, 6), (6, 1), aligned=False), "atomic"),
        (Spec("u8", (4, 6), (12, 2)), "atomic"),
    ],
)
def test_how_outputs_are_written_point_by_point(output: Spec, expected: str) -> None:
    built = build(TRANSPOSED, output)
    assert modes(built)[-1] == expected
    assert "_store4" not in built.kernel.body


@pytest.mark.parametrize("output", [dense("f32", 24), dense("u8", 24), dense("f16", 24), dense("bool", 24)])
def test_outputs_in_iteration_order_are_written_in_fours(output: Spec) -> None:
    built = build(dense("f32", 24), output)
    assert modes(built)[-1] == "plain"
    assert "y1_store4" in built.kernel.body
    assert "x0_load4" in built.kernel.body


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "bool"])
def test_parts_of_tensors_are_written_in_fours(dtype: str) -> None:
    """What ``cat`` fills, if its lines are groups of four, and start at such."""
    body = build(dense("f32", 6, 8), Spec(dtype, (6, 8), (20, 1))).kernel.body
    assert "let at1 = (P.o1 + c0 * P.t1_0 + c1) / 4u;" in body
    assert "y1_store4(at1, out1)" in body
    for between in (Spec(dtype, (6, 8), (18, 1)), Spec(dtype, (6, 8), (20, 1), aligned=False)):
        assert "_store4" not in build(dense("f32", 6, 8), between).kernel.body


def test_coordinates_are_known_in_fours() -> None:
    """Of the innermost dimension each point has its own; dimensions of size 1 are none."""
    position = ops.to_dtype(ops.index(2) + ops.index(0) + ops.index(1), "f32")
    spec = dense("f32", 6, 1, 8)
    body = build_pointwise(Operation("test", (spec,), 1, Pointwise((position,))), (0,), False).kernel.body
    assert "point(base | 3u, c0, c1 | 3u)" in body
    assert "y0_store4" in body


@pytest.mark.parametrize(
    ("operand", "expected"),
    [
        (Spec("f32", (24,), (1,), aligned=False), "x0_load(P.o0 + min(base + 3u, P.numel - 1u))"),
        (dense("i64", 24), "x0_load(P.o0 + min(base + 3u, P.numel - 1u))"),
        (Spec("f32", (), ()), "x0_load(P.o0)"),
    ],
)
def test_what_cannot_be_loaded_in_fours_is_loaded_otherwise(operand: Spec, expected: str) -> None:
    assert expected in build(operand, dense("f32", 24)).kernel.body


def test_an_output_that_starts_between_groups_of_four_is_written_point_by_point() -> None:
    assert "_store4" not in build(dense("f32", 24), Spec("f32", (24,), (1,), aligned=False)).kernel.body


def test_a_broadcast_operand_leaves_packed_outputs_whole_words() -> None:
    assert modes(build(dense("f16", 4, 6), dense("f16", 6), dense("f16", 4, 6)))[-1] == "word"


def test_native_halves_are_stored_one_by_one() -> None:
    strided = Spec("f16", (4, 6), (1, 4))
    assert modes(build(strided, dense("f16", 4, 6), native_f16=True)) == ["plain", "plain"]


def test_a_thread_owns_whole_words_of_every_output() -> None:
    strided = Spec("f32", (63, 65), (1, 63))
    built = build(strided, dense("u8", 63, 65), dense("f16", 63, 65), outputs=2)
    assert built.grid == (4096 // 4 // WORKGROUP, 1, 1)
    assert built.kernel.body.count("y1_store_word") == 1
    assert built.kernel.body.count("y2_store_word") == 2


def test_arguments_in_one_storage_share_a_binding() -> None:
    built = build(dense("f32", 8), dense("f32", 8), dense("f32", 8), alias=(0, 1, 0))
    assert built.bindings == (2, 1)
    assert [b.access for b in built.kernel.bindings] == ["read_write", "read"]
    assert "y2_load" in built.kernel.body


def test_indices_iterate_in_row_major_order() -> None:
    body = Pointwise((ops.index(1),))
    spec = Spec("i32", (3, 4), (1, 3))
    built = build_pointwise(Operation("test", (spec,), 1, body), (0,), False)
    steps = {"t0_0": 1, "t0_1": 3}
    assert dict(zip(names(built), built.values)) == {"numel": 12, "n1": 4, "o0": Source("offset", 0), **steps}


def test_grids_stay_within_the_limit() -> None:
    assert grid_for(0) == (1, 1, 1)
    assert grid_for(WORKGROUP * MAX_GROUPS) == (MAX_GROUPS, 1, 1)
    x, y, _ = grid_for(WORKGROUP * MAX_GROUPS + 1)
    assert x <= MAX_GROUPS
    assert (y - 1) * x * WORKGROUP < WORKGROUP * MAX_GROUPS + 1 <= x * y * WORKGROUP


@pytest.mark.parametrize("target", [NATIVE, PORTABLE], ids=["native", "portable"])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i16", "i32", "u32", "i64", "f16", "bf16", "f32", "c64"])
def test_kernels_link_for_every_host(dtype: str, target: Target) -> None:
    built = build(dense(dtype, 4, 5), dense(dtype, 5), dense(dtype, 4, 5), native_f16=target.float16)
    linked = link(built.kernel, target)
    assert linked.uses_immediates == (target.immediates_bytes > 0)


def test_threads_take_several_groups_of_many_narrow_elements() -> None:
    def grid(dtype: str, n: int) -> int:
        return build(dense(dtype, n), dense(dtype, n)).grid[0]

    assert grid("bf16", 1 << 22) * 4 == grid("f32", 1 << 22)
    assert grid("bf16", 1 << 20) == grid("f32", 1 << 20)
    assert grid("bf16", (1 << 22) + 1) == grid("bf16", 1 << 22) + 1


def test_no_argument_has_the_name_of_a_type() -> None:
    """As number 16 once had, among outputs: adapters without half precision refuse to ``enable f16``."""
    many = [dense("f32", 4, 4)] * 40
    for outputs in (1, 20):
        source = link(build(*many, outputs=outputs).kernel, replace(PORTABLE, max_buffers=64)).source
        assert "enable" not in source
        assert not re.search(r"\b[fiu](8|16|32|64)\s*:[^:]*;|\.[fiu](8|16|32|64)\b", source)
