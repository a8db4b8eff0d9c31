"""What a collective returns: a ``torch.distributed.Work`` that answers all of its questions.

C++ holds it in an object that forwards ``wait`` and ``get_future`` alone. Whatever else is asked of that object, the
work itself answers (:func:`answered`): ``get_future`` tells on the way which work it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any

import torch

from .torch_c10d import Work, held, is_of_python

_asked = threading.local()
SUCCESS, TIMED_OUT, FAILED = 0, 1, 2
"""``WorkResult``, the value of ``get_future_result()``."""


class CollectiveWork(Work):
    """A collective underway. It is complete when its results are on the device, or with an error.

    ``tensors`` are its results, which its future has as its value; ``what`` says which collective it is.
    ``is_stacked``: that future's value is one tensor of all of them, if they are of one size.
    """

    def __init__(self, what: Callable[[], str], tensors: Sequence[torch.Tensor], is_stacked: bool = False) -> None:
        super().__init__()
        self._what, self.tensors, self._is_stacked = what, list(tensors), is_stacked
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._source = -1
        self.end = torch.futures.Future[None]()
        # An error of a future that Python makes is a value for C++; one of a callback is an error there, too.
        self._future = self.end.then(self._outcome)

    def boxed(self) -> Any:
        """As an operator returns it. What is returned keeps this object alive."""
        return held(self).boxed()

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self.tensors

    def complete(self, source_rank: int = -1) -> None:
        """The results are there. What was to follow runs in this thread, before this returns."""
        self._source = source_rank
        self._ended.set()
        self.end.set_result(None)

    def fail(self, error: BaseException) -> None:
        """It has ended with an error, which every ``wait`` raises."""
        self._error = error
        self._ended.set()
        self.end.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the results, or for as long as ``timeout`` says, which is an error then."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._ended.wait(seconds if seconds > 0 else None):
            raise RuntimeError(f"{self._what()}: wait() timed out after {seconds:g} seconds; it is still underway")
        self._complete_future()
        if self._error is not None:
            raise self._error
        return True

    def _complete_future(self) -> None:
        """Waits for the future, which its thread is just about to complete; the error is not this one's to raise."""
        with suppress(RuntimeError):
            self._future.wait()

    def get_future(self) -> Any:
        if getattr(_asked, "is_asking", False):
            _asked.work = self
            return self._future
        return self._future.then(stacked) if self._is_stacked else self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.tensors

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        """A stream waits by having its thread wait: what is recorded later comes after the results."""
        self.wait()

    def source_rank(self) -> int:
        """The rank that a message of any source came from."""
        self.wait()
        return self._source

    def get_future_result(self) -> Any:
        """A future of how it ended, which never is an error: of 0, 1 for a timeout, or 2."""

        def ended(future: Any) -> int:
            if self._error is None:
                return SUCCESS
            return TIMED_OUT if "timed out" in str(self._error).lower() else FAILED

        return self.end.then(ended)


def stacked(future: Any) -> list[torch.Tensor]:
    """The value of the future of ``all_gather``, as NCCL's has it: hooks of DDP that quantize index it by rank."""
    tensors: list[torch.Tensor] = future.value()
    if len({t.shape for t in tensors}) > 1:
        return tensors
    with torch.no_grad():
        return [torch.stack(tensors)]


def work_of(handle: Any) -> CollectiveWork | None:
    """The work that a C++ object holds, if it is one of this package."""
    if not is_of_python(handle):
        return None
    _asked.work, _asked.is_asking = None, True
    try:
        handle.get_future()
    except RuntimeError:  # works of other Python groups have none
        return None
    finally:
        _asked.is_asking = False
    work: CollectiveWork | None = _asked.work
    return work


def answered(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ``Work`` that asks the work which is held."""
    name = plain.__name__.lstrip("_")

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        work = work_of(self)
        return plain(self, *args, **kwargs) if work is None else getattr(work, name)(*args, **kwargs)

    return method
