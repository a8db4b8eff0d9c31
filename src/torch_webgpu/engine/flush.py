"""A flush: lowers recorded nodes, gives their allocations buffers, submits the commands.

An error (a shader that does not compile, memory that is not there) belongs to the node it happened in: that node's
outputs, and what is computed from them, are *poisoned* and raise it when they are read; everything else runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import config
from ..errors import DeviceLostError, ForkError
from ..ir.graph import Node
from ..lower.lower import Lowered, lower
from ..runtime.commands import Clear, Command, Dispatch
from .tensor import Allocation

if TYPE_CHECKING:
    from ..runtime.runtime import Buffer, Device


def alias_pattern(node: Node) -> tuple[int, ...]:
    """For each argument the first one that lies in the same allocation."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(a), k) for k, a in enumerate(node.allocations)])


def materialise(device: Device, allocation: Allocation) -> Buffer:
    """The allocation's buffer, made if this is the first time something lies in it."""
    if allocation.error is not None:
        raise allocation.error
    if allocation.buffer is None:
        allocation.buffer = device.allocate(allocation.size_bytes)
    return allocation.buffer  # type: ignore[no-any-return]


def execute(device: Device, nodes: list[Node]) -> None:
    """Runs ``nodes`` in order; raises the first error after everything that could be submitted was."""
    last_use = {id(a): i for i, node in enumerate(nodes) for a in node.allocations if not a.alive}
    commands: list[Command] = []
    ends: list[int] = []
    failure: Exception | None = None
    trace = "record" in config().debug
    for i, node in enumerate(nodes):
        if trace:
            print(f"[webgpu:{device.index}] {node.op.name} {node.op.args} {node.offsets} {node.params}")
        try:
            encode(device, node, commands)
        except Exception as error:
            failure = failure or poison(node, error)
        ends.append(len(commands))
        for allocation in node.allocations:
            if last_use.get(id(allocation)) == i and allocation.buffer is not None:
                device.release(allocation.buffer)
                allocation.buffer = None
    failure = submit(device, nodes, commands, ends) or failure
    if failure is not None:
        raise failure


def poison(node: Node, error: Exception) -> Exception:
    """Makes ``error`` what reading the node's outputs raises."""
    for allocation in node.allocations[node.op.n_inputs :]:
        allocation.error = error
    return error


def submit(device: Device, nodes: list[Node], commands: list[Command], ends: list[int]) -> Exception | None:
    """Submits everything at once or, when the device refuses that, node by node to find the one at fault."""
    try:
        device.submit(commands)
        return None
    except (DeviceLostError, ForkError):
        raise
    except Exception as error:
        if len(nodes) == 1:
            return poison(nodes[0], error)
    failure: Exception | None = None
    for node, start, end in zip(nodes, [0, *ends], ends, strict=False):
        try:
            for allocation in node.allocations:
                if allocation.error is not None:
                    raise allocation.error
            device.submit(commands[start:end])
        except Exception as error:
            failure = failure or poison(node, error)
    return failure


def encode(device: Device, node: Node, commands: list[Command]) -> None:
    """Appends the commands of one node."""
    lowered: Lowered = lower(node.op, alias_pattern(node), device.index, device.caps)
    buffers = [materialise(device, allocation) for allocation in node.allocations]
    temporaries = [device.allocate(size) for size in lowered.temporaries]
    commands += [Clear(temporaries[t], 0, lowered.temporaries[t]) for t in lowered.cleared]
    known = [*buffers, *temporaries, device.error_buffer]
    for launch in lowered.launches:
        bound = tuple([known[k] for k in launch.bindings])
        commands.append(Dispatch(launch.kernel, bound, launch.pack(node.offsets, node.params), launch.grid))
    for buffer in temporaries:
        device.release(buffer)
