"""Reductions on the device against the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from tests.device.against_cpu import HALF_TYPES, check, layouts, outcome

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DIMS = (0, 1, -1, (0, 2), (0, 1, 2), None)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small numbers with many ties, so that sums are exact and the first of equals matters."""
    if dtype.is_floating_point:
        return torch.randint(-8, 9, shape).to(dtype) / 4
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


def tolerance(dtype: torch.dtype) -> float | None:
    return 2e-2 if dtype in HALF_TYPES else None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "nansum", "amax", "amin", "any", "all", "count_nonzero"])
def test_over_dims(device, name, dtype):
    fn = getattr(torch, name)
    x = values(dtype, 5, 33, 70)
    for dim in DIMS:
        if dim is None and name in ("amax", "amin"):
            dim = ()
        if name in ("any", "all") and dtype == torch.uint8 and not isinstance(dim, int):
            continue
        check(device, lambda x, dim=dim: fn(x, dim=dim), x, tol=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_first_extreme(device, name, dtype):
    if dtype == torch.bool and name.startswith("arg"):
        pytest.skip("PyTorch has no argmax of bool")
    x = values(dtype, 5, 33, 70)
    for dim in (0, 1, 2):
        for keepdim in (False, True):
            check(device, lambda x, d=dim, k=keepdim: getattr(x, name)(d, keepdim=k), x)
    check(device, lambda x: getattr(x, name)(), x)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "amin", "aminmax", "sum", "nansum", "logsumexp", "var"])
def test_nan_and_infinity(device, name):
    x = torch.randn(4, 300)
    x[0, 17] = x[0, 200] = math.nan
    x[1, 5], x[1, 77] = math.inf, -math.inf
    x[2, 5] = x[2, 9] = math.inf
    x[3] = -math.inf
    check(device, lambda x: getattr(torch, name)(x, dim=1), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prod(device, dtype):
    x = values(dtype, 3, 7, 5) if dtype.is_floating_point else torch.randint(0, 3, (3, 7, 5)).to(dtype)
    for dim in (0, 1, 2):
        check(device, lambda x, dim=dim: x.prod(dim), x, tol=tolerance(dtype))
    check(device, lambda x: x.prod(), x, tol=tolerance(dtype))


def test_prod_of_nan_and_infinity(device):
    inf, nan = math.inf, math.nan
    check(device, lambda x: x.prod(1), torch.tensor([[2, inf, -3], [1, nan, inf], [0, inf, 1], [-inf, -inf, 1]]))


@pytest.mark.parametrize("name", ["contiguous", "transposed", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_layouts(device, name, dtype):
    x = layouts(lambda *shape: values(dtype, *shape), 6, 5, 37)[name]
    for dim in (0, 1, 2, (0, 2), (1, 2)):
        check(device, lambda x, dim=dim: (x.sum(dim), x.amax(dim), x.any(0)), x, tol=tolerance(dtype))
    check(device, lambda x: (x.argmax(), x.argmax(1)), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_moments(device, dtype):
    x = torch.randn(4, 60, 9).to(dtype)
    for dim in (0, 1, (0, 2), None):
        check(
            device,
            lambda x, dim=dim: (
                x.mean(dim),
                x.var(dim),
                *torch.std_mean(x, dim, correction=0),
                x.std(dim, keepdim=True),
            ),
            x,
            backward=True,
            tol=tolerance(dtype) or 1e-5,
        )


def test_variance_of_a_large_mean(device):
    check(device, lambda x: torch.var_mean(x, 1), torch.randn(3, 5000) + 1000, tol=1e-3)


def test_variance_with_too_few_elements(device):
    check(device, lambda x: (x.var(1), x.var(1, correction=0), x.std(1, correction=3)), torch.randn(3, 1))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms(device, order, dtype):
    x = torch.randn(6, 40).to(dtype)
    check(
        device,
        lambda x: (torch.linalg.vector_norm(x, order), x.norm(order, 1), x.norm(order, 0, keepdim=True)),
        x,
        tol=tolerance(dtype) or 1e-4,
    )


def test_norm_gradient(device):
    check(device, lambda x: (x.norm(), x.norm(1, 0), x.norm(3, 1)), torch.randn(6, 40), backward=True, tol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logsumexp(device, dtype):
    x = torch.randn(5, 200).to(dtype) * 30
    check(device, lambda x: (x.logsumexp(1), x.logsumexp((0, 1))), x, backward=True, tol=tolerance(dtype) or 1e-5)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "var", "logsumexp"])
def test_gradient(device, name):
    x = torch.randn(5, 6, 7)
    check(device, lambda x: getattr(x, name)(1), x, backward=True, tol=1e-4)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "any", "all", "nansum", "std"])
def test_empty(device, name):
    fn = getattr(torch, name)
    check(device, lambda x: (fn(x), fn(x, dim=0), fn(x, dim=1)), torch.empty(0, 3))


@pytest.mark.parametrize("name", ["amax", "argmin", "max"])
def test_empty_extreme_raises_as_the_cpu_does(device, name):
    for where in ("cpu", device):
        with pytest.raises((RuntimeError, IndexError)):
            getattr(torch.empty(0, 3, device=where), name)(0)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "argmax", "any", "var", "logsumexp", "max"])
def test_zero_dimensional(device, name):
    check(device, lambda x: getattr(x, name)(0), torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool], ids=str)
def test_integer_sums_are_64_bits_wide(device, dtype):
    x = torch.full((70_000,), 200 if dtype == torch.uint8 else 2**30).to(dtype)
    check(device, lambda x: (x.sum(), x.sum(dtype=torch.int32)), x)


def test_int64_sum_is_exact(device):
    check(device, lambda x: (x.sum(), x.sum(0), x.amax(1), x.argmin()), torch.randint(-(2**61), 2**61, (40, 50)))


def test_requested_dtype(device):
    x = torch.randn(20, 30)
    check(device, lambda x: (x.sum(0, dtype=torch.float16), x.half().sum(0, dtype=torch.float32)), x, tol=2e-2)
    check(device, lambda x: x.long().float().mean(0, dtype=torch.float32), x)


@pytest.mark.parametrize("shape", [(3_000_000,), (2, 700_000), (400_000, 3)])
def test_split_over_workgroups(device, shape):
    x = torch.rand(shape)
    check(device, lambda x: (x.sum(), x.sum(0), x.mean(), x.argmax(), x.amin(0)), x, tol=1e-4)
    check(device, lambda x: torch.var_mean(x), x, tol=1e-4)


def test_more_outputs_than_workgroups_in_a_row(device):
    x = torch.randint(0, 100, (70_000, 600)).to(torch.uint8)
    check(device, lambda x: (x.sum(1), x.amax(1)), x)
    check(device, lambda x: x.sum(0), torch.randint(0, 100, (3, 300_000), dtype=torch.int32))


def test_sum_of_many_floats_is_accurate(device):
    x = torch.rand(3_000_000) + 1
    exact = x.double().sum().item()
    assert abs(x.to(device).sum().item() - exact) <= 2e-6 * exact


def test_out(device):
    x = torch.randn(4, 5)
    y = x.to(device)
    out = torch.empty(5, device=device)
    assert torch.sum(y, 0, out=out) is out
    torch.testing.assert_close(out.cpu(), x.sum(0))
    found, where = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    torch.max(y, 1, out=(found, where))
    torch.testing.assert_close((found.cpu(), where.cpu()), tuple(x.max(1)))
    wide = torch.empty(5, dtype=torch.int64, device=device)
    torch.testing.assert_close(torch.sum(y, 0, out=wide).cpu(), torch.sum(x, 0, out=torch.empty(5, dtype=torch.int64)))
    with pytest.warns(UserWarning, match="resized"):
        torch.sum(y, 0, out=torch.empty(3, device=device))
    refusal = outcome(lambda: torch.amax(x, 0, out=wide.cpu()))
    assert refusal[0] is RuntimeError
    assert outcome(lambda: torch.amax(y, 0, out=wide)) == refusal


def test_trace_and_complex(device):
    check(device, lambda x: (x.trace(), x.int().trace()), torch.randn(5, 7) * 10, tol=1e-4)
    z = torch.randn(4, 6, dtype=torch.complex64)
    check(device, lambda z: (z.sum(0), z.mean(1), z.prod(1), z.var(0), torch.linalg.vector_norm(z)), z, tol=1e-4)


def test_norm_of_complex_numbers_into_an_output(device):
    """Whose dtype is that of the sizes, in which the numbers are not."""
    z = torch.randn(4, 6, dtype=torch.complex64)
    out = torch.empty(0, device=device)
    assert torch.linalg.vector_norm(z.to(device), 3, 1, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.linalg.vector_norm(z, 3, 1))
    with pytest.raises(RuntimeError, match="dtype should be complex"):
        torch.linalg.vector_norm(z.to(device), dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:aten._?logcumsumexp.* runs on the CPU")
def test_logsumexp_of_complex_numbers(device):
    z = torch.randn(4, 6, dtype=torch.complex64)
    z[0, 0], z[1, 1] = -float("inf"), complex(float("inf"), 1)
    check(device, lambda z: (z.logsumexp(1), z.logsumexp((0, 1), True), z[:0].logsumexp(1), z.logcumsumexp(0)), z)
    check(device, lambda z: torch.logsumexp(z, 0, out=torch.empty(6, dtype=z.dtype, device=z.device)), z)
