"""Reductions whose lanes are threads of one subgroup, on adapters that say how large these are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.engine.record import engine


@pytest.fixture(autouse=True)
def size(device: torch.device) -> int:
    found = engine().device(device.index or 0).target.subgroup_size
    if not found:
        pytest.skip("the adapter does not say how large its subgroups are")
    return found


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("runs", [3, 4, 8, 13, 16, 32, 100, 128])
def test_rows(device, runs, rows):
    """Of as many runs of four as give one lane to more lanes than a subgroup has."""
    x = torch.randn(rows, 4 * runs)
    weight = torch.randn(4 * runs)
    check(device, lambda x: x.softmax(1), x, backward=True, tol=1e-5)
    check(device, lambda x: (x.sum(1), x.amax(1), x.argmax(1), x.logsumexp(1), x.var(1), x.prod(1)), x, tol=1e-4)
    check(device, lambda x, w: F.layer_norm(x, w.shape, w, w), x, weight, backward=True, tol=1e-4)
    check(device, lambda x: (x.half().sum(1), (x * 9).int().sum(1), (x * 9).long().sum(1), (x > 0).all(1)), x, tol=1e-2)


def test_side_by_side(device):
    """Kernels that become parts of one."""
    xs = [torch.randn(3, 16 * n) for n in (1, 2, 3)]
    check(device, lambda *xs: tuple([x.softmax(1) for x in xs] + [x + 1 for x in xs]), *xs, tol=1e-5)


def test_scalars_that_are_not_finite(device):
    x = torch.randn(4, 32)
    x[0, 3], x[1, 30], x[2, :] = float("nan"), float("inf"), float("-inf")
    check(device, lambda x: (x.softmax(1), x.amax(1), x.argmax(1), x.logsumexp(1), x.sum(1)), x, tol=1e-5)
