"""What is wrong with a kernel, or a call of one, is said before the GPU sees it, and the device goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_webgpu.engine.record import engine
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.extend.shader_errors import check_source
from torch_webgpu.extend.shader_source import ShaderSource
from torch_webgpu.runtime.device import Device

from .test_compile_shader import BLUR, SAXPY

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="kernels in WGSL run on the webgpu device")

HEAD = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn f(@builtin(global_invocation_id) id: vec3<u32>) {
"""


@pytest.fixture(scope="module", params=["the device under test", "Dawn"])
def device(request: pytest.FixtureRequest) -> Device:
    """A device that compiles: the one under test, or Dawn's that computes nothing."""
    if request.param != "Dawn":
        return engine().device(DEVICE.index or 0)
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    return Device(0, dawn.IMPLEMENTATION.null())


@pytest.mark.parametrize(
    ("text", "line", "marked", "problem"),
    [
        (HEAD + "    y[id.x] = x[id.x]\n}\n", 6, "}", "expected"),
        (HEAD + "    y[id.x] = x[id.x;\n}\n", 5, "[", "not closed"),
        (HEAD + "    y[id.x] = z[id.x];\n}\n", 5, "z", "z"),
        (HEAD + "    y[id.x] = x_sise_0;\n}\n", 5, "x_sise_0", "x_sise_0"),
        (HEAD + "    let k: f32 = true;\n    y[id.x] = x[id.x];\n}\n", 5, "k", "bool"),
        (HEAD + "    y[id.x] = sqr(x[id.x]);\n}\n", 5, "sqr", "sqr"),
        (HEAD + "    x[id.x] = y[id.x];\n}\n", 5, "", "read-only|not permitted"),
        (HEAD.replace("array<f32>", "array<flot>") + "    y[id.x] = x[id.x];\n}\n", 1, "flot", "flot"),
        (HEAD + "    let total = x;\n    y[id.x] = x[id.x];\n}\n", 5, "x", "used as a whole here"),
        ("@group(0) @binding(0) var t: texture_2d<f32>;\n" + HEAD + "}\n", 1, "t", "textures"),
        (HEAD.replace("@binding(1)", "@binding(0)") + "    y[0] = x[0];\n}\n", 2, "y", "is x's already"),
        (HEAD + "    y[0] = x[0];\n}\nconst y = 3;\n", 7, "y", "y is declared already"),
        (HEAD.replace("@group(0) @binding(0)", "@group(0)") + "    y[0] = x[0];\n}\n", 1, "x", "no @binding"),
        (HEAD + "    y[id.x] = x[id.x] + nächstes;\n}\n", 5, "nächstes", "nächstes"),
    ],
)
def test_wgsl_that_is_wrong(device: Device, text: str, line: int, marked: str, problem: str) -> None:
    def compiled() -> None:
        ShaderSource.parse(text)
        torch.webgpu.compile_shader(text)  # what the package itself finds, also in how arguments are used
        check_source(ShaderSource.parse(text), device)

    with pytest.raises(ShaderCompileError, match=problem) as caught:
        compiled()
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.line == line
    assert f"line {line}, column {error.column}: " in str(error)
    shown, caret = str(error).splitlines()[1:3]
    assert shown == "  " + text.splitlines()[line - 1]
    assert caret == " " * (error.column + 1) + "^"  # type: ignore[operator]
    assert text.splitlines()[line - 1][error.column - 1 :].startswith(marked)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("body", "marked", "problem"),
    [
        ("    y[0] = z;\n", "z", "z"),
        ("    let k: f32 = 1u;\n", "k", "u32"),
        ("    y[0] = x[0]\n", "}", "expected"),
    ],
)
def test_the_hosts_compiler_speaks_of_the_programs_lines(device: Device, body: str, marked: str, problem: str) -> None:
    text = HEAD + body + "}\n"
    with pytest.raises(ShaderCompileError, match=problem) as caught:
        check_source(ShaderSource.parse(text), device)
    error = caught.value
    assert text.splitlines()[error.line - 1][error.column - 1 :].startswith(marked)  # type: ignore[operator]


def test_a_barrier_that_not_all_threads_reach_is_an_error_on_dawn(device: Device) -> None:
    text = HEAD + "    if (id.x < 4u) {\n        workgroupBarrier();\n    }\n    y[id.x] = x[id.x];\n}\n"
    if device.target.dialect == "naga":
        check_source(ShaderSource.parse(text), device)  # wgpu-native does not look
        return
    with pytest.raises(ShaderCompileError, match="uniform control flow") as caught:
        check_source(ShaderSource.parse(text), device)
    assert caught.value.line == 6
    assert "line 5, column 5: control flow depends on possibly non-uniform value" in str(caught.value)


def test_a_feature_that_the_adapter_lacks() -> None:
    pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    from torch_webgpu.runtime import dawn

    text = HEAD + "    y[id.x] = f32(f64(x[id.x]));\n}\n"
    with pytest.raises(ShaderCompileError, match="line 5, column 19: this adapter has no 64-bit floats"):
        check_source(ShaderSource.parse(text), Device(0, dawn.IMPLEMENTATION.null()))


def goes_on() -> None:
    """The device does what it is told next."""
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2.0, 2.0, 2.0]


def test_no_entry_point() -> None:
    with pytest.raises(ShaderCompileError, match=r"no entry point.*@compute.*functions: helper"):
        torch.webgpu.compile_shader("fn helper() -> f32 { return 1.0; }")
    with pytest.raises(ShaderCompileError, match="no entry point"):
        torch.webgpu.compile_shader("")
    with pytest.raises(TypeError, match="is a str, not bytes"):
        torch.webgpu.compile_shader(b"")  # type: ignore[arg-type]
    goes_on()


def test_workgroups_that_are_too_large() -> None:
    lib = torch.webgpu.compile_shader(SAXPY)
    x = torch.zeros(8, device=DEVICE)
    with pytest.raises(ValueError, match=r"saxpy: a workgroup of 4096 is 4096 threads, and this adapter allows \d+"):
        lib.saxpy(x, x.clone(), 1.0, group_size=4096)
    device = engine().device(DEVICE.index or 0)
    deepest = device.limits["max-compute-workgroup-size-z"]
    if deepest < device.target.workgroup_threads:
        with pytest.raises(ValueError, match=f"has more than the {deepest} threads along z"):
            lib.saxpy(x, x.clone(), 1.0, group_size=(1, 1, deepest + 1))
    for wrong in (0, (1, 2, 3, 4), ()):
        with pytest.raises(ValueError, match="group_size is one to three numbers from 1 on"):
            lib.saxpy(x, x.clone(), 1.0, group_size=wrong)
    with pytest.raises(ValueError, match="threads is one to three numbers from 0 on"):
        lib.saxpy(x, x.clone(), 1.0, threads=-1)
    with pytest.raises(TypeError, match="threads is an int"):
        lib.saxpy(x, x.clone(), 1.0, threads=[2.5])
    goes_on()


def test_too_much_workgroup_memory() -> None:
    text = HEAD.replace("@compute", "var<workgroup> tile: array<vec4f, 50000>;\n@compute")
    lib = torch.webgpu.compile_shader(text + "    tile[id.x % 64].x = x[id.x];\n    y[id.x] = tile[0].x;\n}\n")
    x = torch.zeros(8, device=DEVICE)
    with pytest.raises(ShaderCompileError, match=r"line 3.*800000 bytes of workgroup memory, and this adapter has"):
        lib.f(x, x.clone())
    goes_on()


def test_what_only_a_call_decides_is_told_of_the_programs_text() -> None:
    lib = torch.webgpu.compile_shader("""
override n: u32 = 4;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn f() {
    let small = array<f32, 4>(1, 2, 3, 4);
    y[0] = small[n - 1u];
}
""")
    y = torch.zeros(1, device=DEVICE)
    lib.f(y)
    assert y.item() == 4.0
    if engine().device(DEVICE.index or 0).target.dialect == "naga":
        with pytest.raises(ShaderCompileError, match="f does not compile for this call"):
            lib.f(y, constants={"n": 400})
    goes_on()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            lambda x: (x, x.clone()),
            TypeError,
            r"saxpy\(\) takes 3 arguments \(x: array<f32>, y: array<f32>, alpha: f32\)",
        ),
        (lambda x: (x, x.clone(), 1.0, 2.0), TypeError, "and 4 were given"),
        (lambda x: (x.cpu(), x, 1.0), ValueError, r"argument 0 \(x: array<f32>\): a tensor on cpu was given.*webgpu"),
        (lambda x: (x, x.int(), 1.0), TypeError, r"argument 1 \(y: array<f32>\): a tensor of torch.int32 was given"),
        (lambda x: (x.half(), x, 1.0), TypeError, "packed, 2 in a word: declare array<u32>"),
        (lambda x: (x, x.clone(), "1"), TypeError, r"argument 2 \(alpha: f32\) is a number, and '1' \(str\)"),
        (lambda x: (x, x.clone(), x), TypeError, r"argument 2 \(alpha: f32\) is a number, and a tensor was given"),
        (lambda x: (3.0, x.clone(), 1.0), TypeError, r"argument 0 \(x: array<f32>\) is a tensor, and 3.0 \(float\)"),
        (lambda x: (x, x[:1].expand(8), 1.0), RuntimeError, "more than one element of the written-to tensor"),
        (lambda x: (x.to_sparse(), x, 1.0), TypeError, "layout torch.sparse_coo"),
        (lambda x: (x, x.to("meta"), 1.0), ValueError, "a tensor on meta was given"),
    ],
)
def test_arguments_that_do_not_fit(arguments: Any, kind: type[Exception], message: str) -> None:
    lib = torch.webgpu.compile_shader(SAXPY)
    with pytest.raises(kind, match=message):
        lib.saxpy(*arguments(torch.ones(8, device=DEVICE)))
    goes_on()


def test_sizes_and_numbers_that_do_not_fit() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> n: u32;
@group(0) @binding(2) var<uniform> v: vec2<i32>;
@compute @workgroup_size(64)
fn f(@builtin(global_invocation_id) id: vec3u) { y[id.x].x = f32(n) + f32(v.x); }
""")
    y = torch.zeros(8, device=DEVICE)
    lib.f(y, 3, (1, 2))
    with pytest.raises(ValueError, match="40 bytes are no multiple of the 16 bytes of a vec4<f32>"):
        lib.f(torch.zeros(10, device=DEVICE), 3, (1, 2))
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match=re.escape(f"argument 1 (n: u32) cannot be {wrong}")):
            lib.f(y, wrong, (1, 2))
    with pytest.raises(TypeError, match=r"argument 1 \(n: u32\) is an integer, and 2.5"):
        lib.f(y, 2.5, (1, 2))
    with pytest.raises(ValueError, match=r"argument 2 \(v\) is a vec2<i32>, which takes 2 numbers, and 3 were given"):
        lib.f(y, 3, (1, 2, 3))
    blur = torch.webgpu.compile_shader(BLUR)
    with pytest.raises(ValueError, match=r"the kernel asks for image_size_1.*which has 1 dimensions"):
        blur.blur(y, y.clone())
    goes_on()


def test_elements_that_wgsl_pads() -> None:
    lib = torch.webgpu.compile_shader("""
@group(0) @binding(0) var<storage, read_write> points: array<vec3f>;
@compute @workgroup_size(64)
fn f(@builtin(global_invocation_id) id: vec3u) { if (id.x < arrayLength(&points)) { points[id.x] += vec3f(1, 2, 3); } }
""")
    with pytest.raises(ValueError, match=r"a vec3f every 16 bytes, with padding.*last dimension is 4, not.*\(4, 3\)"):
        lib.f(torch.zeros(4, 3, device=DEVICE))
    padded = torch.zeros(4, 4, device=DEVICE)
    lib.f(padded)
    assert padded.tolist() == [[1.0, 2.0, 3.0, 0.0]] * 4


def test_tensors_without_memory_of_their_own() -> None:
    lib = torch.webgpu.compile_shader(SAXPY)
    x = torch.ones(3, 4, device=DEVICE)
    with pytest.raises(TypeError, match=r"saxpy: argument 0.*torch.func.*torch.library.custom_op"):
        torch.func.vmap(lambda row: lib.saxpy(row, x[0], 1.0))(x)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TypeError, match="a FakeTensor without memory"):
        lib.saxpy(torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE), 1.0)
    goes_on()


def test_memory_that_two_arguments_write() -> None:
    lib = torch.webgpu.compile_shader(SAXPY.replace("read> x", "read_write> x"))
    x = torch.ones(16, device=DEVICE)
    for one, other in ((x, x), (x[:10], x[5:])):
        with pytest.raises(ValueError, match="saxpy: x and y share memory, and both are written"):
            lib.saxpy(one, other, 1.0)
    lib.saxpy(x[:8], x[8:], 1.0)
    assert x.tolist() == [1.0] * 8 + [2.0] * 8
