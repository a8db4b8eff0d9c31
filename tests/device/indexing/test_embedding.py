"""Embeddings and bags of embeddings on the device against the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import same
from tests.device.indexing.inputs import FLOATS, check, indices, values
from torch.nn import functional as F


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding(device, options, dtype):
    for kind in (torch.int64, torch.int32):
        check(
            device,
            lambda w, i: F.embedding(i, w, **options),
            values(dtype, 10, 6),
            indices(10, 3, 8, dtype=kind),
            backward=True,
        )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(device, last, padding, mode, dtype):
    offsets = torch.tensor([0, 4, 4, 7, 12] if last else [0, 4, 4, 7])
    weight = torch.randperm(60).view(10, 6).to(dtype) / 16
    index = indices(10, 12)

    def bag(w, i, o, s=None):
        return F.embedding_bag(i, w, o, mode=mode, padding_idx=padding, include_last_offset=last, per_sample_weights=s)

    check(device, bag, weight, index, offsets, backward=True)
    check(device, bag, weight, index.int(), offsets.int(), backward=True)
    if mode == "sum":
        check(device, bag, weight, index, offsets, values(dtype, 12), backward=True)


@pytest.mark.float64
def test_embedding_bag_errors(device):
    weight, index, offsets = torch.ones(3, 4, device=device), torch.tensor([0, 1], device=device), torch.tensor([0])
    for wrong in (weight.long(), weight.to(torch.complex64)):
        with pytest.raises(RuntimeError, match="argument #1 'weight' to have one of the following scalar types"):
            F.embedding_bag(index, wrong, offsets.to(device))
    with pytest.raises(RuntimeError, match="same type as tensor for argument #1 'per_sample_weights'"):
        F.embedding_bag(
            index, weight.double(), offsets.to(device), mode="sum", per_sample_weights=torch.ones(2, device=device)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_embedding_renorm(device, dtype):
    check(device, lambda w, i: F.embedding(i, w.clone(), max_norm=1.0), torch.randn(10, 6, dtype=dtype), indices(10, 9))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_embedding_with_max_norm(device, dtype):
    """Renormalises the weights in place."""
    weight, index = 3 * torch.randn(5, 4), torch.tensor([[1, 2], [4, 1]], dtype=dtype)
    check(device, lambda w, i: (F.embedding(i, w, max_norm=0.5), w), weight, index)


BAGS = [
    ((2, 6), (2, 0, 0, 6, 6), (2, 0, 0)),
    ((2, 2), (), (1,)),
    ((2, 2), (2,), (2, 0, 0)),
    ((2, 2), (2,), (1, 1)),
    ((2, 2), (2,), ()),
    ((2, 2, 2), (2,), (2,)),
    ((2,), (2,), (2,)),
]


@pytest.mark.parametrize("shapes", BAGS, ids=str)
@pytest.mark.parametrize("name", ["embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"])
def test_dimensions_of_embedding_bags(device, shapes, name):
    weight, indices, offsets = shapes
    arguments = torch.zeros(weight), torch.ones(indices).long(), torch.zeros(offsets).long()
    assert not same(device, lambda *a: getattr(torch, name)(*a)[0], *arguments)


def test_embedding_bags_of_rows_of_indices(device):
    """Without ``torch.nn.functional``, which flattens them: offsets count elements."""
    weight, indices, offsets = torch.randn(4, 3), torch.tensor([[1, 2], [3, 0]]), torch.tensor([0, 1])
    assert same(device, lambda *a: torch.embedding_bag(*a)[0], weight, indices, offsets)
    per_sample = torch.ones(2, 2), torch.ones(3)
    for weights in per_sample:
        assert not same(
            device, lambda w, i, o, p: torch._embedding_bag(w, i, o, False, 0, False, p)[0],
            weight, indices.view(-1), offsets, weights,
        )  # fmt: skip
    none = offsets[:0]
    assert not same(
        device, lambda w, i, o: torch._embedding_bag(w, i, o, False, 0, False, None, True)[0],
        weight, indices.view(-1), none,
    )  # fmt: skip
