"""Why what is recorded is submitted now: stated where it is known, told to whoever looks on.

Each completes "because …". Nothing is put into words unless somebody looks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch_webgpu.ir.names import operator_name
from torch_webgpu.ir.operation import Extern, Operation


class Cause(NamedTuple):
    """``detail`` is what its text leaves open. ``has_line``: whether a line of the program brought it about."""

    text: str
    detail: str | int = ""
    has_line: bool = True

    def __str__(self) -> str:
        return self.text.format(operator_name(self.detail) if isinstance(self.detail, str) else self.detail)


ASKED = Cause("of flush_batch()")
BATCH_ENDED = Cause("a batch() had ended")
UNBATCHED = Cause("batching is off")
IDLE = Cause("nothing was added to it for a while (see set_batch_delay)", has_line=False)
READ = Cause("a value was read")
WRITTEN = Cause("the host wrote into a tensor that it uses")
RESIZED = Cause("a storage that it uses was resized")
SYNCHRONIZED = Cause("the program synchronized")
ANOTHER_THREAD = Cause("another thread was about to use what it computes")
UPLOADS = Cause("what had died before an upload held memory")
DIVIDED = Cause("it has more elements than kernels can number, and is run in parts")
EXCHANGED = Cause("ranks exchange it through shared memory")
EVENT = Cause("an event was recorded")
MEMORY = Cause("memory was listed or given back")
SETTING = Cause("it was recorded under other settings")
CAPTURE = Cause("a graph's capture began, ended or took in a number")
REPLAY = Cause("a captured graph was replayed")
PLAN = Cause("a plan was traced or run")
PROFILE = Cause("a profile began or ended")
EXPLAINED = Cause("the function had ended", has_line=False)
WHERE = Cause("TORCH_WEBGPU_DEBUG=where waits for operations that use indices")


def full(threshold: int) -> Cause:
    """As many operations as a batch holds."""
    return Cause("{} operations are a batch (see set_batch_threshold)", threshold)


def cut(op: Operation) -> Cause:
    """A batch ends early, before ``op``: see :meth:`.settings.Settings.ends_before`."""
    if isinstance(op.body, Extern):
        return Cause("a batch that is half full ends before a hand-written kernel, here {}", op.name)
    return Cause("a batch that is nearly full ends where it would in a loop's next round, here before {}", op.name)


def many_kernels(operator: str) -> Cause:
    """A batch ends before an operator of many kernels: see :func:`.recipe.begin_batch`."""
    return Cause("an operator of many kernels begins a batch of its own, here {}", operator)


def on_cpu(operator: str) -> Cause:
    """An operator without a kernel reads its arguments."""
    return Cause("{} ran on the CPU", operator)


class _Reading(threading.local):
    """Why a thread reads what it reads."""

    cause = READ


_reading = _Reading()


@contextmanager
def reading(cause: Cause) -> Iterator[None]:
    """What the calling thread reads in this block is read because of ``cause``."""
    before = why_read()
    _reading.cause = cause
    try:
        yield
    finally:
        _reading.cause = before


def why_read() -> Cause:
    """Why the calling thread reads what it reads."""
    return _reading.cause
