"""Commands to one queue submission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from .buffers import Buffer
from .calls import Assembler, BeginPass, EncoderStep, encode, encode_apart
from .commands import Command, Dispatch
from .implementation import UNIFORM
from .prepared import Prepared

if TYPE_CHECKING:
    from .implementation import NativeDevice
    from .pipelines import Bound, PipelineCache

UNIFORM_BYTES = 1 << 18


class Encoder:
    """Encodes and submits commands in order, consecutive dispatches in one compute pass.

    Parameters travel as immediates. Those of kernels that have more than the adapter takes go through one uniform
    buffer, rewritten before each submission: queues run in order, so the previous one has read it by then.
    """

    def __init__(self, native: NativeDevice, pipelines: PipelineCache, limits: dict[str, int]) -> None:
        self._native = native
        self._pipelines = pipelines
        self._limits = limits
        self._uniform = Buffer(native.create_buffer(UNIFORM_BYTES, UNIFORM), UNIFORM_BYTES)
        pipelines.use_uniform(self._uniform)
        self.submissions = 0
        self._done = -1  # the native device's submissions when all of them were known to be done

    def submit(self, commands: Iterable[Command], begin_pass: BeginPass | None = None) -> None:
        """Encodes and queues ``commands``. On an exception nothing was queued.

        ``begin_pass`` replaces how a compute pass is begun on an encoder, for timing: each dispatch has its own then.
        """
        encoded: list[tuple[Any, bytearray]] = []
        rest: Iterator[Command] | None = iter(commands)
        try:
            while rest is not None:
                # What is looked up may be gone when the next command's is: each is encoded at once.
                assembler = Assembler(self._native, self._look_up, self._limits, UNIFORM_BYTES)
                encoder = self._native.create_encoder()
                encoded.append((encoder, assembler.uniform))
                if begin_pass is None:
                    encode(self._native, encoder, assembler.steps(rest))
                else:
                    encode_apart(self._native, begin_pass, encoder, assembler.steps(rest))
                rest = None if assembler.left is None else chain((assembler.left,), rest)
        except BaseException:
            for encoder, _ in encoded:
                self._native.release_encoder(encoder)
            raise
        for index, (encoder, uniform) in enumerate(encoded):
            if uniform:
                self._native.write_buffer(self._uniform.handle, 0, uniform)
            if not self._native.run(encoder):
                for unused, _ in encoded[index + 1 :]:
                    self._native.release_encoder(unused)
                return  # the reason is among the device's errors, which the caller raises
            self.submissions += 1

    def prepare(self, commands: Sequence[Command]) -> Prepared | None:
        """Looks everything up for :meth:`submit_prepared`.

        None for more parameters than the uniform buffer holds, or more bind groups than are kept. Raises what
        :meth:`submit` would; nothing runs.
        """
        for _ in range(2):  # what was found first may be gone before the last is found
            edition = self._pipelines.edition
            assembler = Assembler(self._native, self._look_up, self._limits, UNIFORM_BYTES)
            steps = assembler.assemble(commands)
            if assembler.left is not None:
                return None
            if edition == self._pipelines.edition:
                return Prepared(steps, assembler.params, assembler.uniform)
        return None

    def submit_prepared(self, prepared: Prepared, last: Callable[[], Iterable[Command]] | None) -> None:
        """Encodes and queues what was prepared, if nothing was released since, and transfers that come last.

        Those are asked for when everything else is encoded: they may release what it names. A GPU that has nothing to
        do is given the first part as soon as it is encoded. On an exception nothing was queued, or ``submissions`` says
        so.
        """
        if prepared.uniform:
            self._native.write_buffer(self._uniform.handle, 0, prepared.uniform)
        self.queue(prepared.parts if self.is_idle else (prepared.steps,), last)

    def queue(
        self, parts: Sequence[Iterable[EncoderStep]], last: Callable[[], Iterable[Command]] | None = None
    ) -> None:
        """Encodes and queues each part by itself, and with the last one what ``last`` gives then. What goes wrong is
        among the device's errors.
        """
        native = self._native
        for steps in parts:
            encoder = native.create_encoder()
            try:
                encode(native, encoder, steps)
                if last is not None and steps is parts[-1]:
                    encode(native, encoder, last())  # type: ignore[arg-type]
            except BaseException:
                native.release_encoder(encoder)
                raise
            if not native.run(encoder):
                return
            self.submissions += 1

    def note_idle(self) -> None:
        """Everything that was submitted is done."""
        self._done = self._native.submissions

    @property
    def is_idle(self) -> bool:
        """Whether the GPU is known to have nothing to do."""
        return self._native.submissions == self._done

    def _look_up(self, dispatch: Dispatch) -> Bound:
        """Its pipeline and bind group."""
        return self._pipelines.recent.get((dispatch.kernel.key, dispatch.buffers)) or self._pipelines.bound(dispatch)

    def close(self) -> None:
        """Releases what it made. No bind group names it."""
        self._native.release_buffer(self._uniform.handle)

    def check(self, commands: Iterable[Command]) -> None:
        """Raises what :meth:`submit` would for kernels that do not compile and buffers that do not fit."""
        for command in commands:
            if isinstance(command, Dispatch):
                self._pipelines.bound(command)
