"""Recipes: what a call of an operator records, relative to its arguments, so that the next one like it runs nothing.

An :class:`Excerpt` makes one of what a kernel records while it runs; kernels that know theirs write it down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torch_webgpu.ir.operation import ForEach, Operation
from torch_webgpu.layout import extent

from . import flush_reason
from .generators import RandomState
from .record import engine
from .settings import UNBOUNDED
from .store import address_of
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Template

if TYPE_CHECKING:
    from .lane import Entry
    from .record import Engine

Params = tuple[int | float, ...]
Aliasing = tuple[tuple[int, int], ...]
RunFunction = Callable[[Sequence[Any], list[int]], Any]


class Instruction(NamedTuple):
    """An operation with, for each of its arguments, the number of what it lies in and the bytes from where that starts.

    ``pick`` gives all arguments' addresses where they start where these things start.
    """

    op: Operation
    slots: tuple[int, ...]
    offsets: tuple[int, ...]
    params: Params
    pick: Callable[[Sequence[int]], tuple[int, ...]] | None

    @classmethod
    def of(
        cls, op: Operation, slots: Sequence[int], params: Params = (), offsets: Sequence[int] | None = None
    ) -> Instruction:
        offsets = offsets or [0] * len(slots)
        pick = None if any(offsets) or len(slots) < 2 else itemgetter(*slots)
        return cls(op, tuple(slots), tuple(offsets), params, pick)

    def addresses(self, starts: Sequence[int]) -> tuple[int, ...]:
        """The arguments' addresses, given those of the things they lie in."""
        if self.pick is not None:
            return self.pick(starts)
        return tuple([starts[p] + o for p, o in zip(self.slots, self.offsets)])


MANY_INSTRUCTIONS = 32
"""From here on a recipe begins a batch of its own (:func:`begin_batch`)."""


def begin_batch(eng: Engine, device: int, operator: str) -> None:
    """Ends the calling thread's batch before an operator of many kernels, unless the program says where batches end.

    Its kernels are much alike, so that nothing in them tells where a batch ended in the last call. Begun at its start,
    batches end at the same places every time, and have plans.
    """
    with eng.lock:
        lane = eng.lane(device)
        if lane.entries and eng.settings.threshold < UNBOUNDED:
            eng.flush_lane(lane, flush_reason.many_kernels(operator))


@dataclass(eq=False, slots=True)
class Recipe:
    """What a call records. What operations lie in is numbered: the call's tensors, then the fresh ones.

    ``results``: what is returned: the number of a fresh tensor among these, or for ``-1 - p`` the call's ``p``-th
    argument itself; None for None. ``numbers``: what gives the parameters of the only instruction, given the call's
    arguments; where it is None they are the same each time. ``aliasing``: which memory the tensors must share
    (:func:`aliasing_of`); None where that does not matter, or where a single operation writes into one of them:
    what it reads may lie exactly there, but not partly.

    ``run(arguments, starts)`` records it for a call whose tensors start at these addresses and returns its results; or
    what ``overlapping(arguments)`` does, by default nothing, for tensors that do not share memory so. ``starts`` is
    used up.
    """

    device: int
    n_tensors: int
    instructions: tuple[Instruction, ...]
    fresh: tuple[Template, ...]
    results: tuple[int | None, ...]
    several: bool = False
    numbers: Callable[[Sequence[Any]], Params] | None = None
    aliasing: Aliasing | None = None
    overlapping: Callable[[Sequence[Any]], Any] = lambda values: NotImplemented
    run: RunFunction = field(init=False)

    def __post_init__(self) -> None:
        self.run = _only_new(self) or _only_over(self) or _any(self)


def _any(recipe: Recipe) -> RunFunction:
    """For every other recipe."""
    eng, device, numbers, aliasing = engine(), recipe.device, recipe.numbers, recipe.aliasing
    several, overlapping = recipe.several, recipe.overlapping
    instructions = [(i.op, i.pick or i.addresses, i.params) for i in recipe.instructions]
    is_long = len(instructions) >= MANY_INSTRUCTIONS
    returned_numbers = sorted({r for r in recipe.results if r is not None and r >= 0})
    fresh = [(template, k in returned_numbers) for k, template in enumerate(recipe.fresh)]
    results = [r if r is None or r < 0 else returned_numbers.index(r) for r in recipe.results]
    single = results[0] if len(results) == 1 and not several else None

    def run(values: Sequence[Any], starts: list[int]) -> Any:
        if aliasing is not None and aliasing_of(starts) != aliasing:
            return overlapping(values)
        varying = None if numbers is None else numbers(values)
        created, temporaries = [], []
        with eng.lock:
            if is_long:
                begin_batch(eng, device, instructions[-1][0].name)
            try:
                for template, is_returned in fresh:
                    if is_returned:
                        tensor, allocation = eng.make_with(template)
                        created.append(tensor)
                    else:  # nobody sees it: it takes no tensor
                        allocation = eng.make_temporary(template)
                        temporaries.append(allocation)
                    starts.append(allocation.number << ADDRESS_BITS | FIRST_BYTE)
                for op, addresses, params in instructions:
                    eng.append(device, op, addresses(starts), params if varying is None else varying)
            finally:
                if temporaries:
                    eng.end_temporaries(temporaries)
        if single is not None:
            return created[single] if single >= 0 else values[-1 - single]
        returned = [None if r is None else created[r] if r >= 0 else values[-1 - r] for r in results]
        return tuple(returned) if several else returned[0]

    return run


def _only_new(recipe: Recipe) -> RunFunction | None:
    """For the commonest recipe: one operation on the tensors in order, whose result is the only fresh one."""
    if recipe.several or recipe.aliasing is not None or len(recipe.instructions) != 1 or recipe.results != (0,):
        return None
    (instruction,) = recipe.instructions
    if instruction.slots != tuple(range(recipe.n_tensors + 1)) or any(instruction.offsets) or len(recipe.fresh) != 1:
        return None
    eng, device, (template,), numbers = engine(), recipe.device, recipe.fresh, recipe.numbers
    op, params = instruction.op, instruction.params

    def run(values: Sequence[Any], starts: list[int]) -> torch.Tensor:
        own = params if numbers is None else numbers(values)
        with eng.lock:
            tensor, allocation = eng.make_with(template)
            starts.append(allocation.number << ADDRESS_BITS | FIRST_BYTE)
            eng.append(device, op, tuple(starts), own)
            return tensor

    return run


def _only_over(recipe: Recipe) -> RunFunction | None:
    """For one operation that writes into one tensor of the call, and returns one of them. Inputs may lie exactly there
    if they look the same, unless all tensors must be apart.
    """
    if recipe.several or recipe.aliasing or len(recipe.instructions) != 1 or recipe.fresh:
        return None
    (instruction,), (result,), n = recipe.instructions, recipe.results, recipe.n_tensors
    op, params, slots = instruction.op, instruction.params, instruction.slots
    if result is None or op.n_outputs != 1 or any(instruction.offsets) or (recipe.aliasing is not None and n > 2):
        return None
    eng, device, numbers, position = engine(), recipe.device, recipe.numbers, -1 - result
    target, addresses, overlapping = slots[-1], instruction.pick or instruction.addresses, recipe.overlapping
    alike = frozenset() if recipe.aliasing is not None else {k for k, _ in op.alike}
    others = [(slot, k in alike) for k, slot in enumerate(slots[:-1]) if slot != target]

    def run(values: Sequence[Any], starts: list[int]) -> Any:
        written = starts[target]
        for slot, may_lie_there in others:
            start = starts[slot]
            if not (start ^ written) >> ADDRESS_BITS and not (may_lie_there and start == written):
                return overlapping(values)
        own = params if numbers is None else numbers(values)
        with eng.lock:
            eng.append(device, op, addresses(starts), own)
        return values[position]

    return run


def aliasing_of(addresses: Sequence[int]) -> Aliasing:
    """For each address the first one that lies in the same allocation, and how many bytes after that it is.

    Empty where each lies in an allocation of its own.
    """
    if len(addresses) == 2:
        apart = (addresses[0] ^ addresses[1]) >> ADDRESS_BITS != 0
    else:
        apart = len({a >> ADDRESS_BITS for a in addresses}) == len(addresses)
    if apart:
        return ()
    numbers = [a >> ADDRESS_BITS for a in addresses]
    first = [numbers.index(number) for number in numbers]
    return tuple([(k, a - addresses[k]) for k, a in zip(first, addresses, strict=True)])


class Excerpt:
    """What a function records for a device. Batches end meanwhile where they would otherwise."""

    def __init__(self, eng: Engine, device: int, starts: Sequence[int]) -> None:
        """``starts``: the addresses of the tensors that the recipe is to be relative to."""
        self._eng = eng
        self._device = device
        self._aliasing = aliasing_of(starts)
        self._n_tensors = len(starts)
        self._starts = list(starts)  # of what operations lie in, by its number
        self._numbers: dict[int, int] = {}  # of what operations lie in, by allocation
        for k, address in enumerate(starts):
            self._numbers.setdefault(address >> ADDRESS_BITS, k)
        self._fresh: list[Template] = []
        self._instructions: list[Instruction] = []
        self._returned: set[int] = set()  # allocations of results
        self._is_repeatable = True

    def run(self, fn: Callable[[], Any]) -> Any:
        """What ``fn()`` returns, while no other thread records anything."""
        eng = self._eng
        with eng.lock:
            lane = eng.lane(self._device)
            self._first, self._mark = len(lane.entries), eng.mailbox.mark
            handovers, draws = eng.handovers, RandomState.draws
            try:
                lane.listeners.append(self._take)
                result = fn()
                self._take(lane.entries)
            finally:
                if self._take in lane.listeners:
                    lane.listeners.remove(self._take)
            self._is_repeatable &= eng.handovers == handovers
            self._has_drawn = RandomState.draws != draws
            return result

    def recipe(
        self, values: Sequence[Any], result: Any, numbers: Callable[[Sequence[Any]], Params] | None = None
    ) -> Recipe | None:
        """The recipe of a call of ``values`` that returned ``result``.

        None if something was read, uploaded or drawn from a random stream, and where the result is neither new nor one
        of ``values``. With ``numbers``, which may draw them, it must have been one operation.
        """
        if self._has_drawn if numbers is None else len(self._instructions) != 1:
            return None
        several = isinstance(result, (tuple, list))
        given = result if several else [result]
        if not all(r is None or isinstance(r, torch.Tensor) for r in given):
            return None
        results = tuple([None if r is None else self._place(r, values) for r in given])
        n = self._n_tensors
        writes = any(slot < n for i in self._instructions for slot in i.slots[i.op.n_inputs :])
        aliasing = self._aliasing if self._aliasing or writes else None
        if not self._is_repeatable:
            return None
        instructions, fresh = tuple(self._instructions), tuple(self._fresh)
        return Recipe(self._device, n, instructions, fresh, results, several, numbers, aliasing)

    def _take(self, entries: Sequence[Entry]) -> None:
        """Keeps what was recorded before it is submitted, and what of it died is forgotten."""
        for op, addresses, params in entries[self._first :]:
            if isinstance(op.body, ForEach):
                self._is_repeatable = False  # its addresses are lists'
                continue
            for address in addresses:
                if address >> ADDRESS_BITS not in self._numbers:
                    size = self._eng.mailbox.allocations[address >> ADDRESS_BITS].size_bytes
                    self._add(address >> ADDRESS_BITS, self._eng.template((size,), torch.uint8, self._device))
            slots = [self._numbers[address >> ADDRESS_BITS] for address in addresses]
            offsets = [a - self._starts[p] for a, p in zip(addresses, slots, strict=True)]
            self._instructions.append(Instruction.of(op, slots, params, offsets))
        self._first = 0

    def _add(self, allocation: int, template: Template) -> None:
        """Gives an allocation, which must have been made meanwhile, the next number."""
        self._is_repeatable &= allocation >= self._mark
        self._numbers[allocation] = len(self._starts)
        self._starts.append(allocation << ADDRESS_BITS | FIRST_BYTE)
        self._fresh.append(template)

    def _place(self, t: torch.Tensor, values: Sequence[Any]) -> int:
        """What stands for a result (see :class:`Recipe`), which must be an argument itself or all of a new tensor."""
        for p, value in enumerate(values):
            if t is value:
                return -1 - p
        start, size = address_of(t), extent(t.shape, t.stride()) * t.element_size()
        allocation = start >> ADDRESS_BITS
        is_whole = (start & OFFSET_MASK) == FIRST_BYTE and t.untyped_storage().nbytes() == size
        self._is_repeatable &= is_whole and not (t.is_conj() or t.is_neg())
        template = self._eng.template(t.shape, t.dtype, self._device, t.stride())
        if allocation not in self._numbers:
            self._add(allocation, template)
        slot = self._numbers[allocation] - self._n_tensors
        # Neither a view of an argument nor of another result.
        self._is_repeatable &= slot >= 0 and allocation not in self._returned
        if slot >= 0:
            self._fresh[slot] = template
        self._returned.add(allocation)
        return slot
