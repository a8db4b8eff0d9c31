"""Kernels that run once per signature: from then on the nodes they recorded are recorded again without running them.

A composite kernel costs PyTorch calls, meta kernels and look-ups for every node it records, though all of that follows
from its arguments' layouts. :func:`traced` keeps the nodes under those, with allocations and offsets relative to the
arguments, and the host cost of any kernel becomes that of one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import torch

from torch_webgpu.engine.random import RandomState
from torch_webgpu.engine.record import Engine, engine
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation, Template
from torch_webgpu.ir.graph import Node, Operation
from torch_webgpu.layout import extent

Kernel = Callable[..., Any]
CACHE_SIZE = 4096
MAX_MISSES = 8
"""A kernel that could not be traced so many times in a row (it waits for the device) is left alone."""


class Step(NamedTuple):
    """A node with, for each argument, the number of its allocation and the bytes from that allocation's base."""

    op: Operation
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    params: tuple[int | float, ...]


@dataclass
class Fresh:
    """An allocation that the kernel makes, as the tensor to make for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None
    made_from: Template | None = None

    def template(self, eng: Engine, device: int) -> Template:
        if self.made_from is None:
            self.made_from = eng.template(self.shape, self.dtype, device, self.strides)
        return self.made_from


class Trace(NamedTuple):
    """Allocations are numbered: the distinct ones of the arguments, then the fresh ones.

    ``results``: what is returned, by number: a fresh tensor, or for ``-1 - k`` the ``k``-th tensor argument itself.
    """

    steps: tuple[Step, ...]
    fresh: tuple[Fresh, ...]
    results: tuple[int, ...]
    several: bool


def traced(fn: Kernel) -> Kernel:
    """``fn``, a kernel that records nodes as its arguments' layouts and plain values tell it to, and nothing else does.

    It must return new tensors or tensor arguments. Calls in which it reads values back, uploads some or draws random
    numbers are not kept.
    """
    if hasattr(fn, "is_traced"):
        return fn
    traces: dict[Any, Trace] = {}
    misses = 0

    @wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal misses
        if misses >= MAX_MISSES:
            return fn(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        key = part(args, tensors), tuple([(k, part(v, tensors)) for k, v in kwargs.items()]) if kwargs else None
        eng = engine()
        with eng.lock:
            arguments = Arguments.of(eng, tensors)
            if arguments is None:
                return fn(*args, **kwargs)
            signature = key, arguments.aliasing, arguments.device
            found = traces.get(signature)
            if found is not None:
                return replay(eng, found, arguments)
            recording = Recording(eng, arguments)
            result = fn(*args, **kwargs)
            trace = recording.finish(result)
            misses = misses + 1 if trace is None else 0
            if trace is not None:
                if len(traces) >= CACHE_SIZE:
                    traces.pop(next(iter(traces)))
                traces[signature] = trace
            return result

    kernel.is_traced = True  # type: ignore[attr-defined]
    return kernel


def part(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The key of an argument: how a tensor is laid out and to be read, or the value; collects the tensors."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        # Products are among what PyTorch hands lazily conjugated tensors to.
        return value.shape, value.stride(), value.dtype, value.storage_offset() & 3, value.is_conj(), value.is_neg()
    if isinstance(value, (tuple, list)):
        return tuple([part(v, tensors) for v in value])
    # 1, 1.0 and True are equal and hash alike, but promote differently.
    return value.__class__, value


class Arguments(NamedTuple):
    """The tensor arguments of a call, their distinct allocations and the byte that stands for each of those.

    ``aliasing``: for each tensor its allocation's number and how far it lies from that allocation's first tensor.
    """

    tensors: list[torch.Tensor]
    allocations: list[Allocation]
    bases: list[int]
    aliasing: tuple[Any, ...] | None
    device: int

    @staticmethod
    def of(eng: Engine, tensors: list[torch.Tensor]) -> Arguments | None:
        """None unless there are some, all of one webgpu device."""
        known = eng.mailbox.allocations
        addresses = [t.data_ptr() or address_of(t) for t in tensors]
        try:
            allocations = [known[a >> ADDRESS_BITS] for a in addresses]
            device = allocations[0].device
        except (KeyError, IndexError):
            return None
        if len(eng.live_bytes) > 1 and any(a.device != device for a in allocations):
            return None
        bases = [(a & OFFSET_MASK) - FIRST_BYTE for a in addresses]
        if len(tensors) == 1 or len(set(allocations)) == len(allocations):
            return Arguments(tensors, allocations, bases, None, device)
        first: dict[Allocation, int] = {}
        for k, allocation in enumerate(allocations):
            first.setdefault(allocation, k)
        number = {allocation: n for n, allocation in enumerate(first)}
        aliasing = tuple([(number[a], base - bases[first[a]]) for a, base in zip(allocations, bases, strict=True)])
        return Arguments(tensors, list(first), [bases[k] for k in first.values()], aliasing, device)


def address_of(t: torch.Tensor) -> int:
    """The address of a tensor without elements, to which PyTorch gives none."""
    return t.untyped_storage().data_ptr() + int(t.storage_offset()) * t.element_size()


def replay(eng: Engine, trace: Trace, arguments: Arguments) -> Any:
    """Records the trace's nodes on these arguments; the caller holds the lock."""
    allocations, bases, device = arguments.allocations, arguments.bases, arguments.device
    first = len(allocations)
    made = []
    for fresh in trace.fresh:
        tensor, allocation = eng.make_with(fresh.template(eng, device))
        made.append(tensor)
        allocations.append(allocation)
        bases.append(0)
    for op, places, offsets, params in trace.steps:
        moved = tuple([bases[p] + o >> s for p, o, s in zip(places, offsets, op.shifts)])
        eng.append(device, Node(op, tuple([allocations[p] for p in places]), moved, params))
    results = [arguments.tensors[-1 - r] if r < 0 else made[r - first] for r in trace.results]
    return tuple(results) if trace.several else results[0]


class Recording:
    """What a kernel records from here on."""

    def __init__(self, eng: Engine, arguments: Arguments) -> None:
        self.eng = eng
        self.arguments = arguments
        if arguments.device not in eng.pending:
            eng.check_process()
        self.pending = eng.pending.setdefault(arguments.device, [])
        self.start = len(self.pending)
        self.flushes = eng.flushes
        self.mark = eng.mailbox.mark
        self.draws = RandomState.draws

    def finish(self, result: Any) -> Trace | None:
        """The trace; None if there was a flush, an upload, a random number, or what a trace cannot express."""
        several = isinstance(result, (tuple, list))
        results: Sequence[Any] = result if several else [result]
        if (
            RandomState.draws != self.draws
            or self.eng.flushes != self.flushes
            or not all(isinstance(r, torch.Tensor) for r in results)
        ):
            return None
        numbers = {id(a): n for n, a in enumerate(self.arguments.allocations)}
        fresh: list[Fresh] = []
        places: list[int] = []
        for r in results:
            place = self.place_of(r, numbers, fresh)
            if place is None:
                return None
            places.append(place)
        steps = []
        for node in self.pending[self.start :]:
            for a in node.allocations:
                if id(a) not in numbers:
                    if a.buffer is not None or a.number < self.mark:
                        return None
                    numbers[id(a)] = len(self.arguments.allocations) + len(fresh)
                    fresh.append(Fresh((a.size_bytes,), torch.uint8, None))
            steps.append(self.step(node, [numbers[id(a)] for a in node.allocations]))
        return Trace(tuple(steps), tuple(fresh), tuple(places), several)

    def place_of(self, t: torch.Tensor, numbers: dict[int, int], fresh: list[Fresh]) -> int | None:
        """The number that stands for a result; adds it to ``fresh`` if it is new."""
        for k, argument in enumerate(self.arguments.tensors):
            if t is argument:
                return -1 - k
        allocation = self.eng.mailbox.find(t)
        if (
            allocation is None
            or id(allocation) in numbers
            or allocation.number < self.mark
            or allocation.buffer is not None
            or t.storage_offset()
            or t.untyped_storage().nbytes() != nbytes(t)
        ):
            return None
        numbers[id(allocation)] = len(self.arguments.allocations) + len(fresh)
        fresh.append(Fresh(tuple(t.shape), t.dtype, t.stride()))
        return numbers[id(allocation)]

    def step(self, node: Node, places: list[int]) -> Step:
        bases, shifts = self.arguments.bases, node.op.shifts
        offsets = tuple(
            (o << s) - (bases[p] if p < len(bases) else 0) for p, o, s in zip(places, node.offsets, shifts, strict=True)
        )
        return Step(node.op, tuple(places), offsets, node.params)


def nbytes(t: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last one."""
    return extent(t.shape, t.stride()) * t.element_size()
