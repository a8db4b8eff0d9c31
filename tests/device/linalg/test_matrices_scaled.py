"""Products of bfloat16 on emulated subgroup matrices of float16, from copies or, where there is no room for these,
scaled as they are loaded, against the CPU; whole numbers are exact.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.kernels.matmul import halves, scaled
from torch_webgpu.kernels.matmul.halving import Shares
from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.tile import Blocking

from . import matrices_emulated
from .matrices_emulated import NVIDIA, pretend

numbers = partial(matrices_emulated.numbers, dtype=torch.bfloat16)
laid_out = partial(matrices_emulated.laid_out, dtype=torch.bfloat16)


@pytest.fixture
def chosen(monkeypatch) -> list[Blocking[MatrixTile]]:
    """The device pretends to have NVIDIA's matrices, and takes them for small products, too."""
    monkeypatch.setattr(scaled, "MIN_WORK", 1)
    monkeypatch.setattr(halves, "is_worth_copying", lambda *_: True)
    return pretend(monkeypatch, NVIDIA)


@pytest.mark.parametrize("right", ["rows", "columns", "strided"])
@pytest.mark.parametrize("left", ["rows", "columns", "strided"])
def test_layouts(device, chosen, left, right):
    for m, k, n in ((72, 64, 88), (33, 51, 70)):
        check(device, torch.mm, laid_out(left, m, k), laid_out(right, k, n), tol=0)
    assert len(chosen) == 2


@pytest.mark.parametrize("n", [48, 33])
def test_split_sums_batches_and_epilogues(device, chosen, n):
    check(device, torch.mm, numbers(40, 3000), numbers(3000, n), tol=0)
    assert chosen[0].splits > 1
    check(device, lambda c, a, b: torch.addmm(c, a, b).relu(), numbers(n), numbers(40, 2048), numbers(2048, n), tol=0)
    check(device, torch.bmm, numbers(3, 40, 64), numbers(3, 64, n), tol=0)
    check(device, torch.bmm, numbers(1, 40, 64).expand(3, 40, 64), numbers(3, 64, n), tol=0)
    check(device, lambda a, b: F.gelu(a @ b).float() + 1, numbers(40, 64), numbers(64, n), tol=1e-2)
    assert len(chosen) == 5


@pytest.mark.parametrize(("left", "m"), [(1e-35, 40), (1e-30, 41), (1.0, 42), (1e30, 43), (1e35, 44)])
def test_magnitudes_that_are_no_float16s(device, chosen, left, m):
    """The result is of a size that a bfloat16 has. (What is lowered once is not lowered again: each has its size.)"""
    a, b = torch.randn(m, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    check(device, lambda a, b: a @ b, a * left, b / left / 64, tol=1e-2)
    check(device, lambda a, b: a @ b, a / left / 64, b * left, tol=1e-2)
    assert chosen


@pytest.mark.parametrize("side", ["left", "right"])
def test_lines_of_other_magnitudes(device, chosen, side):
    """Each row, and each column, is as precise as it would be alone."""
    a, b = torch.randn(61, 80).bfloat16(), torch.randn(80, 61).bfloat16()
    factors = 2.0 ** torch.arange(-60.0, 61, 2).bfloat16()
    a, b = (a * factors[:, None], b) if side == "left" else (a, b * factors)
    found = (a.to(device) @ b.to(device)).cpu().double()
    a, b = a.double(), b.double()
    assert ((found - a @ b).abs() <= 2.0**-8 * (a.abs() @ b.abs())).all()
    assert chosen


def test_numbers_that_are_small_beside_others_of_their_line(device, chosen):
    """They are exact down to 2**-31 of the largest; smaller ones lose 2**-39 of it at most."""
    a = torch.randn(40, 64).bfloat16() * 2.0 ** -torch.arange(64.0).bfloat16()
    a[:, 0] = 1.5
    found = (a.to(device) @ torch.eye(64).bfloat16().to(device)).cpu().double()
    wrong, exact = (found - a.double()).abs(), a.abs() >= 1.5 * 2.0**-31
    assert exact.any()
    assert not exact.all()
    assert (wrong[exact] == 0).all()
    assert (wrong <= 2.0**-39 * 1.5).all()
    assert chosen


# What lines are like beyond their first positions.
LATER = {"as before": 1.0, "larger": 2.0**12, "much larger": 2.0**50, "smaller": 2.0**-12, "nothing": 0.0}


@pytest.mark.parametrize("first", [1.0, 0.0, 2.0**-50])
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize(("left", "right"), [("rows", "columns"), ("columns", "rows"), ("strided", "strided")])
def test_lines_whose_later_positions_are_others(device, chosen, first, later, left, right):
    m, k, n = 45, 300, 77
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    for lines in (a[3:9], b[:, 40:50].t()):
        lines[:, :80] *= first
        lines[:, 80:] *= LATER[later]
    x, y = (as_laid_out(order, t).to(device) for order, t in ((left, a), (right, b)))
    found = (x @ y).cpu().double()
    a, b = a.double(), b.double()
    allowed = 2.0**-8 * (a.abs() @ b.abs()) + k * 2.0**-22 * a.abs().amax(1)[:, None] * b.abs().amax(0)
    assert ((found - a @ b).abs() <= allowed).all()
    assert chosen


def as_laid_out(order: str, t: torch.Tensor) -> torch.Tensor:
    if order == "strided":
        return torch.stack([t, t], -1)[..., 0]
    return t if order == "rows" else t.t().contiguous().t()


@pytest.mark.parametrize(
    ("left", "m", "k"),
    [
        *[("rows", m, k) for m, k in ((31, 256), (33, 264), (33, 2040), (9, 8192), (3, 8208), (3, 8199))],
        *[("columns", m, k) for m, k in ((8, 63), (16, 1024), (24, 1025), (33, 1030), (24, 2050), (264, 40))],
    ],
)
def test_lines_as_long_as_workgroups_take_at_once(device, chosen, left, m, k):
    """And one more, or one less; lines that are more than a workgroup's or fewer."""
    check(device, torch.mm, laid_out(left, m, k), laid_out("rows", k, 8), tol=0)
    assert len(chosen) == 1


@pytest.mark.parametrize(("slices", "width"), [(2, 2), (130, 4)])
def test_batches_of_stripes(device, chosen, monkeypatch, slices, width):
    """Where there are many, they are wide."""
    widths = []
    of = Shares.of

    def noted(operand: halves.Halved) -> Shares:
        share = of(operand)
        widths.append(share.places)
        return share

    monkeypatch.setattr(Shares, "of", noted)
    check(device, torch.bmm, numbers(slices, 24, 40).mT, numbers(slices, 24, 72)[..., :56], tol=0)
    assert widths == [width, width]
    assert len(chosen) == 1


def test_one_matrix_twice(device, chosen):
    check(device, lambda x: x @ x.t(), numbers(40, 64), tol=0)
    check(device, lambda x: x.t() @ x, numbers(40, 72)[:, 3:], tol=0)
    assert len(chosen) == 2


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_without_room_for_copies(device, chosen, monkeypatch, layout):
    monkeypatch.setattr(halves, "MAX_BYTES", 0)
    copies = []
    monkeypatch.setattr(halves.Halved, "bind", copies.append)
    check(device, torch.mm, laid_out(layout, 72, 64), laid_out(layout, 64, 88), tol=0)
    check(device, lambda c, a, b: torch.addmm(c, a, b).relu(), numbers(48), numbers(40, 2048), numbers(2048, 48), tol=0)
    a, b = torch.randn(45, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    check(device, lambda a, b: a @ b, a * 1e-35, b * 1e35 / 64, tol=1e-2)
    assert len(chosen) == 6  # a block for the copies, and one without
    assert not copies


def test_what_is_not_finite_or_nothing(device, chosen):
    a, b = torch.randn(48, 64).bfloat16(), torch.randn(64, 72).bfloat16()
    zero = torch.zeros(48, 64).bfloat16()
    check(device, torch.mm, zero, b, tol=0)
    check(device, torch.mm, zero, b * 0, tol=0)
    a[3, 5], a[7, 1], b[2, 9] = torch.inf, torch.nan, -torch.inf
    check(device, torch.mm, a, b, tol=1e-2)
    check(device, torch.mm, torch.full((48, 64), torch.inf).bfloat16(), b, tol=1e-2)
    assert chosen


def test_small_products_stay_where_they_were(device, monkeypatch):
    chosen = pretend(monkeypatch, NVIDIA)
    check(device, torch.mm, numbers(64, 64), numbers(64, 64), tol=0)
    assert not chosen


def test_a_layer_and_its_gradients(device, chosen):
    x, w, b = numbers(48, 32), numbers(24, 32), numbers(24)
    check(device, F.linear, x, w, b, backward=True, tol=1e-2)
    assert len(chosen) == 3
