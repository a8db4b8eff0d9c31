"""Products on subgroup matrices, emulated: every configuration, layout, edge, tile and epilogue against the CPU.

Operands are small whole numbers, so that sums are exact and results have to be equal.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.choices import forget

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import blocked, matrix_tile
from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.tile import Blocking
from torch_webgpu.target import MatrixConfig

from .matrices_emulated import DEEP, NVIDIA, PIPELINED, SMALL, laid_out, numbers, pretend

CONFIGS = (NVIDIA, MatrixConfig("f16", "f32", 16, 8, 16, 32), MatrixConfig("f16", "f32", 8, 8, 8, 32))


@pytest.fixture
def chosen(monkeypatch) -> list[Blocking[MatrixTile]]:
    """The device pretends to have NVIDIA's matrices. Which blocks were chosen for products on them."""
    return pretend(monkeypatch, NVIDIA)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("left", ["rows", "columns"])
def test_configurations(device, monkeypatch, config, left, right):
    chosen = pretend(monkeypatch, config, PIPELINED)
    check(device, torch.mm, laid_out(left, 72, 104), laid_out(right, 104, 88), tol=0)
    assert chosen


@pytest.mark.parametrize("tile", matrix_tile.TILES, ids=str)
def test_tiles(device, monkeypatch, tile):
    """Every tile, whichever the cost model would choose here: several blocks, the last of them partly outside. With so
    many fragments the software adapter would compile a pipelined one for minutes.
    """
    tile = replace(tile, slots=2)
    is_checked = torch.webgpu.get_device_properties().implementation == "dawn"
    if is_checked and tile.workgroup_bytes(NVIDIA) > engine().device(0).target.workgroup_bytes:
        pytest.skip("the adapter has less workgroup memory than the tile takes")
    chosen = pretend(monkeypatch, NVIDIA, tile)
    check(device, torch.mm, numbers(tile.m + 40, 64), numbers(64, tile.n + 24), tol=0)
    assert [found.tile for found in chosen] == [tile]


def test_edges(device, chosen):
    """Sizes beside those of fragments, blocks and steps, of which few lie in groups of 16 bytes."""
    sizes = (2, 7, 16, 31, 33, 64, 65, 129, 300)
    for i, m in enumerate(sizes):
        for j, n in enumerate(sizes):
            k = (1, *sizes)[(3 * i + 5 * j) % 10]
            check(device, torch.mm, numbers(m, k), numbers(k, n), tol=0)
    assert chosen


@pytest.mark.parametrize("right", ["rows", "columns", "strided"])
@pytest.mark.parametrize("left", ["rows", "columns", "strided"])
def test_gathered_operands(device, chosen, left, right):
    """Numbers that do not lie in groups of 16 bytes, the last step of the sum partly outside."""
    check(device, torch.mm, laid_out(left, 70, 51), laid_out(right, 51, 66), tol=0)
    check(device, torch.mm, laid_out(left, 70, 64), laid_out(right, 64, 66), tol=0)
    assert chosen


@pytest.mark.parametrize("tile", [SMALL, PIPELINED, DEEP], ids=str)
def test_a_sum_that_ends_within_a_step(device, monkeypatch, tile):
    chosen = pretend(monkeypatch, NVIDIA, tile)
    for left, right in (("rows", "rows"), ("columns", "columns"), ("rows", "columns")):
        for k in (8, 40, 72):
            check(device, torch.mm, laid_out(left, 64, k), laid_out(right, k, 64), tol=0)
    assert chosen


def test_slices_that_start_anywhere(device, chosen):
    """Operands and outputs whose rows start at multiples of 16 bytes, or do not."""
    a, b = numbers(40, 96), numbers(97, 72)
    for shift in (0, 1, 4, 8, 16):
        check(device, torch.mm, a[:, shift : shift + 64], b[shift : shift + 64], tol=0)
        check(device, torch.mm, a.view(-1)[shift : shift + 32 * 96].view(32, 96)[:, :64], b[:64, 8:], tol=0)

    def into_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(40, 160, dtype=a.dtype, device=a.device)
        for column, width in ((0, 72), (73, 72), (148, 12)):
            torch.mm(a, b[:, :width], out=out[:, column : column + width])
        return out

    check(device, into_columns, a, b[:96], tol=0)
    assert chosen


def test_batches_and_broadcasts(device, chosen):
    a, b = numbers(3, 40, 64), numbers(3, 64, 48)
    check(device, torch.bmm, a, b, tol=0)
    check(device, torch.bmm, a.mT.contiguous().mT, b.mT.contiguous().mT, tol=0)
    check(device, torch.matmul, numbers(2, 1, 40, 64), b, tol=0)
    check(device, torch.bmm, a[:1].expand(3, 40, 64), b[:, :1].expand(3, 64, 48), tol=0)
    check(device, torch.bmm, a[:, :1].expand(3, 40, 64), b[:, :, :1].expand(3, 64, 48), tol=0)
    assert chosen


@pytest.mark.parametrize("n", [48, 50, 33])
def test_split_sums(device, chosen, n):
    check(device, torch.mm, numbers(40, 3000), numbers(3000, n), tol=0)
    check(device, lambda c, a, b: torch.addmm(c, a, b).relu(), numbers(n), numbers(40, 2048), numbers(2048, n), tol=0)
    assert all(found.splits > 1 for found in chosen)
    assert len(chosen) == 2


@pytest.mark.parametrize(("n", "ahead"), [(72, False), (72, True), (70, True), (69, True)])
def test_epilogues(device, monkeypatch, chosen, n, ahead):
    """Outputs that are stored four at a time, in words or one by one; what they read, ahead or not, is at each place
    its own.
    """
    monkeypatch.setattr(blocked, "reads_ahead", lambda p, widths: ahead and bool(p.epilogue.given(widths)))
    a, b, bias, c = numbers(40, 64), numbers(64, n), numbers(n), numbers(40, n)
    check(device, lambda a, b, bias: F.relu(torch.addmm(bias, a, b)), a, b, bias, tol=0)
    check(device, lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3) * c, a, b, c, tol=0)
    check(device, lambda a, b, c: c.addmm_(a, b, beta=2), a, b, c.clone(), tol=0)
    check(device, lambda a, b, bias, c: (a @ b) * c.bfloat16() + c * bias + (c > 0), a, b, bias, c, tol=0)
    check(device, lambda a, b, c: c.t().clone().t().addmm_(a, b), a, b, c, tol=0)
    check(device, lambda a, b: (a @ b).float() * 2, a, b, tol=0)
    check(device, lambda a, b: (a @ b).bfloat16(), a, b, tol=0)
    check(device, lambda a, b: (a @ b) > 0, a, b, tol=0)
    check(device, lambda a, b, bias: F.gelu(torch.addmm(bias, a, b) / 16), a, b, bias, tol=2e-3)
    assert chosen


def test_several_outputs(device, chosen):
    """One kernel stores a float16, a bfloat16 and a float32 output."""

    def outputs(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = a @ b
        return y, y.bfloat16() + 1, y.float() / 2

    check(device, outputs, numbers(40, 64), numbers(64, 72), tol=0)
    assert chosen


def test_what_takes_this_road(device, monkeypatch, chosen):
    """Layers in float16 and under autocast, forward and backward."""
    query, weight, bias = numbers(1, 2, 40, 32), numbers(24, 32), numbers(24)

    def autocast(q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(q.device.type, torch.float16):
            return q @ w.t()

    for fn, given, backward in (
        (F.linear, (query, weight, bias), True),
        (lambda c, a, b: torch.baddbmm(c, a, b), (numbers(2, 40, 40), query[0], query[0].mT), False),
        (autocast, (query[0, 0].float(), weight.float()), True),
    ):
        chosen.clear()
        forget(monkeypatch)
        check(device, fn, *given, backward=backward, tol=2e-2)
        assert chosen, fn


@pytest.mark.parametrize("right", ["rows", "columns", "strided"])
@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize(("dtype", "sums"), [("i8", "i32"), ("u8", "u32")])
def test_bytes(device, monkeypatch, left, right, dtype, sums):
    """Products of 8-bit integers, whose sums are 32 bits wide: what is asked for, or what they wrap to."""
    chosen = pretend(monkeypatch, MatrixConfig(dtype, sums, 16, 16, 32, 32), MatrixTile(32, 64, 2, 2))
    kind = BY_NAME[dtype].torch
    for m, k, n in ((48, 96, 80), (33, 70, 45), (40, 2048, 64)):
        a, b = laid_out(left, m, k).char() * 60, laid_out(right, k, n).char() * 60
        a, b = a.to(kind), b.to(kind)
        check(device, torch.mm, a, b, tol=0)
        if kind == torch.int8:
            check(device, torch._int_mm, a, b, tol=0)
            check(device, torch._int_mm, a[:, 4:], b[4:], tol=0)
    assert chosen


@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("left", ["rows", "columns"])
def test_products_into_float32(device, chosen, left, right):
    """What is summed is not rounded: sums that float16 cannot hold."""
    a, b = laid_out(left, 72, 104).mul_(64).add_(1), laid_out(right, 104, 88).mul_(3).add_(1)
    exact = a.float() @ b.float()
    assert not torch.equal(exact, exact.half().float())
    product = torch.mm(a.to(device), b.to(device), out_dtype=torch.float32)
    torch.testing.assert_close(product.cpu(), exact, rtol=0, atol=0)
    assert chosen
