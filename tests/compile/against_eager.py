"""Compiled functions against the same functions called eagerly, on the device and on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.conformance.target import CPU, DEVICE, Replica
from torch.utils import _pytree as pytree

Function = Callable[..., Any]


class Stats:
    """What ``torch.webgpu.compile_stats()`` and the submissions grew by in a block."""

    def __init__(self) -> None:
        self._before = self._now()
        self.graphs = self.plans = self.runs = self.submissions = 0
        self.between: set[str] = set()

    @staticmethod
    def _now() -> tuple[Any, int]:
        torch.webgpu.synchronize()
        return torch.webgpu.compile_stats(), torch.webgpu.memory_stats(DEVICE).submissions

    def update(self) -> None:
        (before, submissions), (after, now) = self._before, self._now()
        self.graphs = after.graphs - before.graphs
        self.plans = after.plans - before.plans
        self.runs = after.runs - before.runs
        self.submissions = now - submissions
        self.between = {key for key, n in after.between.items() if n > before.between.get(key, 0)}


@contextmanager
def counting() -> Iterator[Stats]:
    """What is compiled, run and submitted in the block; known when it ends."""
    stats = Stats()
    yield stats
    stats.update()


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def assert_equal(actual: Any, expected: Any, tolerance: float = 1e-6, strides: bool = True) -> None:
    """Structures of tensors: shapes, dtypes, and values up to ``tolerance``; layouts, too, unless told otherwise."""
    found, wanted = tensors(actual), tensors(expected)
    assert len(found) == len(wanted)
    for a, e in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype, a.requires_grad) == (e.shape, e.dtype, e.requires_grad)
        if strides:
            assert (a.stride(), a.storage_offset()) == (e.stride(), e.storage_offset())
        torch.testing.assert_close(a.detach().cpu(), e.detach().cpu(), rtol=tolerance, atol=tolerance, equal_nan=True)


class Outcome:
    """What a function returned for copies of CPU tensors on a device, and what it left in their storages."""

    def __init__(self, fn: Function, args: tuple[Any, ...], device: torch.device) -> None:
        torch.manual_seed(0)
        replica = Replica(device)
        self.result = fn(*replica.tree(args))
        self.storages = replica.storages
        self.places = [replica.index_of(t) for t in tensors(self.result)]


def check(
    fn: Function,
    *args: Any,
    compiled: Function | None = None,
    calls: int = 2,
    tolerance: float = 1e-6,
    cpu: float | None = 1e-4,
    **options: Any,
) -> Function:
    """``fn`` compiled gives what it gives eagerly, call after call: results, their layouts, which of them lie in which
    inputs, and what it wrote. ``args`` are CPU tensors and other values; what shares a storage does so on the device.

    ``cpu``: how close the CPU must come; None where it cannot. Returns the compiled function, for further calls.
    """
    compiled = compiled or torch.compile(fn, **options)
    eager = Outcome(fn, args, DEVICE)
    for _ in range(calls):
        actual = Outcome(compiled, args, DEVICE)
        assert_equal(actual.result, eager.result, tolerance)
        assert_equal(actual.storages, eager.storages, tolerance)
        assert actual.places == eager.places
    if cpu is not None:
        host = Outcome(fn, args, CPU)
        assert_equal(eager.result, host.result, cpu, strides=False)
        assert_equal(eager.storages, host.storages, cpu, strides=False)
    return compiled
