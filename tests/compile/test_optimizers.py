"""Compiled steps of optimizers give the parameters that eager steps give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from .against_eager import assert_equal, counting

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "Adam capturable": lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True),
    "Adam one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "SGD plain": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
}


def pair() -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    eager = [nn.Parameter(torch.randn(*shape, device="webgpu")) for shape in ((4, 3), (5,))]
    return eager, [nn.Parameter(p.detach().clone()) for p in eager]


def set_gradients(*groups: list[nn.Parameter]) -> None:
    for same in zip(*groups, strict=True):
        gradient = torch.randn_like(same[0])
        for p in same:
            p.grad = gradient.clone()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    eager, compiled = pair()
    one, other = OPTIMIZERS[name](eager), OPTIMIZERS[name](compiled)
    step = torch.compile(other.step)
    for _ in range(4):
        set_gradients(eager, compiled)
        one.step()
        step()
    assert_equal(compiled, eager, 1e-5)
    for p, q in zip(eager, compiled, strict=True):
        assert one.state[p].keys() == other.state[q].keys()
        assert_equal(list(other.state[q].values()), list(one.state[p].values()), 1e-5, strides=False)


def test_a_learning_rate_that_is_a_tensor_needs_no_other_plan() -> None:
    eager, compiled = pair()
    one, other = (torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9) for p in (eager, compiled))
    step = torch.compile(other.step)
    with counting() as stats:
        for n in range(5):
            for optimizer in (one, other):
                optimizer.param_groups[0]["lr"].fill_(0.1 / (n + 1))
            set_gradients(eager, compiled)
            one.step()
            step()
    assert_equal(compiled, eager, 1e-5)
    assert stats.plans <= 2  # with and without momentum buffers


def test_parameters_that_are_views_of_one_buffer() -> None:
    """As in flattened parameters: each one is written, all lie in one storage."""
    flats = [torch.randn(20, device="webgpu")]
    flats.append(flats[0].clone())
    groups = [[nn.Parameter(flat[:12].view(4, 3)), nn.Parameter(flat[12:17])] for flat in flats]
    one, other = (torch.optim.AdamW(group, lr=0.1) for group in groups)
    step = torch.compile(other.step)
    for _ in range(3):
        set_gradients(*groups)
        one.step()
        step()
    assert_equal(flats[1], flats[0], 1e-5)


def test_a_whole_training_step_is_one_function() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("webgpu") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in models]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(step)
    for _ in range(3):
        x = torch.randn(6, 4, device="webgpu")
        expected = step(models[0], optimizers[0], x)
        assert_equal(compiled(models[1], optimizers[1], x).detach(), expected.detach(), 1e-5)
    assert_equal(list(models[1].parameters()), list(models[0].parameters()), 1e-4)
