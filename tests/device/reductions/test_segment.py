"""Reductions of segments on the device, against the CPU: what PyTorch's samples lack."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check

REDUCTIONS = ("sum", "mean", "min", "max", "prod")


@pytest.fixture(autouse=True)
def natively():
    """No test may have run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def reduced(reduce: str, lengths: torch.Tensor, **kwargs):
    """By lengths that are on the device of the data."""
    return lambda x: torch.segment_reduce(x, reduce, lengths=lengths.to(x.device), axis=lengths.dim() - 1, **kwargs)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_lines_layouts_and_empty_segments(device, reduce):
    lengths = torch.tensor([[3, 0, 4], [7, 0, 0]])
    for x in (torch.randn(2, 7, 5), torch.randn(5, 7, 2).permute(2, 1, 0), torch.randn(2, 14, 5)[:, ::2]):
        check(device, reduced(reduce, lengths), x, backward=True)
        check(device, reduced(reduce, lengths, initial=0.5), x, backward=True)
    check(device, reduced(reduce, lengths.int()[0]), torch.randn(7), backward=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_equal_elements_zeros_and_nan(device, reduce):
    lengths = torch.tensor([4, 3, 2, 2, 1])
    x = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 2.0, 3.0, 0.0, 0.0, float("nan"), 5.0, float("inf")])
    check(device, reduced(reduce, lengths), x, backward=True)


def test_offsets(device):
    x = torch.randn(8, 3)
    for offsets in ([0, 3, 3, 8], [0, 2], [1, 4, 6]):
        given = torch.tensor(offsets)
        check(device, lambda x, o=given: torch.segment_reduce(x, "sum", offsets=o.to(x.device)), x)


def test_lengths_that_are_none(device):
    for lengths, message in (([2, 3], "Expected all rows of lengths"), ([7, -2], "negative value")):
        x = torch.randn(6)
        with pytest.raises(RuntimeError, match=message):
            torch.segment_reduce(x, "sum", lengths=torch.tensor(lengths))
        with pytest.raises(RuntimeError, match=message):
            torch.segment_reduce(x.to(device), "sum", lengths=torch.tensor(lengths).to(device)).cpu()
    for kwargs in ({}, {"lengths": torch.tensor([6]), "axis": 1}, {"lengths": torch.tensor([6]), "reduce": "median"}):
        kwargs = {"reduce": "sum", **kwargs}
        with pytest.raises(RuntimeError) as expected:
            torch.segment_reduce(torch.randn(6, 2), **kwargs)
        there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        with pytest.raises(RuntimeError) as raised:
            torch.segment_reduce(torch.randn(6, 2, device=device), **there)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
