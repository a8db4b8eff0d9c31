"""Captured training steps and random numbers: the same as in eager mode, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .graphs import (
    captured,
    goes_on,  # noqa: F401  runs around every test
)

Optimizer = torch.optim.Optimizer


# ---- training


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(4 * 9, 5),
    )  # fmt: skip


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, capturable=True),
    "adam without foreach": lambda p: torch.optim.Adam(p, 1e-2, capturable=True, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-2, capturable=True, fused=True),
}


class Training:
    """A model, its optimizer and static inputs."""

    def __init__(self, model: nn.Module, make: Callable[[Any], Optimizer], device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(device)
        self.optimizer = make(self.model.parameters())
        self.x = torch.zeros(6, 1, 6, 6, device=device)
        self.target = torch.zeros(6, dtype=torch.int64, device=device)

    def load(self, x: torch.Tensor, target: torch.Tensor) -> None:
        self.x.copy_(x)
        self.target.copy_(target)

    def step(self) -> torch.Tensor:
        loss = F.cross_entropy(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def eager_step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        return self.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_training_step_is_the_eager_one(device, name):
    model = network()
    eager, graphed = (Training(model, OPTIMIZERS[name], device) for _ in range(2))
    batches = [(torch.randn(6, 1, 6, 6), torch.randint(0, 5, (6,))) for _ in range(7)]
    torch.manual_seed(1)
    expected = []
    for batch in batches:
        eager.load(*batch)
        expected.append(eager.eager_step().item())
    torch.manual_seed(1)
    losses = []
    for batch in batches[:2]:
        graphed.load(*batch)
        losses.append(graphed.eager_step().item())
    graphed.optimizer.zero_grad(set_to_none=True)
    g, loss = captured(graphed.step)
    for batch in batches[2:]:
        graphed.load(*batch)
        g.replay()
        losses.append(loss.item())
    # Fused otherwise, sums and products may be contracted otherwise.
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    for (key, a), b in zip(eager.model.state_dict().items(), graphed.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
    # The gradients are the last replay's, and eager steps go on from here.
    for a, b in zip(eager.model.parameters(), graphed.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    torch.manual_seed(2)
    expected = eager.eager_step()
    torch.manual_seed(2)
    torch.testing.assert_close(graphed.eager_step(), expected, rtol=1e-4, atol=1e-6)


def test_a_learning_rate_on_the_device_changes_between_replays(device):
    rate = torch.tensor(0.5, device=device)
    p, q = (nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
    p.grad, q.grad = torch.ones(3, device=device), torch.ones(3, device=device)
    ours, eager = (torch.optim.Adam([t], lr=rate, capturable=True) for t in (p, q))
    ours.step()
    eager.step()
    g, _ = captured(ours.step)
    for value in (0.25, 0.125):
        rate.fill_(value)
        g.replay()
        eager.step()
        assert torch.equal(p, q)
    assert p[0].item() == pytest.approx(1 - 0.5 - 0.25 - 0.125, abs=1e-4)


def test_gradients_accumulate_over_replays_that_add_to_them(device):
    w = nn.Parameter(torch.ones(3, device=device))
    w.grad = torch.zeros(3, device=device)
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    g, _ = captured(lambda: (w * x).sum().backward())
    g.replay()
    g.replay()
    assert w.grad.tolist() == [2, 4, 6]
    w.grad.zero_()
    g.replay()
    assert w.grad.tolist() == [1, 2, 3]


def test_an_optimizer_that_counts_on_the_host_refuses_to_be_captured(device):
    """A canary for aten/dispatch/torch_patches.py: refuse_uncapturable_optimizers."""
    p = nn.Parameter(torch.ones(3, device=device))
    p.grad = torch.ones(3, device=device)
    optimizer = torch.optim.Adam([p])
    optimizer.step()
    value = p.tolist()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)
    assert p.tolist() == value
    captured(torch.optim.SGD([p], 0.1).step)
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    captured(torch.optim.Adam([other]).step)  # on the CPU


# ---- random numbers


def noise(device: torch.device, generator: torch.Generator | None = None) -> list[torch.Tensor]:
    ones = torch.ones(50, device=device)
    return [
        F.dropout(ones, 0.3),
        torch.rand(7, device=device, generator=generator),
        torch.randn(5, device=device) * F.dropout(ones[:5]),
        torch.randint(0, 1 << 40, (3,), device=device, generator=generator),
        torch.bernoulli(ones * 0.5),
        torch.randperm(6, device=device),
    ]


def test_random_numbers_are_those_of_eager_calls(device):
    torch.manual_seed(11)
    expected = [[t.tolist() for t in noise(device)] for _ in range(5)]
    torch.manual_seed(11)
    assert [t.tolist() for t in noise(device)] == expected[0]
    g, tensors = captured(lambda: noise(device))
    for k in (1, 2):
        g.replay()
        assert [t.tolist() for t in tensors] == expected[k]
    assert [t.tolist() for t in noise(device)] == expected[3]
    g.replay()
    assert [t.tolist() for t in tensors] == expected[4]
    torch.manual_seed(11)
    g.replay()
    assert [t.tolist() for t in tensors] == expected[0]


def test_a_generator_of_ones_own(device):
    generator = torch.Generator(device=device).manual_seed(5)
    expected = [[t.tolist() for t in noise(device, generator)[1::2]] for _ in range(2)]
    generator.manual_seed(5)
    g, tensors = captured(lambda: noise(device, generator))
    for values in expected:
        g.replay()
        assert [t.tolist() for t in tensors[1::2]][:2] == values[:2]


def test_streams_that_pass_32_bits(device):
    generator = torch.Generator(device=device).manual_seed(1 << 63)
    g, x = captured(lambda: torch.rand(9, device=device, generator=generator))
    for offset in ((1 << 32) - 1, (1 << 64) - 2):
        generator.set_offset(offset)
        expected = torch.rand(9, device=device, generator=generator)
        generator.set_offset(offset)
        g.replay()
        assert torch.equal(x, expected)


@pytest.mark.parametrize("touch", [torch.manual_seed, lambda _: torch.webgpu.get_rng_state()], ids=["seed", "read"])
def test_generators_are_left_alone_while_they_are_captured(device, touch):
    def step() -> None:
        torch.rand(3, device=device)
        touch(3)

    with pytest.raises(RuntimeError, match="captured graph draws from it"):
        captured(step)
    touch(3)


@pytest.mark.parametrize("own", [False, True])
def test_seeding_inside_a_capture_is_refused_when_it_matters(device, own):
    generator = torch.Generator(device=device)

    def step() -> torch.Tensor:
        if own:
            generator.manual_seed(3)
        else:
            torch.manual_seed(3)
        return torch.rand(3, device=device, generator=generator if own else None)

    with pytest.raises(RuntimeError, match="cannot be made or seeded"):
        captured(step)
    captured(lambda: torch.manual_seed(3))
    g, x = captured(lambda: torch.rand(3, device=device, generator=generator))
    generator.manual_seed(4)
    g.replay()
    generator.manual_seed(4)
    assert torch.equal(x, torch.rand(3, device=device, generator=generator))
