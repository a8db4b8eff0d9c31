"""Collectives of ranks on one host, through memory that all have mapped and their GPUs have imported.

A collective goes in chunks. Each rank's GPU copies its own into slots; when all have, each GPU reads the slots of all,
and reduces them. GPUs never wait for each other: the processes do, by numbers in the shared pages that each writes when
its GPU's work is done.

A GPU has one queue here, and what is submitted last runs last. So a collective's chunks are copied when it is called,
behind what computed them and before what the program records after that, as far as slots are free. All else is done
in the order of the calls, by the thread that is to finish the collective: when its turn comes it copies the chunks that
are left, and tells the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Protocol

from torch_webgpu.engine.imported import release_host_memory, submit, wait_until
from torch_webgpu.engine.sync import pause

from .shared_board import Board, RefusedError
from .shared_check import Check
from .shared_memory import COPIED, READ, REDUCED, Peers, SharedMemory, progress
from .shared_ring import Ring
from .shared_slots import Chunked, Slot, Slots
from .timeline import ISSUED
from .timeline import READ as FIRST_COPIED
from .timeline import REDUCED as ALL_REDUCED
from .transport import IN, OUT

RELEASE_S = 2.0
"""How long it is tried to unmap memory. Else that is done when nobody has it any more."""
NOWHERE = 0
"""The slot of a chunk to which this rank gives nothing: nobody reads it."""


MoreSlots = Callable[[Slots, int], tuple[SharedMemory, Sequence[tuple[Slot, Slot]]] | None]
"""By those there are, and the device, more and their memory; None if there can be no more, on all ranks alike."""


def is_done() -> bool:
    """Of what nothing was submitted for."""
    return True


class Chunks(Protocol):
    """A collective as a link runs it.

    ``is_on_host``: its chunks are copied and reduced by the CPU. That takes less time where there are few bytes.
    """

    is_on_host: bool

    def storages(self, role: str) -> Iterable[int]:
        """Of the tensors that are read (IN), or written (OUT), by numbers that tell them apart."""

    def chunked(self) -> Sequence[Chunked]:
        """What it exchanges, tensor by tensor."""

    def read_inputs(self) -> None:
        """Waits until what is reduced on the host is there."""

    def called(self) -> str:
        """What has to be the same on all ranks. RefusedError for what no rank can do."""

    def reached(self, step: str) -> None:
        """A step was done just now."""

    def end(self) -> None:
        """Records what is to be done after the last chunk was read."""


class Underway:
    """A collective that was called and is not finished.

    ``slots``: those of the chunks whose copies are submitted. ``copies``: how many chunks are copied when the GPU has
    done what was submitted then, and whether it has.
    """

    def __init__(self, collective: Chunks) -> None:
        self.collective, self.written = collective, set(collective.storages(OUT))
        self.slots: list[int] = []
        self.copies: deque[tuple[int, Callable[[], bool]]] = deque()

    @cached_property
    def steps(self) -> list[tuple[Chunked, int]]:
        """Its chunks: of which tensor each is, and its number there."""
        return [(one, number) for one in self.collective.chunked() for number in range(one.chunks)]

    def begin_downloads(self) -> None:
        """Has the device begin to bring its inputs to the host."""
        _ = self.steps


class Link:
    """What one group's ranks, all on one host, exchange through. ``copied_ahead``: chunks, before their turn.

    ``more_slots``: makes as many slots again, and is called by all ranks together when one of them lacks some.
    """

    def __init__(self, board: Board, slots: Slots, peers: Peers, rank: int, index: int) -> None:
        self._board, self._slots, self._peers, self.rank, self.index = board, slots, peers, rank, index
        self.more_slots: MoreSlots | None = None
        self._added: list[SharedMemory] = []
        self._lacks = False
        self.ranks, self.slot_bytes = slots.ranks, slots.slot_bytes
        self._ring = Ring(slots.count, partial(board.least, READ))
        self._at_once = slots.count // 2  # GPUs copy one half while they read the other
        self._turn = threading.Condition()
        self._tickets = self._served = self._number = 0
        self._to_be_written: Counter[int] = Counter()
        self._reads: deque[tuple[int, Callable[[], bool]]] = deque()
        self._telling = threading.Lock()
        self._deadline_s: float | None = None
        self.copied_ahead = 0

    def begin(self, collective: Chunks) -> Underway:
        """A collective that is called now. Submits the copies of its chunks, while slots are free. Never waits.

        None are made of what a collective before it is still to write.
        """
        one = Underway(collective)
        with self._turn:
            waits = any(storage in self._to_be_written for storage in collective.storages(IN))
            self._to_be_written.update(one.written)
        if not waits:
            try:
                self._tell_reads()
                if collective.is_on_host:
                    one.begin_downloads()
                else:
                    self._copy(one, ahead=True)
            except BaseException as error:
                self._board.give_up(str(error) or type(error).__name__)
                raise
        return one

    def ticket(self) -> int:
        """The place of a collective that is issued now."""
        with self._turn:
            self._tickets += 1
            return self._tickets

    def run(self, ticket: int, one: Underway) -> None:
        """Runs a collective when all before it are done. RuntimeError where it, or one before it, is given up."""
        try:
            with self._turn:
                while self._served != ticket - 1 and not self._board.given_up:
                    self._turn.wait(0.05)  # which Ctrl-C ends
            self._board.look()
            self._number += 1
            one.collective.reached(ISSUED)
            self._copy(one)
            self._compare(one)
            self._exchange(one)
            if self.more_slots is not None and self._board.any_lacks(self._number):
                self._grow(self.more_slots)
        except RefusedError:  # by all ranks
            raise
        except BaseException as error:
            self._board.give_up(str(error) or type(error).__name__)
            raise
        finally:
            with self._turn:
                self._served += 1
                self._to_be_written -= Counter(one.written)
                self._turn.notify_all()

    def _copy(self, one: Underway, ahead: bool = False) -> None:
        """Submits the copies of its chunks that are left, while slots are free."""
        if one.collective.is_on_host and len(one.slots) < len(one.steps):
            one.collective.read_inputs()
        while len(one.slots) < len(one.steps):
            first = len(one.slots)
            recorded = sum(self._record_copy(one, ahead) for _ in one.steps[first : first + self._at_once])
            if len(one.slots) == first:
                return
            one.copies.append((len(one.slots), self._submitted(one) if recorded else is_done))
            self.copied_ahead += recorded if ahead else 0

    def _record_copy(self, one: Underway, ahead: bool) -> bool:
        """Records the copy of one more chunk, if there is anything to copy, and a slot is free; whether it did."""
        chunked, number = one.steps[len(one.slots)]
        slot = self._ring.take(ahead) if chunked.is_given else NOWHERE
        if slot is None:
            self._lacks |= ahead
            return False
        one.slots.append(slot)
        if chunked.is_given:
            chunked.write(self._slots.of(self.rank, slot, one.collective.is_on_host), number)
        return chunked.is_given

    def _submitted(self, one: Underway) -> Callable[[], bool]:
        """Whether what was recorded for it just now is done."""
        return is_done if one.collective.is_on_host else submit(self.index)

    def _compare(self, one: Underway) -> None:
        """Tells what is called. RefusedError if other ranks call another collective, or if this cannot be done."""
        refusal = None
        try:
            called = one.collective.called()
        except RefusedError as error:
            called, refusal = f"what is refused: {error}", error
        self._board.tell_lack(self._number, self._lacks)
        self._lacks = False
        try:
            self._board.compare(self._number, called, self._while_others_are_waited_for)
            if refusal is not None:
                raise refusal
        except RefusedError:
            for _, is_copied in one.copies:  # the next to have these slots may be the host
                wait_until(is_copied, self._while_the_adapter_is_waited_for)
            for slot, (chunked, _) in zip(one.slots, one.steps, strict=False):
                if chunked.is_given:
                    self._ring.give_back(slot)
            self._reads.append((progress(self._number + 1, 0), is_done))
            raise

    def _exchange(self, one: Underway) -> None:
        """Exchanges the chunks, as many at once as all ranks have copied."""
        number, board, done, copied = self._number, self._board, 0, 0
        while done < len(one.steps):
            self._copy(one)
            while done == copied and not one.copies:  # all ranks are in this collective, and read on
                board.wait(READ, self._ring.first_free_at(), self._while_others_are_waited_for)
                self._copy(one)
            if done == copied:
                copied = self._tell_copied(one, done)
            board.wait(COPIED, progress(number, done + 1), self._while_others_are_waited_for)
            ready = min(copied, board.steps(COPIED))
            self._read(one, done, ready)
            done = ready
        if not one.steps:
            one.collective.end()
            self._reads.append((progress(number + 1, 0), is_done))

    def _tell_copied(self, one: Underway, first: int) -> int:
        """Tells, when they are copied, where the next chunks are; how many are copied then."""
        copied, is_copied = one.copies.popleft()
        wait_until(is_copied, self._while_the_adapter_is_waited_for)
        if first == 0:
            one.collective.reached(FIRST_COPIED)
        for step in range(first, copied):
            self._board.tell_slot(self._number, step, one.slots[step])
        self._board.tell(COPIED, progress(self._number, copied))
        return copied

    def _read(self, one: Underway, first: int, end: int) -> None:
        """Makes the results of chunks that all ranks have copied, in one submission."""
        number, is_last, on_host = self._number, end == len(one.steps), one.collective.is_on_host
        chunks = [
            (
                *one.steps[step],
                [self._slots.of(*where, on_host) for where in enumerate(self._board.slots(number, step))],
            )
            for step in range(first, end)
        ]
        in_parts = [chunk for chunk in chunks if chunk[0].is_reduced_in_parts]
        for chunked, k, slots in in_parts:
            chunked.reduce_part(slots, k)
        if in_parts:
            wait_until(self._submitted(one), self._while_the_adapter_is_waited_for)
        self._board.tell(REDUCED, progress(number, end))
        if in_parts:
            self._board.wait(REDUCED, progress(number, end), self._while_others_are_waited_for)
        if is_last:
            one.collective.reached(ALL_REDUCED)
        for chunked, k, slots in chunks:
            chunked.read(slots, k)
        if is_last:
            one.collective.end()
        self._reads.append((progress(number + 1, 0) if is_last else progress(number, end), self._submitted(one)))
        for step in range(first, end):
            if one.steps[step][0].is_given:
                self._ring.lend(one.slots[step], progress(number, step + 1))

    def _grow(self, more_slots: MoreSlots) -> None:
        """Adds slots, up to the most."""
        self.more_slots = None
        added = more_slots(self._slots, self.index)
        if added is not None:
            memory, slots = added
            self._added.append(memory)
            self._ring.add(self._slots.add(slots))
            self.more_slots = more_slots

    def _tell_reads(self) -> None:
        """Tells how far the GPU has read: the others may copy into those slots again."""
        with self._telling:
            while self._reads and self._reads[0][1]():
                self._board.tell(READ, self._reads.popleft()[0])

    def _while_others_are_waited_for(self) -> None:
        self._tell_reads()
        self._board.look()

    def _while_the_adapter_is_waited_for(self) -> None:
        self._while_others_are_waited_for()
        if self._deadline_s is not None and time.perf_counter() > self._deadline_s:
            raise RuntimeError("the adapter was not done in time")

    def check(self, seconds: float) -> None:
        """Exchanges numbers that all ranks know. RuntimeError where others come, or none in so many seconds."""
        board, check = self._board, Check(self._slots, self.rank, self.index)
        usual_s = board.timeout_s
        board.timeout_s, self._deadline_s = seconds, time.perf_counter() + seconds
        self.run(self.ticket(), self.begin(check))
        check.look()
        board.timeout_s, self._deadline_s = usual_s, None

    def abort(self) -> None:
        """Has everything underway end with an error, on all ranks."""
        self._board.give_up("the process group was aborted")

    def close(self) -> None:
        """Lets the memory go. Nothing is underway."""
        self._board.give_up("the process group was destroyed")
        self._peers.close()
        with self._telling:
            self._reads.clear()
        del self._slots
        begin = time.perf_counter()
        release_host_memory(self.index)
        memories: list[Board | SharedMemory] = [self._board, *self._added]
        while (memories := [one for one in memories if not one.close()]) and time.perf_counter() - begin < RELEASE_S:
            pause(begin)  # the adapter says later that it has let the memory go
            release_host_memory(self.index)
