"""Accesses beyond a buffer's end, by kernels that nobody vouches for."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from torch_webgpu.runtime.runtime import ClearBuffer, Device, Dispatch, devices
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

N = 64
STRAY = Kernel(
    "stray",
    "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) g: vec3<u32>) {\n"
    "  y_store(P.far * (g.x + 1u), x_load(P.far * (g.x + 1u)) + 1.0);\n}",
    (Binding("x", "f32"), Binding("y", "f32", "read_write")),
    (Param("far"),),
    workgroup_size=(64, 1, 1),
)


@pytest.fixture(scope="module")
def device() -> Device:
    found = devices()
    if not found:
        pytest.skip("no WebGPU adapter on this machine")
    return found[0]


@pytest.mark.parametrize("far", [N, 1 << 20, (1 << 32) // N - 1])
def test_an_access_out_of_range_stays_in_its_buffer(device: Device, far: int) -> None:
    buffers = [device.allocate(4 * N) for _ in range(8)]
    device.submit([ClearBuffer(buffer, 0, buffer.size_bytes) for buffer in buffers])
    device.submit([Dispatch(STRAY, (buffers[3], buffers[4]), struct.pack("I", far), (1, 1, 1))])
    contents = device.download([(buffer, 0, 4 * N) for buffer in buffers])
    assert not any(part.any() for k, part in enumerate(contents) if k != 4)
    assert set(contents[4].view(np.float32)) <= {0.0, 1.0}
    for buffer in buffers:
        device.release(buffer)
