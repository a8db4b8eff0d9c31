"""Plans: what a piece of work comes down to on a GPU, as plain data.

A plan is a list of steps over numbered buffers: which kernel runs on what, with which parameters, on how large a grid.
It knows no process, no device and no tensor; what it needs of them it names: the buffers that its user brings and
takes, the numbers that are only known when it runs, the features of a GPU. Equal work gives equal plans in every
process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from os import PathLike
from reprlib import repr as shown

import numpy as np

from torch_webgpu.errors import WebGPUError
from torch_webgpu.wgsl.kernel import Kernel

from .archive import ArchiveError, ArchiveReader
from .parts_json import (
    buffer_from_data,
    buffer_to_data,
    integer,
    integers,
    kernel_from_data,
    kernel_to_data,
    label_from_data,
    number_and_text,
    parts,
    sealed,
    spec_from_data,
    step_from_data,
    step_to_data,
    unsealed,
)
from .requirements import NO_REQUIREMENTS, Requirements
from .steps import STRUCT_FORMATS, BufferSpec, Clear, Label, Offset, Random, Scalar, Step, TensorSpec, touched
from .structure import Structure
from .verify import verify, wrong_contents
from .verify_parts import verify_text

FORMAT = 3
"""Of :meth:`Plan.to_json`; what another version wrote is refused."""
_KEYS = (
    "format", "requires", "buffers", "kernels", "steps", "arguments", "tensors", "inputs", "outputs", "constants",
    "random_blocks", "result", "operators", "labels",
)  # fmt: skip
_MAX_SAID, _MAX_CHARACTERS = 8, 300


@dataclass(frozen=True)
class Plan:
    """Steps in order, each seeing what those before it wrote.

    ``arguments``: the buffers that each run is given, in the order in which it is given them; the others are made for a
    run, but for the error flags, which are the device's. ``tensors``: the buffer that each of the tensors lies in which
    :class:`Offset` words ask about; of a traced plan they are its inputs. ``constants``: the SHA-256 digests of the
    contents of buffers, by their numbers; ``contents`` has these, as far as they are at hand. ``random_blocks``: how
    much of the random stream a run uses. ``result``: how the outputs are arranged; None without outputs. ``requires``:
    what it needs of a GPU. ``operators``: the names of the operators whose kernels raise flags, with the dimensions
    that they index (:meth:`.Operation.flag_name`), by the numbers that these carry. ``labels``: of each step what it is
    part of; empty where nobody knows. ``origins``: of a plan that was made in this process, which of the graph's calls
    each step computes. Contents and origins take no part in comparisons.
    """

    buffers: tuple[BufferSpec, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step | Clear, ...]
    arguments: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    constants: tuple[tuple[int, str], ...] = ()
    random_blocks: int = 0
    result: Structure | None = None
    requires: Requirements = NO_REQUIREMENTS
    operators: tuple[tuple[int, str], ...] = ()
    labels: tuple[Label, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    origins: tuple[tuple[int, ...], ...] = field(default=(), compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.buffers, self.kernels, self.steps, self.arguments, self.tensors))

    @cached_property
    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and the last step that touches each buffer, for those that one touches."""
        spans: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for buffer in touched(step):
                spans[buffer] = spans.get(buffer, (number, number))[0], number
        return spans

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
        lines = [
            f"b{n}: {b.size_bytes} bytes, {b.role}{f' {b.name}' if b.name else ''}{', donated' if b.donated else ''}"
            for n, b in enumerate(self.buffers)
        ]
        for step in self.steps:
            if isinstance(step, Clear):
                lines.append(f"clear b{step.buffer}")
                continue
            kernel = self.kernels[step.kernel]
            bound = [f"{b.name}=b{n}" for b, n in zip(kernel.bindings, step.bindings)]
            words = [f"{p.name}={w}" for p, w in zip(kernel.params, step.words)]
            lines.append(f"{kernel.name} {step.grid} {', '.join(bound)}; {', '.join(words)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as JSON; equal plans give equal text."""
        return sealed(
            {
                "format": FORMAT,
                "requires": self.requires.to_data(),
                "buffers": [buffer_to_data(b) for b in self.buffers],
                "kernels": [kernel_to_data(k) for k in self.kernels],
                "steps": [step_to_data(s) for s in self.steps],
                "arguments": self.arguments,
                "tensors": self.tensors,
                "inputs": [astuple(t) for t in self.inputs],
                "outputs": [astuple(t) for t in self.outputs],
                "constants": self.constants,
                "random_blocks": self.random_blocks,
                "result": self.result,
                "operators": self.operators,
                "labels": [astuple(label) for label in self.labels],
            }
        )

    @classmethod
    def from_json(cls, text: str, *, trusted: bool = False) -> Plan:
        """The plan that :meth:`to_json` wrote. Raises WebGPUError for anything else.

        Its kernels are compiled with bounds checks, whatever it says, and must reach memory through what checks bounds,
        unless whoever calls this knows that the text is what this package wrote: ``trusted``.
        """
        try:
            data = unsealed(text, FORMAT, _KEYS)
            plan = cls(
                parts(data["buffers"], "buffer", buffer_from_data),
                parts(data["kernels"], "kernel", partial(kernel_from_data, trusted=trusted)),
                parts(data["steps"], "step", step_from_data),
                integers(data["arguments"], "the list of arguments"),
                integers(data["tensors"], "the list of tensors"),
                parts(data["inputs"], "input", spec_from_data),
                parts(data["outputs"], "output", spec_from_data),
                parts(data["constants"], "constant", number_and_text),
                integer(data["random_blocks"], "how much of the random stream it uses"),
                data["result"],
                _requirements(data["requires"]),
                parts(data["operators"], "operator", number_and_text),
                parts(data["labels"], "label", label_from_data),
            )
        except ValueError as error:
            raise WebGPUError(f"not a plan: {_brief(str(error))}") from None
        if not trusted and (problems := [p for kernel in plan.kernels for p in verify_text(kernel)]):
            raise _invalid(problems)
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
    def load(cls, path: str | PathLike[str], *, trusted: bool = False) -> Plan:
        """The plan that :meth:`save` wrote, with its constants. Raises WebGPUError for anything else.

        ``trusted``: see :meth:`from_json`.
        """
        try:
            with ArchiveReader(path) as archive:
                plan = cls.from_json(archive.text("plan"), trusted=trusted)
                contents = {digest: archive.content(digest) for _, digest in plan.constants}
        except ArchiveError as error:
            raise WebGPUError(f"{path} holds no plan: {error}") from None
        for digest, content in contents.items():
            if sha256(content).hexdigest() != digest:
                raise WebGPUError(f"{path}: the constant {digest[:12]}… is not what was saved")
        if problems := [*wrong_contents(plan, contents)]:
            raise WebGPUError(f"{path} holds no plan: {'; '.join(problems)}")
        return replace(plan, contents=contents)


def check(plan: Plan) -> Plan:
    """The plan, if nothing is wrong with it. Raises WebGPUError, which says what is."""
    if problems := verify(plan):
        raise _invalid(problems)
    return plan


def _invalid(problems: Sequence[str]) -> WebGPUError:
    said = map(_brief, problems[:_MAX_SAID])
    more = f"; and {len(problems) - _MAX_SAID} more" if len(problems) > _MAX_SAID else ""
    return WebGPUError(f"not a valid plan: {'; '.join(said)}{more}")


def _brief(problem: str) -> str:
    return problem if len(problem) <= _MAX_CHARACTERS else f"{problem[:_MAX_CHARACTERS]}…"


def _requirements(data: object) -> Requirements:
    """What :meth:`Requirements.to_data` wrote. ValueError for anything else, in words."""
    try:
        return Requirements.from_data(data)
    except (TypeError, ValueError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise ValueError(f"what it requires, {shown(data)}, is nothing that a plan can require{why}") from None
