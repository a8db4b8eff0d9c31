"""Least squares on the device: every driver of LAPACK, against the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check
from tests.device.linalg.decompositions import natively

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")
SHAPES = (((5, 3), (5, 2)), ((3, 5), (3, 2)), ((2, 4, 4), (2, 4)), ((2, 5, 3), (1, 5, 2)), ((70, 50), (70, 3)))


def same(device: torch.device, a: torch.Tensor, b: torch.Tensor, exact: bool = False, **kwargs) -> None:
    """Values, shapes, strides and dtypes of all four results; ``exact``: solution and rank are gelsd's in float64.

    PyTorch gives LAPACK's gelsy an array of pivots that nobody has set: of 300 equal calls 22 find another rank.
    """
    expected = values = torch.linalg.lstsq(a, b, **kwargs)
    if exact:
        right = torch.linalg.lstsq(a.double(), b.double(), **kwargs | {"driver": "gelsd"})
        values = (right.solution, expected.residuals, right.rank, expected.singular_values)
    with natively():
        found = torch.linalg.lstsq(a.to(device), b.to(device), **kwargs)
    for f, e, v in zip(found, expected, values):
        assert (f.shape, f.stride(), f.dtype) == (e.shape, e.stride(), e.dtype)
        torch.testing.assert_close(f.cpu(), v.to(e.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("driver", DRIVERS)
def test_shapes(device, driver):
    for a, b in SHAPES:
        same(device, torch.randn(a), torch.randn(b), driver=driver)
    same(device, torch.randn(4, 3, dtype=torch.complex64), torch.randn(4, 2, dtype=torch.complex64), driver=driver)


@pytest.mark.parametrize("driver", DRIVERS[1:])
def test_low_rank(device, driver):
    """LAPACK's gelsy is off by up to 1e-3 for one of a thousand such, also in float64."""
    a = torch.randn(2, 6, 2) @ torch.randn(2, 2, 4)  # rounding errors of the product may be above the default rcond
    same(device, a, torch.randn(2, 6, 3), exact=True, driver=driver, rcond=1e-5)
    same(device, a.mT.contiguous(), torch.randn(2, 4, 3), exact=True, driver=driver, rcond=1e-5)
    diagonal = torch.diag(torch.tensor([1.0, 1e-2, 1e-4]))
    same(device, diagonal, torch.ones(3, 1), exact=True, driver=driver, rcond=1e-3)


def test_zeros_and_empty(device):
    for driver in DRIVERS:
        if driver != "gels":  # LAPACK's says that there is no residual
            same(device, torch.zeros(5, 3), torch.randn(5, 2), driver=driver)
        assert not torch.linalg.lstsq(torch.zeros(5, 3, device=device), torch.ones(5, 2, device=device)).solution.any()
        for a, b in (((0, 3), (0, 2)), ((3, 0), (3, 2)), ((0, 5, 3), (0, 5, 2))):
            same(device, torch.randn(a), torch.randn(b), driver=driver)
    same(device, torch.randn(5, 3), torch.randn(5, 0))  # the CPU's other drivers fail inside


def test_errors_are_the_cpus(device):
    a = torch.randn(5, 3)
    for b, kwargs in (
        (torch.randn(4, 2), {}),
        (torch.randn(5, 2), {"driver": "x"}),
        (torch.randn(5, 2).to(torch.complex64), {}),
        (torch.randn(2, 2, 5, 2), {}),
    ):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            torch.linalg.lstsq(a, b, **kwargs)
        with pytest.raises(type(expected.value)) as raised:
            torch.linalg.lstsq(a.to(device), b.to(device), **kwargs)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_gradients(device):
    for shape in ((5, 3), (3, 5)):
        a, b = torch.randn(shape), torch.randn(shape[0], 2)
        with natively():
            check(device, lambda a, b: torch.linalg.lstsq(a, b).solution, a, b, backward=True, tol=1e-3)
