"""Plans as what a page encodes: one table of buffers, one of modules, and each program's steps over them.

Whatever the Python runtime works out when it binds a plan is worked out here: kernels are linked, offsets are numbers,
buffers above the binding limit have their windows, temporaries of programs share memory, and the parameters of all
steps lie in one uniform buffer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import ExportError
from torch_webgpu.plan import ERROR_FLAG_BYTES, WORD_BYTES, Clear, Offset, Random, Requirements, Step, TensorSpec
from torch_webgpu.plan import touched as buffers_of
from torch_webgpu.target import Target
from torch_webgpu.wgsl.link import link

from .programs import TracedProgram

ALIGNMENT_BYTES = 16  # kernels move vectors of four words
UNIFORM_ALIGNMENT_BYTES = 256
MAX_UNIFORM_BYTES = 65536


def aligned(size_bytes: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """The next multiple of an alignment; at least one of it."""
    return max(-(-size_bytes // alignment), 1) * alignment


@dataclass
class Buffer:
    """A buffer of the page's. ``source``: file, first byte and number of bytes of its first contents."""

    name: str
    role: str
    size_bytes: int
    source: tuple[str, int, int] | None = None

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name, "role": self.role, "bytes": aligned(self.size_bytes)}
        return data if self.source is None else {**data, "source": list(self.source)}


@dataclass
class Tables:
    """What the programs of a folder share."""

    target: Target
    buffers: list[Buffer] = field(default_factory=list)
    modules: list[dict[str, Any]] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    programs: dict[str, dict[str, Any]] = field(default_factory=dict)
    dynamic: dict[str, dict[str, Any]] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    constants: dict[str, bytes] = field(default_factory=dict)
    requirements: list[Requirements] = field(default_factory=list)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _places: dict[bytes, int] = field(default_factory=dict)
    _fixed: bytearray = field(default_factory=bytearray)

    @property
    def params(self) -> bytes:
        """The parameters of all steps, each at a multiple of 256 bytes."""
        return bytes(self._fixed)

    def add(self, traced: TracedProgram) -> None:
        """One more program."""
        plan, name = traced.plan, traced.program.name
        self.operators |= {str(number): operator for number, operator in plan.operators}
        self.requirements.append(plan.requires)
        numbers = self._buffers(traced)
        randoms: list[tuple[int, Random]] = []
        steps = [self._step(traced, step, numbers, randoms) for step in plan.steps]
        inputs = [*zip(traced.names, plan.inputs)][traced.held :]
        self.programs[name] = {
            "inputs": [io(n, t, numbers) for n, t in inputs],
            "outputs": [io(n, t, numbers) for n, t in zip(traced.outputs, plan.outputs)],
            "steps": steps,
            "random": [[byte // WORD_BYTES, word.part, word.ahead] for byte, word in randoms],
            "random_blocks": plan.random_blocks,
        }

    def _buffer(self, kind: str, name: str, role: str, size_bytes: int) -> int:
        """The number of a buffer, which has at least so many bytes. ``kind`` and ``name`` say which one it is."""
        number = self._numbers.setdefault((kind, name), len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(Buffer(name, role, size_bytes))
        buffer = self.buffers[number]
        buffer.size_bytes = max(buffer.size_bytes, size_bytes)
        if role == "state":
            buffer.role = role  # some program writes it
        return number

    def _buffers(self, traced: TracedProgram) -> dict[int, int]:
        """Plan buffer → page buffer, for those that the page needs."""
        plan, numbers = traced.plan, {}
        used = {b for step in plan.steps for b in buffers_of(step)} | {t.buffer for t in plan.outputs}
        for position, (name, spec) in enumerate(zip(traced.names, plan.inputs)):
            size = plan.buffers[spec.buffer].size_bytes
            if position >= traced.held:
                numbers[spec.buffer] = self._buffer("input", name, "input", size)
            elif spec.buffer in used:
                role = "state" if plan.buffers[spec.buffer].role == "state" else "weight"
                numbers[spec.buffer] = self._buffer("held", name, role, size)
        digests = dict(plan.constants)
        temporaries = [
            n for n, b in enumerate(plan.buffers) if n in used and n not in numbers and b.role == "temporary"
        ]
        # Programs run one after the other: the largest temporaries of all share memory, then the next ones, and so on.
        temporaries.sort(key=lambda n: -plan.buffers[n].size_bytes)
        for rank, number in enumerate(temporaries):
            size = plan.buffers[number].size_bytes
            numbers[number] = self._buffer("temporary", f"temporary.{rank}", "temporary", size)
        for number, buffer in enumerate(plan.buffers):
            if number in numbers or number not in used:
                continue
            if number in digests:
                self.constants[digests[number]] = plan.contents[digests[number]]
                name = f"constant.{digests[number][:16]}"
                numbers[number] = self._buffer("constant", name, "constant", buffer.size_bytes)
            elif buffer.role == "errors":
                numbers[number] = self._buffer("errors", "errors", "errors", ERROR_FLAG_BYTES)
            else:
                rank = sum(b.role == "output" for b in plan.buffers[:number])
                numbers[number] = self._buffer("output", f"output.{rank}", "output", buffer.size_bytes)
        return numbers

    def _step(
        self, traced: TracedProgram, step: Step | Clear, numbers: dict[int, int], randoms: list[tuple[int, Random]]
    ) -> list[Any]:
        """``[buffer, bytes]`` of a clear; of a dispatch module, bindings, place of its parameters and grid."""
        plan = traced.plan
        if isinstance(step, Clear):
            return [numbers[step.buffer], step.size_bytes]
        kernel = plan.kernels[step.kernel]
        limit, window = self.target.max_binding_bytes, self.target.window_bytes
        sizes = [aligned(plan.buffers[b].size_bytes) for b in step.bindings]
        windows = tuple([1 if size <= limit else -(-size // window) for size in sizes])
        bindings: list[list[int]] = []
        for buffer, size, count in zip(step.bindings, sizes, windows):
            if count == 1:
                bindings.append([numbers[buffer], 0, size])
            else:
                bindings += [[numbers[buffer], at, min(window, size - at)] for at in range(0, size, window)]
        accesses = [b.access == "read_write" for b, count in zip(kernel.bindings, windows) for _ in range(count)]
        if len(accesses) > self.target.max_buffers:
            raise ExportError(
                f"{traced.program.name!r} needs a kernel ({kernel.name}) that binds {len(accesses)} buffers, since "
                f"tensors of more than {limit} bytes are bound in parts; the target binds {self.target.max_buffers}"
            )
        linked = link(kernel, self.target, windows if max(windows, default=1) > 1 else ())
        module = self._module(kernel.name, linked.source, accesses, len(kernel.params))
        return [module, bindings, self._words(step, randoms), list(step.grid)]

    def _module(self, label: str, source: str, accesses: list[bool], words: int) -> int:
        digest = sha256(source.encode()).hexdigest()[:16]
        if digest not in self.sources:
            self.sources[digest] = source
            self.modules.append({"digest": digest, "label": label, "access": [*map(int, accesses)], "words": words})
        return next(k for k, module in enumerate(self.modules) if module["digest"] == digest)

    def _words(self, step: Step, randoms: list[tuple[int, Random]]) -> int:
        """Where the parameters of a step lie; equal ones lie at one place, but for those that each run changes."""
        place = len(self._fixed)
        values: list[int] = []
        changing: list[tuple[int, Random]] = []
        for position, word in enumerate(step.words):
            if isinstance(word, Offset):
                values.append(word.ahead & 0xFFFFFFFF)  # every tensor of a page starts at the start of its buffer
            elif isinstance(word, Random):
                changing.append((place + WORD_BYTES * position, word))
                values.append(0)
            elif isinstance(word, int):
                values.append(word & 0xFFFFFFFF)
            else:
                raise ExportError("a plan that waits for numbers from the host cannot be exported")
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(packed) > MAX_UNIFORM_BYTES:
            raise ExportError(f"a kernel has {len(packed)} bytes of parameters: WebGPU takes {MAX_UNIFORM_BYTES}")
        if not packed:
            return 0
        if not changing and packed in self._places:
            return self._places[packed]
        if not changing:
            self._places[packed] = place
        randoms += changing
        self._fixed += packed.ljust(aligned(len(packed), UNIFORM_ALIGNMENT_BYTES), b"\0")
        return place


def io(name: str, spec: TensorSpec, numbers: dict[int, int]) -> dict[str, Any]:
    """An input or an output of a program. Outputs are contiguous: see :func:`.programs.whole`."""
    if spec.byte_offset:
        raise ExportError(f"the output {name!r} does not start where its buffer does")
    dtype = str(BY_NAME[spec.dtype].torch).removeprefix("torch.")
    data: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(spec.shape)}
    return {**data, "buffer": numbers[spec.buffer]} if spec.buffer in numbers else data
