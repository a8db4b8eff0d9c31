"""Lists of tensors for the tests of operators over them, and what those come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.commands import Command
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.observer import Observer


def moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device) for v in value)
    return value


def outcome(fn: Callable[[], Any]) -> tuple[type | None, Any]:
    """What ``fn`` returns, moved to the CPU, or the type of its exception."""
    try:
        return None, moved(fn(), "cpu")
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        return type(error), None


def same(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    # Eight bits, and where an intermediate result is rounded is open.
    tolerance = {"rtol": 1.6e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


def lists(device: Any, *seeds: int, shapes: Sequence[tuple[int, ...]] = ((3, 5), (7,), (1030,))) -> list[Any]:
    """Positive numbers, so that divisors and roots are harmless."""
    made = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        made.append([(torch.rand(shape, generator=generator) + 0.5).to(device) for shape in shapes])
    return made


def pending() -> int:
    return torch.webgpu.get_pending_count()


class _Submitted(Observer):
    """Notes the commands that a device is given."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.commands: list[Command] = []

    def submit(self, commands: Sequence[Command]) -> None:
        self.commands.extend(commands)
        super().submit(commands)


def commands_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands submitted after this call, as they come."""
    torch.webgpu.synchronize()
    submitted = _Submitted(engine().device(0))
    monkeypatch.setattr(submitted.device, "observer", submitted)
    return submitted.commands
