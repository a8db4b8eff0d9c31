"""Attention of few queries: how keys are split, and what the kernel needs of a device."""

from __future__ import annotations

import re
from math import prod

import pytest

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.attention import attention
from torch_webgpu.kernels.attention.attention import Attention, AttentionProblem, few, lower_few
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

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
]


def spec(*shape: int, dtype: str = "f32") -> Spec:
    return Spec(dtype, shape, contiguous_strides(shape))


def operation(size: tuple[int, ...], masked: bool = False, causal: bool = False) -> Operation:
    b, h, g, n, s, e, d = size
    inputs = [spec(b, h, n, e), spec(b, g, s, e), spec(b, g, s, d)]
    mask = [spec(b, 1, 1, s, dtype="bool")] if masked else []
    body = attention.extern(Attention(0.125, causal, masked))
    return Operation("attention", (*inputs, *mask, spec(b, h, n, d), spec(b, h, n)), 2, body)


def lowered(op: Operation) -> Lowered:
    return lower_few(op, tuple(range(len(op.args))), TARGET, op.body.arguments[0])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("software", [True, False])
def test_parts_cover_keys_and_queries(size: tuple[int, ...], software: bool) -> None:
    b, h, g, n, s, e, d = size
    q, k, v, y, _ = operation(size).args
    assert attention.fits(b, h, n, e, d)
    chosen = few(AttentionProblem(Attention(1.0, False, False), q, k, v, None, (), y), software)
    assert chosen.chunk % chosen.tile == 0
    assert (chosen.splits - 1) * chosen.chunk < s <= chosen.splits * chosen.chunk
    assert (chosen.blocks - 1) * chosen.rows < h // g * n <= chosen.blocks * chosen.rows
    assert chosen.rows * chosen.tile <= attention.THREADS


def test_a_long_cache_occupies_a_gpu_and_a_short_one_is_one_launch() -> None:
    long = lowered(operation((1, 14, 2, 1, 32_768, 64, 64)))
    assert [launch.kernel.name for launch in long.launches] == ["attention_few", "attention_combine"]
    assert prod(long.launches[0].grid) >= 132
    assert len(lowered(operation((1, 14, 2, 1, 64, 64, 64))).launches) == 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_workgroup_memory(size: tuple[int, ...]) -> None:
    text = lowered(operation(size)).launches[0].kernel.body
    constants = {name: int(value) for name, value in re.findall(r"const (\w+) = (\d+)u;", text)}
    constants["STRIDE"] = constants["LANES"] + 1
    sizes = {"f32": 4, "V": 16 if "alias V = vec4<f32>;" in text else 4}
    total = 0
    for element, count in re.findall(r"var<workgroup> \w+: array<(\w+), ([^>]+)>;", text):
        factors, _, divisor = count.partition(" / ")
        total += sizes[element] * prod(constants[f] for f in factors.split(" * ")) // constants.get(divisor, 1)
    assert 0 < total <= WORKGROUP_BYTES


def test_a_decoding_step_needs_no_buffer_for_its_parameters() -> None:
    for launch in lowered(operation((1, 14, 2, 1, 1024, 64, 64), masked=True)).launches:
        assert len(launch.kernel.params) <= IMMEDIATES
