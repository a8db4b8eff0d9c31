"""Cumulative operators on the device against the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from tests.device.against_cpu import HALF_TYPES, check, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape).to(dtype) if dtype == torch.bool else torch.randint(-3, 4, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_dims(device, name, dtype):
    if name == "logcumsumexp" and not dtype.is_floating_point:
        pytest.skip("PyTorch has no logcumsumexp of integers")
    x = values(dtype, 3, 50, 17)
    for dim in (0, 1, 2):
        check(device, lambda x, d=dim: getattr(x, name)(d), x, tol=2e-2 if dtype in HALF_TYPES else None)


@pytest.mark.parametrize("name", NAMES)
def test_gradient(device, name):
    check(device, lambda x: getattr(x, name)(1), torch.randn(4, 30), backward=True, tol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 5, 255, 256, 257, 1023, 1024, 1025, 5000])
def test_sizes(device, size):
    x = values(torch.int64, 2, size)
    check(device, lambda x: (x.cumsum(1), x.cummax(1)), x)
    check(device, lambda x: (x.cumsum(0), x.cummax(0)), x.t().contiguous())


@pytest.mark.parametrize("name", ["contiguous", "transposed", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_layouts(device, name, dtype):
    x = layouts(lambda *shape: values(dtype, *shape), 4, 6, 34)[name]
    for dim in (0, 2):
        check(device, lambda x, d=dim: (x.cumsum(d), x.cummin(d)), x)


def test_one_long_row(device):
    check(device, lambda x: (x.cumsum(0), x.cummax(0)), torch.randint(-9, 10, (3_000_000,)))
    check(device, lambda x: x.cumsum(0), torch.rand(3_000_000), tol=1e-4)


def test_long_columns(device):
    check(device, lambda x: x.cumsum(0), torch.randint(-9, 10, (200_000, 3)))


def test_many_rows(device):
    check(device, lambda x: x.cumsum(1), torch.randint(-9, 10, (70_000, 5), dtype=torch.int32))


def test_extremes_with_nan_and_ties(device):
    x = torch.randint(-3, 4, (3, 600)).float()
    x[0, 300] = x[0, 400] = math.nan
    x[1, 0] = -math.inf
    x[2] = -math.inf
    check(device, lambda x: (x.cummax(1), x.cummin(1), x.logcumsumexp(1), x.cumsum(1)), x)


def test_empty_and_zero_dimensional(device):
    check(device, lambda x: (x.cumsum(0), x.cumsum(1), x.cummax(1)), torch.empty(0, 3))
    check(device, lambda x: (x.cumsum(0), x.cummax(0), x.logcumsumexp(0)), torch.tensor(3.0))


def test_dtype_out_and_in_place(device):
    x = torch.randint(0, 9, (3, 4), dtype=torch.int32)
    check(device, lambda x: (x.cumsum(1), x.cumsum(1, dtype=torch.float32)), x)
    check(device, lambda x: x.clone().cumsum_(1), x)
    out = torch.empty(3, 4, device=device)
    torch.testing.assert_close(torch.cumsum(x.to(device), 0, out=out).cpu(), x.cumsum(0).float())
