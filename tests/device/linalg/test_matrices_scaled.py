"""Products of bfloat16 on emulated subgroup matrices of float16, against the CPU; whole numbers are exact."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.kernels.matmul import scaled
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


def test_rows_of_other_magnitudes(device, chosen):
    """What is small beside the largest number of an operand is as precise as that."""
    a = torch.randn(64, 80).bfloat16() * 2.0 ** -torch.arange(64.0)[:, None].bfloat16()
    b = torch.randn(80, 64).bfloat16()
    found = (a.to(device) @ b.to(device)).cpu().double()
    wanted = a.double() @ b.double()
    size = a.double().abs() @ b.double().abs()
    precise = a.abs().amax(1) > a.abs().max() * 2.0**-28
    assert precise.sum() > 20
    assert ((found - wanted).abs() <= 2.0**-8 * size)[precise].all()
    assert ((found - wanted).abs() <= 2.0**-30 * size.max() + 2.0**-8 * size).all()
    assert chosen


def test_what_is_not_finite_or_nothing(device, chosen):
    if "SwiftShader" in torch.webgpu.get_device_name(device):
        pytest.skip("SwiftShader's pack2x16float makes NaN of infinity, as WGSL allows; it has no matrices of its own")
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
