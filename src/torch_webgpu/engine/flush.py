"""A flush: lowers recorded nodes, gives their allocations buffers, submits the commands.

An error (a shader that does not compile, memory that is not there) belongs to the node it happened in. It is raised at
the end, and what depends on that node has not run, as if the program had stopped there: tensors that would have got
their first value are *poisoned* and raise the error when they are read, tensors that had one (weights, say) keep it.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Protocol

from torch_webgpu.config import config
from torch_webgpu.errors import DeviceLostError, ForkError, OutOfMemoryError
from torch_webgpu.ir.graph import Node
from torch_webgpu.lower.lower import lower
from torch_webgpu.lower.planning import alias_pattern
from torch_webgpu.runtime.commands import Clear, Command, Dispatch
from torch_webgpu.wgsl.launch import Lowered

from .tensor import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from torch_webgpu.runtime.runtime import Buffer, Device

    from .lane import Recording
    from .replay import Plan

    Encode = Callable[[Device, Node, "Failures"], list[Command]]


def materialise(device: Device, allocation: Allocation, make_room: bool = True) -> Buffer:
    """The allocation's buffer, made if this is the first time something lies in it."""
    if allocation.error is not None:
        raise copy(allocation.error)
    if allocation.buffer is None:
        allocation.buffer = device.allocate(allocation.size_bytes, make_room)
    return allocation.buffer


def execute(device: Device, nodes: list[Node], dead: Container[Allocation], encode_node: Encode | None = None) -> None:
    """Runs ``nodes`` in order; raises the first error after everything that could be submitted was.

    The memory of ``dead`` allocations is given back after their last use. ``encode_node`` stands in for :func:`encode`.
    """
    encode_node = encode_node or encode
    last_use = {id(a): i for i, node in enumerate(nodes) for a in node.allocations if a in dead}
    commands: list[Command] = []
    ends: list[int] = []
    first = 0  # the node that `commands` start with
    failures = Failures()
    trace = "record" in config().debug
    for i, node in enumerate(nodes):
        if trace:
            print(f"[webgpu:{device.index}] {node.op.name} {node.op.args} {node.offsets} {node.params}")
        try:
            try:
                commands += encode_node(device, node, failures)
            except OutOfMemoryError:
                # Pooled buffers can only be given back when what names them has been submitted.
                submit(device, nodes[first:i], commands, ends, failures)
                commands, ends, first = [], [], i
                device.empty_cache()
                commands += encode_node(device, node, failures)
        except OutOfMemoryError as error:
            failures.add(node, OutOfMemoryError(f"{node.op.name}: {error}"))
        except Exception as error:
            failures.add(node, error)
        ends.append(len(commands))
        for allocation in node.allocations:
            if last_use.get(id(allocation)) == i and allocation.buffer is not None:
                device.release(allocation.buffer)
                allocation.buffer = None
    submit(device, nodes[first:], commands, ends, failures)
    if failures.first:
        # No name for it here: the frames of its traceback, and the tensors in them, would live until a collection.
        raise failures.first.pop()


class Sequel(Protocol):
    """Commands that would do well at the end of a submission. ``submitted``: whether they were."""

    submitted: bool

    def commands(self) -> Iterable[Command]:
        """Asked for when everything before them is encoded."""


def replay(device: Device, plan: Plan, recording: Recording, sequel: Sequel | None) -> bool:
    """Runs a recording whose plan has run before, by its program, and in the same submission its ``sequel``.

    False, and nothing has happened, if something is wrong: :func:`execute` finds out what, and whose fault it is.
    """
    if not plan.steps:
        return True
    program = plan.program(recording, device)
    if program.is_poisoned(recording.allocations):
        return False
    submitted = device.submissions
    try:
        last = None if sequel is None else sequel.commands
        program.run(recording.allocations, recording.starts, recording.numbers, last)
    except (DeviceLostError, ForkError):
        raise
    except Exception:
        if device.submissions != submitted:
            raise
        return False
    if sequel is not None:
        sequel.submitted = True
    return True


class Failures:
    """What went wrong in a flush, and what has had no value before it."""

    def __init__(self) -> None:
        self.first: list[Exception] = []  # or none
        self.new: set[int] = set()  # the id of each allocation that this flush gives its buffer

    def add(self, node: Node, error: Exception) -> None:
        """Makes ``error`` what reading the outputs of ``node`` raises, as far as they have no earlier value."""
        for allocation in node.allocations[node.op.n_inputs :]:
            if allocation.buffer is None or id(allocation) in self.new:
                allocation.error = copy(error)  # without the traceback, whose frames would keep the tensors alive
        if not self.first:
            self.first.append(error)


def submit(device: Device, nodes: list[Node], commands: list[Command], ends: list[int], failures: Failures) -> None:
    """Submits everything at once or, when the device refuses that, node by node to find those at fault."""
    try:
        device.prepare(commands)
        device.submit(commands)
        return
    except (DeviceLostError, ForkError):
        raise
    except Exception as error:
        if len(nodes) == 1:
            failures.add(nodes[0], error)
            return
    for node, start, end in zip(nodes, [0, *ends], ends, strict=False):
        try:
            for allocation in node.allocations:
                if allocation.error is not None:
                    raise copy(allocation.error)
            device.submit(commands[start:end])
        except Exception as error:
            failures.add(node, error)


def lowered_node(node: Node, device: Device) -> Lowered:
    """What one node comes down to."""
    return lower(node.op, alias_pattern([id(a) for a in node.allocations]), device.caps)


def encode(device: Device, node: Node, failures: Failures) -> list[Command]:
    """The commands of one node."""
    lowered: Lowered = lowered_node(node, device)
    failures.new.update([id(allocation) for allocation in node.allocations if allocation.buffer is None])
    buffers = [materialise(device, allocation, make_room=False) for allocation in node.allocations]
    temporaries: list[Buffer] = []
    try:
        for size in lowered.temporaries:
            temporaries.append(device.allocate(size, make_room=False))
        commands: list[Command] = [Clear(temporaries[t], 0, lowered.temporaries[t]) for t in lowered.cleared]
        known = [*buffers, *temporaries, device.error_buffer]
        for launch in lowered.launches:
            bound = tuple([known[k] for k in launch.bindings])
            commands.append(Dispatch(launch.kernel, bound, launch.pack(node.offsets, node.params), launch.grid))
        return commands
    finally:
        for buffer in temporaries:
            device.release(buffer)
