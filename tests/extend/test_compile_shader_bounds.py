"""Kernels that reach beyond their tensors change and read nothing there: on both implementations, and from files."""

from __future__ import annotations

import json

import pytest
import torch
from tests.conformance.target import DEVICE

from torch_webgpu import plan
from torch_webgpu.errors import ShaderSyntaxError
from torch_webgpu.plan.parts_json import sealed
from torch_webgpu.wgsl.bounds import bounded_module
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


def test_a_type_that_cannot_be_inferred_is_refused() -> None:
    with pytest.raises(ShaderSyntaxError, match=r"the type of a cannot be inferred.*let row: vec4<f32> = …"):
        in_range("fn f(k: u32) { let a = modf(vec2f(1.5)).fract; let b = a[k]; }")
