"""Gradients of parts of one tensor, which are put side by side instead of among zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .against_eager import assert_equal

DEVICE = "webgpu"


def rotated(x: torch.Tensor) -> Any:
    """Rotary embeddings as language models write them."""
    half = x.shape[-1] // 2
    return x * 3 + torch.cat((-x[..., half:], x[..., :half]), -1) * 2


def selected(x: torch.Tensor) -> Any:
    return x[:, 0] * 2 + x[:, -1] * 3 - x[:, 1] * x[:, 2]


def of_different_lengths(x: torch.Tensor) -> Any:
    return x[:1].sum() + (x[1:3] * x[1:3]).sum() + (x[3:] * 2).sum() + (x * 4).sum()


def of_two_dimensions(x: torch.Tensor) -> Any:
    return (x[:2] * 3).sum() + (x[2:] * 2).sum() + (x[..., :3] * 5).sum() + (x[..., 3:] * x[..., 3:]).sum()


def overlapping(x: torch.Tensor) -> Any:
    return (x[:3] * 3).sum() + (x[2:] * x[2:]).sum()


def with_a_gap(x: torch.Tensor) -> Any:
    return (x[:2] * 3).sum() + (x[3:] * x[3:]).sum()


def in_steps(x: torch.Tensor) -> Any:
    return (x[::2] * 3).sum() + (x[1::2] * x[1::2]).sum()


def twice(x: torch.Tensor) -> Any:
    """Parts that are taken more than once."""
    return (x[:2] * 3).sum() + (x[2:] * 2).sum() + (x[:2] * x[:2]).sum() + (x[2:] * x[2:] * x[2:]).sum()


def doubled(x: torch.Tensor) -> Any:
    y = torch.cat((x[:2] * 3, x[2:] * x[2:])) + 1
    return y + y


PROGRAMS = {
    doubled: 1,
    rotated: 1,
    selected: 1,
    of_different_lengths: 1,
    of_two_dimensions: 1,
    overlapping: 0,
    with_a_gap: 0,
    in_steps: 0,
    twice: 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(rewritten_sums: list[int], program: Any, dtype: torch.dtype) -> None:
    # Sums of whole numbers are the same in any order.
    x = torch.randint(-3, 4, (4, 4, 8), device=DEVICE).to(dtype)
    here, there = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = program(here), torch.compile(program)(there)
    assert_equal(found, expected)
    expected.sum().backward()
    found.sum().backward()
    assert_equal(there.grad, here.grad)
    assert rewritten_sums == [PROGRAMS[program]]


def test_sizes_that_are_symbols_are_left_alone(rewritten_sums: list[int]) -> None:
    compiled = torch.compile(rotated, dynamic=True)
    for size in (4, 6):
        x = torch.randn(3, size, device=DEVICE, requires_grad=True)
        expected = torch.autograd.grad(rotated(x).square().sum(), x)[0]
        assert_equal(torch.autograd.grad(compiled(x).square().sum(), x)[0], expected, 1e-5)
    assert set(rewritten_sums) == {0}
