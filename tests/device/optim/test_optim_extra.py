"""Schedulers, fused steps, states that travel, averaged models: what PyTorch's optimizer database leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

Optimizer = torch.optim.Optimizer

SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda k: 0.9**k),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: schedules.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: schedules.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: schedules.LinearLR(o, 0.5, total_iters=3),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.2, 6),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.1, 2), schedules.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.1, 2), schedules.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: SWALR(o, 0.05, 2),
}


def weights(name: str, where: Any, rate: Any) -> tuple[list[float], torch.Tensor]:
    """The rates of six steps and the weights after them."""
    p = nn.Parameter(torch.linspace(-1, 1, 5).to(where))
    optimizer = torch.optim.Adam([p], lr=rate, capturable=isinstance(rate, torch.Tensor))
    schedule = SCHEDULES[name](optimizer)
    rates = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (p - 2).square().sum()
        loss.backward()
        optimizer.step()
        schedule.step(*([loss.detach()] if name == "ReduceLROnPlateau" else []))
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates, p.detach().cpu()


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(device, name):
    torch.testing.assert_close(weights(name, device, 0.1), weights(name, "cpu", 0.1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["LambdaLR", "StepLR", "CosineAnnealingLR", "OneCycleLR"])
def test_schedules_of_a_rate_on_the_device(device, name):
    """A tensor learning rate, as captured and compiled optimizers have it."""
    found = weights(name, device, torch.tensor(0.1, device=device))
    torch.testing.assert_close(found, weights(name, "cpu", 0.1), atol=1e-5, rtol=1e-5)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def steps(net: nn.Module, optimizer: Optimizer, where: Any, count: int = 3) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).to(where)
    for _ in range(count):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "RAdam", "NAdam", "Adadelta", "Adamax"])
def test_a_run_moves_between_devices(device, name):
    """Three steps on the CPU, then three on the device from the saved state, as six on the CPU."""

    def make(net: nn.Module) -> Optimizer:
        extra = {"momentum": 0.9} if name == "SGD" else {}
        return getattr(torch.optim, name)(net.parameters(), lr=0.05, **extra)

    reference = model()
    optimizer = make(reference)
    steps(reference, optimizer, "cpu")
    moved = copy.deepcopy(reference).to(device)
    other = make(moved)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    state = next(iter(other.state.values()))
    assert all(v.device.type == device.type for k, v in state.items() if torch.is_tensor(v) and k != "step")
    steps(reference, optimizer, "cpu")
    steps(moved, other, device)
    for p, q in zip(moved.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, atol=1e-4, rtol=1e-4)


FUSED: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
    "SGD nesterov": {"momentum": 0.9, "nesterov": True, "maximize": True},
    "SGD plain": {},
    "Adam": {"weight_decay": 0.1},
    "Adam amsgrad": {"amsgrad": True, "maximize": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "weight_decay": 0.1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_fused_steps(device, name, dtype):
    def trained(where: Any, fused: bool) -> list[torch.Tensor]:
        parameters = [nn.Parameter(torch.linspace(-1, 1, n).to(where, dtype)) for n in (5, 3)]
        optimizer = getattr(torch.optim, name.split()[0])(parameters, lr=0.05, fused=fused, **FUSED[name])
        for step in range(3):
            for k, p in enumerate(parameters):
                p.grad = torch.linspace(step - k, k + 1, p.numel()).to(where, dtype)
            optimizer.step()
        return [p.detach().cpu().float() for p in parameters]

    before = torch.webgpu.fallback_stats()
    actual = trained(device, True)
    assert torch.webgpu.fallback_stats() == before
    tol = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(actual, trained("cpu", True), atol=tol, rtol=tol)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_fused_steps_under_gradient_scaling(device, name):
    """The optimizer itself unscales, and skips a step whose gradients overflowed."""

    def trained(where: Any, fused: bool) -> list[torch.Tensor]:
        p = nn.Parameter(torch.ones(4, device=where))
        optimizer = getattr(torch.optim, name)([p], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler(torch.device(where).type, init_scale=8.0, growth_interval=2)
        history = []
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale((p * (step + 1)).square().sum()).backward()
            if step == 1:
                p.grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            history.append(p.detach().cpu().clone())
        return history

    actual = trained(device, True)
    assert torch.equal(actual[0], actual[1])
    torch.testing.assert_close(actual, trained("cpu", False), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ema", [False, True])
def test_averaged_models(device, ema):
    def averaged(where: Any) -> list[torch.Tensor]:
        net = model().to(where)
        average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9) if ema else None)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            steps(net, optimizer, where, 1)
            average.update_parameters(net)
        update_bn([torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).to(where)], average)
        return [t.detach().cpu() for t in average.state_dict().values()]

    torch.testing.assert_close(averaged(device), averaged("cpu"), atol=1e-5, rtol=1e-4)


def test_hooks_groups_and_closures(device):
    p, q = (nn.Parameter(torch.ones(2, device=device)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [p], "lr": 1.0}, {"params": [q]}], lr=0.5)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (p + 2 * q).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6
    assert (p.tolist(), q.tolist(), seen) == ([0, 0], [0, 0], ["before", "after"])
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0]
