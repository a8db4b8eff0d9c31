"""The order of collectives: one thread issues them as they were called, others take the results back as they come.

What never waits to be issued is issued by the thread that calls, where none is to be issued before it.

gloo matches the collectives of a group by their order. So they are issued in the order of the calls, each when its
inputs are in the host's memory. Results are taken back in any order: an earlier receive may depend on a later result.
Each is completed in a thread of its own, since what follows may wait for further collectives (PowerSGD does).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any

import torch

from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.sync import pause

from .groups import forget, known, staging_groups
from .timeline import UPLOADED
from .transport import Exchange
from .work import CollectiveWork

EXIT_S = 10.0
"""How long a process that ends waits for its collectives before it aborts them."""
LOOK_S = 0.05
"""How often a wait looks by itself."""
_log = logging.getLogger("torch_webgpu")


class Call:
    """One collective: what carries it, the work that its caller has, its staging group.

    ``in_inference``: its tensors were made in inference mode, and are only written there, in whichever thread.
    """

    def __init__(
        self,
        what: Callable[[], str],
        exchange: Exchange,
        work: CollectiveWork,
        group: object,
        in_inference: bool = False,
    ) -> None:
        self._what, self._exchange, self._in_inference = what, exchange, in_inference
        self.work, self.group = work, group

    def __str__(self) -> str:
        return self._what()

    @property
    def is_issued_at_once(self) -> bool:
        return self._exchange.is_issued_at_once

    def issue(self) -> None:
        """Waits for the inputs and begins to exchange."""
        self._exchange.issue()

    def finish(self, looks: bool = False) -> None:
        """Waits until the results are on the device. Completes the work, whatever happens.

        ``looks``: by looking time and again, which Ctrl-C can interrupt. Raises KeyboardInterrupt then.
        """
        try:
            begin_s = perf_counter()
            while looks and self._exchange.is_done() is False:
                pause(begin_s)
            with torch.inference_mode(self._in_inference):
                source = self._exchange.finish()
        except KeyboardInterrupt:
            self.fail(RuntimeError("it was interrupted; other ranks may still wait for this one"))
            raise
        except BaseException as error:  # noqa: BLE001 it is the work's, whatever it is
            self.fail(error)
        else:
            self._exchange.reached(UPLOADED)
            self.work.complete(source)

    def fail(self, error: BaseException) -> None:
        """Completes the work with an error that says which collective it was."""
        error = explained(error, self._what())
        if self._exchange.timeline is not None:
            self._exchange.timeline.fail(error)
        self.work.fail(error)


def explained(error: BaseException, what: str) -> BaseException:
    """The error with the collective in front of its message, of the same class where that can be made."""
    kind = type(error) if isinstance(error, RuntimeError) else RuntimeError
    try:
        named: BaseException = kind(f"{what}: {error}")
    except TypeError:
        named = RuntimeError(f"{what}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named


class Threads:
    """Threads that each do one thing at a time; there are as many as there is to do at once."""

    def __init__(self, name: str) -> None:
        self._name, self._lock, self._idle = name, threading.Lock(), 0
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def start(self, task: Callable[[], None]) -> None:
        """Does it in a thread of its own."""
        with self._lock:
            is_new = self._idle == 0
            self._idle -= not is_new
        self._tasks.put(task)
        if is_new:
            threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            self._tasks.get()()
            with self._lock:
                self._idle += 1


class Sequence:
    """The collectives of this process that are not complete."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._underway: dict[Call, None] = {}
        self._unissued = 0
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._finishing = Threads("webgpu-collectives")
        self._issuing: threading.Thread | None = None

    def run(self, call: Call, waits: bool) -> None:
        """Issues a collective after those before it. ``waits``: here and now, if none is to be issued before it.

        Raises the error of one that was waited for.
        """
        with self._lock:
            self._underway[call] = None
            is_next = (waits or call.is_issued_at_once) and not self._unissued
            if not is_next:
                self._unissued += 1
                if self._issuing is None:
                    self._issuing = threading.Thread(target=self._issue, daemon=True, name="webgpu-collectives-issue")
                    self._issuing.start()
        if not is_next:
            self._calls.put(call)
            return
        if not waits:
            with Uninterrupted():
                self._start(call)
            return
        try:
            call.issue()
        except KeyboardInterrupt as error:
            call.fail(error)
            raise
        except BaseException as error:  # noqa: BLE001 it is raised again, with the collective's name
            call.fail(error)
            raise call.work.exception() or error from None
        else:
            call.finish(looks=threading.current_thread() is threading.main_thread())
        finally:
            self._ended(call)

    def is_of_this_process(self) -> bool:
        return self._process == os.getpid()

    def _issue(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._start(call)
            finally:
                with self._lock:
                    self._unissued -= 1
            del call  # a thread that waits holds no tensors

    def _start(self, call: Call) -> None:
        """Issues a collective, and has a thread finish it."""
        try:
            call.issue()
        except BaseException as error:  # noqa: BLE001 it is the work's, and others are to come
            self._finishing.start(partial(self._complete, call, partial(call.fail, error)))
        else:
            self._finishing.start(partial(self._complete, call, call.finish))

    def _complete(self, call: Call, end: Callable[[], None]) -> None:
        try:
            end()
        finally:
            self._ended(call)

    def _ended(self, call: Call) -> None:
        with self._lock:
            self._underway.pop(call, None)
            self._changed.notify_all()

    def drain(self, group: object = None, seconds: float | None = None, callbacks: bool = False) -> bool:
        """Waits until the collectives of a group, or all, are complete, for so many seconds at most; whether they are.

        Not for their ``callbacks``, one of which may be what waits, unless that is asked for.
        """
        end = None if seconds is None else monotonic() + seconds
        with self._lock:
            while any(group in (None, c.group) and (callbacks or not c.work.is_completed()) for c in self._underway):
                left = LOOK_S if end is None else min(LOOK_S, end - monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def underway(self) -> list[str]:
        """What is not complete, in words."""
        with self._lock:
            return [str(call) for call in self._underway]


_sequence: Sequence | None = None
_making = threading.Lock()


def sequence() -> Sequence:
    """That of this process: a forked child has another."""
    global _sequence
    if _sequence is None or not _sequence.is_of_this_process():
        with _making:
            if _sequence is None or not _sequence.is_of_this_process():
                _sequence = Sequence()
                atexit.register(_drain_at_exit, _sequence)
    return _sequence


def drain(group: object = None, seconds: float | None = None) -> bool:
    """See :meth:`Sequence.drain`. Nothing where no collective was called."""
    return _sequence is None or not _sequence.is_of_this_process() or _sequence.drain(group, seconds)


def drain_group(group: Any) -> None:
    """Waits for the collectives of a process group that is to be destroyed, and forgets it; None for all groups."""
    staging = None if group is None else known(group)
    if group is None or staging is not None:
        drain(staging)
    forget(group)


def _drain_at_exit(sequence: Sequence) -> None:
    """Threads that come back from gloo, or from PyTorch's callbacks, after the interpreter has ended would end the
    process by a signal.
    """
    if sequence.is_of_this_process() and not sequence.drain(seconds=EXIT_S, callbacks=True):
        _log.warning(
            "at exit after %g s these collectives were not complete: %s", EXIT_S, "; ".join(sequence.underway())
        )
        for group in staging_groups():
            group.abort()
        sequence.drain(seconds=EXIT_S, callbacks=True)
