"""Plans: what a piece of work comes down to on a GPU, as plain data.

A plan is a list of steps over numbered buffers: which kernel runs on what, with which parameters, on how large a grid.
It knows no process, no device and no tensor; what it needs of them it names: the buffers that its user brings and
takes, the numbers that are only known when it runs. Equal work gives equal plans in every process.

:func:`trace` makes the plan of a function, :func:`bind` a function of a plan; :meth:`Plan.save` and :meth:`Plan.load`
carry one to another process.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from os import PathLike
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from torch_webgpu.errors import WebGPUError
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

FORMAT = 1
"""Of :meth:`Plan.to_json`; what another version wrote is refused."""
WORD_BYTES = 4
STREAM_MASK = (1 << 64) - 1
ERROR_FLAG_BYTES = 64
"""Of the buffer in which kernels raise flags: u32 words, all zero as long as nothing went wrong."""
STRUCT_FORMATS: dict[str, str] = {"u32": "<I", "i32": "<i", "f32": "<f"}

Role = Literal["input", "output", "inout", "temporary", "constant", "errors"]


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
class Buffer:
    """``size_bytes`` of memory. ``inout`` is an input that the plan writes; ``errors`` the device's error flags.

    A temporary has no contents before its first step nor after its last one. A size of 0 means that whoever binds the
    plan brings the memory and knows how much it is.
    """

    size_bytes: int
    role: Role


@dataclass(frozen=True)
class Step:
    """Runs kernel number ``kernel`` on ``grid`` workgroups.

    ``bindings``: a buffer and where the binding starts in it, in bytes, for each of the kernel's bindings.
    """

    kernel: int
    bindings: tuple[tuple[int, int], ...]
    words: tuple[Word, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Clear:
    """Sets ``size_bytes`` bytes of a buffer, a multiple of 4, to zero, from its start."""

    buffer: int
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


@dataclass(frozen=True)
class Plan:
    """Steps in order, each seeing what those before it wrote.

    ``tensors``: the buffer that each of the tensors lies in whose place :class:`Offset` words ask for; of a traced
    plan they are its inputs. ``constants``: the SHA-256 digests of the contents of buffers, by their numbers;
    ``contents`` has these, as far as they are at hand, and takes no part in comparisons. ``random_blocks``: how much of
    the random stream a run uses. ``result``: how the outputs are arranged, as ``torch.utils._pytree`` writes it.
    ``origins``: of a plan that was traced in this process, which of the recorded operations each step computes.
    """

    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step | Clear, ...]
    tensors: tuple[int, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    constants: tuple[tuple[int, str], ...] = ()
    random_blocks: int = 0
    result: str = ""
    contents: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    origins: tuple[tuple[int, ...], ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and the last step that touches each buffer, for those that one touches."""
        found: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for buffer in touched(step):
                found[buffer] = found.get(buffer, (number, number))[0], number
        return found

    @cached_property
    def scalars(self) -> int:
        """How many numbers a run needs."""
        return max((w.index + 1 for _, _, w in self.variable_words() if isinstance(w, Scalar)), default=0)

    def variable_words(self) -> Iterator[tuple[int, int, Offset | Scalar | Random]]:
        """The parameters that are only known at a run: step, position among its words, source."""
        for number, step in enumerate(self.steps):
            if isinstance(step, Step):
                for position, word in enumerate(step.words):
                    if not isinstance(word, int):
                        yield number, position, word

    def word_format(self, step: Step, position: int) -> str:
        """The ``struct`` format of one of a step's parameters."""
        return STRUCT_FORMATS[self.kernels[step.kernel].params[position].type]

    def __str__(self) -> str:
        """A line for each buffer and each step, for people."""
        lines = [f"b{n}: {b.size_bytes} bytes, {b.role}" for n, b in enumerate(self.buffers)]
        for step in self.steps:
            if isinstance(step, Clear):
                lines.append(f"clear b{step.buffer}")
                continue
            kernel = self.kernels[step.kernel]
            bound = [
                f"{b.name}=b{n}" + (f"+{start}" if start else "")
                for b, (n, start) in zip(kernel.bindings, step.bindings)
            ]
            words = [f"{p.name}={w}" for p, w in zip(kernel.params, step.words)]
            lines.append(f"{kernel.name} {step.grid} {', '.join(bound)}; {', '.join(words)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as JSON; equal plans give equal text."""
        return json.dumps(
            {
                "format": FORMAT,
                "buffers": [[b.size_bytes, b.role] for b in self.buffers],
                "kernels": [_kernel_to_data(k) for k in self.kernels],
                "steps": [_step_to_data(s) for s in self.steps],
                "tensors": list(self.tensors),
                "inputs": [astuple(t) for t in self.inputs],
                "outputs": [astuple(t) for t in self.outputs],
                "constants": self.constants,
                "random_blocks": self.random_blocks,
                "result": self.result,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str, trusted: bool = False) -> Plan:
        """The plan that :meth:`to_json` wrote. Raises WebGPUError for anything else.

        ``trusted``: whether its kernels may be compiled without bounds checks, if they say that they need none. That is
        for who knows that nobody else has written the text; otherwise they are compiled with checks.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise WebGPUError(f"this plan is of format {data['format']}; this version reads format {FORMAT}")
            plan = cls(
                tuple([Buffer(size, role) for size, role in data["buffers"]]),
                tuple([_kernel_from_data(k, trusted) for k in data["kernels"]]),
                tuple([_step_from_data(s) for s in data["steps"]]),
                tuple(data["tensors"]),
                tuple([_spec_from_data(t) for t in data["inputs"]]),
                tuple([_spec_from_data(t) for t in data["outputs"]]),
                tuple([(buffer, digest) for buffer, digest in data["constants"]]),
                data["random_blocks"],
                data["result"],
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise WebGPUError(f"not a plan: {type(error).__name__}: {error}") from None
        return check(plan)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan and the contents of its constants into one file (numpy's ``.npz``)."""
        missing = {digest for _, digest in self.constants} - self.contents.keys()
        if missing:
            raise WebGPUError(f"the contents of {len(missing)} constants of this plan are not at hand")
        arrays = {digest: np.frombuffer(self.contents[digest], np.uint8) for _, digest in self.constants}
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, plan=np.array(self.to_json()), **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str], trusted: bool = False) -> Plan:
        """The plan that :meth:`save` wrote, with its constants. Raises WebGPUError for anything else.

        ``trusted`` as in :meth:`from_json`: a file from elsewhere is compiled with bounds checks, whatever it says.
        """
        try:
            with open(path, "rb") as data, np.load(data, allow_pickle=False) as file:
                plan = cls.from_json(str(file["plan"]), trusted)
                contents = {digest: file[digest].tobytes() for _, digest in plan.constants}
        except (ValueError, KeyError, OSError, BadZipFile) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise WebGPUError(f"{path} holds no plan: {type(error).__name__}: {error}") from None
        for digest, content in contents.items():
            if sha256(content).hexdigest() != digest:
                raise WebGPUError(f"{path}: the constant {digest[:12]}… is not what was saved")
        return replace(plan, contents=contents)


def touched(step: Step | Clear) -> tuple[int, ...]:
    """The buffers that a step reads or writes."""
    return (step.buffer,) if isinstance(step, Clear) else tuple([buffer for buffer, _ in step.bindings])


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
    return replace(step, bindings=tuple([(buffers[buffer], start) for buffer, start in step.bindings]))


def renumbered(step: Step | Clear, buffers: Mapping[int, int], starts: Sequence[tuple[int, int]]) -> Step | Clear:
    """A step over buffers with other numbers, and over other tensors: see :func:`restarted`."""
    step = rebound(step, buffers)
    if isinstance(step, Clear):
        return step
    return replace(step, words=tuple([restarted(word, starts) for word in step.words]))


def bits(value: float, type_: str) -> int:
    """The 32 bits of a parameter of that type."""
    return struct.unpack("<I", struct.pack(STRUCT_FORMATS[type_], value))[0]


def verify(plan: Plan) -> list[str]:
    """What is wrong with a plan; nothing if it can be bound wherever its kernels compile."""
    return [*_malformed(plan)] or [*_unwritten(plan)]


def check(plan: Plan) -> Plan:
    """The plan, if nothing is wrong with it. Raises WebGPUError, which says what is."""
    if problems := verify(plan):
        raise WebGPUError(f"not a valid plan: {'; '.join(problems)}")
    return plan


def _malformed(plan: Plan) -> Iterator[str]:
    buffers = range(len(plan.buffers))
    used = {buffer for step in plan.steps for buffer in touched(step)}  # an empty tensor has memory that nobody uses
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "temporary" and number in used and buffer.size_bytes <= 0:
            yield f"temporary {number} has no size"
    owners = [*plan.tensors, *(t.buffer for t in (*plan.inputs, *plan.outputs)), *(b for b, _ in plan.constants)]
    for tensor, owner in enumerate(owners):
        if owner not in buffers:
            yield f"tensor {tensor} lies in buffer {owner}, which does not exist"
    for number, step in enumerate(plan.steps):
        if any(buffer not in buffers for buffer in touched(step)):
            yield f"step {number} names a buffer that does not exist"
        elif isinstance(step, Clear):
            if step.size_bytes % WORD_BYTES or step.size_bytes < 0:
                yield f"step {number} clears {step.size_bytes} bytes"
        elif not 0 <= step.kernel < len(plan.kernels):
            yield f"step {number} names kernel {step.kernel}, which does not exist"
        else:
            yield from _malformed_dispatch(plan, number, step)


def _malformed_dispatch(plan: Plan, number: int, step: Step) -> Iterator[str]:
    kernel = plan.kernels[step.kernel]
    if len(step.bindings) != len(kernel.bindings):
        yield f"step {number}: {kernel.name} has {len(kernel.bindings)} bindings, not {len(step.bindings)}"
    if len(step.words) != len(kernel.params):
        yield f"step {number}: {kernel.name} has {len(kernel.params)} parameters, not {len(step.words)}"
    if len(step.grid) != 3 or min(step.grid) < 1:
        yield f"step {number}: {step.grid} is not a grid"
    written = [b for (b, _), binding in zip(step.bindings, kernel.bindings) if binding.access == "read_write"]
    bound = [b for b, _ in step.bindings]
    for buffer in written:
        if bound.count(buffer) > 1 and plan.buffers[buffer].role != "errors":
            yield f"step {number}: {kernel.name} writes buffer {buffer}, which it is given twice"
    for word in step.words:
        if isinstance(word, Offset) and not 0 <= word.tensor < len(plan.tensors):
            yield f"step {number} asks where tensor {word.tensor} starts, which does not exist"


def _unwritten(plan: Plan) -> Iterator[str]:
    """Temporaries and outputs that are read before anything is written into them."""
    written = {n for n, b in enumerate(plan.buffers) if b.role not in ("output", "temporary")}
    for number, step in enumerate(plan.steps):
        if isinstance(step, Step):
            kernel = plan.kernels[step.kernel]
            for (buffer, _), binding in zip(step.bindings, kernel.bindings):
                if binding.access == "read" and buffer not in written:
                    yield f"step {number}: {kernel.name} reads buffer {buffer}, which nothing has written"
        written.update(touched(step))


trace: Callable[..., Plan]
"""``trace(fn, *inputs)``: see :func:`torch_webgpu.api.plans.trace`, which the package puts here when it is loaded."""
bind: Callable[..., Any]
"""``bind(plan, device=None, contents=None)``: see :func:`torch_webgpu.api.plans.bind`, likewise."""


# JSON


def _spec_from_data(data: Sequence[Any]) -> TensorSpec:
    buffer, byte_offset, dtype, shape, strides = data
    return TensorSpec(buffer, byte_offset, dtype, tuple(shape), tuple(strides))


def _kernel_to_data(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "body": kernel.body,
        "bindings": [[b.name, b.dtype, b.access, b.mode] for b in kernel.bindings],
        "params": [[p.name, p.type] for p in kernel.params],
        "workgroup_size": list(kernel.workgroup_size),
        "trusted": kernel.trusted,
    }


def _kernel_from_data(data: dict[str, Any], trusted: bool) -> Kernel:
    x, y, z = data["workgroup_size"]
    return Kernel(
        data["name"],
        data["body"],
        tuple([Binding(*b) for b in data["bindings"]]),
        tuple([Param(*p) for p in data["params"]]),
        (x, y, z),
        trusted and data["trusted"] is True,
    )


def _step_to_data(step: Step | Clear) -> list[Any]:
    if isinstance(step, Clear):
        return [step.buffer, step.size_bytes]
    return [step.kernel, [list(b) for b in step.bindings], [_word_to_data(w) for w in step.words], list(step.grid)]


def _step_from_data(data: Sequence[Any]) -> Step | Clear:
    if len(data) == 2:
        return Clear(*data)
    kernel, bindings, words, (x, y, z) = data
    return Step(kernel, tuple([(b, o) for b, o in bindings]), tuple([_word_from_data(w) for w in words]), (x, y, z))


_SOURCES: dict[str, type[Offset] | type[Scalar] | type[Random]] = {"offset": Offset, "scalar": Scalar, "random": Random}


def _word_to_data(word: Word) -> int | list[Any]:
    return word if isinstance(word, int) else [type(word).__name__.lower(), *astuple(word)]


def _word_from_data(data: int | Sequence[Any]) -> Word:
    return data if isinstance(data, int) else _SOURCES[data[0]](*data[1:])
