"""Lists of tensors: one recorded operation for all of them.

A :class:`Bundle` is a list that was looked at once: its allocations, offsets, shapes. Operations over bundles wait in a
:class:`Batch` of their own, which never exists beside ordinary nodes of the same device: whichever comes second flushes
the first. Within a batch two bundles are the same one or share no memory.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_webgpu.config import is_printed, print_stage
from torch_webgpu.lower.horizontal import Call, Chunk, Group, Limits, ListOperation, fuse_lists
from torch_webgpu.runtime.commands import Command, Dispatch

from . import causes, watch
from .flush import materialise
from .interrupt import Uninterrupted
from .many import Image, free_slots, make_tensors, new_allocations
from .tensor import LARGE_BYTES, Allocation

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Buffer, Device

    from .lane import Lane
    from .record import Engine

PLAN_CACHE_SIZE = 256
NUMPY_KINDS: dict[str, Any] = {"f": (np.float64, np.float32), "i": (np.int64, np.int32), "u": (np.int64, np.uint32)}
"""What numbers of a kind come as, and what a kernel takes: integers wrap."""

_layout_ids = itertools.count()


@dataclass(frozen=True, eq=False)
class Layout:
    """The shapes and strides of a list's tensors. There is one for each distinct combination (see ``aten``)."""

    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    numels: tuple[int, ...]
    id: int = field(default_factory=lambda: next(_layout_ids))
    images: dict[Any, Image] = field(default_factory=dict)

    @cached_property
    def is_numbers(self) -> bool:
        """Whether all are 0-dim."""
        return not any(self.shapes)


class Bundle:
    """A list of tensors of one dtype and device that start at multiples of four.

    ``shares``: some lie in one allocation, so that it can be read only.
    """

    __slots__ = (
        "__weakref__", "allocations", "check", "device", "dtype", "keys", "layout", "offset", "offsets", "shares",
    )  # fmt: skip

    def __init__(
        self, layout: Layout, dtype: torch.dtype, device: int, allocations: list[Allocation], offsets: list[int]
    ) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        self.allocations, self.offsets = allocations, offsets
        self.offset = any(offsets)
        self.keys = frozenset([a.number for a in allocations])
        self.shares = len(self.keys) < len(allocations)
        self.check: Callable[..., bool] | None = None  # whether tensors at these addresses still look like these

    @property
    def is_alive(self) -> bool:
        """Whether all its tensors' storages live."""
        return all([a.alive for a in self.allocations])  # noqa: C419  a generator takes three times as long

    @property
    def is_readable(self) -> bool:
        """Whether somebody can still read what it holds."""
        return any(a.alive for a in self.allocations)

    def settle(self, engine: Engine) -> None:
        """Makes sure that it has allocations; the caller holds the lock."""


class Intermediate(Bundle):
    """A new list that nothing but list operations has seen: without tensors, and with memory only if a pass stores it.

    ``held``: whether it is wanted, as it is until :meth:`drop`, or until :func:`make_seen` gives it tensors.
    """

    __slots__ = ("held", "image", "numbers")

    def __init__(self, layout: Layout, dtype: torch.dtype, image: Image, numbers: Sequence[int]) -> None:
        super().__init__(layout, dtype, image.device, [], [])
        self.image, self.numbers = image, numbers
        self.keys = frozenset(numbers)
        self.held = True

    @property
    def is_readable(self) -> bool:
        return self.held or any(a.alive for a in self.allocations)

    def settle(self, engine: Engine) -> None:
        if not self.allocations:
            self.allocations = new_allocations(engine.mailbox, self.image, self.numbers)
            self.offsets = [0] * len(self.allocations)
            if not self.held:
                _orphan(self.allocations)

    def drop(self) -> None:
        """Nobody wants it any more. May be called at any time, by the garbage collector."""
        if self.held:
            self.held = False
            _orphan(self.allocations)


_orphans: deque[Allocation] = deque()
"""What nobody wants and no mailbox knows of. Filled whenever something dies, emptied at a flush."""


def _orphan(allocations: Sequence[Allocation]) -> None:
    for allocation in allocations:
        allocation.alive = False
    _orphans.extend(allocations)


class Recorded(NamedTuple):
    """A list operation's bundles, and its numbers: one, or one per tuple."""

    op: ListOperation
    bundles: tuple[Bundle, ...]
    numbers: tuple[Any, ...]
    domain: Layout


class Batch:
    """List operations of one device that wait for a flush."""

    def __init__(self) -> None:
        self.calls: list[Recorded] = []
        self.bundles: dict[Bundle, int] = {}
        self.keys: set[int] = set()

    def __len__(self) -> int:
        return len(self.calls)

    def admits(self, bundles: Sequence[Bundle]) -> bool:
        """Takes bundles in; False, and nothing happens, if one shares memory with another."""
        new: list[Bundle] = []
        for bundle in bundles:
            if bundle in self.bundles or bundle in new:
                continue
            if not self.keys.isdisjoint(bundle.keys) or any(not b.keys.isdisjoint(bundle.keys) for b in new):
                return False
            new.append(bundle)
        for bundle in new:
            self.bundles[bundle] = len(self.bundles)
            self.keys |= bundle.keys
        return True

    @property
    def allocations(self) -> list[Allocation]:
        """What its operations read and write."""
        return [a for bundle in self.bundles for a in bundle.allocations]


class Picker:
    """Picks the elements of a chunk's tuples, of a list or of an array in bytes."""

    __slots__ = ("_tuples", "pick", "words")

    def __init__(self, tuples: tuple[int, ...]) -> None:
        self._tuples = tuples
        in_a_row = tuples == tuple(range(tuples[0], tuples[-1] + 1))
        part = slice(tuples[0], tuples[-1] + 1)
        self.pick: Callable[[Any], Sequence[Any]] = itemgetter(part) if in_a_row else itemgetter(*tuples)
        words = slice(4 * part.start, 4 * part.stop)
        self.words: Callable[[bytes], bytes] = itemgetter(words) if in_a_row else self._gather

    def _gather(self, array: bytes) -> bytes:
        return np.frombuffer(array, np.uint32)[list(self._tuples)].tobytes()


class Pass:
    """A group's dispatches, and the buffers that they bound the last time."""

    __slots__ = ("bound", "buffers", "chunks", "group")

    def __init__(self, group: Group, chunks: tuple[Chunk, ...]) -> None:
        self.group = group
        self.chunks = tuple([(chunk, Picker(chunk.tuples)) for chunk in chunks])
        self.buffers: list[list[Buffer]] = []
        self.bound: list[tuple[Buffer, ...]] = []

    def bind(self, buffers: list[list[Buffer]]) -> list[tuple[Buffer, ...]]:
        """Each dispatch's buffers; ``buffers`` are those of each column."""
        if buffers != self.buffers:
            shared = [column.layout == "shared" for column in self.group.body.columns]
            self.bound = [
                tuple([b for own, one in zip(buffers, shared) for b in (own if one else picker.pick(own))])
                for _, picker in self.chunks
            ]
            self.buffers = buffers
        return self.bound


class Plan(NamedTuple):
    """The passes of a recording."""

    passes: tuple[Pass, ...]


_plans: OrderedDict[Any, Plan] = OrderedDict()


def record_list(
    engine: Engine, op: ListOperation, bundles: tuple[Bundle, ...], domain: Layout, numbers: tuple[Any, ...]
) -> bool:
    """Records ``op`` over ``bundles``.

    False, and nothing is recorded, if two of them overlap, or if a plan is traced.
    """
    device = bundles[op.targets[0]].device
    if engine.capture is not None and not engine.capture.takes_lists:
        return False
    with Uninterrupted(), engine.lock:
        lane = engine.lane(device)
        if lane.entries:
            engine.flush_lane(lane, causes.LISTS_APART)
        batch = lane.batch or Batch()
        if not batch.admits(bundles):
            if not batch.calls:
                return False
            engine.flush_lane(lane, causes.LISTS_APART)
            batch = Batch()
            if not batch.admits(bundles):
                return False
        if not batch.calls:
            engine.begin(lane)
        if len(engine.lanes.busy) > 1:
            engine.settle(lane, (), [number for bundle in bundles for number in bundle.keys])
        lane.batch = batch
        engine.handovers += 1
        batch.calls.append(Recorded(op, bundles, numbers, domain))
        settings = engine.settings
        if not settings.batching or len(batch) >= settings.threshold:
            engine.flush_lane(lane, causes.full(settings.threshold) if settings.batching else causes.UNBATCHED)
        return True


def make_bundle(engine: Engine, layout: Layout, dtype: torch.dtype, device: int) -> tuple[list[torch.Tensor], Bundle]:
    """New uninitialised tensors of these shapes."""
    image = _image(engine, layout, dtype, device)
    with Uninterrupted(), engine.lock:
        _check(engine, image)
        allocations = new_allocations(engine.mailbox, image, engine.mailbox.take_numbers(len(image.sizes)))
        tensors = _make_tensors(engine, image, allocations)
    return tensors, Bundle(layout, dtype, device, allocations, [0] * len(tensors))


def make_intermediate(engine: Engine, layout: Layout, dtype: torch.dtype, device: int) -> Intermediate:
    """What :func:`make_bundle` makes, without tensors."""
    image = _image(engine, layout, dtype, device)
    with Uninterrupted(), engine.lock:
        _check(engine, image)
        return Intermediate(layout, dtype, image, engine.mailbox.take_numbers(len(image.sizes)))


def make_seen(engine: Engine, bundle: Intermediate) -> list[torch.Tensor]:
    """The tensors of an intermediate list, which is an ordinary one from now on."""
    with Uninterrupted(), engine.lock:
        bundle.settle(engine)
        tensors = _make_tensors(engine, bundle.image, bundle.allocations)
        bundle.held = False
        return tensors


def forget_dropped(engine: Engine) -> None:
    """Returns the memory of intermediate lists that nobody wants any more."""
    if _orphans:
        with Uninterrupted(), engine.lock:
            bury(engine)
            engine.sweep()


def _image(engine: Engine, layout: Layout, dtype: torch.dtype, device: int) -> Image:
    found = layout.images.get((dtype, device))
    if found is None:
        found = Image([engine.template(s, dtype, device, t) for s, t in zip(layout.shapes, layout.strides)])
        layout.images[dtype, device] = found
    return found


def _check(engine: Engine, image: Image) -> None:
    """Raises what making these tensors would raise."""
    engine.check_process()
    if image.largest_bytes > LARGE_BYTES:
        engine.check_size(image.largest_bytes, image.device)


def _make_tensors(engine: Engine, image: Image, allocations: Sequence[Allocation]) -> list[torch.Tensor]:
    """Tensors over new allocations, counted. The caller holds the lock."""
    if free_slots(engine.mailbox) < len(allocations):
        engine.reclaim()
    tensors = make_tensors(engine.mailbox, image, allocations)
    device = image.device
    engine.live_bytes[device] += image.size_bytes
    # As for single tensors: those that died since the last flush still count.
    if image.largest_bytes > LARGE_BYTES and engine.live_bytes[device] > engine.peak_bytes[device]:
        engine.collect()
    return tensors


def flush_lists(engine: Engine, lane: Lane) -> None:
    """Submits a lane's list operations. Only for :meth:`Engine.flush_lane`, which does what is to be done around it."""
    batch, lane.batch = lane.batch, None
    if batch is None or not batch.calls:
        return
    device = engine.devices[lane.device]
    plan = plan_of(engine, batch, device, engine.lanes.needed_beside(lane))
    settle(engine, batch, plan)
    if engine.capture is not None and engine.capture.device is device:
        engine.capture.run_lists(batch, plan)
    elif watch.is_watched(device):
        with watch.observing(device, f"{len(batch)} operations over lists"):
            execute_lists(device, batch, plan, device.submit)
    else:
        execute_lists(device, batch, plan, device.submit)


def settle(engine: Engine, batch: Batch, plan: Plan) -> None:
    """Gives the lists that a plan needs in memory allocations, as far as they have none."""
    bundles = list(batch.bundles)
    for part in plan.passes:
        for number in part.group.lists:
            bundles[number].settle(engine)
    bury(engine)


def bury(engine: Engine) -> None:
    """Hands on what nobody wants any more; the caller holds the lock."""
    while _orphans:
        engine.dying.append(_orphans.popleft())


def plan_of(engine: Engine, batch: Batch, device: Device, needed: frozenset[int]) -> Plan:
    """The plan of a recording, found again by its operations, shapes, and which lists can still be read.

    ``needed``: the numbers of allocations that others will read.
    """
    numbers = batch.bundles
    dead = frozenset([n for b, n in numbers.items() if not b.is_readable and needed.isdisjoint(b.keys)])
    offsets = frozenset([n for bundle, n in numbers.items() if bundle.offset])
    buffers = int(device.limits["max-storage-buffers-per-shader-stage"])
    limits = Limits(buffers, engine.settings.fusion_window if engine.settings.fusion else 1)
    calls = tuple([(c.op.id, tuple([numbers[b] for b in c.bundles]), c.domain.id) for c in batch.calls])
    key = (calls, dead, offsets, limits)
    found = _plans.get(key)
    if found is not None:
        engine.planner.hits += 1
        _plans.move_to_end(key)
        return found
    engine.planner.misses += 1
    recorded = [Call(c.op, lists, domain) for c, (_, lists, domain) in zip(batch.calls, calls)]
    numels = {c.domain.id: c.domain.numels for c in batch.calls}
    groups = fuse_lists(recorded, dead, offsets, limits)
    found = Plan(tuple([Pass(g, g.chunks(numels[g.domain], buffers)) for g in groups]))
    _plans[key] = found
    if len(_plans) > PLAN_CACHE_SIZE:
        _plans.popitem(last=False)
    return found


def execute_lists(device: Device, batch: Batch, plan: Plan, submit: Callable[[list[Command]], None]) -> None:
    """Runs a plan; an error becomes that of the written tensors which had no value, and is raised at the end."""
    bundles = list(batch.bundles)
    commands: list[Command] = []
    failed: list[Exception] = []
    new: list[Allocation] = []
    trace = is_printed("record")
    for part in plan.passes:
        group = part.group
        columns = [bundles[n] for n in group.lists]
        if trace:
            print_stage("record", f"lists of {len(columns[0].allocations)} on webgpu:{device.index}: {group.body}")
        fresh = [a for n in group.written for a in bundles[n].allocations if a.buffer is None]
        try:
            commands += encode_pass(device, batch, part, columns)
            new += fresh
        except Exception as error:
            failed.append(poison(fresh, error))
    try:
        submit(commands)
    except Exception as error:
        failed.append(poison(new, error))
    if failed:
        raise failed.pop(0)


def poison(allocations: Sequence[Allocation], error: Exception) -> Exception:
    """Makes ``error`` what reading these allocations raises."""
    for allocation in allocations:
        allocation.error = copy(error)
    return error


def as_parameters(numbers: Any, kind: str) -> bytes:
    """One number, or each tuple's, in the words that a kernel takes."""
    wide, narrow = NUMPY_KINDS[kind]
    return np.asarray(numbers, wide).astype(narrow).tobytes()


def encode_pass(device: Device, batch: Batch, part: Pass, columns: Sequence[Bundle]) -> list[Command]:
    """The dispatches of one pass."""
    body = part.group.body
    buffers: list[list[Buffer]] = [
        [a.buffer if a.buffer is not None and a.error is None else materialise(device, a) for a in bundle.allocations]
        for bundle in columns
    ]
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        numbers = [
            (number.each, as_parameters(batch.calls[call].numbers[k], number.kind))
            for number, (call, k) in zip(body.numbers, part.group.numbers, strict=True)
        ]
    offsets = [
        (column.layout != "shared", np.array(bundle.offsets, np.uint32).tobytes())
        for column, bundle in zip(body.columns, columns)
        if column.offset
    ]
    commands: list[Command] = []
    for (chunk, picker), bound in zip(part.chunks, part.bind(buffers)):
        words = picker.words
        params = [words(value) if each else value for each, value in numbers]
        params.append(chunk.sizes)
        params += [words(value) if each else value for each, value in offsets]
        commands.append(Dispatch(chunk.kernel, bound, b"".join(params), chunk.grid))
    return commands
