"""Counters on the CPU beside a plan: counted before it and written after it, in one plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.against_eager import counting
from tests.compile.plans import plans

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "Adam one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_one_plan(name: str) -> None:
    start = [torch.randn(n, 3) for n in (2, 5, 4)]
    gradients = [[torch.randn_like(t) for t in start] for _ in range(4)]
    results = []
    for device, compiled in (("cpu", False), ("webgpu", False), ("webgpu", True)):
        parameters = [t.clone().to(device).requires_grad_() for t in start]
        optimizer = OPTIMIZERS[name](parameters)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        with plans() as made, counting() as stats:
            for values in gradients:
                for p, g in zip(parameters, values, strict=True):
                    p.grad = g.to(device)
                step()
        state = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
        results.append([t.detach().cpu() for t in (*parameters, *state)])
    assert stats.runs == len(gradients)
    assert len(made) <= 2  # the first step may have another graph
    for want in results[:2]:
        for got, one in zip(results[2], want, strict=True):
            torch.testing.assert_close(got, one)


def count_and_use(x: torch.Tensor, counter: torch.Tensor) -> list[torch.Tensor]:
    counter.add_(1)
    one = x * counter
    counter.mul_(3)
    return [one, x + counter, counter * 2]


def swap(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    first = a.clone()
    a.copy_(b)
    b.copy_(first)
    return x * a - b


def through_a_view(x: torch.Tensor, pair: torch.Tensor) -> list[torch.Tensor]:
    first = pair[0]
    first.add_(1)
    return [x * first, pair + 1]


@pytest.mark.parametrize("f", [count_and_use, swap, through_a_view])
def test_counters_are_read_and_written_in_their_order(f: Callable[..., Any]) -> None:
    x = torch.randn(4)
    numbers = [torch.tensor([2.0, 5.0])] if f is through_a_view else [torch.tensor(2.0), torch.tensor(7.0)]
    numbers = numbers[: f.__code__.co_argcount - 1]
    compiled = torch.compile(f)
    known, own = [n.clone() for n in numbers], [n.clone() for n in numbers]
    for _ in range(3):
        want, got = f(x, *known), compiled(x.to("webgpu"), *own)
        for one, other in zip(got if isinstance(got, list) else [got], want if isinstance(want, list) else [want]):
            torch.testing.assert_close(one.cpu(), other)
        for one, other in zip(own, known, strict=True):
            assert torch.equal(one, other)
