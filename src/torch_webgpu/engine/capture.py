"""Captures: while one is underway, what is flushed for its device becomes a graph instead of running.

A graph is the executables of its flushes in order, over the buffers they had: replaying it runs the same kernels on
the same memory. That memory is the graph's as long as it lives. What changes between replays are the contents of
tensors from outside, and the places in the streams of random numbers, which go on from replay to replay as in eager
mode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.plan import WORD_BYTES, whole_words
from torch_webgpu.runtime.commands import Command, CopyBuffer

from . import flush_reason
from .executable import Executable, Scalars
from .flush import materialise
from .generators import RandomState, RandomWord, default_state, random_words
from .graph_memory import PoolHandle, Reservation
from .interrupt import Uninterrupted

if TYPE_CHECKING:
    from torch_webgpu.runtime.captured_graph import EncodedGraph
    from torch_webgpu.runtime.observer import Observer
    from torch_webgpu.runtime.runtime import Device

    from .record import Engine
    from .recording import Recording
    from .tensor import Allocation

_write_word = struct.Struct("<I").pack_into


class Capture:
    """A capture underway on one device. Who calls ``run…``, ``write`` or ``refuse`` holds the engine's lock."""

    def __init__(self, engine: Engine, device: Device, handle: PoolHandle) -> None:
        self.engine = engine
        self.device = device
        self.handle = handle
        self.error: Exception | None = None  # what made the capture worthless
        self._memory = Reservation(device, engine.graphs.pool(handle, device))
        self._calls: list[GraphCall] = []
        self._drawn: dict[RandomState, int] = {}
        default_state(device.index)  # is made at its first use, which is not to happen here
        self._settings = RandomState.settings
        self._inputs: dict[int, Allocation] = {}
        self._allocated: dict[int, Allocation] = {}  # what got its memory in this capture
        self._older = frozenset(engine.mailbox.allocations)  # by number: what needs no value from it

    @classmethod
    def begin(cls, engine: Engine, index: int, handle: PoolHandle | None) -> Capture:
        """Starts a capture, after everything recorded so far. RuntimeError if one is underway."""
        with Uninterrupted(), engine.lock:
            if engine.capture is not None:
                raise RuntimeError(f"a graph is being captured already, on webgpu:{engine.capture.device.index}")
            engine.flush(flush_reason.CAPTURE)
            engine.raise_pending()
            capture = cls(engine, engine.device(index), handle or engine.graphs.new_handle())
            capture.device.allocate_from(capture._memory.pool)
            engine.capture = capture
            return capture

    # What happens meanwhile

    def run(self, recording: Recording) -> None:
        """Takes in a flush of the captured device. Its errors end the capture."""
        cached = self.engine.plan_of(recording, self.device)
        memory = recording.memory(cached.lists)
        with self._taking_in(memory):
            if self.error is None and not cached.is_empty:
                executable = cached.bind(self.device)
                executable.check(memory)
                starts, scalars = recording.all_starts(cached.lists), recording.scalars
                made = self.device.with_room(executable.commands, memory, starts, scalars)
                self._calls.append(GraphCall(executable, made, random_words_of(executable, scalars)))

    @contextmanager
    def _taking_in(self, allocations: Iterable[Allocation]) -> Iterator[None]:
        """Around what takes in operations over these allocations."""
        for allocation in allocations:
            if allocation.buffer is None:
                self._allocated[id(allocation)] = allocation
            elif id(allocation) not in self._allocated:
                self._inputs[id(allocation)] = allocation
                self._memory.pin(allocation.buffer)
        if self.error is not None:
            self._poison()
        try:
            yield
        except Exception as error:
            self.invalidate(error)
            raise

    def stream_words(self, state: RandomState, blocks: int) -> list[RandomWord]:
        with self.engine.lock:
            if state.set_at > self._settings:
                # Eager steps would seed it again and again.
                self.refuse(self.device.index, "a random generator that is drawn from cannot be made or seeded")
            ahead = self._drawn.get(state, 0)
            self._drawn[state] = ahead + blocks
            state.captured = True
            state.count_draw()
        return random_words(state, ahead)

    def write(self, allocation: Allocation, offset_bytes: int, data: memoryview, numel: int) -> bool:
        """Makes every replay write ``data``, one number, at this place, after what was recorded: it is frozen into the
        graph, like any Python number.
        """
        if numel > 1:
            self.refuse(self.device.index, "a CPU tensor cannot be copied to the device")
        words = bytes(data).ljust(whole_words(len(data)), b"\0")
        self.engine.flush(flush_reason.CAPTURE, self.device.index)
        with self._taking_in([allocation]):
            if self.error is None:
                target, source = materialise(self.device, allocation), self._memory.constant(len(words))
                self.device.upload(source, 0, words)
                self._calls.append(GraphCall(None, [CopyBuffer(source, 0, target, offset_bytes, len(words))], []))
        return True

    def may_move(self, allocations: Sequence[Allocation]) -> bool:
        """No: a graph runs over the memory that it was captured over."""
        return False

    def refuse(self, index: int, what: str) -> None:
        """Ends the capture and raises, if it is on this device: ``what`` cannot be part of a graph."""
        if index == self.device.index:
            error = RuntimeError(
                f"{what} while a graph is being captured on webgpu:{index}: what is captured runs at the replays, not "
                "now. The capture is over; do this before or after it"
            )
            self.invalidate(error)
            raise error

    # Its end

    def end(self, instantiate: bool = True) -> CapturedGraph:
        """The graph. RuntimeError, or what went wrong now, for a capture that came to nothing."""
        with Uninterrupted(), self.engine.lock:
            if self.engine.capture is not self:
                raise RuntimeError("this capture is over")
            try:
                self.engine.flush(flush_reason.CAPTURE, self.device.index)
                if self.error is not None:
                    raise RuntimeError(f"the capture failed: {self.error}") from self.error
                graph = CapturedGraph(self)
                if instantiate:
                    graph.instantiate()
                return graph
            except BaseException as error:
                self.invalidate(error if isinstance(error, Exception) else RuntimeError("interrupted"))
                raise
            finally:
                self._close()

    def release(self) -> None:
        """Ends it without a graph, if it is underway."""
        with Uninterrupted(), self.engine.lock:
            if self.engine.capture is self:
                self.invalidate(RuntimeError("nobody ended it"))
                self.engine.flush(flush_reason.CAPTURE, self.device.index)
                self._close()

    def discard(self) -> None:
        """:meth:`release`, soon. May be called anywhere."""
        self.engine.graphs.discarded.append(self)

    def invalidate(self, error: Exception) -> None:
        """Forgets what was captured. Tensors that have no value without it raise an error when they are read.

        The capture goes on until it is ended, so that nothing of the captured program runs.
        """
        if self.error is not None:
            return
        self.error = copy(error)  # without the frames of the traceback, and their tensors
        self._poison()
        self._calls, self._inputs = [], {}

    def _poison(self) -> None:
        poison = RuntimeError(f"this tensor belongs to a capture that failed: {self.error}")
        self.engine.relocations += 1
        for allocation in self._allocated.values():
            if allocation.number not in self._older:
                allocation.error = poison
            if allocation.buffer is not None:
                self.device.release(allocation.buffer)
                allocation.buffer = None
        self._allocated = {}

    def _close(self) -> None:
        self.engine.capture = None
        for state in self._drawn:
            state.captured = False
        if self.device.has_pool(self._memory.pool):
            self.device.allocate_from(None)
            if self.error is not None:
                self._memory.release()


class GraphCall(NamedTuple):
    """One call of a captured graph: an executable over the memory and the parameters that it was captured with; without
    one, a copy of what the host wrote. ``random_words``: the command, the byte of its parameters, what belongs there.
    """

    executable: Executable | None
    commands: list[Command]
    random_words: list[tuple[int, int, RandomWord]]


def random_words_of(executable: Executable, scalars: Scalars) -> list[tuple[int, int, RandomWord]]:
    """Which parameters of an executable's commands are numbers of a random stream: see :class:`GraphCall`."""
    return [
        (command, byte + position * WORD_BYTES, number)
        for command, byte, _, row, parts in executable.scalar_words
        for position, number in enumerate(scalars[row][parts])
        if isinstance(number, RandomWord)
    ]


class CapturedGraph:
    """A graph that can be replayed: a list of executables with their arguments. Every method is thread-safe."""

    def __init__(self, capture: Capture) -> None:
        self._engine = capture.engine
        self._device = capture.device
        self._memory: Reservation | None = capture._memory
        self.calls = capture._calls
        self._drawn = capture._drawn
        self._inputs = list(capture._inputs.values())
        self._encoded: EncodedGraph | None = None
        self._random_parameters: list[tuple[bytearray | memoryview, int, RandomWord]] = []

    def instantiate(self) -> EncodedGraph:
        """Prepares the replays: compiles what is not compiled, makes bind groups."""
        with Uninterrupted(), self._engine.lock:
            if self._memory is None:
                raise RuntimeError("the graph was reset")
            if self._encoded is None:
                encoded = self._encoded = self._device.encode_graph(self.commands)
                starts = accumulate([len(call.commands) for call in self.calls], initial=0)
                self._random_parameters = [
                    (*encoded.parameter(start + command, byte), word)
                    for start, call in zip(starts, self.calls)
                    for command, byte, word in call.random_words
                ]
            return self._encoded

    @property
    def commands(self) -> list[Command]:
        """What its calls come down to, with the parameters that they were captured with."""
        return [command for call in self.calls for command in call.commands]

    @property
    def dead_inputs(self) -> int:
        """How many tensors from outside that the graph uses have died since."""
        with self._engine.lock:
            self._engine.collect()
            return sum(not allocation.alive for allocation in self._inputs)

    def replay(self) -> None:
        """Submits the graph after everything recorded so far, without waiting for it."""
        engine, device = self._engine, self._device
        with Uninterrupted(), engine.lock:
            engine.check_process()
            engine.refuse("a graph cannot be replayed", device.index)
            if engine.error is not None:
                engine.raise_pending()
            if engine.lanes.busy:
                engine.flush(flush_reason.REPLAY, device.index)
            encoded = self._encoded or self.instantiate()
            if self._random_parameters:  # takes the next stretch of every stream the graph draws from
                start = {state: state.reserve(blocks) for state, blocks in self._drawn.items()}
                for data, byte, word in self._random_parameters:
                    _write_word(data, byte, word.source.at(*start[word.state]))
            device.replay(encoded, None if device.observer is None else self._shown(device.observer, encoded))
            engine.backpressure.submitted(device)

    def _shown(self, observer: Observer, encoded: EncodedGraph) -> list[Command]:
        """The commands of the next replay, after an observer was told what they are part of."""
        commands = encoded.current()
        start = 0
        for call in self.calls:
            stop = start + len(call.commands)
            if call.executable is not None:
                call.executable.show(observer, commands[start:stop])
            start = stop
        return commands

    def release(self) -> None:
        """Gives the graph's memory back; tensors that are still there keep theirs."""
        with Uninterrupted(), self._engine.lock:
            memory, self._memory = self._memory, None
            encoded, self._encoded = self._encoded, None
            if memory is not None and self._device.has_pool(memory.pool):
                if encoded is not None:
                    encoded.release()
                memory.release()
            self.calls, self._inputs, self._random_parameters = [], [], []

    def discard(self) -> None:
        """:meth:`release`, soon. May be called anywhere."""
        self._engine.graphs.discarded.append(self)
