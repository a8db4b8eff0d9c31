"""Attention of few queries: how keys are split, and what the kernel needs of a device."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.attention.attention import Attention, AttentionProblem
from torch_webgpu.kernels.attention.attention_few import GPU, SOFTWARE, choice, extern, fits, lower_few
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered
from torch_webgpu.wgsl.workgroup_memory import workgroup_bytes

TARGET = Target(int64=True, float16=True, float64=False, immediates_bytes=64, max_binding_bytes=1 << 27)
WORKGROUP_BYTES = 16 << 10
IMMEDIATES = 16
"""Words that every implementation passes without a buffer."""
SIZES = [
    (1, 14, 2, 1, 1024, 64, 64),
    (64, 32, 8, 1, 4096, 128, 128),
    (1, 1, 1, 1, 1, 1, 1),
    (2, 40, 1, 16, 100_000, 256, 96),
    (1, 8, 8, 3, 50, 1024, 256),
    (1, 8, 8, 3, 50, 5, 256),
    (1, 64, 4, 5, 700, 4, 4),
]
TARGETS = {
    "memory": TARGET,
    "subgroups": replace(TARGET, subgroup_sizes=True, subgroup_size=32),
    "small subgroups": replace(TARGET, subgroup_sizes=True, subgroup_size=8),
    "software": replace(TARGET, software=True),
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def spec(*shape: int, dtype: str = "f32") -> Spec:
    return Spec(dtype, shape, contiguous_strides(shape))


def operation(size: tuple[int, ...], masked: bool = False, causal: bool = False) -> Operation:
    b, h, g, n, s, e, d = size
    inputs = [spec(b, h, n, e), spec(b, g, s, e), spec(b, g, s, d)]
    mask = [spec(b, 1, 1, s, dtype="bool")] if masked else []
    body = extern(Attention(0.125, causal, masked))
    return Operation("attention", (*inputs, *mask, spec(b, h, n, d), spec(b, h, n)), 2, body)


def lowered(op: Operation, target: Target = TARGET) -> Lowered:
    return lower_few(op, tuple(range(len(op.args))), target, op.body.arguments[0])


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_target
def test_parts_cover_keys_and_queries(size: tuple[int, ...], target: Target) -> None:
    b, h, g, n, s, e, d = size
    q, k, v, y, _ = operation(size).args
    assert fits(b, h, n, e, d)
    few = choice(AttentionProblem(Attention(1.0, False, False), q, k, v, None, (), y), target)
    assert few.chunk % few.tile == 0
    assert (few.splits - 1) * few.chunk < s <= few.splits * few.chunk
    assert (few.blocks - 1) * few.rows < h // g * n <= few.blocks * few.rows
    assert few.key_units * few.lanes * few.size >= e
    assert few.value_units * few.lanes * few.size >= d


@pytest.mark.parametrize("target", [TARGETS["memory"], TARGETS["subgroups"]], ids=["memory", "subgroups"])
def test_what_occupies_a_gpu(target: Target) -> None:
    """A long cache is split, a short one is read again by each query, in one launch."""
    long = lowered(operation((1, 14, 2, 1, 32_768, 64, 64)), target)
    assert [launch.kernel.name for launch in long.launches] == ["attention_few", "attention_combine"]
    assert GPU.groups // 2 <= prod(long.launches[0].grid) <= GPU.groups
    for keys in (64, 512):
        (short,) = lowered(operation((1, 14, 2, 1, keys, 64, 64)), target).launches
        assert short.grid == (1, 14, 1)


@every_target
def test_teams_add_up_scores_by_subgroups_where_these_are_large_enough(target: Target) -> None:
    launch, *_ = lowered(operation((1, 14, 2, 1, 1024, 64, 64)), target).launches
    assert ("subgroupShuffleXor" in launch.kernel.body) == target.subgroup_sizes
    launch, *_ = lowered(operation((1, 8, 8, 1, 1024, 64, 256)), target).launches
    assert ("subgroupShuffleXor" in launch.kernel.body) == (target.subgroup_size == 32)


def test_software_computes_as_little_as_it_can() -> None:
    launches = lowered(operation((1, 14, 2, 1, 1024, 64, 64)), TARGETS["software"]).launches
    assert launches[0].grid == (1, 2 * -(-7 // SOFTWARE.rows), 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_target
def test_workgroup_memory(size: tuple[int, ...], target: Target) -> None:
    for launch in lowered(operation(size), target).launches:
        assert 0 < workgroup_bytes(launch.kernel.module, {}) <= WORKGROUP_BYTES


def test_a_decoding_step_needs_no_buffer_for_its_parameters() -> None:
    for launch in lowered(operation((1, 14, 2, 1, 1024, 64, 64), masked=True)).launches:
        assert len(launch.kernel.params) <= IMMEDIATES
