"""Profilers: ``ProfilerActivity.CUDA`` and what starts and stops NVIDIA's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity


def supported_activities() -> set[Any]:
    """The CPU's, and CUDA's, which is accepted."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


@contextmanager
def profile(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Changes nothing."""
    yield
