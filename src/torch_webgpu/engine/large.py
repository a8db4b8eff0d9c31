"""Operations on what kernels cannot number as it is: divided, and run at once over parts of the buffers.

Only an engine that has seen a tensor beyond 32 bits looks for them (``Engine.on_huge``). Each such operation is
submitted by itself: its parts are allocations of their own, of which nothing else knows what they are parts of.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from torch_webgpu import layout
from torch_webgpu.errors import AddressError

from . import flush_reason
from .division import Division, Window, divide, windows
from .flush import materialise
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation

if TYPE_CHECKING:
    from torch_webgpu.ir.operation import Operation


def record_divided(
    engine: Any, device: int, op: Operation, addresses: tuple[int, ...], params: tuple[Any, ...]
) -> None:
    """Runs an operation on what kernels cannot number; the caller holds the lock.

    AddressError, and nothing has happened, where it cannot be divided, or is to be part of a plan or a graph.
    """
    division = divide(op, [(address & OFFSET_MASK) - FIRST_BYTE for address in addresses])
    numbers = [address >> ADDRESS_BITS for address in addresses]
    allocations = [engine.mailbox.allocations[number] for number in numbers]
    owners = [*numbers, *range(-len(division.temporaries), 0)]
    parts = [windows(step, owners) for step in division.steps]
    if engine.intake(device) is not None:
        raise AddressError(
            f"{op.name}: a tensor of more elements than the webgpu device numbers cannot be part of a plan, a compiled "
            f"or a captured graph: kernels number elements, and 32-bit words, up to {layout.MAX_INDEX}. Use parts of "
            "it, or leave it out"
        )
    engine.handovers += 1  # what follows depends on where things lie: it is no recipe
    engine.flush(flush_reason.DIVIDED, device)
    _run(engine, device, division, allocations, parts, params)


def _run(
    engine: Any,
    device: int,
    division: Division,
    allocations: list[Allocation],
    parts: list[list[Window | None]],
    params: tuple[Any, ...],
) -> None:
    templates = [engine.template((size,), torch.uint8, device) for size in division.temporaries]
    temporaries = [engine.make_with(template) for template in templates]  # whose tensors keep them
    storages = [*allocations, *[allocation for _, allocation in temporaries]]
    for step, found in zip(division.steps, parts):
        with ExitStack() as stack:
            made: dict[Window, Allocation] = {}
            for window in filter(None, found):
                if window not in made:
                    made[window] = _part(engine, storages[window.storage], window)
                    stack.callback(_forget, engine, made[window])
            addresses = [
                storages[storage].address + start if window is None else made[window].address + start - window.start
                for storage, start, window in zip(step.storages, step.starts, found)
            ]
            type(engine).append(engine, device, step.op, tuple(addresses), params if step.takes_scalars else ())
            engine.flush(flush_reason.DIVIDED, device)


def _part(engine: Any, allocation: Allocation, window: Window) -> Allocation:
    """An allocation that is a part of another one's buffer."""
    buffer = materialise(engine.device(allocation.device), allocation)
    buffer = buffer.part(window.start, window.end - window.start)
    (number,) = engine.mailbox.take_numbers(1)
    part = Allocation(number, allocation.device, buffer.size_bytes)
    part.buffer = buffer
    engine.mailbox.allocations[number] = part
    return part


def _forget(engine: Any, part: Allocation) -> None:
    del engine.mailbox.allocations[part.number]
    device = engine.device(part.device)
    if device.is_open:
        device.opened.pipelines.forget(part.buffer)
