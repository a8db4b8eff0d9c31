"""A flush: runs what was recorded, and finds out whose fault it is when something is wrong.

An error (a shader that does not compile, memory that is not there) belongs to the operation it happened in. It is
raised at the end, and what depends on that operation has not run, as if the program had stopped there: tensors that
would have got their first value are *poisoned* and raise the error when they are read, tensors that had one (weights,
say) keep it.
"""

from __future__ import annotations

from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from torch_webgpu.errors import DeviceLostError, ForkError, OutOfMemoryError

from .tensor import Allocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_webgpu.compiler.fuse.nodes import FusedNode
    from torch_webgpu.runtime.commands import Command
    from torch_webgpu.runtime.runtime import Buffer, Device

    from .plan_cache import CachedPlan
    from .recording import Recording


_error_of = attrgetter("error")


def materialise(device: Device, allocation: Allocation) -> Buffer:
    """The allocation's buffer, made if this is the first time something lies in it."""
    if allocation.error is not None:
        raise copy(allocation.error)
    if allocation.buffer is None:
        allocation.buffer = device.allocate(allocation.size_bytes)
    return allocation.buffer


class Trailing(Protocol):
    """Commands that would do well at the end of a submission. ``submitted``: whether they were."""

    submitted: bool

    def commands(self) -> Iterable[Command]:
        """Asked for when everything before them is encoded."""


def run(device: Device, cached: CachedPlan, recording: Recording, trailing: Trailing | None = None) -> None:
    """Runs a recording by its plan, and in the same submission the ``trailing`` commands if nothing is wrong.

    Raises the first error after everything that could run was submitted.
    """
    if cached.is_empty:
        return
    submitted = None
    try:
        opened = device.opened
        submitted = opened.encoder.submissions
        executable, lists = cached.executable or cached.bind(device), cached.lists
        allocations, starts = recording.allocations, recording.starts
        if lists:
            allocations, starts = recording.memory(lists), recording.all_starts(lists)
        if any(map(_error_of, allocations)):
            executable.check(allocations)
        last = None if trailing is None else trailing.commands
        executable.run(opened, allocations, starts, recording.scalars, last)
        if trailing is not None:
            trailing.submitted = True
    except (DeviceLostError, ForkError):
        raise
    except Exception:
        if submitted is not None and device.submissions != submitted:
            raise
    else:
        return
    run_apart(device, cached, recording)  # outside of the handler: what it raises is not about the exception


def run_apart(device: Device, cached: CachedPlan, recording: Recording) -> None:
    """Runs each fused call of a plan in a submission of its own; raises the first error at the end."""
    memory, starts = recording.memory(cached.lists), recording.all_starts(cached.lists)
    failures = Failures(cached, memory)
    for number, step in enumerate(cached.compilation.fused):
        try:
            executable = cached.apart(number, device)
            executable.check(memory)
            device.with_room(executable.run, device.opened, memory, starts, recording.scalars)
        except (DeviceLostError, ForkError):
            raise
        except Exception as error:
            failures.add(step, error)
    for allocation in recording.dead:  # what only operations that failed would have used last
        if allocation.buffer is not None:
            device.release(allocation.buffer)
            allocation.buffer = None
    if failures.first:
        # No name for it here: the frames of its traceback, and the tensors in them, would live until a collection.
        raise failures.first.pop()


class Failures:
    """What went wrong in a flush, and what had no value before it."""

    def __init__(self, cached: CachedPlan, memory: Sequence[Allocation]) -> None:
        self.first: list[Exception] = []  # or none
        self._compilation, self._memory = cached.compilation, memory
        self._new = {n for n, allocation in enumerate(memory) if allocation.buffer is None}

    def add(self, step: FusedNode, error: Exception) -> None:
        """Makes ``error`` what reading the outputs of ``step`` raises, as far as they have no earlier value."""
        if isinstance(error, OutOfMemoryError):
            error = OutOfMemoryError(f"{step.op.name}: {error}")
        for n in self._new.intersection(self._compilation.written(step)):
            # Without the traceback, whose frames would keep the tensors alive.
            self._memory[n].error = copy(error)
        if not self.first:
            self.first.append(error)
