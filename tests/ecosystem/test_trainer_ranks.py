"""Transformers' Trainer under torchrun with two ranks: DDP, FSDP and FSDP2, with a checkpoint to resume from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .launch import TORCHRUN, assert_alike, launched, only_webgpu

pytest.importorskip("transformers")
pytestmark = [*only_webgpu, pytest.mark.slow]
LIBRARY = "transformers"

MODELS = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel", "fsdp2": "FSDPGPT2LMHeadModel"}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launched(TORCHRUN, "trainer.py", tmp_path_factory.mktemp("cpu") / "checkpoints", "cpu")


@pytest.mark.parametrize("mode", MODELS)
def test_trainer_of_two_ranks(mode: str, on_cpu: Any, tmp_path: Path) -> None:
    ours = launched(TORCHRUN, "trainer.py", tmp_path / "checkpoints", mode)
    assert ours["model"] == MODELS[mode]
    assert_alike(ours, on_cpu, "losses", "evaluated", "resumed")
    assert ours["resumed"][-3:] == pytest.approx(ours["losses"][-3:], rel=1e-5)
