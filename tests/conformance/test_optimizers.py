"""PyTorch's optimizer database (OptimizerInfo): a few steps of every optimizer, foreach and not, against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from .checks import Outcome, same_outcome
from .compare import assert_same, tolerance_of
from .conftest import parameters
from .target import CPU, DEVICE, synchronize
from .trials import Trial, attempt

INFOS = {info.name: info for info in optim_db}
SHAPES = ((7, 5), (2, 3))  # matrices: Muon takes nothing else
STEPS = 4


@dataclass(frozen=True)
class Training:
    """A few steps on a quadratic loss, from the same start."""

    info: Any
    kwargs: dict[str, Any]

    def outcome(self, device: torch.device, *, widen: bool = False) -> Outcome:
        try:
            return Outcome(self(device, torch.float64 if widen else torch.float32))
        except Exception as error:
            return Outcome(error=error)

    def __call__(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """The parameters, and the optimizer's state for each, after the last step."""
        generator = torch.Generator().manual_seed(0)
        starts = [torch.randn(shape, generator=generator) for shape in SHAPES]
        targets = [torch.randn(shape, generator=generator).to(device, dtype) for shape in SHAPES]
        params = [torch.nn.Parameter(start.to(device, dtype)) for start in starts]
        optimizer = self.info.optim_cls(params, **deepcopy(self.kwargs))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum((p - t).square().mean() for p, t in zip(params, targets, strict=True))
            loss.backward()
            if self.info.only_supports_sparse_grads:
                for p in params:
                    p.grad = p.grad.to_sparse()
            return loss

        for _ in range(1 if self.info.step_requires_closure else STEPS):  # one step of a line search is many already
            loss = closure()
            optimizer.step(closure if self.info.step_requires_closure else None)
        if device.type != "cpu":
            synchronize()
        return {"loss": loss.detach(), "params": [p.detach() for p in params], "state": self._state(optimizer)}

    def _state(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        if self.info.step_requires_closure:
            return []  # a search near the minimum: its differences of differences are rounding errors
        return [{k: _step_is_on_cpu(v) for k, v in state.items()} for state in optimizer.state.values()]

    def check(self) -> None:
        expected, actual = self.outcome(CPU), self.outcome(DEVICE)
        if same_outcome(actual, expected):
            truth = lambda: self.outcome(CPU, widen=True).value
            assert_same(actual.value, expected.value, tolerance_of(self.info, torch.float32), truth=truth)


def _step_is_on_cpu(value: Any) -> Any:
    """Optimizers keep their step count in a CPU tensor, whatever the device of the parameters."""
    return value.item() if isinstance(value, torch.Tensor) and value.dim() == 0 else value


def trainings(name: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every configuration PyTorch tests, with and without ``foreach``."""
    info = INFOS[name]
    for config in info.optim_inputs_func("cpu"):
        for foreach in (False, True) if "foreach" in info.supported_impls else (None,):
            kwargs = config.kwargs if foreach is None else {**config.kwargs, "foreach": foreach}
            yield f"{config.desc}, foreach={foreach}", Training(info, kwargs).check


@pytest.mark.parametrize("trial", parameters(Trial(info.name, "optimizer", "float32") for info in optim_db))
def test_optimizer(trial, settle):
    settle(attempt(trial, trainings(trial.op)))
