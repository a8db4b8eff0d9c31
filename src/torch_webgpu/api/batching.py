"""When recorded operations are submitted: the batching controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch_webgpu.engine.flush_reason import ASKED, BATCH_ENDED
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.settings import UNBOUNDED

T = TypeVar("T")


def set_batch_threshold(n: int) -> None:
    """The number of recorded operations that makes a batch submit itself (default 64)."""
    engine().change(threshold=n)


def set_batch_delay(ms: float) -> None:
    """The time in milliseconds without an addition after which an incomplete batch submits itself (default 16); 0 turns
    the timer off. What has gone on before when it was recorded is given longer: 250 ms, if that is more.
    """
    engine().change(delay_ms=float(ms))


def enable_batching() -> None:
    """Operations are collected and submitted together (the default)."""
    engine().change(batching=True)


def disable_batching() -> None:
    """Every operation is submitted by itself: slow, for finding out which one is wrong."""
    engine().change(batching=False)


def is_batching_enabled() -> bool:
    return engine().settings.batching


def flush_batch() -> None:
    """Submits what is recorded, without waiting for it."""
    engine().flush(ASKED)


def get_pending_count() -> int:
    """How many operations are recorded and not yet submitted, on all adapters."""
    return engine().pending_count


@contextmanager
def _batch() -> Iterator[None]:
    eng = engine()
    with eng.using(batching=True, threshold=UNBOUNDED, delay_ms=0.0):
        try:
            yield
        finally:
            eng.flush(BATCH_ENDED)


def batch(fn: Callable[[], T] | None = None) -> Any:
    """Runs ``fn`` with everything it records in one batch, submitted at its end; without ``fn``, a context manager."""
    if fn is None:
        return _batch()
    with _batch():
        return fn()
