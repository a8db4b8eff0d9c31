"""``accelerate launch`` with two ranks: DDP, FSDP and FSDP2 train as two ranks of the CPU do, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .launch import ACCELERATE, TORCHRUN, assert_alike, launched, only_webgpu

pytest.importorskip("accelerate")
pytestmark = only_webgpu
LIBRARY = "accelerate"

WAYS: dict[str, tuple[tuple[str, ...], str, int]] = {
    "ddp": (ACCELERATE, "DistributedDataParallel", 2),
    "ddp, one adapter": (ACCELERATE, "DistributedDataParallel", 1),
    "ddp, torchrun": (TORCHRUN, "DistributedDataParallel", 2),
    "fsdp": ((*ACCELERATE, "--use_fsdp", "--fsdp_version", "1"), "FullyShardedDataParallel", 2),
    "fsdp2": ((*ACCELERATE, "--use_fsdp", "--fsdp_version", "2"), "FSDPSequential", 2),
}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launched(TORCHRUN, "accelerate_loop.py", tmp_path_factory.mktemp("cpu") / "state", "cpu")


@pytest.mark.parametrize("way", [way if way == "ddp" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_ranks(way: str, on_cpu: Any, tmp_path: Path) -> None:
    launcher, model, copies = WAYS[way]
    ours = launched(launcher, "accelerate_loop.py", tmp_path / "state", copies=copies)
    assert ours["model"] == model
    assert_alike(ours, on_cpu, "losses", "weights", "gathered")
    assert ours["restored"] == ours["weights"]
    assert ours["saved"] == 2, "the random states of both ranks"
