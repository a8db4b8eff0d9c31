"""Distances between all pairs on the device against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))


@pytest.mark.parametrize("p", ORDERS)
def test_cdist(device, p):
    a, b = torch.randn(3, 7, 5), torch.randn(1, 9, 5)
    check(device, lambda a, b: torch.cdist(a, b, p), a, b, backward=True, tol=1e-4)


@pytest.mark.parametrize("p", ORDERS)
def test_distance_zero_has_no_slope(device, p):
    check(device, lambda a: torch.cdist(a, a, p), torch.randn(4, 5), backward=True, tol=1e-4)


def test_vectors_of_no_elements(device):
    check(
        device, lambda a, b: (torch.cdist(a, b), torch.cdist(a, b, float("inf"))), torch.empty(6, 0), torch.empty(5, 0)
    )


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_pdist(device, p):
    check(device, lambda a: F.pdist(a, p), torch.randn(6, 5), backward=True, tol=1e-4)
