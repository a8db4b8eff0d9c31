"""Attention of few queries where threads of a subgroup hand each other numbers.

An adapter that has subgroups, but does not let a kernel ask for their size, always uses the same here: kernels come as
for one that lets them ask, less the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.device.choices import forget
from tests.device.nn import test_sdpa as sdpa

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.attention import attention_few
from torch_webgpu.plan import Requirements
from torch_webgpu.runtime import pipelines
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.link import LinkedKernel, link

SIZE = """
@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
@compute @workgroup_size(256)
fn size(@builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) size: u32) { sizes[lid] = size; }
"""


@pytest.fixture(autouse=True)
def subgroups(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    current = engine().device(device.index or 0)
    if current.target.subgroup_sizes:
        yield
        return
    if not current.target.subgroups:
        pytest.skip("the adapter has no subgroups")
    sizes = torch.zeros(256, dtype=torch.int32, device=device)
    torch.webgpu.compile_shader(SIZE).size(sizes)
    (size,) = sizes.unique().tolist()

    def unasked(kernel: Kernel, target: Target, windows: tuple[int, ...] = ()) -> LinkedKernel:
        linked = link(kernel, target, windows)
        sources.append(re.sub(r"@subgroup_size\(\d+\)|enable subgroup_size_control;\n", "", linked.source))
        return replace(linked, source=sources[-1])

    sources: list[str] = []
    missing = Requirements.missing

    def other_missing(requires: Requirements, target: Target) -> list[str]:
        return missing(replace(requires, features=tuple(set(requires.features) - {"subgroup_sizes"})), target)

    monkeypatch.setattr(Requirements, "missing", other_missing)
    monkeypatch.setattr(current, "target", replace(current.target, subgroup_sizes=True, subgroup_size=size))
    monkeypatch.setattr(pipelines, "link", unasked)
    monkeypatch.setattr(attention_few, "SOFTWARE", attention_few.GPU)
    forget(monkeypatch)
    yield
    assert any("subgroupShuffle" in source for source in sources)


SIZES: list[tuple[Any, ...]] = [
    (2, 3, 1, 2, 70, 32, 64),
    (1, 6, 2, 1, 300, 64, 64),
    (1, 2, 2, 1, 900, 16, 32),
    (2, 2, 2, 5, 4, 33, 1),
]


@pytest.mark.parametrize("dtype", sdpa.TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_few_queries(device, size, dtype):
    q, k, v = sdpa.heads(*size, dtype)
    b, h, g, n, s, _, _ = size
    grouped = {"enable_gqa": h != g}
    sdpa.agrees(device, q, k, v, **grouped)
    sdpa.agrees(device, q, k, v, is_causal=True, scale=-0.3, **grouped)
    sdpa.agrees(device, q, k, v, attn_mask=torch.rand(b, 1, n, s) > 0.3, **grouped)
    sdpa.agrees(device, q, k, v, attn_mask=torch.randn(n, s).to(dtype), **grouped)


def test_values_that_are_not_finite(device):
    sdpa.test_queries_that_see_nothing_give_zeros(device)
    sdpa.test_infinities_and_nans(device)
    sdpa.test_large_scores_do_not_overflow(device)
