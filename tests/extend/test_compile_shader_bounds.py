"""Kernels that reach beyond their tensors change and read nothing there: on both implementations, and from files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.conformance.target import DEVICE

from torch_webgpu import plan
from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError
from torch_webgpu.extend.shader_errors import check_source
from torch_webgpu.extend.shader_kernel import ShaderCall, lower_shader
from torch_webgpu.extend.shader_source import ShaderSource
from torch_webgpu.extend.shader_variant import Variant
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.plan.parts_json import sealed
from torch_webgpu.runtime.device import Device
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.bounds import bounded_module
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.link import link
from torch_webgpu.wgsl.module import Module

on_webgpu = pytest.mark.skipif(DEVICE.type != "webgpu", reason="kernels in WGSL run on the webgpu device")

STRAY = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> far: u32;
var<workgroup> shared_: array<array<f32, 4>, 2>;
var<private> own: array<f32, 4>;

@compute @workgroup_size(1)
fn stray() {
    y[far] = 1.0 + x[far];
    y[i32(far)] += 1.0;
    shared_[far][far + 1u] = 1.0;
    own[far] = shared_[far][far + 1u];
    var v = vec4f(0.0);
    v[far] = own[far];
    var m = mat2x3<f32>();
    m[far][far] = v[far];
    y[far] += m[far][far];
}
"""


@on_webgpu
@pytest.mark.parametrize("far", [16, 1 << 20, 1 << 30, (1 << 32) - 1])
def test_an_access_out_of_range_stays_in_its_tensor(far: int) -> None:
    lib = torch.webgpu.compile_shader(STRAY)
    base = torch.zeros(48, device=DEVICE)
    beside = [torch.zeros(48, device=DEVICE) for _ in range(4)]
    x = torch.full((48,), 7.0, device=DEVICE)
    x[16:32] = 2.0
    lib.stray(x[16:32], base[16:32], far, threads=1)
    # As in WGSL's own rule, what lies beyond the end is one of the elements.
    assert base.tolist() == [0.0] * 31 + [5.0] + [0.0] * 16
    assert not any(t.any().item() for t in beside)


@on_webgpu
def test_a_plan_from_a_file_is_checked_too() -> None:
    """One of which somebody took the checks out: what is left is the linker's, or the compiler's."""
    lib = torch.webgpu.compile_shader(STRAY)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        lib.stray(x, y, 1 << 28, threads=1)
        return y

    traced = plan.trace(function, torch.ones(16, device=DEVICE))
    text = traced.to_json()
    unchecked = text.replace("P.y__offset + min(u32(far__0), P.y__last)", "far__0")
    for taken_out in ("min(u32(P.far__0), P.y__last)", "min(u32(P.far__0), P.x__last)"):
        assert taken_out in text
        unchecked = unchecked.replace(taken_out, "P.far__0")
    data = json.loads(unchecked)
    del data["digest"]
    loaded = plan.Plan.from_json(sealed(data))
    beside = [torch.zeros(48, device=DEVICE) for _ in range(4)]
    result = plan.bind(loaded)(torch.ones(16, device=DEVICE))
    assert result[:15].tolist() == [0.0] * 15
    assert not any(t.any().item() for t in beside)


@on_webgpu
def test_workgroup_memory_starts_as_zeros() -> None:
    lib = torch.webgpu.compile_shader("""
struct State { total: atomic<u32>, parts: array<atomic<i32>, 3>, place: vec2f }
const N = 2048u;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
var<workgroup> tile: array<f32, N>;
var<workgroup> states: array<State, 4>;
var<workgroup> count: atomic<u32>;
var<workgroup> one: vec4f;
@compute @workgroup_size(64)
fn fill(@builtin(local_invocation_index) l: u32) {
    for (var i = l; i < N; i += 64u) { tile[i] = 3.0; }
    atomicStore(&states[l % 4].total, 7);
    atomicStore(&states[l % 4].parts[l % 3], 7);
    states[l % 4].place = vec2f(5.0);
    atomicStore(&count, 3);
    one = vec4f(8.0);
    workgroupBarrier();
    y[l] = tile[l * 3] + f32(atomicLoad(&states[1].total)) + one.x;
}
@compute @workgroup_size(64)
fn look(@builtin(global_invocation_id) id: vec3u) {
    let l = id.x;
    y[l] = tile[l * 31] + f32(atomicLoad(&states[l % 4].total)) + f32(atomicLoad(&states[l % 4].parts[l % 3]))
        + states[l % 4].place.y + f32(atomicLoad(&count)) + one.z;
}
""")
    y = torch.zeros(64, device=DEVICE)
    for _ in range(3):
        lib.fill(y)
        lib.look(y)
        assert not y.any()


MATRICES = """
enable f16;
enable chromium_experimental_subgroup_matrix;
const N = 16;
@group(0) @binding(0) var<storage, read> a: array<f16>;
@group(0) @binding(1) var<storage, read_write> c: array<f32>;
var<workgroup> tile: array<f16, N * N>;
var<workgroup> sums: array<f32, 256>;
alias Sums = subgroup_matrix_result<f32, 16, 16>;
@compute @workgroup_size(32)
fn square(@builtin(local_invocation_index) l: u32) {
    for (var i = l; i < 256u; i += 32u) { tile[i] = a[i]; }
    workgroupBarrier();
    var acc: Sums;
    let x = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>(&tile, 0u, 16u);
    let y = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>, row_major>(&tile, 0u, 16u);
    acc = subgroupMatrixMultiplyAccumulate(x, y, acc);
    subgroupMatrixStore<row_major>(&sums, l, acc, 16u);
    workgroupBarrier();
    for (var i = l; i < 256u; i += 32u) { c[i] = sums[i]; }
}
"""


def test_matrices_of_a_subgroup_stay_within_their_arrays() -> None:
    """Compiled by Dawn, whose adapter here computes nothing."""
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    device = Device(0, dawn.IMPLEMENTATION.null())
    with pytest.raises(ShaderCompileError, match="line 9, column 14: this adapter has no matrices of a subgroup"):
        check_source(ShaderSource.parse(MATRICES), device)
    device.target = replace(device.target, matrices=(MatrixConfig("f16", "f32", 16, 16, 16, 32),))
    check_source(ShaderSource.parse(MATRICES), device)
    specs = [Spec("f16", (256,), (1,)), Spec("f32", (256,), (1,))]
    source = link(kernel_of(MATRICES, "square", device.target, specs), device.target).source
    assert device.opened.pipelines.problems(source, "square") == []
    assert "(&sums, min(u32(l), 240u - 15u * min(u32(16u), 16u)), acc, min(u32(16u), 16u))" in source
    for text, problem in (
        (MATRICES.replace("array<f32, 256>", "array<f32, 255>"), "array<f32,255> is smaller than a"),
        (MATRICES.replace("(&sums, l, acc", "(&c, l, acc"), "c is used as a whole here"),
    ):
        with pytest.raises(ShaderCompileError, match=problem):
            link(kernel_of(text, "square", device.target, specs), device.target)


def kernel_of(text: str, name: str, target: Target, specs: list[Spec]) -> Kernel:
    """The kernel of a call whose last tensor is written."""
    call = ShaderCall(Variant(ShaderSource.parse(text).entry(name)), (32, 1, 1))
    op = Operation(name, (*specs, specs[-1]), 1, Extern(lower_shader, (call,)))
    alias = (*range(len(specs)), len(specs) - 1)
    (launch,) = lower_shader(op, alias, target, call).launches
    return launch.kernel


def in_range(text: str, **variables: str) -> str:
    return bounded_module(Module.parse(text), variables)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x[k]", "x[min(u32(k), arrayLength(&x) - 1u)]"),
        ("x[7]", "x[min(u32(7), arrayLength(&x) - 1u)]"),
        ("x[y[k]]", "x[min(u32(y[min(u32(k), arrayLength(&y) - 1u)]), arrayLength(&x) - 1u)]"),
        ("x[k >> 1]", "x[min(u32(k >> 1), arrayLength(&x) - 1u)]"),
        ("s.values[k].x", "s.values[min(u32(k), arrayLength(&s.values) - 1u)].x"),
        ("s.values[0][k]", "s.values[min(u32(0), arrayLength(&s.values) - 1u)][min(u32(k), 3u)]"),
        ("tile[k][k + 1u]", "tile[min(u32(k), (u32(16) - 1u))][min(u32(k + 1u), (u32(N) - 1u))]"),
        ("TABLE[k]", "TABLE[min(u32(k), (u32(3) - 1u))]"),
        ("id[k]", "id[min(u32(k), 2u)]"),
        ("id[1]", "id[1]"),
        ("(m * vec2f(1, 2))[k]", "(m * vec2f(1, 2))[min(u32(k), 2u)]"),
        ("(vec2f(1, 2) * transpose(m))[k]", "(vec2f(1, 2) * transpose(m))[min(u32(k), 2u)]"),
        ("(m * 2.0)[k]", "(m * 2.0)[min(u32(k), 1u)]"),
        ("(id + 1u << vec3u(1))[k]", "(id + 1u << vec3u(1))[min(u32(k), 2u)]"),
        ("select(v, v, v < v)[k]", "select(v, v, v < v)[min(u32(k), 1u)]"),
        ("(v < v)[k]", "(v < v)[min(u32(k), 1u)]"),
        ("helper(v)[k]", "helper(v)[min(u32(k), 3u)]"),
        ("bitcast<vec4<u32>>(w)[k]", "bitcast<vec4<u32>>(w)[min(u32(k), 3u)]"),
        ("unpack4x8unorm(k)[k]", "unpack4x8unorm(k)[min(u32(k), 3u)]"),
        ("array(1, 2)[k]", "array(1, 2)[min(u32(k), (u32(2) - 1u))]"),
        ("v.yx[k]", "v.yx[min(u32(k), 1u)]"),
        ("atomicAdd(&counts[k], 1u)", "atomicAdd(&counts[min(u32(k), arrayLength(&counts) - 1u)], 1u)"),
        ("x[k]<w[k] && k>=x[0]", None),
        ("(*p)[k]", "(*p)[min(u32(k), 1u)]"),
        ("p[k]", "p[min(u32(k), 1u)]"),
    ],
)
def test_indices_are_brought_into_range(before: str, after: str | None) -> None:
    text = """
const N = 4u * 4u;
struct S { n: u32, values: array<vec4f> }
const TABLE = array<f32, 3>(1, 2, 3);
var<workgroup> tile: array<array<f32, N>, 16>;
fn helper(v: vec2f) -> vec4<f32> { return v.xyxy; }
fn f(id: vec3u, k: u32, p: ptr<function, vec2f>) {
  var m: mat2x3<f32>;
  let v = vec2f(1.0), w = vec4f();
  EXPRESSION;
}
""".replace("let v = vec2f(1.0), w = vec4f();", "let v = vec2f(1.0); let w = vec4f();")
    variables = {"x": "array<f32>", "y": "array<u32>", "s": "S", "counts": "array<atomic<u32>>"}
    result = in_range(text.replace("EXPRESSION", f"let e = {before}"), **variables)
    if after is None:
        assert result.count("min(") == 3
    else:
        assert result == text.replace("EXPRESSION", f"let e = {after}")


def test_names_are_those_of_their_scope() -> None:
    text = """
var<private> a: array<f32, 9>;
fn f(k: u32) {
  for (var a = vec2f(); a[k] < 1.0; a[k] += 1.0) { let b = a[k]; }
  { let a = vec3f(); let b = a[k]; }
  let b = a[k];
}
"""
    assert [line.count("min(u32(k), 1u)") for line in in_range(text).splitlines()] == [0, 0, 0, 3, 0, 0, 0]
    assert "min(u32(k), 2u)" in in_range(text).splitlines()[4]
    assert "(u32(9) - 1u)" in in_range(text).splitlines()[5]


def test_a_type_that_cannot_be_inferred_is_refused_with_the_programs_line() -> None:
    text = """
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn f(@builtin(global_invocation_id) id: vec3u) {
    let a = modf(vec2f(y[0])).fract;
    y[0] = a[id.x];
}
"""
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    with pytest.raises(ShaderCompileError, match=r"line 5, column 13: the type of a cannot be inferred"):
        check_source(ShaderSource.parse(text), Device(0, dawn.IMPLEMENTATION.null()))


def test_a_type_that_cannot_be_inferred_is_refused() -> None:
    with pytest.raises(ShaderSyntaxError, match=r"the type of a cannot be inferred.*let row: vec4<f32> = …"):
        in_range("fn f(k: u32) { let a = modf(vec2f(1.5)).fract; let b = a[k]; }")
