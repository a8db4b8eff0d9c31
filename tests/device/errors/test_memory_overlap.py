"""Operations that read and write one memory: what PyTorch refuses is refused, also again, and the rest is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "its transpose": lambda x: x.add_(x.t()),
    "copied from its transpose": lambda x: x.copy_(x.t()),
    "copied to its transpose": lambda x: x.t().copy_(x),
    "a part": lambda x: x[:2].sub_(x[1:]),
    "a copy of a part": lambda x: x[:2].copy_(x[1:]),
    "a copy of all but one element": lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
    "one of its rows": lambda x: x.copy_(x[0]),
    "plus one of its rows": lambda x: x.add_(x[1]),
    "out": lambda x: torch.add(x[:2], 1, out=x[1:]),
    "out of three": lambda x: torch.where(x > 0, x, x.t(), out=x),
    "limits": lambda x: torch.clamp(x[:2], min=1, out=x[1:]),
    "towards a part": lambda x: x[:2].lerp_(x[1:], 0.5),
    "two factors": lambda x: x[1:].addcmul_(x[:2], x[:2]),
    "a list": lambda x: torch._foreach_add_([x[:2]], [x[1:]]),
    # What is allowed: the same elements, other elements, and parts with gaps, which PyTorch does not judge.
    "itself": lambda x: x.mul_(x),
    "out is the input": lambda x: torch.add(x, 1, out=x),
    "another row": lambda x: x[0].copy_(x[1]),
    "another column": lambda x: x[:, 0].copy_(x[:, 1]),
    "columns beside": lambda x: x[:, :2].copy_(x[:, 1:]),
    "one operand": lambda x: x[1:].floor_(),
    "a copy": lambda x: x.copy_(x.clone().t()),
}


def outcome(call: Callable[[torch.Tensor], object], device: str | torch.device) -> list[object]:
    """What two calls leave, or their errors."""
    x = torch.arange(1.0, 10.0, device=device).view(3, 3)
    found: list[object] = []
    for _ in range(2):
        try:
            call(x)
        except RuntimeError as error:
            found.append(str(error))
        found.append(x.tolist())
    return found


@pytest.mark.parametrize("name", CALLS)
def test_overlaps_are_the_cpus(device: torch.device, name: str) -> None:
    assert outcome(CALLS[name], device) == outcome(CALLS[name], "cpu")


def test_a_call_that_was_right_is_refused_where_it_overlaps(device: torch.device) -> None:
    """What was recorded once for tensors apart must not be used for others."""
    x = torch.arange(8.0, device=device)
    for _ in range(3):
        x[:3].add_(x[4:7])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[:3].add_(x[1:4])
    x[:3].add_(x[4:7])
    assert x.tolist() == [16, 21, 26, 3, 4, 5, 6, 7]


def test_nothing_overlaps_where_there_is_nothing(device: torch.device) -> None:
    for where in (device, "cpu"):
        x = torch.zeros(0, 1, device=where).expand(0, 3)
        assert x.add_(1).shape == torch.rand_like(x).shape == torch.bernoulli(x).shape == (0, 3)
