"""Seeds and random states of targets that have one device, whose generator is not told apart from PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from .target import HERE, Around, DeviceLike, local_name


def _generator() -> torch.Generator:
    if HERE.type == "cpu":
        return torch.default_generator
    found: torch.Generator = torch.mps._get_default_mps_generator()
    return found


def manual_seed(seed: int) -> None:
    """Seeds the device's generator, on the CPU PyTorch's."""
    _generator().manual_seed(int(seed))


def seed() -> None:
    """Seeds it from the operating system."""
    _generator().seed()


def initial_seed() -> int:
    """What it was seeded with."""
    return _generator().initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """Its state as a uint8 CPU tensor."""
    HERE.index(device)
    return _generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Restores what :func:`get_rng_state` gave."""
    HERE.index(device)
    _generator().set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of the one device."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores what :func:`get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


class _DefaultGenerators:
    """The one generator, as a sequence."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Generator:
        if index not in (0, -1):
            raise IndexError(f"there is one {HERE.type} device, and no number {index}")
        return _generator()


default_generators = _DefaultGenerators()


@Around
def fork_rng(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.random.fork_rng(device_type="cuda")``. The CPU's own state is kept in any case."""

    @wraps(plain)
    def fork_rng(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = local_name(kwargs.pop("device_type", None) or HERE.type)
        return plain([] if kind == "cpu" else devices, *args, device_type=kind, **kwargs)

    return fork_rng
