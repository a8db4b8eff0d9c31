"""Kernels that run once per signature: from then on the nodes they recorded are recorded again without running them.

A composite kernel costs PyTorch calls, meta kernels and look-ups for every node it records, though all of that follows
from its arguments' layouts. :func:`traced` keeps the nodes under those, with addresses relative to the arguments', and
the host cost of any kernel becomes that of one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from torch_webgpu.engine.random import RandomState
from torch_webgpu.engine.record import Engine, engine
from torch_webgpu.engine.store import address_of
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_ADDRESS, FIRST_BYTE, Allocation, Template
from torch_webgpu.ir.graph import Operation
from torch_webgpu.layout import extent

from .caches import by_default_dtype
from .forms import Forms
from .torch_abi import exclude_autocast

Kernel = Callable[..., Any]
CACHE_SIZE = 4096
MAX_MISSES = 8
"""A kernel that could not be traced so many times in a row (it waits for the device) is left alone."""


class Step(NamedTuple):
    """An operation with, for each argument, the number of what it lies in and the bytes from where that starts.

    ``pick`` gives all arguments' addresses where they start where these things start.
    """

    op: Operation
    places: tuple[int, ...]
    bytes: tuple[int, ...]
    params: tuple[int | float, ...]
    pick: Callable[[Sequence[int]], tuple[int, ...]] | None

    @classmethod
    def of(cls, op: Operation, places: Sequence[int], offsets: Sequence[int], params: tuple[int | float, ...]) -> Step:
        pick = None if any(offsets) or len(places) < 2 else itemgetter(*places)
        return cls(op, tuple(places), tuple(offsets), params, pick)

    def addresses(self, starts: Sequence[int]) -> tuple[int, ...]:
        """The arguments' addresses, given those of the things they lie in."""
        if self.pick is not None:
            return self.pick(starts)
        return tuple([starts[p] + o for p, o in zip(self.places, self.bytes)])


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
    """What operations lie in is numbered: the tensor arguments, then the fresh allocations.

    ``results``: what is returned, by number: a fresh tensor, or for ``-1 - k`` the ``k``-th tensor argument itself;
    None for None.
    """

    steps: tuple[Step, ...]
    fresh: tuple[Fresh, ...]
    results: tuple[int | None, ...]
    several: bool

    @property
    def is_single(self) -> bool:
        """Whether it is one operation on the tensor arguments as they are, and what it writes is new and the result."""
        if self.several or not len(self.steps) == len(self.fresh) == len(self.results) == 1:
            return False
        if self.results[0] is None or self.results[0] < 0:
            return False
        step = self.steps[0]
        return step.places == tuple(range(len(step.places))) and not any(step.bytes)


def traced(fn: Kernel) -> Kernel:
    """``fn``, a kernel that records nodes as its arguments' layouts and plain values tell it to, and nothing else does.

    It must return new tensors, tensor arguments or None. Calls in which it reads values back, uploads some or draws
    random numbers are not kept.
    """
    if hasattr(fn, "is_traced"):
        return fn
    traces: dict[Any, Trace] = by_default_dtype({})
    # With the device, and the operation if it is all there is; of arguments that share no memory.
    forms: Forms[tuple[Trace, int, Step | None]] = Forms()
    misses = 0

    @wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal misses
        if misses >= MAX_MISSES:
            return uncast(fn, args, kwargs)
        eng = engine()
        if args:
            for match, (trace, device, single) in forms.known.get(getattr(args[0], "shape", None), ()):
                starts = match(args, kwargs)
                if starts is not None and are_apart(starts):
                    if single is not None:
                        template = trace.fresh[0].template(eng, device)
                        return eng.append_new(single.op, starts, template, single.params)
                    with eng.lock:
                        return replay(eng, trace, args, starts, device)
        tensors: list[torch.Tensor] = []
        key = part(args, tensors), tuple([(k, part(v, tensors)) for k, v in kwargs.items()]) if kwargs else None
        with eng.lock:
            arguments = Arguments.of(eng, tensors)
            if arguments is None:
                return uncast(fn, args, kwargs)
            signature = key, arguments.aliasing, arguments.device
            found = traces.get(signature)
            if found is not None:
                return replay(eng, found, tensors, arguments.addresses, arguments.device)
            recording = Recording(eng, arguments)
            result = uncast(fn, args, kwargs)
            made = recording.finish(result)
            misses = misses + 1 if made is None else 0
            if made is not None:
                if len(traces) >= CACHE_SIZE:
                    traces.pop(next(iter(traces)))
                traces[signature] = made
                if arguments.aliasing is None:
                    single = made.steps[0] if made.is_single else None
                    forms.add(args, kwargs, (made, arguments.device, single))
            return result

    kernel.is_traced = True  # type: ignore[attr-defined]
    return kernel


def uncast(fn: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls ``fn`` without autocast for its own operations: a trace serves with and without, as CUDA's kernels do."""
    with exclude_autocast():
        return fn(*args, **kwargs)


def part(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The key of an argument: how a tensor is laid out and to be read, or the value; collects the tensors."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        # Products are among what PyTorch hands lazily conjugated tensors to.
        return value.shape, value.stride(), value.dtype, value.data_ptr() & 15, value.is_conj(), value.is_neg()
    if isinstance(value, (tuple, list)):
        return tuple([part(v, tensors) for v in value])
    # 1, 1.0 and True are equal and hash alike, but promote differently; so do 0.0 and -0.0, which are not the same.
    return value.__class__, value if value.__class__ is not float or value else str(value)


class Arguments(NamedTuple):
    """The tensor arguments of a call and where they start.

    ``aliasing``: None where each lies in an allocation of its own; else for each the first one that lies in the same,
    and how far after that it starts.
    """

    tensors: list[torch.Tensor]
    addresses: list[int]
    aliasing: tuple[Any, ...] | None
    device: int

    @staticmethod
    def of(eng: Engine, tensors: list[torch.Tensor]) -> Arguments | None:
        """None unless there are some, all of one webgpu device."""
        if not tensors:
            return None
        addresses = [t.data_ptr() for t in tensors]
        if min(addresses) < FIRST_ADDRESS:
            addresses = [address_of(t) for t in tensors]
            if min(addresses) < FIRST_ADDRESS:
                return None
        known = eng.mailbox.allocations
        device = known[addresses[0] >> ADDRESS_BITS].device
        if len(addresses) == 1:
            return Arguments(tensors, addresses, None, device)
        numbers = [a >> ADDRESS_BITS for a in addresses]
        if len(eng.live_bytes) > 1 and any(known[n].device != device for n in numbers):
            return None
        if are_apart(addresses):
            return Arguments(tensors, addresses, None, device)
        first: dict[int, int] = {}
        for k, number in enumerate(numbers):
            first.setdefault(number, k)
        aliasing = tuple([(first[n], a - addresses[first[n]]) for n, a in zip(numbers, addresses, strict=True)])
        return Arguments(tensors, addresses, aliasing, device)


def are_apart(addresses: Sequence[int]) -> bool:
    """Whether each lies in an allocation of its own."""
    if len(addresses) < 3:
        return len(addresses) == 1 or bool((addresses[0] ^ addresses[1]) >> ADDRESS_BITS)
    return len({a >> ADDRESS_BITS for a in addresses}) == len(addresses)


def replay(eng: Engine, trace: Trace, tensors: Sequence[torch.Tensor], starts: list[int], device: int) -> Any:
    """Records the trace's operations on these arguments, which start there; the caller holds the lock."""
    first = len(starts)
    made = []
    for fresh in trace.fresh:
        tensor, allocation = eng.make_with(fresh.made_from or fresh.template(eng, device))
        made.append(tensor)
        starts.append(allocation.number << ADDRESS_BITS | FIRST_BYTE)
    for step in trace.steps:
        eng.append(device, step.op, step.addresses(starts), step.params)
    results = [None if r is None else made[r - first] if r >= 0 else given(tensors, -1 - r) for r in trace.results]
    return tuple(results) if trace.several else results[0]


def given(values: Sequence[Any], k: int) -> torch.Tensor:
    """The ``k``-th tensor among a call's arguments."""
    return [v for v in values if isinstance(v, torch.Tensor)][k]


class Recording:
    """What a kernel records from here on."""

    def __init__(self, eng: Engine, arguments: Arguments) -> None:
        self.eng = eng
        self.arguments = arguments
        self.entries = eng.lane(arguments.device).entries
        self.start = len(self.entries)
        self.handovers = eng.handovers
        self.mark = eng.mailbox.mark
        self.draws = RandomState.draws

    def finish(self, result: Any) -> Trace | None:
        """The trace; None if there was a flush, a transfer, a random number, or what a trace cannot express."""
        several = isinstance(result, (tuple, list))
        results: Sequence[Any] = result if several else [result]
        if (
            RandomState.draws != self.draws
            or self.eng.handovers != self.handovers
            or not all(r is None or isinstance(r, torch.Tensor) for r in results)
        ):
            return None
        self.numbers: dict[int, int] = {}  # of what operations lie in, by allocation
        for k, address in enumerate(self.arguments.addresses):
            self.numbers.setdefault(address >> ADDRESS_BITS, k)
        self.starts = self.arguments.addresses.copy()
        self.fresh: list[Fresh] = []
        places: list[int | None] = []
        for r in results:
            if r is None:
                places.append(None)
                continue
            place = self.place_of(r)
            if place is None:
                return None
            places.append(place)
        steps = []
        known = self.eng.mailbox.allocations
        for op, addresses, params in self.entries[self.start :]:
            lie_in = [a >> ADDRESS_BITS for a in addresses]
            for number in lie_in:
                if number not in self.numbers:
                    allocation = known[number]
                    if allocation.buffer is not None or number < self.mark:
                        return None
                    self.add(allocation, Fresh((allocation.size_bytes,), torch.uint8, None))
            in_order = [self.numbers[number] for number in lie_in]
            offsets = [a - self.starts[p] for a, p in zip(addresses, in_order, strict=True)]
            steps.append(Step.of(op, in_order, offsets, params))
        return Trace(tuple(steps), tuple(self.fresh), tuple(places), several)

    def add(self, allocation: Allocation, fresh: Fresh) -> int:
        """The number of a new allocation, which the kernel made."""
        number = self.numbers[allocation.number] = len(self.starts)
        self.starts.append(allocation.address)
        self.fresh.append(fresh)
        return number

    def place_of(self, t: torch.Tensor) -> int | None:
        """The number that stands for a result, which must be an argument or new."""
        for k, argument in enumerate(self.arguments.tensors):
            if t is argument:
                return -1 - k
        allocation = self.eng.mailbox.find(t)
        if (
            allocation is None
            or allocation.number in self.numbers
            or allocation.number < self.mark
            or allocation.buffer is not None
            or t.storage_offset()
            or t.untyped_storage().nbytes() != nbytes(t)
        ):
            return None
        return self.add(allocation, Fresh(tuple(t.shape), t.dtype, t.stride()))


def nbytes(t: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last one."""
    return extent(t.shape, t.stride()) * t.element_size()
