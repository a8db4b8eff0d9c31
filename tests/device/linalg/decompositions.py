"""What decompositions of matrices have to satisfy, whatever phases and bases they choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

DTYPES = (torch.float32, torch.complex64, torch.float64)
SLACK = 4
"""Times the CPU's own error, or so many times the unit roundoff of a product of this length, an error may be."""


@contextmanager
def natively() -> Iterator[None]:
    """Nothing in it may run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().to(torch.complex128 if t.is_complex() else torch.float64)


def regular(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Condition numbers of a few, and rows that have to be interchanged."""
    x = torch.randn(*shape, dtype=dtype) / shape[-1] ** 0.5 + 3 * torch.eye(*shape[-2:])
    return x.roll(1, -2)


def allowed(a: torch.Tensor) -> float:
    """An error relative to the norm."""
    return SLACK * torch.finfo(a.dtype).eps * max(a.shape[-2:]) ** 0.5


def assert_orthonormal(q: torch.Tensor) -> None:
    """The columns of ``q``."""
    q64 = wide(q)
    error = (q64.mH @ q64 - torch.eye(q.shape[-1], dtype=q64.dtype)).abs().max()
    assert error <= 2 * allowed(q), error


def assert_near(found: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, a: torch.Tensor) -> None:
    """Absolutely, relative to the largest of ``scale``."""
    error = (wide(found) - exact).abs().max()
    assert error <= allowed(a) * scale.abs().max(), (error, scale.abs().max())
