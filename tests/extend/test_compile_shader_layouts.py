"""Kernels over tensors of any shape, stride and offset, and over tensors that share their storage."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.target import DEVICE

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="kernels in WGSL run on the webgpu device")

TEXT = """
@group(0) @binding(0) var<storage, read> x: array<ELEMENT>;
@group(0) @binding(1) var<storage, read_write> y: array<ELEMENT>;
@group(0) @binding(2) var<storage, read_write> z: array<ELEMENT>;

@compute @workgroup_size(16)
fn by_number(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= arrayLength(&x)) { return; }
    let before = y[id.x];
    y[id.x] = x[id.x] + before;
    z[id.x] = before;
}

@compute @workgroup_size(16)
fn by_strides(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= x_numel) { return; }
    let before = y[y_at(id.x)];
    y[y_at(id.x)] = x[x_at(id.x)] + before;
    z[z_at(id.x)] = before;
}
"""
ELEMENTS = {torch.float32: "f32", torch.int32: "i32", torch.complex64: "vec2<f32>"}


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], whole: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(offset, strides, order) of a view of that shape, without overlaps, of a tensor of ``whole`` elements."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for d in order:
        step *= draw(st.integers(1, 2))
        strides[d] = step
        step *= max(shape[d], 1)
    return draw(st.integers(0, max(whole - step, 0))), tuple(strides), tuple(order)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.dtype, str, list[torch.Tensor], list[torch.Tensor]]:
    """A dtype, a kernel, and three views on the CPU and on the device, perhaps of one storage."""
    dtype = draw(st.sampled_from(list(ELEMENTS)))
    kernel = draw(st.sampled_from(["by_number", "by_strides"]))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    shared = draw(st.booleans())
    whole = 3 * 5**3 * 8 + 7
    base = torch.arange(whole * 3).remainder(97).to(dtype)
    on_device = base.to(DEVICE)
    starts = draw(st.permutations([0, whole, 2 * whole]))
    cpu, gpu = [], []
    for start in starts:
        offset, strides, _ = draw(views(shape, whole))
        one, other = (base, on_device) if shared else (base.clone(), base.to(DEVICE))
        cpu.append(one.as_strided(shape, strides, start + offset))
        gpu.append(other.as_strided(shape, strides, start + offset))
    return dtype, kernel, cpu, gpu


@pytest.fixture(scope="module")
def libraries() -> dict[torch.dtype, object]:
    return {dtype: torch.webgpu.compile_shader(TEXT.replace("ELEMENT", name)) for dtype, name in ELEMENTS.items()}


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_any_layout(libraries: dict[torch.dtype, object], case: tuple) -> None:
    dtype, name, (x, y, z), on_device = case
    getattr(libraries[dtype], name)(*on_device, threads=x.numel())
    before = y.clone()
    y.copy_(x + before)
    z.copy_(before)
    for expected, actual in zip((x, y, z), on_device, strict=True):
        # All of the storage: nothing beside the tensors is written.
        whole = [t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0) for t in (expected, actual)]
        assert torch.equal(whole[0], whole[1].cpu())


def test_what_is_read_does_not_change_while_a_kernel_runs() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn reversed(@builtin(global_invocation_id) id: vec3u) { y[id.x] = x[arrayLength(&x) - 1u - id.x]; }
""")
    x = torch.arange(1000.0)
    for start, end in ((0, 1000), (100, 900)):
        y = x.to(DEVICE)
        for _ in range(3):  # the third time by the recipe of the first
            y.copy_(x)
            lib.reversed(y[: end - start], y[start:end])
            expected = x.clone()
            expected[start:end] = x[: end - start].flip(0)
            assert torch.equal(y.cpu(), expected)
    y = x.to(DEVICE)
    lib.reversed(y[:500], y[500:])
    assert torch.equal(y.cpu(), torch.cat([x[:500], x[:500].flip(0)]))


def test_tensors_of_one_storage_that_are_seen_differently() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn f(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&x)) { x[id.x] *= 2.0; }
    if (id.x < arrayLength(&y)) { y[id.x] += 1.0; }
}
""")
    x = torch.rand(40)
    on_device = x.to(DEVICE)
    lib.f(on_device[4:20], on_device[21:30])
    x[4:20] *= 2
    x[21:30] += 1
    assert torch.equal(on_device.cpu(), x)


def test_the_names_that_tell_a_layout() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn tell() {
    y[0] = f32(x_rank);
    y[1] = f32(x_numel);
    y[2] = f32(x_offset);
    for (var d = 0u; d < x_rank; d++) {
        y[3u + d] = f32(x_size(d));
        y[6u + d] = f32(x_stride(d));
    }
    y[9] = f32(x_size_2);
    y[10] = f32(x_stride_1);
    y[11] = f32(num_threads.z);
}
""")
    x = torch.rand(4, 5, 6, device=DEVICE)[1:, ::2].transpose(0, 2)
    y = torch.zeros(12, device=DEVICE)
    lib.tell(x, y, threads=(1, 1, 1))
    assert y.tolist() == [3, x.numel(), x.storage_offset(), *x.shape, *x.stride(), x.size(2), x.stride(1), 1]


def test_a_length_is_the_tensors_and_not_the_buffers() -> None:
    lib = torch.webgpu.compile_shader("""
struct Counted { count: u32, values: array<u32> }
@group(0) @binding(0) var<storage, read> x: Counted;
@group(0) @binding(1) var<storage, read> fixed: array<u32, 3>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1)
fn tell() {
    y[0] = arrayLength(&x.values);
    y[1] = arrayLength(&y);
    y[2] = x.values[100] + x.count;
    y[3] = fixed[2] + fixed[y[1]];
}
""")
    x = torch.arange(1, 8, dtype=torch.int32, device=DEVICE)
    y = torch.zeros(8, dtype=torch.int32, device=DEVICE)
    lib.tell(x, x[2:], y[1:6], threads=1)
    assert y.tolist() == [0, 6, 5, 8, 10, 0, 0, 0]


def test_empty_tensors() -> None:
    lib = torch.webgpu.compile_shader(TEXT.replace("ELEMENT", "f32"))
    x = torch.ones(0, device=DEVICE)
    lib.by_number(x, x.clone(), x.clone())
    y = torch.ones(4, device=DEVICE)
    lib.by_number(x, y, y.clone(), threads=4)
    assert y.tolist() == [1.0] * 4
