"""Concatenation, slices, repetition and triangles on the device against the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import HALF_TYPES, check, layouts
from torch.nn import functional as F

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat(device, dtype):
    backward = dtype.is_floating_point
    for x in layouts(lambda *s: values(dtype, *s), 3, 5).values():
        check(device, lambda x: torch.cat([x, x[:1], x[:0]]), x, backward=backward)
        check(device, lambda x: torch.cat([x, x[:, 1:4]], 1), x, backward=backward)
        check(device, lambda x: torch.stack([x, x], 2), x, backward=backward)
        check(device, lambda x: torch.cat([x.float(), x, x.long()], -1), x)
        check(device, lambda x: torch.cat([x.new_empty(0), x]), x)
        check(device, lambda x: torch.cat([x, x], out=x.new_empty(0)), x)


def test_cat_of_nothing_along_any_dimension(device):
    empty = torch.randn(0, device=device)
    assert torch.cat([empty, empty], 1).shape == (0,)
    assert torch.cat([empty, torch.ones(2, 3, device=device)], 1).shape == (2, 3)


def test_cat_of_many(device):
    parts = [torch.randn(2, k % 5) for k in range(70)]
    check(device, lambda *parts: torch.cat(parts, 1), *parts, backward=True)


def test_cat_keeps_the_memory_format(device):
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    y = x.to(device)
    assert torch.cat([y, y], 1).stride() == torch.cat([x, x], 1).stride()


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda x: torch.cat([x, x[0]]), RuntimeError, "same number of dimensions: got 2 and 1"),
        (lambda x: torch.cat([x, x[:, :2]]), RuntimeError, "Sizes of tensors must match except in dimension 0"),
        (lambda x: torch.cat([x, x.cpu()]), RuntimeError, "same device"),
        (lambda x: torch.cat([x, x], 4), IndexError, "Dimension out of range"),
        (lambda x: torch.cat([x, x], out=x.long()), TypeError, "can't be cast"),
        (lambda x: torch.cat([x[:1], x[1:]], out=x), RuntimeError, "single memory location"),
    ],
)
def test_cat_errors(device, fn, error, message):
    with pytest.raises(error, match=message):
        fn(torch.randn(3, 4, device=device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves(device, dtype):
    for name, x in layouts(lambda *s: values(dtype, *s), 4, 3, 6).items():
        backward = dtype.is_floating_point and name != "expanded"
        for fn in (
            lambda x: x.flip(0, 2),
            lambda x: x.flip(1),
            lambda x: x.roll(2, 0),
            lambda x: x.roll((-1, 7), (1, 2)),
            lambda x: x.roll(5),
            lambda x: torch.rot90(x, 1, (0, 2)),
            lambda x: x.repeat(2, 1, 3),
            lambda x: x.tile(2),
            lambda x: x.repeat_interleave(3, 1),
            lambda x: x.repeat_interleave(torch.tensor([2, 0, 1], device=x.device), 1),
            lambda x: F.pad(x, (1, -2, 0, 3)),
            lambda x: x.tril(1),
            lambda x: x.triu(-1),
            lambda x: torch.diag_embed(x, 1),
            lambda x: torch.select_scatter(x, x[:, 0], 1, 2),
            lambda x: torch.slice_scatter(x, x[:2], 0, 1, 3),
            lambda x: torch.diagonal_scatter(x, x.diagonal(0, 0, 2).flip(0), 0, 0, 2),
        ):
            check(device, fn, x, backward=backward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradient_of_unfold(device, dtype):
    tol = 5e-3 if dtype in HALF_TYPES else None
    check(device, lambda x: x.unfold(1, 3, 1), torch.randn(2, 7, 3).to(dtype), backward=True, tol=tol)
    check(device, lambda x: x.unfold(0, 2, 3), torch.randn(8, 2).to(dtype), backward=True, tol=tol)


def test_triangle_in_place_and_indices(device):
    check(device, lambda x: x[:, 1:].tril_(-1), torch.randn(5, 6))
    check(device, lambda x: torch.triu(x, 1, out=x.new_empty(0)), torch.randn(5, 6))
    for args in ((4, 6, 1), (6, 4, -2), (3, 3, 0), (0, 3, 0), (3, 3, 9)):
        for name in ("tril_indices", "triu_indices"):
            found = getattr(torch, name)(*args, device=device, dtype=torch.int32)
            assert torch.equal(found.cpu(), getattr(torch, name)(*args, dtype=torch.int32))


def test_other_joins(device):
    x, y = torch.randn(3, 4), torch.randn(2, 5)
    check(device, torch.block_diag, x, y, backward=True)
    check(device, torch.kron, x, y, backward=True)
    check(device, lambda x, y: torch.meshgrid(x[0], y[0], indexing="ij"), x, y)
    check(device, lambda x: torch.channel_shuffle(x, 2), torch.randn(2, 6, 3, 3), backward=True)
    check(device, lambda x: F.one_hot(x, 7), torch.randint(0, 7, (3, 4)))
    check(device, lambda x: torch.combinations(x), torch.randn(5))
