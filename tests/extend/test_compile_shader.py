"""Kernels of a program's own: what they compute, on the device, beside what the CPU computes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from torch_webgpu import plan
from torch_webgpu.engine.record import engine
from torch_webgpu.extend.kernel_call import record_shader
from torch_webgpu.extend.shader_source import ShaderSource

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="kernels in WGSL run on the webgpu device")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "custom_kernel.py"))
SAXPY, BLUR, SEGMENTED_SCAN = EXAMPLE["SAXPY"], EXAMPLE["BLUR"], EXAMPLE["SEGMENTED_SCAN"]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "saxpy", "blur", "segmented scan"
    ]  # fmt: skip


def test_what_the_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "custom-kernels.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    assert capsys.readouterr().out == "500.0\n"
    assert names["sums"].tolist() == [128.0] * 7 + [104.0]
    x = torch.rand(10, device=DEVICE, requires_grad=True)
    names["scaled"](x, 3.0).sum().backward()
    assert x.grad.tolist() == [3.0] * 10


def test_in_place_saxpy() -> None:
    lib = torch.webgpu.compile_shader(SAXPY)
    x, y = torch.rand(1000), torch.rand(1000)
    on_device = y.to(DEVICE)
    assert lib.saxpy(x.to(DEVICE), on_device, 0.5) is None
    torch.testing.assert_close(on_device.cpu(), y + 0.5 * x)


def test_a_stencil_over_an_image_and_its_transpose() -> None:
    lib = torch.webgpu.compile_shader(BLUR)
    image = torch.rand(19, 33)
    expected = EXAMPLE["blurred"](image)
    out = torch.zeros(19, 33, device=DEVICE)
    lib.blur(image.to(DEVICE), out, threads=(33, 19))
    torch.testing.assert_close(out.cpu(), expected)
    out = torch.zeros(33, 19, device=DEVICE)
    lib.blur(image.to(DEVICE).t(), out, threads=(19, 33))
    torch.testing.assert_close(out.cpu(), expected.t())


@pytest.mark.parametrize("block", [None, 64])
def test_a_segmented_scan_with_workgroup_memory(block: int | None) -> None:
    lib = torch.webgpu.compile_shader(SEGMENTED_SCAN)
    n = 1000
    x = torch.randint(-5, 5, (n,)).float()
    starts = (torch.rand(n) < 0.1).int()
    sums = torch.zeros(n, device=DEVICE)
    lib.segmented_scan(x.to(DEVICE), starts.to(DEVICE), sums, constants={"block": block} if block else None)
    assert torch.equal(sums.cpu(), EXAMPLE["scanned"](x, starts, block or 128))


def test_a_call_from_within_the_package() -> None:
    """What operators that are kernels are made of."""
    entry = ShaderSource.parse(SEGMENTED_SCAN).entry("segmented_scan")
    x, starts = torch.ones(300), torch.zeros(300, dtype=torch.int32)
    sums = torch.zeros(300, device=DEVICE)

    def call() -> None:
        record_shader(
            entry, (x.to(DEVICE), starts.to(DEVICE), sums), threads=(200,), constants={"block": 32}, name="mine::scan"
        )

    assert "mine::scan(f32[300], i32[300]" in str(torch.webgpu.explain(call))
    assert torch.equal(sums.cpu(), (EXAMPLE["scanned"](x, starts, 32) * (torch.arange(300) < 200)))


def test_entry_points_are_attributes() -> None:
    lib = torch.webgpu.compile_shader(SAXPY + SEGMENTED_SCAN.replace(" x:", " z:").replace("x[i]", "z[i]"))
    assert dir(lib) == ["saxpy", "segmented_scan"]
    assert lib.saxpy is lib.saxpy
    assert lib.saxpy.__name__ == "saxpy"
    with pytest.raises(AttributeError, match=r"no entry point 'saxpi' \(did you mean 'saxpy'\?\)"):
        lib.saxpi  # noqa: B018
    blur = torch.webgpu.compile_shader(BLUR)
    with pytest.raises(AttributeError, match=r"'pixel' is no entry point.*@compute.*blur"):
        blur.pixel  # noqa: B018


def test_wgsl_from_elsewhere_with_structs_and_bind_groups_of_its_own() -> None:
    """The matrix product of https://web.dev/articles/gpu-compute, word for word."""
    lib = torch.webgpu.compile_shader("""
struct Matrix {
  size : vec2f,
  numbers: array<f32>,
}

@group(0) @binding(0) var<storage, read> firstMatrix : Matrix;
@group(0) @binding(1) var<storage, read> secondMatrix : Matrix;
@group(0) @binding(2) var<storage, read_write> resultMatrix : Matrix;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) global_id : vec3u) {
  // Guard against out-of-bounds work group sizes
  if (global_id.x >= u32(firstMatrix.size.x) || global_id.y >= u32(secondMatrix.size.y)) {
    return;
  }

  resultMatrix.size = vec2(firstMatrix.size.x, secondMatrix.size.y);

  let resultCell = vec2(global_id.x, global_id.y);
  var result = 0.0;
  for (var i = 0u; i < u32(firstMatrix.size.y); i = i + 1u) {
    let a = i + resultCell.x * u32(firstMatrix.size.y);
    let b = resultCell.y + i * u32(secondMatrix.size.y);
    result = result + firstMatrix.numbers[a] * secondMatrix.numbers[b];
  }

  let index = resultCell.y + resultCell.x * u32(secondMatrix.size.y);
  resultMatrix.numbers[index] = result;
}
""")
    first, second = torch.rand(3, 5), torch.rand(5, 4)
    packed = [torch.cat([torch.tensor(m.shape).float(), m.flatten()]).to(DEVICE) for m in (first, second)]
    result = torch.zeros(2 + 12, device=DEVICE)
    lib.main(*packed, result, threads=(3, 4))
    assert result[:2].tolist() == [3.0, 4.0]
    torch.testing.assert_close(result[2:].view(3, 4).cpu(), first @ second)
    # A struct cannot start within its storage: it is copied, and copied back.
    within = torch.zeros(5 + 14, device=DEVICE)
    lib.main(*packed, within[5:], threads=(3, 4))
    assert torch.equal(within[5:], result)
    assert not within[:5].any()


def test_numbers_are_uniforms_vectors_matrices_and_structs_of_them_too() -> None:
    lib = torch.webgpu.compile_shader("""
const N = 2;
struct Params { shift: vec3f, count: u32, offset: i32 }
@group(1) @binding(3) var<uniform> m: mat2x2<f32>;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;
@group(2) @binding(0) var<uniform> table: array<vec4<f32>, N>;
@compute @workgroup_size(1)
fn tell() {
    out[0] = params.shift.y;
    out[1] = f32(params.count);
    out[2] = f32(params.offset);
    out[3] = m[1][0];
    out[4] = table[1].w;
    out[5] = f32(params.count & 4294967295u);
}
""")
    out = torch.zeros(6, device=DEVICE)
    params = {"shift": (1.0, 2.0, 3.0), "count": 2**32 - 1, "offset": -7}
    lib.tell(out, params, ((1, 2), (3, 4)), [list(range(4)), list(range(4, 8))], threads=1)
    assert out.tolist() == [2.0, float(2**32), -7.0, 3.0, 7.0, float(2**32)]


def test_constants_and_sizes_of_workgroups() -> None:
    lib = torch.webgpu.compile_shader("""
override scale = 2.0;
override width: u32;
@id(7) override negative: bool = false;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(width)
fn tell(@builtin(local_invocation_id) l: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
    out[id.x] = select(1.0, -1.0, negative) * scale * f32(l.x);
}
""")
    out = torch.zeros(10, device=DEVICE)
    with pytest.raises(ValueError, match="tell: the override constant width has no default"):
        lib.tell(out)
    lib.tell(out, constants={"width": 4})
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0, 0.0, 2.0, 4.0, 6.0, 0.0, 2.0]
    lib.tell(out, constants={"scale": 0.5, 7: True}, group_size=3)
    assert out.tolist() == [0.0, -0.5, -1.0, 0.0, -0.5, -1.0, 0.0, -0.5, -1.0, 0.0]
    with pytest.raises(ValueError, match=r"no override constant 'widht' \(did you mean 'width'\?\)"):
        lib.tell(out, constants={"widht": 4})
    with pytest.raises(TypeError, match=r"width is a u32, and 2.5 was given"):
        lib.tell(out, constants={"width": 2.5})


def test_the_size_of_a_workgroup_is_the_constant_that_it_is_made_of() -> None:
    """Or else half of a kernel would believe the text, and half the call."""
    lib = torch.webgpu.compile_shader(SEGMENTED_SCAN)
    x, starts = torch.randint(-5, 5, (1000,)).float(), (torch.rand(1000) < 0.1).int()
    sums = torch.zeros(1000, device=DEVICE)
    lib.segmented_scan(x.to(DEVICE), starts.to(DEVICE), sums, group_size=32)
    assert torch.equal(sums.cpu(), EXAMPLE["scanned"](x, starts, 32))
    lib.segmented_scan(x.to(DEVICE), starts.to(DEVICE), sums, group_size=(64,), constants={"block": 64})
    assert torch.equal(sums.cpu(), EXAMPLE["scanned"](x, starts, 64))
    with pytest.raises(ValueError, match="say different things of block"):
        lib.segmented_scan(x.to(DEVICE), starts.to(DEVICE), sums, group_size=32, constants={"block": 64})
    fixed = torch.webgpu.compile_shader(SEGMENTED_SCAN.replace("override block: u32 = 128", "const block = 128u"))
    with pytest.raises(ValueError, match="may rely on block: make it an override constant"):
        fixed.segmented_scan(x.to(DEVICE), starts.to(DEVICE), sums, group_size=32)


def test_as_many_threads_run_as_are_asked_for() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> count: atomic<u32>;
@compute @workgroup_size(16)
fn run() { atomicAdd(&count, 1u); }
@compute @workgroup_size(4, 4)
fn run_2d() { atomicAdd(&count, 1u); }
@compute @workgroup_size(16)
fn run_together() { workgroupBarrier(); atomicAdd(&count, 1u); }
""")

    def ran(kernel: object, **options: object) -> int:
        count = torch.zeros((), dtype=torch.int32, device=DEVICE)
        kernel(count, **options)  # type: ignore[operator]
        return int(count.item())

    assert ran(lib.run) == 1
    assert ran(lib.run, threads=37) == 37
    assert ran(lib.run, threads=37, group_size=5) == 37
    assert ran(lib.run, threads=0) == 0
    assert ran(lib.run_2d, threads=(5, 7)) == 35
    assert ran(lib.run_together, threads=37) == 48  # whole workgroups: they wait for each other


def test_more_workgroups_along_x_than_webgpu_runs() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(2)
fn number(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) group: vec3u,
          @builtin(num_workgroups) groups: vec3u) {
    out[id.x] = id.x + 2 * group.x + groups.x;
}
@compute @workgroup_size(1)
fn group(@builtin(workgroup_id) id: vec3u) { out[id.x] = id.x; }
@compute @workgroup_size(1, 1)
fn plane(@builtin(workgroup_id) id: vec3u) { out[id.y] = id.x; }
""")
    n = 140_001
    out = torch.zeros(n, dtype=torch.int32, device=DEVICE)
    i = torch.arange(n)
    lib.number(out)
    assert torch.equal(out.cpu().long(), i + 2 * (i // 2) + 70_001)
    lib.group(out)
    assert torch.equal(out.cpu().long(), i)
    with pytest.raises(ValueError, match="140001 workgroups along y, and WebGPU runs at most 65535"):
        lib.plane(out, threads=(1, n))


def test_atomics_and_a_single_variable() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> total: atomic<i32>;
@compute @workgroup_size(64)
fn histogram(@builtin(global_invocation_id) id: vec3u) {
    atomicAdd(&counts[x[id.x]], 1u);
    atomicAdd(&total, 1);
}
""")
    x = torch.randint(0, 10, (1000,), dtype=torch.int32)
    counts = torch.zeros(10, dtype=torch.int32, device=DEVICE)
    totals = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    lib.histogram(x.to(DEVICE), counts, totals[1])
    assert torch.equal(counts.cpu().long(), torch.bincount(x, minlength=10))
    assert totals.tolist() == [0, 1000, 0]


def test_subgroup_operations() -> None:
    if not engine().device(DEVICE.index or 0).target.subgroups:
        pytest.skip("the adapter has no subgroups")
    lib = torch.webgpu.compile_shader("""
enable subgroups;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(32)
fn sums(@builtin(global_invocation_id) id: vec3u, @builtin(subgroup_size) size: u32) {
    out[2u * id.x] = subgroupAdd(x[id.x]);
    out[2u * id.x + 1u] = f32(size);
}
""")
    x = torch.rand(32)
    out = torch.zeros(32, 2, device=DEVICE)
    lib.sums(x.to(DEVICE), out, threads=32)
    sums, sizes = out.cpu().unbind(1)
    size = int(sizes[0])
    torch.testing.assert_close(sums[::size], x.view(-1, size).sum(1))


def test_half_precision_as_it_is_and_in_words() -> None:
    x = torch.rand(101).half()
    words = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64)
fn double(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&x)) { x[id.x] = pack2x16float(2 * unpack2x16float(x[id.x])); }
}
""")
    doubled = x.to(DEVICE)
    words.double(doubled)
    assert torch.equal(doubled.cpu(), 2 * x)
    if not engine().device(DEVICE.index or 0).target.float16:
        pytest.skip("the adapter has no shader-f16")
    native = torch.webgpu.compile_shader("""
enable f16;
@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@group(0) @binding(1) var<uniform> factor: f16;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3u) { x[id.x] *= factor; }
""")
    native.scale(doubled[1:4], 4)
    expected = 2 * x
    expected[1:4] *= 4
    assert torch.equal(doubled.cpu(), expected)


@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.int16])
def test_packed_elements_beside_those_of_others(dtype: torch.dtype, start: int) -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn copy(@builtin(global_invocation_id) id: vec3u) { if (id.x < arrayLength(&y)) { y[id.x] = x[id.x]; } }
""")
    x = torch.randint(0, 2 if dtype is torch.bool else 100, (23,)).to(dtype)
    y = torch.zeros(40, dtype=dtype, device=DEVICE)
    lib.copy(x.to(DEVICE)[2:9], y[start : start + 7])
    expected = torch.zeros(40, dtype=dtype)
    expected[start : start + 7] = x[2:9]
    assert torch.equal(y.cpu(), expected)


def test_an_array_of_structs() -> None:
    lib = torch.webgpu.compile_shader("""
struct Particle { position: vec3f, mass: f32 }
@group(0) @binding(0) var<storage, read_write> particles: array<Particle>;
@group(0) @binding(1) var<uniform> step: vec3f;
@compute @workgroup_size(64)
fn move_by(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= arrayLength(&particles)) { return; }
    particles[id.x].position += step * particles[id.x].mass;
    let before = particles[id.x].position;
    particles[id.x].position[id.x % 3u] = before[(id.x + 1u) % 3u];
}
""")
    x = torch.rand(6, 4)
    expected = x.clone()
    expected[1:5, :3] += torch.tensor([1.0, 2.0, 3.0]) * x[1:5, 3:]
    moved = expected.clone()
    for i in range(4):
        moved[1 + i, i % 3] = expected[1 + i, (i + 1) % 3]
    on_device = x.to(DEVICE)
    lib.move_by(on_device[1:5], (1.0, 2.0, 3.0))
    torch.testing.assert_close(on_device.cpu(), moved)


def test_names_that_are_the_packages_own_may_be_the_programs() -> None:
    lib = torch.webgpu.compile_shader("""
struct Params { n: u32, main: f32 }
@group(0) @binding(0) var<storage, read_write> errors: array<f32>;
@group(0) @binding(1) var<uniform> P: Params;
fn main(x: f32) -> f32 { return x * P.main; }
fn inf_f() -> f32 { let errors = 3.0; return errors; }
@compute @workgroup_size(64)
fn other(@builtin(global_invocation_id) thread: vec3u) {
    if (thread.x < P.n) { errors[thread.x] = main(errors[thread.x]) + inf_f(); }
}
""")
    x = torch.rand(10, device=DEVICE)
    expected = x.clone()
    expected[:5] = expected[:5] * 2 + 3
    before = x.clone()
    lib.other(x, (5, 2.0))
    torch.testing.assert_close(x, expected)
    traced = plan.trace(lambda x: lib.other(y := x.clone(), (5, 2.0)) or y, before)
    loaded = plan.bind(plan.Plan.from_json(traced.to_json()))
    torch.testing.assert_close(loaded(before), expected)
