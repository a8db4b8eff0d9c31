"""``histogram`` and ``histogramdd`` beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (torch.float32, pytest.param(torch.float64, marks=pytest.mark.float64))


@pytest.fixture(autouse=True)
def natively():
    """No test may have run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def same(device: torch.device, fn: Callable[..., object], *args: object) -> None:
    expected = tree_leaves(fn(*args))
    here = tree_map(lambda a: a.to(device) if isinstance(a, torch.Tensor) else a, args)
    for there, found in zip(expected, tree_leaves(fn(*here)), strict=True):
        assert found.dtype == there.dtype
        torch.testing.assert_close(found.cpu(), there, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighs", [False, True])
def test_one_dimension(device, dtype, density, weighs):
    x = torch.randn(40, 30, dtype=dtype)
    x[0, :3] = torch.tensor([0.0, 1.0, -1.0])
    for t in (x, x.T, x[::2], torch.arange(30, dtype=dtype).expand(3, 30)):
        kwargs = {"density": density, "weight": torch.rand(t.shape, dtype=dtype) if weighs else None}
        edges = torch.tensor([-1, 0, 0.25, 1], dtype=dtype)

        def of_edges(t: torch.Tensor, edges: torch.Tensor, kwargs: dict) -> object:
            return torch.histogram(t, edges, **kwargs)

        same(device, of_edges, t, edges, kwargs)
        same(device, lambda t, kwargs: torch.histogram(t, 7, **kwargs), t, kwargs)
        same(device, lambda t, kwargs: torch.histogram(t, 4, range=(-1, 1), **kwargs), t, kwargs)


def test_edges_nan_and_nothing(device):
    for x in (torch.arange(5.0), torch.ones(3), torch.zeros(0), torch.tensor(2.0)):
        same(device, lambda x: torch.histogram(x, 4), x)
    same(device, torch.histogram, torch.tensor([1.0, torch.nan, torch.inf, 3.0]), torch.tensor([0.0, 1, 2, 3]))
    same(device, torch.histogram, torch.zeros(4), torch.tensor([0.0, 0, 1]))


@pytest.mark.parametrize("density", [False, True])
def test_several_dimensions(device, density):
    x, weight = torch.randn(5, 50, 2), torch.rand(5, 50)
    edges = [torch.tensor([-1.0, 0, 1]), torch.linspace(-2, 2, 6)]
    same(device, lambda x: torch.histogramdd(x, [3, 5], density=density), x)
    same(device, lambda x, w: torch.histogramdd(x, 4, range=[-1, 1, -2, 2], weight=w, density=density), x, weight)
    same(device, lambda x, edges: torch.histogramdd(x, edges, density=density), x, edges)


def test_out(device):
    x = torch.randn(50)
    out = torch.empty(0, device=device), torch.empty(0, device=device)
    torch.histogram(x.to(device), 5, out=out)
    for found, expected in zip(out, torch.histogram(x, 5), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("call", [
    lambda x: torch.histogram(x, 0),
    lambda x: torch.histogram(x, 3, range=(2, 1)),
    lambda x: torch.histogram(x, 3, range=(1,)),
    lambda x: torch.histogram(x + torch.inf, 3),
    lambda x: torch.histogram(x.int(), 3),
    lambda x: torch.histogram(x, x[0, :1]),
    lambda x: torch.histogram(x, x),
    lambda x: torch.histogram(x, 3, weight=x[0]),
    lambda x: torch.histogramdd(x, [3]),
    lambda x: torch.histogramdd(x[0], [3]),
    lambda x: torch.histogramdd(x, [3, 0]),
    lambda x: torch.histogramdd(x, [3, 2], range=(1, 2)),
])  # fmt: skip
def test_what_is_refused(device, call):
    x = torch.tensor([[0.0, 1], [0, 3], [0, 5]])
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        call(x)
    with pytest.raises(type(expected.value)) as found:
        call(x.to(device))
    assert str(found.value) == str(expected.value)
