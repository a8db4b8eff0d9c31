"""Products on registers of operands that lie in groups of four, along the sum or across it, and of their neighbours
that do not: every tile, layout, edge and epilogue against the CPU.

Operands are small whole numbers, so that sums are exact and results have to be equal.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.choices import forget

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import blocked
from torch_webgpu.kernels.matmul.epilogue import Epilogue
from torch_webgpu.kernels.matmul.tile import (
    DIRECT,
    HALF,
    HUGE,
    LARGE,
    LIGHT,
    MEDIUM,
    NARROW_SLICED,
    SMALL,
    SMALL_SLICED,
    Blocking,
    Tile,
)

from .matrices_emulated import laid_out
from .matrices_emulated import numbers as numbers_of

ORDERS = ("rows", "columns", "strided")
SLICED = (NARROW_SLICED, SMALL_SLICED)
OTHERS = (Tile(32, 32, 8, 4, 4, buffers=2), Tile(32, 32, 32, 4, 4, parts=4))
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def numbers(*shape: int) -> torch.Tensor:
    return numbers_of(*shape, dtype=torch.float32)


@pytest.fixture(autouse=True)
def without_matrices(monkeypatch) -> None:
    """Also on adapters that multiply 16-bit types otherwise."""
    monkeypatch.setattr(blocked, "matrices_for", lambda *_: None)
    forget(monkeypatch)


def force(monkeypatch: pytest.MonkeyPatch, tile: Tile, splits: int = 1) -> None:
    """Products are computed in blocks of ``tile``, whichever the cost model would choose here, as on a GPU."""

    def plan(slices: int, m: int, n: int, k: int, *_: object) -> Blocking[Tile]:
        return Blocking(tile, splits, -(-k // splits // tile.k) * tile.k)

    device = engine().device(0)
    monkeypatch.setattr(device, "target", replace(device.target, software=False))
    monkeypatch.setattr(blocked, "blocking", plan)
    forget(monkeypatch)


@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize("tile", [*SLICED, SMALL, MEDIUM, *OTHERS], ids=str)
def test_orders_of_tiles(device, monkeypatch, tile, left, right):
    """Several blocks, the last of them partly outside; several steps, the last of them partly beyond the sum's end."""
    for splits in (1, 2):
        force(monkeypatch, tile, splits)
        for n in (76, 75):
            a, b = laid_out(left, 68, 44, dtype=torch.float32), laid_out(right, 44, n, dtype=torch.float32)
            check(device, torch.mm, a, b, tol=0)


@pytest.mark.parametrize("tile", [HUGE, LARGE, HALF, LIGHT], ids=str)
def test_larger_tiles(device, monkeypatch, tile):
    force(monkeypatch, tile)
    for left, right in product(("rows", "columns"), repeat=2):
        a, b = laid_out(left, tile.m + 4, 20, dtype=torch.float32), laid_out(right, 20, tile.n + 4, dtype=torch.float32)
        check(device, torch.mm, a, b, tol=0)


@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("tile", DIRECT, ids=str)
def test_tiles_of_software_adapters(device, monkeypatch, tile, subgroups):
    """Several blocks, the last of them partly outside; sums that end within a step."""
    chip = engine().device(0)
    if subgroups and not chip.target.subgroups:
        pytest.skip("the adapter has no subgroups")
    monkeypatch.setattr(chip, "target", replace(chip.target, software=True, subgroups=subgroups))
    monkeypatch.setattr(blocked, "software_blocking", lambda *sizes, **_: Blocking(tile, 1, -(-sizes[3] // 4) * 4))
    forget(monkeypatch)
    for left, right in product(ORDERS, repeat=2):
        for m, n, k in ((tile.m + 4, tile.n + 4, 12), (tile.m + 3, tile.n + 1, 11)):
            a, b = laid_out(left, m, k, dtype=torch.float32), laid_out(right, k, n, dtype=torch.float32)
            check(device, torch.mm, a, b, tol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("right", ORDERS)
@pytest.mark.parametrize("left", ORDERS)
def test_orders(device, left, right, dtype):
    for m, k, n in ((36, 24, 40), (35, 22, 42), (33, 23, 41)):
        check(device, torch.mm, laid_out(left, m, k, dtype=dtype), laid_out(right, k, n, dtype=dtype), tol=0)


def test_short_sums(device):
    for k in range(1, 10):
        for left, right in (("rows", "rows"), ("columns", "columns"), ("columns", "rows")):
            a, b = laid_out(left, 12, k, dtype=torch.float32), laid_out(right, k, 20, dtype=torch.float32)
            check(device, torch.mm, a, b, tol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_slices_that_start_anywhere(device, dtype):
    """Operands and outputs whose rows start at groups of four, or do not."""
    a, b = numbers(40, 48).to(dtype), numbers(49, 36).to(dtype)
    for shift in (1, 4, 8):
        for x, y in (
            (a[:, shift : shift + 32], b[shift : shift + 32]),
            (a.view(-1)[shift:][:1440].view(30, 48), b[:48, 4:]),
        ):
            check(device, torch.mm, x, y, tol=0)
            check(device, lambda x, y: (y.t() @ x.t()).t(), x, y, tol=0)

    def into_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(40, 100, dtype=a.dtype, device=a.device)
        for column, width in ((0, 36), (37, 36), (76, 20), (98, 2)):
            torch.mm(a, b[:, :width], out=out[:, column : column + width])
        return out

    check(device, into_columns, a, b[:48], tol=0)
    check(
        device,
        lambda a, b: torch.mm(a, b, out=torch.empty(36, 40, dtype=a.dtype, device=a.device).t()),
        a,
        b[:48],
        tol=0,
    )


def test_parts_of_sums_into_views(device, monkeypatch):
    """The trailing matrix of a blocked factorization is a view: the kernel that adds the parts up stores there."""
    force(monkeypatch, SMALL, 2)
    a = torch.randn(2, 100, 100)
    for fn in (torch.linalg.lu_factor, torch.linalg.inv, torch.linalg.qr, lambda a: torch.linalg.cholesky(a @ a.mT)):
        check(device, fn, a + 20 * torch.eye(100), tol=1e-5)


def test_batches_and_broadcasts(device):
    a, b = numbers(3, 20, 16), numbers(3, 16, 24)
    check(device, torch.bmm, a, b, tol=0)
    check(device, torch.bmm, a.mT.contiguous().mT, b.mT.contiguous().mT, tol=0)
    check(device, torch.matmul, numbers(2, 1, 20, 16), b, tol=0)
    check(device, torch.bmm, a[:1].expand(3, 20, 16), b[:, :1].expand(3, 16, 24), tol=0)
    check(device, torch.bmm, a[:, :1].expand(3, 20, 16), b[:, :, :1].expand(3, 16, 24), tol=0)


@pytest.mark.parametrize("road", ["unrolled", "turns", "software"])
@pytest.mark.parametrize("n", [36, 34, 33])
def test_epilogues(device, monkeypatch, n, road):
    """Outputs that are stored four at a time, in words or one by one; what they read, ahead but on software, is at each
    place its own.
    """
    if road != "software":
        force(monkeypatch, SMALL)
    if road == "turns":
        monkeypatch.setattr(Epilogue, "heavy", True)
    bias, c = numbers(n), numbers(40, n)
    for right in ("rows", "columns")[: 2 if n == 36 else 1]:
        a, b = numbers(40, 24), laid_out(right, 24, n, dtype=torch.float32)
        check(device, lambda a, b, bias: F.relu(torch.addmm(bias, a, b)), a, b, bias, tol=0)
        check(device, lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3) * c, a, b, c, tol=0)
        check(device, lambda a, b, c: c.addmm_(a, b, beta=2), a, b, c.clone(), tol=0)
        check(device, lambda a, b, bias, c: (a @ b) * c.half() + c * bias.bfloat16() + (c > 0), a, b, bias, c, tol=0)
        check(device, lambda a, b, c: c.t().clone().t().addmm_(a, b), a, b, c, tol=0)
        check(device, lambda a, b: (a @ b).bfloat16(), a, b, tol=0)
        check(device, lambda a, b: (a @ b, (a @ b).half() + 1, (a @ b) > 0), a, b, tol=0)
        check(device, lambda a, b, bias: F.gelu(torch.addmm(bias, a, b) / 16), a, b, bias, tol=1e-5)
