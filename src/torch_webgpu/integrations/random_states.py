"""The adapters' random states beside a checkpoint, for libraries whose checkpoints hold those of other backends."""

from __future__ import annotations

from pathlib import Path

import torch

from torch_webgpu.api.device import device_count
from torch_webgpu.api.random import get_rng_state_all, set_rng_state_all


def _file(folder: str | Path, process_index: int) -> Path:
    return Path(folder) / f"random_states_webgpu_{process_index}.pt"


def save(folder: str | Path, process_index: int = 0) -> None:
    """Writes the state of every adapter's generator."""
    torch.save(get_rng_state_all(), _file(folder, process_index))


def load(folder: str | Path, process_index: int = 0) -> None:
    """Restores what :func:`save` wrote, as far as there are as many adapters; nothing in an older checkpoint."""
    file = _file(folder, process_index)
    if file.is_file():
        set_rng_state_all(torch.load(file, weights_only=True)[: device_count()])
