"""Softmaxes on the device against the CPU, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import HALF_TYPES, check, layouts

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 3001])
def test_rows(device, fn, dtype, size):
    x = (torch.randn(5, size) * 5).to(dtype)
    check(device, lambda x: fn(x, -1), x, backward=True, tol=tolerance(dtype))


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_dims(device, fn, dim):
    check(device, lambda x: fn(x, dim), torch.randn(4, 5, 6, 7), backward=True, tol=1e-5)


@pytest.mark.parametrize("name", ["contiguous", "transposed", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(device, name, dtype):
    x = layouts(lambda *shape: torch.randn(shape).to(dtype), 4, 6, 34)[name]
    for dim in (0, 2):
        check(device, lambda x, dim=dim: F.softmax(x, dim), x, tol=tolerance(dtype))


def test_one_long_row(device):
    check(device, lambda x: F.softmax(x, 0), torch.randn(300_000), backward=True, tol=1e-6)


def test_many_rows(device):
    check(device, lambda x: F.log_softmax(x, 1), torch.randn(70_000, 3), tol=1e-5)


def test_infinite_elements(device):
    x = torch.randn(6, 50)
    x[0, 3] = -math.inf
    x[1] = -math.inf
    x[2, 3] = math.inf
    x[3, 3] = math.nan
    x[4] = math.nan
    x[5] = -math.inf
    x[5, 3] = math.nan
    check(device, lambda x: (F.softmax(x, 1), F.log_softmax(x, 1), torch.ops.aten._safe_softmax(x, 1)), x, tol=1e-5)


def test_large_logits(device):
    check(device, lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), torch.randn(5, 20) * 1e4, tol=1e-5)


def test_empty_and_zero_dimensional(device):
    check(device, lambda x: F.softmax(x, 0), torch.empty(0, 3))
    check(device, lambda x: F.softmax(x, 0), torch.tensor(2.0))


def test_half_to_float(device):
    x = torch.randn(4, 9).half().to(device)
    result = torch.ops.aten._softmax(x, 1, True)
    torch.testing.assert_close(result.cpu(), F.softmax(x.cpu().float(), 1))


@pytest.mark.parametrize("mask_type", [0, 1, 2])
def test_masked(device, mask_type):
    shape = {0: (4, 4), 1: (2, 4), 2: (2, 3, 4, 4)}[mask_type]
    mask = torch.rand(shape) > 0.5
    mask[0] = True
    check(device, lambda x, m: torch.ops.aten._masked_softmax(x, m, 3, mask_type), torch.randn(2, 3, 4, 4), mask)


def test_masked_backward(device):
    mask = torch.rand(2, 3, 4, 4) > 0.5
    mask[..., 0] = False
    check(device, lambda x, m: torch.ops.aten._masked_softmax(x, m, 3, 2), torch.randn(2, 3, 4, 4), mask, backward=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy(device, reduction, dtype):
    x, weight = torch.randn(40, 11).to(dtype), torch.rand(11).to(dtype)
    target = torch.randint(0, 11, (40,))
    target[3] = -100

    def loss(x, target, weight):
        return (
            F.cross_entropy(x, target, reduction=reduction),
            F.cross_entropy(x, target, weight.detach(), reduction=reduction, label_smoothing=0.1),
        )

    check(device, loss, x, target, weight, backward=True, tol=3e-2 if dtype in HALF_TYPES else 1e-5)


@pytest.mark.parametrize("shape", [(6,), (3, 6), (3, 6, 5), (3, 6, 5, 4)])
def test_nll_loss_shapes(device, shape):
    target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 6, target_shape)
    check(device, lambda x, t: F.nll_loss(x, t, ignore_index=2), torch.randn(shape), target, backward=True, tol=1e-5)


def test_nll_loss_of_nothing(device):
    check(device, lambda x, t: F.nll_loss(x, t), torch.randn(0, 6), torch.zeros(0, dtype=torch.int64))
    ignored = torch.full((3,), -100)
    check(device, lambda x, t: F.nll_loss(x, t), torch.randn(3, 6), ignored, backward=True)


def test_nll_loss_target_out_of_range(device):
    loss = F.nll_loss(torch.randn(3, 4, device=device), torch.tensor([1, 2, 7], device=device))
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        loss.item()
    assert F.nll_loss(torch.zeros(3, 4, device=device), torch.tensor([1, 2, 3], device=device)).item() == 0


@pytest.mark.parametrize("size", [4095, 8192, 12_288, 16_380, 16_388])
def test_rows_in_registers(device, size):
    """Rows that a workgroup's threads hold, evenly or not, and the first that they do not."""
    x = torch.randn(3, size) * 4
    check(device, lambda x: (F.softmax(x, 1), F.log_softmax(x, 1), F.layer_norm(x, (size,))), x, tol=1e-5)
