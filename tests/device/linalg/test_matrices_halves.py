"""Products of float32 as float16 halves on emulated subgroup matrices, against the CPU; whole numbers are exact."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.tile import Blocking
from torch_webgpu.target import MatrixConfig

from . import matrices_emulated
from .matrices_emulated import laid_out as laid_out_as
from .matrices_emulated import pretend, pretend_halves

numbers = partial(matrices_emulated.numbers, dtype=torch.float32)
laid_out = partial(laid_out_as, dtype=torch.float32)
BOUNDS = {"highest": 2.0**-19, "high": 2.0**-19, "medium": 2.0**-10}
"""Of a sum's error, relative to the sum of its products' magnitudes; adding up a few hundred in float32 included."""


@pytest.fixture
def chosen(monkeypatch) -> Iterator[list[Blocking[MatrixTile]]]:
    """Which blocks were chosen for products on matrices."""
    yield from pretend_halves(monkeypatch)


@pytest.fixture(params=["high", "medium"])
def precision(request, chosen) -> str:
    torch.set_float32_matmul_precision(request.param)
    return request.param


def error(device: torch.device, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest error of a product, relative to the sum of its products' magnitudes."""
    found = (a.to(device) @ b.to(device)).cpu().double()
    size = a.double().abs() @ b.double().abs()
    return ((found - a.double() @ b.double()).abs() / size).max().item()


@pytest.mark.parametrize("right", ["rows", "columns", "strided"])
@pytest.mark.parametrize("left", ["rows", "columns", "strided"])
def test_layouts(device, chosen, precision, left, right):
    for m, k, n in ((72, 64, 88), (33, 51, 70)):
        check(device, torch.mm, laid_out(left, m, k), laid_out(right, k, n), tol=0)
    assert len(chosen) == 2


@pytest.mark.parametrize("setting", list(BOUNDS))
def test_precision(device, chosen, setting):
    torch.set_float32_matmul_precision(setting)
    a, b = torch.randn(64, 256), torch.randn(256, 72)
    assert error(device, a, b) < BOUNDS[setting]
    assert error(device, a.abs(), b.abs()) < BOUNDS[setting]
    if setting == "medium":
        assert error(device, a, b) > BOUNDS["high"]
    assert bool(chosen) == (setting != "highest")


@pytest.mark.parametrize("n", [48, 33])
def test_split_sums_batches_and_epilogues(device, chosen, precision, n):
    check(device, torch.mm, numbers(40, 3000), numbers(3000, n), tol=0)
    assert chosen[0].splits > 1
    check(device, lambda c, a, b: torch.addmm(c, a, b).relu(), numbers(n), numbers(40, 2048), numbers(2048, n), tol=0)
    check(device, torch.bmm, numbers(3, 40, 64), numbers(3, 64, n), tol=0)
    check(device, torch.bmm, numbers(1, 40, 64).expand(3, 40, 64), numbers(3, 64, n).mT.contiguous().mT, tol=0)
    check(device, torch.bmm, numbers(3, 64, 40).mT, numbers(1, 64, n).expand(3, 64, n), tol=0)
    check(device, lambda c, a, b: torch.baddbmm(c, a, b), numbers(3, 40, n), numbers(3, 40, 64), numbers(3, 64, n))
    check(device, lambda c, a, b: c.addmm_(a, b, beta=2), numbers(40, n), numbers(40, 64), numbers(64, n), tol=0)
    assert len(chosen) == 7


def test_small_fragments(device, monkeypatch, precision):
    chosen = pretend(monkeypatch, MatrixConfig("f16", "f32", 8, 8, 8, 32))
    for left, right in (("rows", "rows"), ("columns", "columns")):
        check(device, torch.mm, laid_out(left, 72, 104), laid_out(right, 104, 88), tol=0)
    assert len(chosen) == 2


def test_one_matrix_twice(device, chosen, precision):
    check(device, lambda x: x @ x.t(), numbers(40, 64), tol=0)
    check(device, lambda x: x.t() @ x, numbers(40, 72)[:, 3:], tol=0)
    assert len(chosen) == 2


@pytest.mark.parametrize(("size", "m"), [(1e-37, 40), (1e-35, 41), (1e-20, 42), (1e20, 43), (1e35, 44)])
def test_magnitudes_that_are_no_float16s(device, chosen, precision, size, m):
    """The result is of a size that a float32 has. (What is lowered once is not lowered again: each has its size.)"""
    factor = 1 / size / 64
    a, b = torch.randn(m, 64) * size, torch.randn(64, m) * factor
    for left, right in ((a, b), (b.t(), a.t())):
        found = (left.to(device) @ right.to(device)).cpu().double()
        total = partial(torch.sum, dtype=torch.float64)
        # What is below 2**-126 may be zero to an adapter.
        tiny = 2.0**-126 * (total(left.abs(), 1)[:, None] + total(right.abs(), 0))
        left, right = left.double(), right.double()
        assert ((found - left @ right).abs() <= BOUNDS[precision] * (left.abs() @ right.abs()) + tiny).all()
    assert chosen


@pytest.mark.parametrize("side", ["left", "right"])
def test_lines_of_other_magnitudes(device, chosen, precision, side):
    """Each row, and each column, is as precise as it would be alone."""
    a, b = torch.randn(61, 80), torch.randn(80, 61)
    factors = 2.0 ** torch.arange(-60.0, 61, 2)
    a, b = (a * factors[:, None], b) if side == "left" else (a, b * factors)
    assert error(device, a, b) < BOUNDS[precision]
    assert chosen


def test_numbers_that_are_small_beside_others_of_their_line(device, chosen, precision):
    """Down to 2**-16 or 2**-28 of the largest they are precise; smaller ones lose 2**-39 of it at most."""
    a = torch.randn(40, 64) * 2.0 ** -torch.arange(64.0)
    a[:, 0] = 1.5
    found = (a.to(device) @ torch.eye(64).to(device)).cpu().double()
    wrong, size = (found - a.double()).abs(), a.double().abs()
    precise = size >= 1.5 * {"high": 2.0**-16, "medium": 2.0**-28}[precision]
    bound = {"high": 2.0**-21, "medium": 2.0**-10}[precision] * size
    assert precise.any()
    assert not precise.all()
    assert (wrong <= bound)[precise].all()
    assert (wrong <= bound + 2.0**-39 * 1.5).all()
    assert chosen


@pytest.mark.parametrize(("left", "m", "k"), [("rows", 33, 260), ("rows", 3, 8204), ("columns", 12, 1028)])
def test_lines_as_long_as_workgroups_take_at_once(device, chosen, precision, left, m, k):
    """And one run more."""
    check(device, torch.mm, laid_out(left, m, k), laid_out("rows", k, 8), tol=0)
    assert len(chosen) == 1


def test_what_is_not_finite_or_nothing(device, chosen, precision):
    """Also infinities that meet, zeros, and numbers without a lower half."""
    a, b = torch.randn(48, 64), torch.randn(64, 72)
    zero, tol = torch.zeros(48, 64), 2 * BOUNDS[precision] * 64
    check(device, torch.mm, zero, b, tol=0)
    check(device, torch.mm, zero, b * 0, tol=0)
    b[5, 3:6] = torch.tensor([0.0, 1.0, -2.0])
    a[3, 5], a[7, 1], b[2, 9] = torch.inf, torch.nan, -torch.inf
    check(device, torch.mm, a, b, tol=tol)
    a[8:10, 2] = torch.tensor([torch.inf, -torch.inf])
    check(device, torch.mm, a, b, tol=tol)
    check(device, torch.mm, torch.full((48, 64), torch.inf), b, tol=tol)
    assert chosen


def test_a_layer_and_its_gradients(device, chosen, precision):
    x, w, b = numbers(48, 32), numbers(24, 32), numbers(24)
    check(device, F.linear, x, w, b, backward=True, tol=BOUNDS[precision] * 100)
    assert len(chosen) == 3
