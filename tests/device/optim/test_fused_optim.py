"""Optimizers over many parameters: ``fused=True`` and ``foreach=True`` against the CPU, and how they are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from .foreach_lists import commands_from_now_on

SHAPES = ((7, 5), (3,), (1030,), (), (2, 3, 4, 4))

CONFIGURATIONS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adam, decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam, amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam, maximize": (torch.optim.Adam, {"maximize": True, "weight_decay": 0.01}),
    "adam, small betas": (torch.optim.Adam, {"betas": (0.3, 0.5)}),
    "adam, no first moment": (torch.optim.Adam, {"betas": (0.0, 0.9)}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw, amsgrad": (torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
    "sgd": (torch.optim.SGD, {}),
    "sgd, momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd, nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
    "adagrad, maximize": (torch.optim.Adagrad, {"maximize": True}),
}


def parameters(device: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in SHAPES]
    made[-1] = made[-1].contiguous(memory_format=torch.channels_last)
    return [torch.nn.Parameter(t) for t in made]


def train(
    device: Any, name: str, how: dict[str, Any], steps: int = 4, dtype: torch.dtype = torch.float32, lr: Any = 0.01
) -> list[torch.Tensor]:
    """The parameters after a few steps along given gradients, and the optimizer's state."""
    kind, options = CONFIGURATIONS[name]
    held = parameters(device, dtype)
    optimizer = kind(held, lr=lr(device) if callable(lr) else lr, **options, **how)
    for step in range(steps):
        for p, g in zip(held, parameters(device, dtype, seed=step + 1)):
            p.grad = g.detach()
        optimizer.step()
        optimizer.zero_grad()
    state = [v for p in held for k, v in sorted(optimizer.state[p].items()) if k != "step" and v is not None]
    return [t.detach().cpu() for t in (*held, *state)]


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_steps(device: Any, name: str, how: str) -> None:
    expected = train("cpu", name, {"foreach": False})
    torch.testing.assert_close(train(device, name, {how: True}), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["adam, amsgrad", "adamw", "adagrad"])
def test_half_precision(device: Any, name: str) -> None:
    """Without SGD's momentum: PyTorch's CPU kernel computes something else from halves than from singles."""
    expected = train("cpu", name, {"fused": True}, dtype=torch.bfloat16)
    actual = train(device, name, {"fused": True}, dtype=torch.bfloat16)
    torch.testing.assert_close(actual, expected, rtol=1.6e-2, atol=1e-3)


@pytest.mark.float64
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_doubles(device: Any, name: str) -> None:
    """Tensor by tensor; bias corrections have the precision of the steps, which are float32."""
    expected = train("cpu", name, {"fused": True}, dtype=torch.float64)
    before = torch.webgpu.fallback_stats()
    actual = train(device, name, {"fused": True}, dtype=torch.float64)
    assert torch.webgpu.fallback_stats() == before
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("rate", ["number", "CPU tensor", "device tensor"])
@pytest.mark.parametrize("how", ["fused", "capturable"])
def test_learning_rate_of_each_kind(device: Any, rate: str, how: str) -> None:
    if rate == "CPU tensor" and how == "capturable":
        pytest.skip("PyTorch wants the rate where the parameters are")
    lr = {
        "number": lambda d: 0.02,
        "CPU tensor": lambda d: torch.tensor(0.02),
        "device tensor": lambda d: torch.tensor(0.02, device=d),
    }[rate]
    expected = train("cpu", "adam", {"foreach": False}, lr=0.02)
    torch.testing.assert_close(train(device, "adam", {how: True}, lr=lr), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("name", ["adam", "sgd, momentum", "adagrad"])
def test_scaled_gradients(device: Any, name: str, found: float) -> None:
    """What GradScaler passes: gradients are divided by the scale, and nothing happens after an overflow."""

    def run(on: Any) -> list[torch.Tensor]:
        kind, options = CONFIGURATIONS[name]
        held = parameters(on)
        optimizer = kind(held, lr=0.01, fused=True, **options)
        grads = [g.detach() for g in parameters(on, seed=1)]
        for p, g in zip(held, grads):
            p.grad = g
        optimizer.grad_scale = torch.tensor(8.0, device=on)
        optimizer.found_inf = torch.tensor(found, device=on)
        optimizer.step()
        steps = [optimizer.state[p]["step"] for p in held if "step" in optimizer.state[p]]
        return [t.detach().cpu() for t in (*held, *grads, *steps)]

    torch.testing.assert_close(run(device), run("cpu"), rtol=2e-5, atol=2e-6)


def test_tensors_that_lists_do_not_take(device: Any) -> None:
    """Parameters that are parts of one tensor are stepped one by one."""

    def run(on: Any) -> torch.Tensor:
        whole = torch.arange(12.0).to(on)
        parts = [torch.nn.Parameter(whole[:5]), torch.nn.Parameter(whole[5:])]
        optimizer = torch.optim.Adam(parts, lr=0.1, fused=True)
        for _ in range(3):
            for p in parts:
                p.grad = torch.ones_like(p)
            optimizer.step()
        return whole.cpu()

    torch.testing.assert_close(run(device), run("cpu"))


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_scaled_gradients_of_tensors_that_lists_do_not_take(device: Any, kind: Any, found: float) -> None:
    def run(on: Any) -> list[torch.Tensor]:
        whole, grads = torch.arange(12.0).to(on), [torch.ones(5, device=on), torch.ones(7, device=on)]
        parts = [torch.nn.Parameter(whole[:5]), torch.nn.Parameter(whole[5:])]
        for p, g in zip(parts, grads):
            p.grad = g
        optimizer = kind(parts, lr=0.1, fused=True)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0, device=on), torch.tensor(found, device=on)
        optimizer.step()
        return [t.cpu() for t in (whole, *grads)]

    torch.testing.assert_close(run(device), run("cpu"))


@pytest.fixture
def submitted(device: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    from torch_webgpu.engine.record import engine

    with engine().using(delay_ms=0.0):  # a slow first step would be submitted in pieces
        yield commands_from_now_on(monkeypatch)


def adam_over(device: Any, count: int, **how: Any) -> Callable[[], None]:
    held = [torch.nn.Parameter(torch.ones(50, device=device)) for _ in range(count)]
    for p in held:
        p.grad = torch.ones(50, device=device)
    optimizer = torch.optim.Adam(held, **how)
    optimizer.step()
    torch.webgpu.synchronize()
    return optimizer.step


@pytest.mark.parametrize("how", ["foreach", "fused", "capturable"])
def test_a_step_is_a_few_dispatches(device: Any, submitted: list[Any], how: str) -> None:
    """As many parameters in a dispatch as the adapter binds buffers for, and nothing new in the second step."""
    from torch_webgpu.engine.record import engine

    step = adam_over(device, 40, **{how: True})
    submitted.clear()
    step()
    recorded = torch.webgpu.get_pending_count()
    torch.webgpu.flush_batch()
    assert recorded <= (7 if how == "foreach" else 2 if how == "fused" else 24)
    buffers = engine().device(0).target.max_buffers
    per_parameter = {"foreach": 4, "fused": 6, "capturable": 10}[how]
    passes = 2 if how == "capturable" else 1  # the steps' bias corrections, the parameters
    assert len(submitted) <= passes * -(-40 // max(1, min(16, buffers // per_parameter))) + 2 * -(-40 // 16)
    kernels = {command.kernel.key for command in submitted}
    submitted.clear()
    step()
    torch.webgpu.flush_batch()
    assert {command.kernel.key for command in submitted} == kernels


def test_a_changing_rate_compiles_nothing(device: Any, submitted: list[Any]) -> None:
    held = [torch.nn.Parameter(torch.ones(50, device=device)) for _ in range(3)]
    optimizer = torch.optim.Adam(held, fused=True)
    for p in held:
        p.grad = torch.ones(50, device=device)
    kernels = set()
    for rate in (0.1, 0.01, 0.02, 1e-5):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        torch.webgpu.synchronize()
        if rate != 0.1:
            kernels.add(frozenset(command.kernel.key for command in submitted))
        submitted.clear()
    assert len(kernels) == 1
