"""Blocked products on subgroup matrices: which tiles suit which, and that Tint takes their kernels."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.conv import conv
from torch_webgpu.kernels.conv.conv_problem import Geometry
from torch_webgpu.kernels.matmul import halves, matmul, scaled
from torch_webgpu.kernels.matmul.halves import is_worth
from torch_webgpu.kernels.matmul.matrix_tile import (
    RATES,
    TALL,
    TILES,
    WIDE,
    MatrixTile,
    blocking,
    config_for,
    tiles_for,
)
from torch_webgpu.kernels.matmul.operand import Side
from torch_webgpu.kernels.matmul.tile import Blocking
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.link import link

F16 = MatrixConfig("f16", "f32", 16, 16, 16, 32)
I8 = MatrixConfig("i8", "i32", 16, 16, 32, 32)
CONFIGS = (
    F16,
    MatrixConfig("f16", "f32", 16, 8, 16, 32),
    MatrixConfig("f16", "f32", 8, 8, 8, 32),
    MatrixConfig("f16", "f32", 8, 16, 16, 16),
    MatrixConfig("f16", "f32", 16, 16, 16, 64),
    I8,
    MatrixConfig("u8", "u32", 16, 16, 32, 32),
)


def target(*configs: MatrixConfig, workgroup_bytes: int = 49152) -> Target:
    return Target(
        int64=False,
        float16=True,
        float64=False,
        immediates_bytes=64,
        max_binding_bytes=2**31 - 4,
        max_buffers=16,
        dialect="tint",
        subgroups=True,
        matrices=configs,
        subgroup_sizes=True,
        workgroup_bytes=workgroup_bytes,
    )


def spec(dtype: str, rows: int, columns: int, order: str = "rows") -> Spec:
    strides = contiguous_strides((rows, columns)) if order == "rows" else (1, rows)
    return Spec(dtype, (rows, columns), strides)


def sources(
    host: Target, dtype: str, m: int, n: int, k: int, left: str, right: str, precision: str | None = None
) -> dict[str, str]:
    """The kernels of a product and their WGSL."""
    arguments = (spec(dtype, m, k, left), spec(dtype, k, n, right), spec(dtype, m, n))
    op = Operation("mm", arguments, 1, matmul.extern(dtype, precision=precision))
    return {launch.kernel.name: link(launch.kernel, host).source for launch in lower(op, (0, 1, 2), host).launches}


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_configuration_has_tiles(config):
    host = target(config)
    assert config_for(host, config.operand) == config
    found = tiles_for(host, config)
    assert found
    assert all(tile.threads(config) <= 1024 for tile in found)


def test_tiles_fit_into_workgroup_memory():
    """As declared by their kernels, in every layout."""
    for tile, left, right in itertools.product(TILES, ("rows", "columns"), ("rows", "columns")):
        host = target(F16, workgroup_bytes=tile.workgroup_bytes(F16))
        sides = Side("a", left == "rows", runs=True), Side("b", right == "columns", runs=True)
        assert tile in tiles_for(host, F16, sides) or (tile == TALL and left == "columns")
        assert tile not in tiles_for(target(F16, workgroup_bytes=tile.workgroup_bytes(F16) - 1), F16, sides)
        for source in sources(host, "f16", 512, 512, 512, left, right).values():
            (vectors,) = re.findall(r"var<workgroup> tiles: array<vec4<u32>, (\d+)>", source)
            assert int(vectors) * 16 <= host.workgroup_bytes


def test_configurations_that_do_not_serve():
    """Sums too narrow, fragments that do not start at multiples of 16 bytes, other operands."""
    narrow = MatrixConfig("f16", "f16", 16, 16, 16, 32)
    assert config_for(target(narrow), "f16") is None
    assert config_for(target(MatrixConfig("i8", "i32", 16, 8, 32, 32)), "i8") is None
    assert config_for(target(narrow, MatrixConfig("f16", "f32", 16, 8, 8, 32), F16, I8), "f16") == F16
    assert config_for(target(F16), "bf16") is None
    assert config_for(target(F16), "f32") is None


def test_every_tile_has_its_costs():
    assert set(TILES) == set(RATES)


@pytest.mark.parametrize(("columns", "tile"), [(768, TALL), (3072, WIDE)])
def test_blocks_that_leave_few_compute_units_idle(columns: int, tile: MatrixTile) -> None:
    """Of 132: 132 blocks of 192×128 instead of 96 wider ones, and 384 of 128×256 in three turns instead of four."""
    assert blocking(1, 4096, columns, 768, TILES, F16) == Blocking(tile, 1, 768)


def test_small_products_take_small_tiles_and_deep_ones_are_split():
    small, large = (blocking(1, size, size, size, TILES, F16).tile for size in (20, 8192))
    assert small.m * small.n < large.m * large.n
    deep = blocking(1, 128, 128, 16_384, TILES, F16)
    assert deep.splits > 1
    assert (deep.splits - 1) * deep.chunk < 16_384 <= deep.splits * deep.chunk


@pytest.mark.parametrize("order", itertools.product(("rows", "columns"), repeat=2), ids="-".join)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("copies", [False, True])
def test_kernels_compile(null, monkeypatch, config, order, copies):
    monkeypatch.setattr(halves, "is_worth_copying", lambda *_: copies)
    host = target(config)
    for size in ((4096, 4096, 4096), (1024, 1024, 1024), (100, 77, 51), (16, 4096, 1024), (128, 64, 8192)):
        for dtype in (config.operand, *(["bf16"] if config.operand == "f16" else [])):
            found = sources(host, dtype, *size, *order)
            if dtype == "bf16" and size[0] >= 1024 and copies:
                assert_one_launch_before(found)
            for name, source in found.items():
                null.create_shader(source, name, True)
                assert not null.sink.errors, f"{source}\n{null.sink.take()}"


def assert_one_launch_before(found: dict[str, str]) -> None:
    """It writes what the product multiplies, whose sums one more may add up."""
    first, product, *last = found
    assert first == "matmul_halves"
    assert product.startswith("matmul_matrices_")
    assert last in ([], ["matmul_split_sum"])


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("order", itertools.product(("rows", "columns"), repeat=2), ids="-".join)
@pytest.mark.parametrize("config", CONFIGS[:5], ids=str)
def test_kernels_of_halves_compile(null, config, order, precision):
    host = target(config)
    for size in ((4096, 4096, 4096), (1024, 1024, 1024), (1000, 770, 510), (128, 64, 8192)):
        found = sources(host, "f32", *size, *order, precision)
        assert_one_launch_before(found)
        for name, source in found.items():
            null.create_shader(source, name, True)
            assert not null.sink.errors, f"{source}\n{null.sink.take()}"


def test_float32_stays_as_it_is_unless_it_can_and_may_be_halves():
    """By the setting, the adapter's matrices and what it binds."""
    size = (1024, 1024, 1024, "rows", "rows")
    exact = sources(target(F16), "f32", *size)
    assert [name for name in exact if "matrices" in name] == []
    assert sources(target(F16), "f32", *size, "highest") == exact
    assert sources(target(I8), "f32", *size, "high") == exact
    few = replace(target(F16), max_binding_bytes=1 << 21)
    assert sources(few, "f32", *size, "high") == sources(few, "f32", *size)
    assert "matmul_halves" in sources(few, "f32", *size, "medium")
    bound = replace(target(F16), max_buffers=3)
    assert sources(bound, "f32", *size, "high") == exact


def test_large_products_are_worth_halving():
    """Not small ones, nor those that read an operand for few rows of the other."""
    assert is_worth(1, 4096, 4096, 4096)
    assert is_worth(64, 512, 512, 512)
    assert not is_worth(1, 256, 256, 256)
    assert not is_worth(1, 16, 1 << 20, 4096)


@pytest.mark.parametrize(
    ("m", "k", "n", "left", "right", "first"),
    [
        (1024, 1024, 1024, "rows", "columns", "matmul_halves"),
        (1024, 1024, 1024, "rows", "rows", "matmul_halves"),
        (1024, 1024, 1024, "columns", "columns", "matmul_halves"),
        (1024, 1024, 1024, "columns", "rows", "matmul_largest"),
        (256, 4096, 1024, "rows", "columns", "matmul_largest"),
        (4096, 768, 1 << 18, "rows", "columns", "matmul_largest"),
    ],
)
def test_operands_of_bfloat16_are_copied_where_that_pays(m, k, n, left, right, first):
    assert next(iter(sources(target(F16), "bf16", m, k, n, left, right))) == first


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("mode", ["forward", "adjoint", "weight"])
def test_convolutions_compile(null, mode, kernel, last):
    host, geometry = target(F16), Geometry((1, 1), (kernel // 2,) * 2, (1, 1), 1)
    shapes = {"x": (32, 256, 28, 28), "w": (128, 256, kernel, kernel), "y": (32, 128, 28, 28)}
    order = {"forward": "xwy", "adjoint": "ywx", "weight": "yxw"}[mode]
    layouts = {name: channels_last(shape) if last else contiguous_strides(shape) for name, shape in shapes.items()}
    arguments = tuple([Spec("f16", shapes[name], layouts[name]) for name in order])
    body = conv.extern(mode, geometry, "f16", False)
    launches = conv.lower_conv(Operation("convolution", arguments, 1, body), (0, 1, 2), host, mode, geometry).launches
    gathers = kernel > 1 or (mode == "weight" and not last)
    assert launches[0].kernel.name.startswith(f"conv_{mode}_matrices_" if gathers else "matmul_matrices_")
    for launch in launches:
        source = link(launch.kernel, host).source
        null.create_shader(source, launch.kernel.name, True)
        assert not null.sink.errors, f"{source}\n{null.sink.take()}"


@pytest.mark.parametrize(("buffers", "first"), [(3, []), (4, ["matmul_largest"]), (5, ["matmul_halves"])])
def test_what_an_adapter_cannot_bind_is_multiplied_in_another_way(monkeypatch, buffers, first):
    """On matrices operands of bfloat16 have scales, in a fourth buffer, and those of matrix products copies, which one
    launch writes into two of five.
    """
    monkeypatch.setattr(scaled, "MIN_WORK", 1)
    monkeypatch.setattr(halves, "is_worth_copying", lambda *_: True)
    host, geometry = replace(target(F16), max_buffers=buffers), Geometry((1, 1), (1, 1), (1, 1), 1)
    arguments = [Spec("bf16", s, contiguous_strides(s)) for s in ((2, 8, 28, 28), (16, 8, 3, 3), (2, 16, 28, 28))]
    op = Operation("convolution", tuple(arguments), 1, conv.extern("forward", geometry, "bf16", False))
    convolution = [la.kernel.name for la in conv.lower_conv(op, (0, 1, 2), host, "forward", geometry).launches]
    product = list(sources(host, "bf16", 100, 96, 64, "rows", "rows"))
    assert product[:-1] == first
    assert convolution[:-1] == ["matmul_largest"] * (buffers > 3)
    assert ["matrices" in names[-1] for names in (product, convolution)] == [buffers > 3] * 2


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)


@pytest.mark.parametrize("order", itertools.product(("rows", "columns"), repeat=2), ids="-".join)
def test_parameters_fit_into_immediates(order):
    """Those of a matrix product with a bias, on Dawn."""
    host = target(F16)
    operands = (spec("f16", 512, 256, order[0]), spec("f16", 256, 128, order[1]), Spec("f16", (128,), (1,)))
    op = Operation("addmm", (*operands, spec("f16", 512, 128)), 1, matmul.extern("f16", 2), ("f", "f"))
    (launch,) = lower(op, (0, 1, 2, 3), host).launches
    assert link(launch.kernel, host).uses_immediates
