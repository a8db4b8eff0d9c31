"""Executables: plans bound to a device, with everything worked out that runs over other tensors share.

Which buffers a dispatch binds, and when memory is taken and given back, are look-ups by number. When the pool gives an
executable buffers that it had before, as it does in a loop, only the parameters that changed are written, and the
commands are encoded as they were.

An executable numbers its memory by *slots*: the plan's arguments in their order, then the memory that it takes for a
run, then the device's error flags.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_webgpu.errors import OutOfMemoryError, RequirementError, WebGPUError
from torch_webgpu.ir.operation import remember_names
from torch_webgpu.plan import WORD_BYTES, Clear, Offset, Plan, Random, Scalar, Step, touched
from torch_webgpu.runtime import commands
from torch_webgpu.wgsl.kernel import Kernel

if TYPE_CHECKING:
    from torch_webgpu.runtime.buffers import Exchange
    from torch_webgpu.runtime.commands import Command
    from torch_webgpu.runtime.observer import Observer
    from torch_webgpu.runtime.opened import Opened
    from torch_webgpu.runtime.runtime import Buffer, Device

    from .tensor import Allocation


class _Dispatch(NamedTuple):
    """A dispatch over buffers by slot, its parameters those that are always the same, the others zero."""

    kernel: Kernel
    buffers: Callable[[Sequence[Any]], tuple[Any, ...]]
    words: bytes
    grid: tuple[int, int, int]


class _Clear(NamedTuple):
    """Zeros in the first bytes of the buffer in a slot."""

    slot: int
    size_bytes: int


class _OffsetWord(NamedTuple):
    """A parameter of command ``command``, at ``byte``, that says where a tensor starts: see :class:`plan.Offset`."""

    command: int
    byte: int
    tensor: int
    shift: int
    ahead: int


class ScalarWords(NamedTuple):
    """Parameters of command ``command`` from ``byte`` on: scalars ``parts`` of row ``row``. ``write`` packs them."""

    command: int
    byte: int
    write: Callable[..., None]
    row: int
    parts: slice


class BoundMemory(NamedTuple):
    """What a run finds: the buffers of all slots, as far as they have memory, and the arguments that it uses and that
    have none, by slot, with their sizes in bytes.
    """

    buffers: list[Buffer | None]
    missing: list[tuple[int, int]]


Scalars = Sequence[Sequence[int | float]]
"""The scalars of a run, in rows: those of each recorded operation."""
_buffer_of, _size_of, _error_of = attrgetter("buffer"), attrgetter("size_bytes"), attrgetter("error")
_write_word = struct.Struct("<I").pack_into


class Executable:
    """A plan on one device. ``widths``: how many scalars each row of a run's scalars has.

    The memory of arguments with the role temporary, and of those that are donated, goes back after their last step.
    Raises RequirementError where the device lacks what the plan requires.
    """

    def __init__(self, plan: Plan, device: Device, widths: Sequence[int] = ()) -> None:
        if lacks := plan.requires.missing(device.target):
            raise RequirementError(
                f"webgpu:{device.index} ({device.name}) cannot run this plan: it needs {'; '.join(lacks)}"
            )
        remember_names(plan.operators)
        self.plan = plan
        self._device = device
        self._has_run = False
        buffers, n_arguments = plan.buffers, len(plan.arguments)
        arguments = set(plan.arguments)
        temporaries = [n for n, b in enumerate(buffers) if b.role != "errors" and n not in arguments]
        flags = [n for n, b in enumerate(buffers) if b.role == "errors"]
        slots = {number: slot for slot, number in enumerate((*plan.arguments, *temporaries, *flags))}
        self._temporaries = {slots[n]: buffers[n].size_bytes for n in temporaries}
        self._no_temporaries = [None] * len(temporaries)
        errors = n_arguments + len(temporaries)
        lifetimes = {slots[n]: ends for n, ends in plan.lifetimes.items() if slots[n] < errors}
        lost = {slots[n] for n in plan.arguments if buffers[n].role == "temporary" or buffers[n].donated}
        self._used = tuple([slot for slot in lifetimes if slot < n_arguments])
        self._lost = tuple([slot for slot in self._used if slot in lost])
        self._takes: list[tuple[int, bool, int]] = []  # what memory is needed for, or not any more, by which step
        for number, step in enumerate(plan.steps):
            used = [slot for slot in dict.fromkeys([slots[n] for n in touched(step)]) if slot in lifetimes]
            self._takes += [(slot, True, number) for slot in used if lifetimes[slot][0] == number]
            ended = [slot for slot in used if lifetimes[slot][1] == number and (slot >= n_arguments or slot in lost)]
            self._takes += [(slot, False, number) for slot in ended]
        self._may_flag = any(slots[n] == errors for step in plan.steps for n in touched(step))
        self._gives_back = any(not taken for _, taken, _ in self._takes)
        self._commands = [_command(plan, step, slots) for step in plan.steps]
        self._offset_words: list[_OffsetWord] = []
        self.scalar_words: list[ScalarWords] = []
        self._random_words: list[tuple[int, int, Random]] = []  # the command, the byte of its parameters
        self._find_words(plan, widths)
        self._missing: list[tuple[int, int]] = []  # arguments that had no memory the last time, and their sizes
        self._memory: list[Exchange] | None = None  # of that run

    def _find_words(self, plan: Plan, widths: Sequence[int]) -> None:
        """Where the parameters lie that are only known at a run, and what they come from."""
        numbers = [(row, part) for row, width in enumerate(widths) for part in range(width)]
        scalars: list[tuple[int, int, int, int]] = []
        for number, position, word in plan.variable_words():
            byte = position * WORD_BYTES
            if isinstance(word, Scalar):
                scalars.append((number, position, *numbers[word.index]))
            elif isinstance(word, Offset):
                self._offset_words.append(_OffsetWord(number, byte, word.tensor, word.shift, word.ahead))
            else:
                self._random_words.append((number, byte, word))
        for run in in_a_row(scalars):
            number, position, row, part = run[0]
            step = plan.steps[number]
            assert isinstance(step, Step)
            formats = [plan.word_format(step, at)[1:] for _, at, _, _ in run]
            write = struct.Struct("<" + "".join(formats)).pack_into
            parts = slice(part, part + len(run))
            self.scalar_words.append(ScalarWords(number, position * WORD_BYTES, write, row, parts))

    def check(self, allocations: Sequence[Allocation]) -> None:
        """Raises the error that is an argument's value."""
        if any(map(_error_of, allocations)):
            for n in self._used:
                error = allocations[n].error
                if error is not None:
                    raise copy(error)

    def run(
        self,
        opened: Opened,
        allocations: Sequence[Allocation],
        starts: Sequence[int],
        scalars: Scalars,
        last: Callable[[], Iterable[Command]] | None = None,
        stream: tuple[int, int] = (0, 0),
        memory: BoundMemory | None = None,
    ) -> None:
        """Submits the commands over these allocations, and after them what ``last`` gives when all else is encoded.

        ``starts``: where each of the plan's tensors starts, in bytes. ``stream``: seed and place of the random stream.
        ``memory``: what :meth:`memory` says of these allocations, or said of others that are alike in that.
        On an exception nothing has happened, unless the encoder says that it was submitted.
        """
        device, submitted = self._device, opened.encoder.submissions
        if memory is None:
            before = buffers = [*map(_buffer_of, allocations), *self._no_temporaries, opened.error_buffer]
        else:
            before = buffers = memory.buffers
        if self._gives_back or not all(before):
            missing = self._missing_of(allocations, before) if memory is None else memory.missing
            buffers = self._exchange(opened, allocations, before, missing)
        try:
            if self._may_flag:
                device.may_have_flags = True
            prepared = None
            if self._has_run and device.observer is None:
                key = self, tuple(buffers)
                prepared = opened.prepared.get(key) or opened.prepared.promote(key)
            if prepared is None:
                self._submit_new(buffers, starts, scalars, stream, last)
            else:
                made_for, prepared.made_for = prepared.made_for, None  # until all are written
                is_same = starts is made_for or starts == made_for
                self._write(prepared.params, None if is_same else starts, scalars, stream)
                prepared.made_for = starts
                opened.encoder.submit_prepared(prepared, last)
                sink = opened.native.sink
                if sink.errors or sink.lost is not None:
                    device.raise_errors(opened)
        except BaseException:
            if opened.encoder.submissions == submitted:
                self._undo_memory(allocations, before, buffers)
            raise
        finally:
            if opened.pool.evicted:
                opened.pool.retire()

    def commands(self, allocations: Sequence[Allocation], starts: Sequence[int], scalars: Scalars) -> list[Command]:
        """What :meth:`run` would submit, over memory that is taken and given back likewise."""
        opened = self._device.opened
        before, missing = self.memory(opened, allocations)
        buffers = self._exchange(opened, allocations, before, missing)
        try:
            return self._commands_for(buffers, starts, scalars, (0, 0))
        except BaseException:
            self._undo_memory(allocations, before, buffers)
            raise

    def failing_step(self, allocations: Sequence[Allocation], starts: Sequence[int], scalars: Scalars) -> int | None:
        """The first step that there is no memory for, or whose kernel does not compile; None if all can run.

        Nothing runs. It is for explaining an exception of :meth:`run`: it looks at one step after the other.
        """
        device = self._device
        before, missing = self.memory(device.opened, allocations)
        buffers = before
        taken = []
        try:
            for exchange, step in self._exchanges(missing):
                try:
                    buffers = device.opened.memory.exchange([exchange], buffers)
                except OutOfMemoryError:
                    return step
                taken.append(exchange)
            for step, command in enumerate(self._commands_for(buffers, starts, scalars, (0, 0))):
                try:
                    device.encode_graph([command]).release()
                except WebGPUError:
                    return step
            return None
        finally:
            device.undo_exchange(taken, before, buffers)

    def memory(self, opened: Opened, allocations: Sequence[Allocation]) -> BoundMemory:
        """What these allocations have."""
        buffers = [*map(_buffer_of, allocations), *self._no_temporaries, opened.error_buffer]
        return BoundMemory(buffers, self._missing_of(allocations, buffers))

    def _exchange(
        self,
        opened: Opened,
        allocations: Sequence[Allocation],
        before: list[Buffer | None],
        missing: list[tuple[int, int]],
    ) -> list[Buffer | None]:
        """Takes and gives back memory as the commands need it; what the buffers of all slots are then."""
        if self._memory is None or missing != self._missing:
            self._missing, self._memory = missing, [exchange for exchange, _ in self._exchanges(missing)]
        buffers = opened.memory.exchange(self._memory, before)
        for n, _ in missing:
            allocations[n].buffer = buffers[n]
        for n in self._lost:
            allocations[n].buffer = None
        return buffers

    def _missing_of(self, allocations: Sequence[Allocation], before: Sequence[Buffer | None]) -> list[tuple[int, int]]:
        """The arguments that the plan uses and that have no memory, by slot, and their sizes in bytes."""
        return [(n, allocations[n].size_bytes) for n in self._used if before[n] is None]

    def _undo_memory(
        self, allocations: Sequence[Allocation], before: Sequence[Buffer | None], buffers: Sequence[Buffer | None]
    ) -> None:
        """Undoes :meth:`_exchange`."""
        self._device.undo_exchange(self._memory or (), before, buffers)
        for allocation, buffer in zip(allocations, before):
            allocation.buffer = buffer

    def _submit_new(
        self,
        buffers: list[Buffer | None],
        starts: Sequence[int],
        scalars: Scalars,
        stream: tuple[int, int],
        last: Callable[[], Iterable[Command]] | None,
    ) -> None:
        """Submits commands of which nothing lies ready, or to whoever looks on; keeps them ready the second time."""
        device, commands = self._device, self._commands_for(buffers, starts, scalars, stream)
        prepared = None
        if device.observer is not None:
            self.show(device.observer, commands)
        elif self._has_run:
            prepared = device.prepare_again((self, tuple(buffers)), commands)
        else:  # much runs once only: it is not worth to be kept
            device.prepare(commands)
        if prepared is None:
            device.submit(commands if last is None else (*commands, *last()))
            self._has_run = self._has_run or device.observer is None
        else:
            prepared.made_for = starts
            device.submit_prepared(device.opened, prepared, last)

    def _commands_for(
        self, buffers: Sequence[Buffer | None], starts: Sequence[int], scalars: Scalars, stream: tuple[int, int]
    ) -> list[Command]:
        """The commands over these buffers."""
        params: Any = [bytearray(c.words) if isinstance(c, _Dispatch) else None for c in self._commands]
        self._write(params, starts, scalars, stream)
        return [_with_buffers(c, buffers, words) for c, words in zip(self._commands, params)]

    def show(self, observer: Observer, commands: Sequence[Command]) -> None:
        """Tells an observer what these commands, the plan's, are part of."""
        for label, command in zip(self.plan.labels, commands):
            with observer.span("encode", label.operation):
                observer.encoded(label, command)

    def _write(self, params: Any, starts: Sequence[int] | None, scalars: Scalars, stream: tuple[int, int]) -> None:
        """Writes the parameters that are only known now into those of each command; the places, unless None."""
        if starts is not None:
            for command, byte, tensor, shift, ahead in self._offset_words:
                _write_word(params[command], byte, (starts[tensor] >> shift) + ahead)
        for command, byte, write, row, parts in self.scalar_words:
            write(params[command], byte, *scalars[row][parts])
        for command, byte, source in self._random_words:
            _write_word(params[command], byte, source.at(*stream))

    def _exchanges(self, missing: Sequence[tuple[int, int]]) -> list[tuple[Exchange, int]]:
        """How memory is taken and given back where these allocations have none; and by which step each time."""
        sizes = {**self._temporaries, **dict(missing)}
        capacities = {n: self._device.capacity(size) for n, size in sizes.items()}
        return [
            ((n, capacities[n] if taken else 0), step) for n, taken, step in self._takes if n in capacities or not taken
        ]


def in_a_row(words: Sequence[tuple[int, int, int, int]]) -> list[list[tuple[int, int, int, int]]]:
    """(command, position, row, part) grouped into those that follow each other, as both parameters and scalars."""
    runs: list[list[tuple[int, int, int, int]]] = []
    for word in words:
        command, position, row, part = word
        if runs and runs[-1][-1] == (command, position - 1, row, part - 1):
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _command(plan: Plan, step: Step | Clear, slots: dict[int, int]) -> _Dispatch | _Clear:
    if isinstance(step, Clear):
        return _Clear(slots[step.buffer], step.size_bytes)
    words = struct.pack(f"<{len(step.words)}I", *[w if isinstance(w, int) else 0 for w in step.words])
    return _Dispatch(plan.kernels[step.kernel], _picker([slots[n] for n in step.bindings]), words, step.grid)


def _with_buffers(command: _Dispatch | _Clear, buffers: Sequence[Any], words: bytearray) -> Command:
    if isinstance(command, _Clear):
        return commands.ClearBuffer(buffers[command.slot], 0, command.size_bytes)
    return commands.Dispatch(command.kernel, command.buffers(buffers), bytes(words), command.grid)


def _picker(slots: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that picks these items of a list, as a tuple."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda known: tuple([known[n] for n in slots])
