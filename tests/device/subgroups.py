"""Kernels whose threads hand each other numbers by subgroups, where kernels may not ask for the size of these.

Software adapters have subgroups of one size, always: kernels come as for an adapter that lets them ask, less the
question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests.device.choices import forget

from torch_webgpu.engine.record import engine
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


@contextmanager
def subgroups(device: torch.device, monkeypatch: pytest.MonkeyPatch, software: bool) -> Iterator[int]:
    """Until the test ends kernels use subgroups, of the size that it is given. ``software``: sizes are chosen for a
    software adapter; otherwise for a GPU, as they are there.
    """
    current = engine().device(device.index or 0)
    target = current.target
    if target.subgroup_sizes:
        yield target.subgroup_size
        return
    if not target.subgroups:
        pytest.skip("the adapter has no subgroups")
    sizes = torch.zeros(256, dtype=torch.int32, device=device)
    torch.webgpu.compile_shader(SIZE).size(sizes)
    (size,) = sizes.unique().tolist()
    missing = Requirements.missing

    def unasked(kernel: Kernel, target: Target, windows: tuple[int, ...] = ()) -> LinkedKernel:
        linked = link(kernel, target, windows)
        source = re.sub(r"@subgroup_size\(\d+\)|enable subgroup_size_control;\n", "", linked.source)
        return replace(linked, source=source)

    def other_missing(requires: Requirements, target: Target) -> list[str]:
        return missing(replace(requires, features=tuple(set(requires.features) - {"subgroup_sizes"})), target)

    monkeypatch.setattr(Requirements, "missing", other_missing)
    monkeypatch.setattr(current, "target", replace(target, subgroup_sizes=True, subgroup_size=size, software=software))
    monkeypatch.setattr(pipelines, "link", unasked)
    forget(monkeypatch)
    yield size
