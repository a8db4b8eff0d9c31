"""Random sequences of a device's calls, beside a model of what its buffers hold, on a double that checks every call."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, add_last, double, native

from torch_webgpu.errors import DeviceLostError, OutOfMemoryError, ShaderCompileError
from torch_webgpu.runtime import transfer
from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.commands import ClearBuffer, Command, CopyBuffer, Dispatch
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.encoder import UNIFORM_BYTES

KIB = 1 << 10
WORDS = 64  # that dispatches compute; every buffer has as many

numbers = st.integers(0, 1000)
picks = st.integers(0, 1 << 20)  # which of the living buffers, modulo their number


class Tensor:
    """A living buffer, and the bytes it should hold."""

    def __init__(self, buffer: Buffer, content: np.ndarray) -> None:
        self.buffer, self.content = buffer, content

    @property
    def words(self) -> np.ndarray:
        return self.content.view(np.uint32)[:WORDS]


class Work:
    """Commands, and the same on the model."""

    def __init__(self, commands: list[Command], on: list[tuple[str, Any, Any, int]]) -> None:
        self.commands, self.on = commands, on

    def run(self) -> None:
        """On the model."""
        for kind, x, y, number in self.on:
            if kind in ("add", "add_last"):
                y.words[:] = x.words + np.uint32(number)
            elif kind == "double":
                y.words[:] *= np.uint32(2)
            elif kind == "clear":
                y.content[: 4 * number] = 0
            else:
                y.content[: 4 * number] = x.content[: 4 * number]


class Machine(RuleBasedStateMachine):
    """``late_polls``, evictions and lack of memory come and go; what the device says must be what the model says."""

    graphs = Bundle("graphs")

    @initialize(immediates=st.booleans(), software=st.booleans(), groups=st.sampled_from([4, 8192]))
    def open(self, immediates: bool, software: bool, groups: int) -> None:
        self.webgpu = programs.webgpu()
        without = [] if immediates else ["immediates"]
        info = {"adapter_type": "CPU" if software else "DiscreteGPU"}
        limits = {"max-storage-buffer-binding-size": 2 * KIB}  # larger ones are bound in windows
        self.device: Device = programs.device(self.webgpu, without=without, info=info, limits=limits)
        self.groups = groups
        self.alive: list[Tensor] = []
        self.prepared: dict[int, Work] = {}
        self.pending: list[tuple[list[Any], np.ndarray, np.ndarray]] = []
        self.marks: list[Any] = []
        self.kept: list[tuple[Any, Work]] = []
        self._limit_caches()

    def _limit_caches(self) -> None:
        cache = self.device.opened.pipelines
        cache.recent.limit, cache._pipelines.limit = self.groups, max(2, self.groups // 4)

    def _pick(self, pick: int) -> Tensor:
        return self.alive[pick % len(self.alive)]

    def _work(self, plan: list[tuple[str, int, int, int]]) -> Work:
        commands: list[Command] = []
        on: list[tuple[str, Any, Any, int]] = []
        for kind, from_, to, number in plan:
            x, y = self._pick(from_), self._pick(to)
            count = 1 + number % WORDS
            if x is y and kind in ("add", "add_last", "copy"):
                kind = "double"
            if kind == "add":
                commands.append(add(x.buffer, y.buffer, WORDS, number))
            elif kind == "add_last":
                commands.append(add_last(x.buffer, y.buffer, WORDS, number))
            elif kind == "double":
                commands.append(double(y.buffer, WORDS))
            elif kind == "clear":
                commands.append(ClearBuffer(y.buffer, 0, 4 * count))
            else:
                commands.append(CopyBuffer(x.buffer, 0, y.buffer, 0, 4 * count))
            on.append((kind, x, y, count if kind in ("clear", "copy") else number))
        return Work(commands, on)

    plans = st.lists(
        st.tuples(st.sampled_from(["add", "add_last", "double", "clear", "copy"]), picks, picks, numbers),
        min_size=1,
        max_size=6,
    )

    # Memory

    @rule(size=st.integers(4 * WORDS, 5 * KIB), number=numbers)
    def allocate(self, size: int, number: int) -> None:
        try:
            buffer = self.device.allocate(size)
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
            return
        assert buffer.size_bytes == self.device.capacity(size)
        content = np.full(buffer.size_bytes, number % 256, np.uint8)
        self.device.upload(buffer, 0, content)
        self.alive.append(Tensor(buffer, content))

    @precondition(lambda self: self.alive)
    @rule(pick=picks, many=st.booleans())
    def release(self, pick: int, many: bool) -> None:
        """What names it is forgotten first, as the engine does."""
        gone = [self._pick(pick)] if not many else self.alive[: 1 + pick % len(self.alive)]
        named = {id(tensor) for graph, work in self.kept for _, *tensors, _ in work.on for tensor in tensors}
        gone = [tensor for tensor in gone if id(tensor) not in named]
        self.alive = [tensor for tensor in self.alive if tensor not in gone]
        self.prepared = {
            key: work
            for key, work in self.prepared.items()
            if not any(tensor in gone for _, *tensors, _ in work.on for tensor in tensors)
        }
        if len(gone) == 1:
            self.device.release(gone[0].buffer)
        else:
            self.device.release_all([tensor.buffer for tensor in gone])

    @rule()
    def empty_cache(self) -> None:
        self.device.empty_cache()

    @rule(size=st.integers(4 * WORDS, 5 * KIB))
    def exchange(self, size: int) -> None:
        capacity = self.device.capacity(size)
        steps = [(0, capacity), (1, capacity), (0, 0), (2, capacity), (1, 0), (2, 0)]
        before = self.device.stats
        try:
            self.device.with_room(lambda: self.device.opened.memory.exchange(steps, [None, None, None]))
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
        assert self.device.stats.allocated_bytes == before.allocated_bytes

    @rule(more=st.none() | st.integers(0, 16 * KIB))
    def limit_memory(self, more: int | None) -> None:
        self.webgpu.faults.memory_bytes = None if more is None else native(self.device).memory_bytes + more

    # Work

    @precondition(lambda self: self.alive)
    @rule(plan=plans, way=st.sampled_from(["submit", "prepare", "timed", "waiting"]))
    def submit(self, plan: list[tuple[str, int, int, int]], way: str) -> None:
        work = self._work(plan)
        if way == "timed":
            self.device.submit_timed(work.commands)
        elif way == "waiting":
            self.device.submit_waiting(work.commands)
        else:
            if way == "prepare":
                self.device.prepare(work.commands)
            self.device.submit(work.commands)
        work.run()

    @precondition(lambda self: self.alive)
    @rule(plan=plans, key=st.integers(0, 2), number=numbers)
    def submit_prepared(self, plan: list[tuple[str, int, int, int]], key: int, number: int) -> None:
        found = self.device.opened.prepared.get(key) if key in self.prepared else None
        if found is None:
            self.prepared[key] = self._work(plan)
            found = self.device.prepare_again(key, self.prepared[key].commands)
            if found is None:  # more bind groups than are kept
                del self.prepared[key]
                return
        work = self.prepared[key]
        for index, (kind, x, y, _) in enumerate(work.on):
            if kind in ("add", "add_last"):
                struct.pack_into("I", found.params[index], 4 * _last(kind), number)  # type: ignore[arg-type]
                work.on[index] = (kind, x, y, number)
        extra = self._work([("copy", number, number + 1, number)])
        self.device.submit_prepared(
            self.device.opened, found, lambda: [one for one in extra.commands if not isinstance(one, Dispatch)]
        )
        work.run()
        if not isinstance(extra.commands[0], Dispatch):
            extra.run()

    @precondition(lambda self: self.alive)
    @rule(plan=plans)
    def refused(self, plan: list[tuple[str, int, int, int]]) -> None:
        """A shader that does not compile anywhere in a submission: nothing of it runs."""
        self.webgpu.faults.refused = {"refused"}
        bad = programs.double(self._pick(0).buffer, WORDS)
        bad = bad._replace(kernel=programs.REFUSED)
        for use in (self.device.submit, self.device.encode_graph, self.device.submit_timed):
            with pytest.raises(ShaderCompileError):
                use([*self._work(plan).commands, bad])

    @precondition(lambda self: self.alive)
    @rule(target=graphs, plan=plans)
    def encode_graph(self, plan: list[tuple[str, int, int, int]]) -> tuple[Any, Work] | None:
        work = self._work(plan)
        try:
            graph = self.device.encode_graph(work.commands)
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
            return None
        self.kept.append((graph, work))
        return self.kept[-1]

    @rule(kept=graphs, number=numbers)
    def replay(self, kept: tuple[Any, Work] | None, number: int) -> None:
        if kept not in self.kept:
            return
        graph, work = kept  # type: ignore[misc]
        for index, (kind, x, y, _) in enumerate(work.on):
            if kind in ("add", "add_last"):
                data, at = graph.parameter(index, 4 * _last(kind))
                struct.pack_into("I", data, at, number)
                work.on[index] = (kind, x, y, number)
        self.device.replay(graph)
        work.run()

    @rule(kept=consumes(graphs))
    def release_graph(self, kept: tuple[Any, Work] | None) -> None:
        if kept in self.kept:
            self.kept.remove(kept)  # type: ignore[arg-type]
            kept[0].release()  # type: ignore[index]

    # Transfers

    @precondition(lambda self: self.alive)
    @rule(pick=picks, offset=st.integers(0, 4 * WORDS), size=st.integers(0, 600), number=numbers)
    def upload(self, pick: int, offset: int, size: int, number: int) -> None:
        tensor = self._pick(pick)
        data = np.full(min(size, tensor.content.size - offset), number % 256, np.uint8)
        try:
            self.device.upload(tensor.buffer, offset, data)
        except OutOfMemoryError:  # unaligned ones read the words they share
            assert self.webgpu.faults.memory_bytes is not None
            return
        tensor.content[offset : offset + data.size] = data

    @precondition(lambda self: self.alive)
    @rule(requests=st.lists(st.tuples(picks, st.integers(0, 4 * WORDS), st.integers(0, 6 * KIB)), max_size=4))
    def download(self, requests: list[tuple[int, int, int]]) -> None:
        tensors = [self._pick(pick) for pick, _, _ in requests]
        parts = [
            (tensor.buffer, offset, min(size, tensor.content.size - offset))
            for tensor, (_, offset, size) in zip(tensors, requests, strict=True)
        ]
        try:
            results = self.device.download(parts)
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
            return
        for tensor, (_, offset, size), result in zip(tensors, parts, results, strict=True):
            assert np.array_equal(result, tensor.content[offset : offset + size])

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def begin_readback(self, pick: int) -> None:
        tensor = self._pick(pick)
        target = np.empty(tensor.content.size, np.uint8)
        try:
            parts = self.device.begin_readbacks((tensor.buffer, 0, target.size), target)
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
            return
        self.device.submit([copy for part in parts for copy in part.copies])
        self.pending.append((parts, target, tensor.content.copy()))

    @precondition(lambda self: self.pending)
    @rule(pick=picks)
    def finish_readback(self, pick: int) -> None:
        parts, target, expected = self.pending.pop(pick % len(self.pending))
        for part in parts:
            self.device.finish_readback(part)
        assert np.array_equal(target, expected)

    # Time

    @rule(polls=st.integers(0, 3))
    def delay(self, polls: int) -> None:
        self.webgpu.faults.late_polls = polls

    @rule()
    def mark(self) -> None:
        self.marks.append(self.device.mark())

    @rule()
    def ask_marks(self) -> None:
        reached = [mark() for mark in reversed(self.marks)][::-1]  # each question may bring a mark about
        assert reached == sorted(reached, reverse=True)
        self.marks = [mark for mark, done in zip(self.marks, reached, strict=True) if not done]

    @rule()
    def synchronize(self) -> None:
        self.device.synchronize()
        assert all(mark() for mark in self.marks)

    @rule(count=st.integers(1, 5))
    def stamps(self, count: int) -> None:
        stamps = [self.device.stamp() for _ in range(count)]
        try:
            begins = [begin for begin, _ in self.device.read_stamps(stamps)]
        except OutOfMemoryError:
            assert self.webgpu.faults.memory_bytes is not None
            return
        assert begins == sorted(begins)

    # The device's life

    @rule(told=st.sampled_from(["callback", "error", "closed", ""]))
    def reopen(self, told: str) -> None:
        """After a loss at the next submission, after a close, or out of the blue."""
        faults = self.webgpu.faults
        faults.memory_bytes = None
        if told == "closed":
            self.device.close()
        elif told:
            faults.lose_at, faults.loss_told = native(self.device)._runs + 1, told  # type: ignore[assignment]
            with pytest.raises(DeviceLostError):
                self.device.synchronize()
            faults.lose_at = None
        self.device.reopen()
        assert self.webgpu.devices[-1].closed
        assert self.webgpu.devices[-1].memory_bytes == 0
        for graph, _ in self.kept:
            with pytest.raises(DeviceLostError):
                self.device.replay(graph)
        assert all(mark() for mark in self.marks)
        self.alive, self.kept, self.pending, self.marks, self.prepared = [], [], [], [], {}
        self._limit_caches()

    @invariant()
    def memory_adds_up(self) -> None:
        if not self.device.is_open:
            return
        stats, opened = self.device.stats, self.device._opened
        staging = [*opened.transfer._spare, *opened.transfer._underway]
        staging += [opened.transfer._staging] if opened.transfer._staging is not None else []
        least = stats.reserved_bytes + UNIFORM_BYTES + sum(buffer.size_bytes for buffer in staging)
        assert native(self.device).memory_bytes >= least
        assert stats.buffers == 1 + len(self.alive)
        assert (
            stats.allocated_bytes == sum(t.buffer.size_bytes for t in self.alive) + self.device.error_buffer.size_bytes
        )

    def teardown(self) -> None:
        self.device.close()
        assert all(one.closed and one.memory_bytes == 0 for one in self.webgpu.devices)


def _last(kind: str) -> int:
    """Which parameter is the number that is added."""
    return 1 if kind == "add" else programs.MANY - 1


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_CHUNK_BYTES", 2 * KIB)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
