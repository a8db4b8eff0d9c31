"""Negative log likelihood and cross-entropy in every dtype, against the CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import HALF_TYPES, check

SHAPES = ((5, 4), (4,), (3, 4, 6), (2, 4, 3, 5), (0, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF_TYPES], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(device, reduction, dtype):
    tol = 2e-2 if dtype in HALF_TYPES else None
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype)
        target = torch.randint(0, 4, (shape[:1] + shape[2:]) if len(shape) > 1 else ())
        weight = torch.rand(4).to(dtype)
        for fn in (F.cross_entropy, partial(F.cross_entropy, ignore_index=1), F.nll_loss):
            if fn is F.nll_loss and x.numel() == 0:
                continue
            loss = partial(fn, reduction=reduction)
            check(device, loss, x, target, backward=True, tol=tol)
            check(device, lambda x, t, w, f=loss: f(x, t, weight=w.detach()), x, target, weight, backward=True, tol=tol)
