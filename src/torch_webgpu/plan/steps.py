"""The parts of a plan: buffers, steps, and where their parameters come from."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

WORD_BYTES = 4
STREAM_MASK = (1 << 64) - 1
ERROR_FLAG_BYTES = 64
"""Of the buffer in which kernels raise flags: u32 words, all zero as long as nothing went wrong."""
STRUCT_FORMATS: dict[str, str] = {"u32": "<I", "i32": "<i", "f32": "<f"}

Role = Literal["input", "weight", "state", "output", "temporary", "constant", "errors"]
ROLES: tuple[Role, ...] = get_args(Role)
INITIALISED: frozenset[Role] = frozenset({"input", "weight", "state", "constant", "errors"})
"""The roles of buffers that have contents before the first step."""
READ_ONLY: frozenset[Role] = frozenset({"input", "weight", "constant"})
"""The roles of buffers that no step writes."""


@dataclass(frozen=True)
class Offset:
    """A parameter: where tensor ``tensor`` starts in its buffer, and ``ahead``, in units of ``1 << shift`` bytes."""

    tensor: int
    shift: int
    ahead: int = 0


@dataclass(frozen=True)
class Scalar:
    """A parameter: number ``index`` of those given with each run."""

    index: int


@dataclass(frozen=True)
class Random:
    """A parameter: 32 bits of the generator's seed (``part`` 0 and 1, low ones first) or place in its stream (2 and 3).

    ``ahead``: how many blocks of the stream the plan's earlier steps use.
    """

    part: int
    ahead: int

    def at(self, seed: int, offset: int) -> int:
        """Its value in a run whose stream starts at ``offset``."""
        number = seed if self.part < 2 else (offset + self.ahead) & STREAM_MASK
        return number >> 32 if self.part & 1 else number & 0xFFFFFFFF


Word = int | Offset | Scalar | Random
"""A parameter of a kernel: its 32 bits, or where they come from when the plan runs."""


@dataclass(frozen=True)
class BufferSpec:
    """Memory of ``size_bytes``, and what it is to the plan.

    An ``input`` is read, a ``weight`` is an input that is a parameter of a module, a ``state`` is read and written. A
    ``constant`` has contents that the plan knows. An ``output`` has none before the plan's steps, a ``temporary`` none
    before its first step nor after its last one. ``errors`` is where kernels raise flags. ``donated``: whoever runs the
    plan gives its memory away, which is free after the last step that uses it. ``name``: of an input, a weight or a
    state what the traced function calls it.
    """

    size_bytes: int
    role: Role
    donated: bool = False
    name: str = ""


@dataclass(frozen=True)
class Step:
    """Runs kernel number ``kernel`` on ``grid`` workgroups; ``bindings``: a buffer for each of the kernel's."""

    kernel: int
    bindings: tuple[int, ...]
    words: tuple[Word, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Clear:
    """Sets ``size_bytes`` bytes of a buffer, a multiple of 4, to zero, from its start."""

    buffer: int
    size_bytes: int


@dataclass(frozen=True)
class Label:
    """What a step is part of, for people: an operation, and how many bytes of tensors the step reads and writes."""

    operation: str
    size_bytes: int


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a buffer. ``dtype`` is a name of ``dtypes.BY_NAME``; shape and strides are in elements.

    Of an input ``byte_offset`` is 0: where it starts is asked for by :class:`Offset` words.
    """

    buffer: int
    byte_offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def whole_words(size_bytes: int) -> int:
    """The size of the whole words that so many bytes lie in."""
    return -(-size_bytes // WORD_BYTES) * WORD_BYTES


def touched(step: Step | Clear) -> tuple[int, ...]:
    """The buffers that a step reads or writes."""
    return (step.buffer,) if isinstance(step, Clear) else step.bindings


def restarted(word: Word, starts: Sequence[tuple[int, int]]) -> Word:
    """A word over other tensors: ``starts[t]`` says in which of the new ones tensor ``t`` lies, or -1 for none, and how
    many bytes after the start of that one, or of its buffer.
    """
    if not isinstance(word, Offset):
        return word
    tensor, start = starts[word.tensor]
    ahead = word.ahead + (start >> word.shift)
    return ahead if tensor < 0 else Offset(tensor, word.shift, ahead)


def rebound(step: Step | Clear, buffers: Mapping[int, int]) -> Step | Clear:
    """A step over buffers with other numbers."""
    if isinstance(step, Clear):
        return replace(step, buffer=buffers[step.buffer])
    return replace(step, bindings=tuple([buffers[buffer] for buffer in step.bindings]))


def bits(value: float, type_: str) -> int:
    """The 32 bits of a parameter of that type."""
    return struct.unpack("<I", struct.pack(STRUCT_FORMATS[type_], value))[0]


_SMALLEST_CLASS_BYTES = 256
_STEPS_PER_OCTAVE = 16  # a class is at most 1/16 larger than what was asked for


def size_class(size_bytes: int) -> int:
    """The size of the memory that serves a request: at most 1/16 more above 4 KiB, and a multiple of 256 bytes."""
    if size_bytes <= _SMALLEST_CLASS_BYTES:
        return _SMALLEST_CLASS_BYTES
    octave = 1 << ((size_bytes - 1).bit_length() - 1)
    step = max(octave // _STEPS_PER_OCTAVE, _SMALLEST_CLASS_BYTES)
    return -(-size_bytes // step) * step
