"""Profilers: ``ProfilerActivity.CUDA`` and what starts and stops NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.profiler import ProfilerActivity

from .here import Around


@Around
def profile_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.profiler.profile(activities=[CPU, CUDA])`` without CUDA: the host's side is shown."""

    @wraps(plain)
    def __init__(self: Any, *, activities: Iterable[Any] | None = None, **kwargs: Any) -> None:  # noqa: N807
        if activities is not None:
            kept = [activity for activity in activities if activity != ProfilerActivity.CUDA]
            activities = kept or [ProfilerActivity.CPU]
        plain(self, activities=activities, **kwargs)

    return __init__


def supported_activities() -> set[Any]:
    """The CPU's, and CUDA's, which is accepted."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


@contextmanager
def profile(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Changes nothing."""
    yield
