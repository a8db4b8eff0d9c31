"""Seeds and random state per adapter, in torch.cuda's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_webgpu.engine import generators as states

from .device import DeviceLike, device_count, index_of


class _DefaultGenerators(Sequence[torch.Generator]):
    """For each adapter a generator that draws from, and seeds, the adapter's own stream of random numbers."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} WebGPU adapters, and no number {index}")
        generator = states.new_generator(torch.device("webgpu", index))
        generator.state = states.default_state(index)
        return generator


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the current adapter's generator."""
    states.default_state(index_of(None)).move_to(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every adapter's generator. ``torch.manual_seed`` calls this."""
    states.seed_all(int(seed))


def seed() -> None:
    """Seeds the current adapter's generator from the operating system."""
    states.default_state(index_of(None)).move_to(states.fresh_seed())


def seed_all() -> None:
    """Seeds every adapter's generator, with one number from the operating system."""
    states.seed_all(states.fresh_seed())


def initial_seed() -> int:
    """The seed of the current adapter's generator."""
    return states.default_state(index_of(None)).seed


def get_rng_state(device: DeviceLike = "webgpu") -> torch.Tensor:
    """The generator state of an adapter, as a uint8 CPU tensor."""
    return states.default_state(index_of(device)).to_tensor()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "webgpu") -> None:
    """Restores what :func:`get_rng_state` gave."""
    states.default_state(index_of(device)).from_tensor(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The generator states of all adapters."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores what :func:`get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
