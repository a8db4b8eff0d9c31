"""Lightning's Trainer and Fabric with two devices, by its own launcher and torchrun, against two ranks of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .launch import TORCHRUN, assert_alike, launched, only_webgpu

pytest.importorskip("lightning")
pytestmark = [*only_webgpu, pytest.mark.slow]
LIBRARY = "lightning"

BY_ITSELF: tuple[str, ...] = ()
STRATEGIES = {"ddp": "DDPStrategy", "fsdp": "FSDPStrategy", "fsdp2": "ModelParallelStrategy"}


@pytest.fixture(scope="module", params=["lightning_trainer.py", "fabric.py"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = tmp_path_factory.mktemp("cpu") / "state"
    return request.param, launched(BY_ITSELF, request.param, folder, "cpu", "ddp", "32-true")


@pytest.mark.parametrize("launcher", [BY_ITSELF, TORCHRUN], ids=["itself", "torchrun"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks(program: tuple[str, Any], strategy: str, launcher: tuple[str, ...], tmp_path: Path) -> None:
    name, on_cpu = program
    ours = launched(launcher, name, tmp_path / "state", "webgpu", strategy, "32-true")
    assert ours["strategy"] == STRATEGIES[strategy]
    assert_alike(ours, on_cpu, *({"losses", "resumed", "more", "val"} & ours.keys()))


@pytest.mark.parametrize(("strategy", "precision"), [("ddp", "16-mixed"), ("fsdp", "bf16-mixed")])
def test_mixed_precision_of_two_ranks(strategy: str, precision: str, tmp_path: Path) -> None:
    ours = launched(BY_ITSELF, "lightning_trainer.py", tmp_path / "mixed", "webgpu", strategy, precision)
    assert ours["dtypes"] == [{"16-mixed": "torch.float16", "bf16-mixed": "torch.bfloat16"}[precision]]
    whole = launched(BY_ITSELF, "lightning_trainer.py", tmp_path / "whole", "cpu", "ddp", "32-true")
    assert_alike(ours, whole, "losses", "resumed", close=5e-2)


def test_communication_hook(tmp_path: Path) -> None:
    ours = launched(BY_ITSELF, "lightning_trainer.py", tmp_path / "state", "webgpu", "hook", "32-true")
    assert ours["hooked"] >= 8, "one for each step"
