"""What `link` declares and in which order; what the text computes is tested on a device."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

import pytest

from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param
from torch_webgpu.wgsl.link import library, link
from torch_webgpu.wgsl.module import Module

TARGET = Target(int64=True, float16=True, float64=True, immediates_bytes=128, max_binding_bytes=1000)


def kernel(statements: str, *bindings: Binding, params: tuple[Param, ...] = (), lib: tuple[str, ...] = ()) -> Kernel:
    return Kernel("test", f"@compute @workgroup_size(64) fn main() {{ {statements} }}", bindings, params, lib)


def declared(source: str) -> list[str]:
    return re.findall(r"^(?:fn|const|alias|struct) (\w+)", source, re.MULTILINE)


def test_parameters_are_immediates_where_they_fit() -> None:
    ask = kernel("_ = P.n;", Binding("x", "f32"), params=(Param("n"), Param("scale", "f32")))
    native = link(ask, replace(TARGET, immediates_bytes=8))
    assert native.uses_immediates
    assert native.param_bytes == 8
    assert "var<immediate> P: Params;" in native.source
    assert "scale: f32" in native.source
    uniform = link(ask, replace(TARGET, immediates_bytes=7), (3,))
    assert not uniform.uses_immediates
    assert uniform.param_bytes == 8
    assert "@group(0) @binding(3) var<uniform> P: Params;" in uniform.source


def test_no_parameters_no_struct() -> None:
    linked = link(kernel("_ = x_load(0u);", Binding("x", "f32")), TARGET)
    assert (linked.uses_immediates, linked.param_bytes) == (False, 0)
    assert "Params" not in linked.source


def test_only_what_is_reached_is_declared() -> None:
    linked = link(
        kernel("_ = i32_floordiv(x_load(0u), 3);", Binding("x", "i32"), Binding("y", "i32", "read_write")), TARGET
    )
    assert declared(linked.source) == ["i32_div", "i32_floordiv", "x_raw_get", "x_load"]
    assert "var<storage, read_write> y_buf: array<i32>;" in linked.source


def test_a_name_the_body_declares_is_not_taken_from_the_library() -> None:
    body = (
        "fn i32_div(a: i32, b: i32) -> i32 { return a; }\n@compute @workgroup_size(1) fn main() { _ = i32_div(1, 2); }"
    )
    assert declared(link(Kernel("test", body, ()), TARGET).source) == ["i32_div"]


def test_members_and_local_variables_are_not_taken_from_the_library() -> None:
    assert declared(link(kernel("let i64_add = 1; _ = v.i64_sub + i64_add;"), TARGET).source) == []


def test_comments_mention_nothing() -> None:
    assert declared(link(kernel("// i64_add\n"), TARGET).source) == []


@pytest.mark.parametrize("int64", [True, False])
def test_int64_variant(int64: bool) -> None:
    target = replace(TARGET, int64=int64)
    source = link(
        kernel("x_store(0u, i64_add(x_load(0u), x_load(1u)));", Binding("x", "i64", "read_write")), target
    ).source
    assert ("alias I64 = i64;" in source) == int64
    assert f"array<{'i64' if int64 else 'vec2<u32>'}>" in source


def test_rounding_to_float16_is_left_to_adapters_that_do_it() -> None:
    body = kernel("_ = round_f16(1.0);")
    assert "pack2x16float" not in link(body, TARGET).source
    assert "pack2x16float" in link(body, replace(TARGET, rounds_f16=True)).source


def test_all_variants_have_the_same_names() -> None:
    native, emulated = (library(replace(TARGET, int64=int64)).keys() for int64 in (True, False))
    assert native == library(replace(TARGET, int64=True, rounds_f16=True)).keys()
    assert emulated - native == {"i64_divmod_magnitudes"}
    assert not native - emulated


@pytest.mark.parametrize(
    ("dtype", "mode", "statement", "array"),
    [
        ("f16", "plain", "x_store(0u, 1.0);", "array<f16>"),
        ("f16", "word", "x_store_word(0u, 1u);", "array<u32>"),
        ("f16", "atomic", "x_store(0u, 1.0);", "array<atomic<u32>>"),
        ("bf16", "plain", "_ = x_load(0u);", "array<u32>"),
        ("bf16", "plain", "x_store(0u, 1.0);", "array<atomic<u32>>"),
        ("i32", "atomic", "x_atomic_min(0u, 1);", "array<atomic<i32>>"),
        ("f32", "atomic", "x_atomic_add(0u, 1.0);", "array<atomic<f32>>"),
        ("f32", "plain", "_ = x_load4(0u);", "array<vec4<f32>>"),
        ("f16", "plain", "_ = x_load4(0u);", "array<vec4<f16>>"),
        ("bf16", "plain", "_ = x_load4(0u);", "array<vec2<u32>>"),
        ("u8", "plain", "_ = x_load4(0u);", "array<u32>"),
        ("f32", "atomic", "x_atomic_add(0u, 1.0); x_atomic_max(0u, 1.0);", "array<atomic<u32>>"),
    ],
)
def test_array_types(dtype: str, mode: str, statement: str, array: str) -> None:
    source = link(
        kernel(statement, Binding("x", dtype, "read_write", mode)), replace(TARGET, float32_atomics=True)
    ).source
    assert f"x_buf: {array};" in source


def test_half_without_shader_f16_is_packed() -> None:
    source = link(kernel("_ = x_load(0u);", Binding("x", "f16")), replace(TARGET, float16=False)).source
    assert "x_buf: array<u32>;" in source
    assert "enable f16" not in source


def test_directives_by_dialect() -> None:
    ask = kernel("_ = x_load(0u); _ = subgroupAdd(1u);", Binding("x", "f16"))
    assert link(ask, TARGET).source.startswith("enable f16;\nenable subgroups;") is False
    assert link(ask, replace(TARGET, dialect="tint")).source.startswith("enable f16;\nenable subgroups;")


def test_windows() -> None:
    source = link(kernel("_ = x_load(0u);", Binding("x", "f32"), Binding("y", "f32")), TARGET, (3, 1)).source
    assert re.findall(r"@binding\((\d)\) var<storage, read> (\w+)", source) == [
        ("0", "x_w0"), ("1", "x_w1"), ("2", "x_w2"), ("3", "y_buf")
    ]  # fmt: skip
    assert TARGET.window_bytes == 768
    assert "k / 192u" in source


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (kernel("", Binding("x", "f8")), "no such dtype: f8"),
        (kernel("", Binding("x", "f64", "read_write", "atomic")), "no atomic float64"),
        (kernel("", Binding("x", "f32", "read", "atomic")), "must be read_write"),
        (kernel("_ = x_load4(0u);", Binding("x", "i64")), "no groups of four of i64"),
        (kernel("y_store4(0u, v); y_store(0u, 1);", Binding("y", "u8", "read_write")), "no groups of four of u8"),
    ],
)
def test_what_cannot_be_linked(ask: Kernel, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        link(ask, TARGET)


@pytest.mark.parametrize("int64", [True, False])
def test_library_names_are_declared_once(int64: bool) -> None:
    folder = files("torch_webgpu") / "kernels" / "lib"
    others = {"i64_emulated.wgsl" if int64 else "i64_native.wgsl", "f16_rounding_native.wgsl"}
    library_files = [file for file in folder.iterdir() if file.name.endswith(".wgsl") and file.name not in others]
    texts = [file.read_text("utf-8") for file in library_files]
    names = [d.name for text in texts for d in Module.parse(text).declarations if d.kind != "var"]
    assert sorted(names) == sorted(library(replace(TARGET, int64=int64, rounds_f16=False)))


def test_a_kernel_that_is_not_trusted_stays_within_its_buffers_where_the_compiler_adds_no_checks() -> None:
    ask = kernel("y_store(7u, x_load4(9u).x);", Binding("x", "f32"), Binding("y", "f32", "read_write"))
    tint = replace(TARGET, dialect="tint")
    assert "y_buf[min(k, arrayLength(&y_buf) - 1u)] = v;" in link(ask, tint).source
    assert "x_buf[min(k, arrayLength(&x_buf) - 1u)]" in link(ask, tint).source
    assert "x_w1[min(r, arrayLength(&x_w1) - 1u)]" in link(ask, tint, (2, 1)).source
    for trusted, target in ((True, tint), (False, TARGET), (True, TARGET)):
        assert "arrayLength" not in link(replace(ask, trusted=trusted), target).source


def test_the_library_chooses_without_branches() -> None:
    """`&&` and `||` in what `select` is given are branches, which some compilers take minutes for."""
    folder = files("torch_webgpu") / "kernels" / "lib"
    lines = [line for file in folder.iterdir() for line in file.read_text("utf-8").splitlines()]
    assert [line for line in lines if re.search(r"select\(.*(&&|\|\|)", line)] == []
