"""Trials in worker processes, each replaced when it crashes or hangs."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import torch

from .trials import Effort, Result, Trial, run


def run_all(pending: list[Trial], effort: Effort, jobs: int, timeout: float) -> Iterator[Result]:
    """Results as they come in. Each worker is a fresh process, replaced when it dies or exceeds ``timeout`` seconds."""
    queue, workers = pending[::-1], []
    while queue or workers:
        while queue and len(workers) < jobs:
            workers.append(Worker(effort))
            workers[-1].start(queue.pop())
        for worker in list(workers):
            result = worker.poll(timeout)
            if result is None:
                continue
            yield result
            if worker.alive and queue:
                worker.start(queue.pop())
            else:
                worker.close()
                workers.remove(worker)


class Worker:
    """A spawned process that runs one trial at a time (a GPU's handles do not survive a fork)."""

    def __init__(self, effort: Effort) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, effort), daemon=True)
        self._process.start()
        theirs.close()
        self.alive = True

    def start(self, trial: Trial) -> None:
        self._trial, self._since = trial, time.monotonic()
        self._pipe.send(trial)

    def poll(self, timeout: float) -> Result | None:
        """The result, if there is one within a tenth of a second; a failure if the process died or took too long."""
        try:
            if self._pipe.poll(0.1):
                return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            return self._lost(Result(self._trial, 1, [f"crashed: exit code {self._process.exitcode}"]))
        if time.monotonic() - self._since > timeout:
            return self._lost(Result(self._trial, 1, [f"took longer than {timeout:.0f} s"]))
        return None

    def _lost(self, result: Result) -> Result:
        self.alive = False
        return result

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def serve(pipe: Any, effort: Effort) -> None:
    """The worker's loop: receive a trial, send back its result."""
    torch.set_num_threads(1)  # the samples are small, and the other workers want the cores
    while True:
        try:
            trial = pipe.recv()
        except EOFError:
            return
        pipe.send(run(trial, effort))
