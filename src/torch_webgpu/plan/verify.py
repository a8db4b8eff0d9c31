"""What can be wrong with a plan.

A plan that passes names nothing that is not there, fits into the buffers that it says it has, and reads nothing before
it is written. Its kernels are another matter: what they compute, and where, is up to their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol, get_args

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.layout import extent
from torch_webgpu.wgsl.kernel import Access, Kernel, Mode

from .steps import (
    ERROR_FLAG_BYTES,
    INITIALISED,
    READ_ONLY,
    ROLES,
    STREAM_MASK,
    STRUCT_FORMATS,
    WORD_BYTES,
    Buffer,
    Clear,
    Label,
    Offset,
    Random,
    Scalar,
    Step,
    TensorSpec,
    touched,
)
from .structure import leaves_of

MAX_GRID = 65535
MAX_THREADS = 1024
MAX_BYTES = 1 << 48
MAX_SCALARS = 1 << 24
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORKGROUP_SIZE = re.compile(r"@workgroup_size\(([^()]*)\)")
_NAMED_ROLES = ("input", "weight", "state")


class PlanParts(Protocol):
    """A plan, as far as it is checked."""

    @property
    def buffers(self) -> Sequence[Buffer]: ...
    @property
    def kernels(self) -> Sequence[Kernel]: ...
    @property
    def steps(self) -> Sequence[Step | Clear]: ...
    @property
    def arguments(self) -> Sequence[int]: ...
    @property
    def tensors(self) -> Sequence[int]: ...
    @property
    def inputs(self) -> Sequence[TensorSpec]: ...
    @property
    def outputs(self) -> Sequence[TensorSpec]: ...
    @property
    def constants(self) -> Sequence[tuple[int, str]]: ...
    @property
    def operators(self) -> Sequence[tuple[int, str]]: ...
    @property
    def labels(self) -> Sequence[Label]: ...
    @property
    def random_blocks(self) -> int: ...
    @property
    def result(self) -> Any: ...
    @property
    def lifetimes(self) -> Mapping[int, tuple[int, int]]: ...


def verify(plan: PlanParts) -> list[str]:
    """What is wrong with a plan, a sentence each; nothing if it can be bound wherever its kernels compile."""
    for check in (_parts, _references, _sizes, _uses):
        if problems := [*check(plan)]:
            return problems  # what comes later relies on what came before
    return []


def is_number(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> bool:
    """Whether it is an integer, and no boolean, within these bounds."""
    return type(value) is int and least <= value <= most


def _are_numbers(values: Any, least: int = 0, most: int = (1 << 63) - 1, count: int | None = None) -> bool:
    return (
        isinstance(values, tuple)
        and (count is None or len(values) == count)
        and all(is_number(value, least, most) for value in values)
    )


# Each part by itself


def _parts(plan: PlanParts) -> Iterator[str]:
    yield from _buffers(plan)
    for kernel in plan.kernels:
        yield from _kernel(kernel)
    for number, step in enumerate(plan.steps):
        yield from _clear(number, step) if isinstance(step, Clear) else _step(number, step)
    for spec in (*plan.inputs, *plan.outputs):
        yield from _spec(spec)
    yield from _names(plan)


def _buffers(plan: PlanParts) -> Iterator[str]:
    for number, buffer in enumerate(plan.buffers):
        if buffer.role not in ROLES:
            yield f"buffer {number} has the role {buffer.role!r}, which does not exist"
        elif not is_number(buffer.size_bytes, 0, MAX_BYTES):
            yield f"buffer {number} has {buffer.size_bytes!r} bytes"
        elif (type(buffer.donated), type(buffer.name)) != (bool, str):
            yield f"buffer {number}: {buffer.donated!r}, {buffer.name!r}"


def _names(plan: PlanParts) -> Iterator[str]:
    if plan.labels and len(plan.labels) != len(plan.steps):
        yield f"{len(plan.steps)} steps have {len(plan.labels)} labels"
    for label in plan.labels:
        if not isinstance(label.operation, str) or not is_number(label.size_bytes, 0, MAX_BYTES):
            yield f"{label!r} is no label"
    if not is_number(plan.random_blocks, 0, STREAM_MASK):
        yield f"it uses {plan.random_blocks!r} blocks of the random stream"
    for number, digest in plan.constants:
        if not is_number(number) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            yield f"constant {number!r} has the digest {digest!r}"
    for number, name in plan.operators:
        if not is_number(number, 0, 0xFFFFFFFF) or not isinstance(name, str):
            yield f"operator {number!r} is called {name!r}"


def _kernel(kernel: Kernel) -> Iterator[str]:
    texts = (kernel.name, kernel.body)
    if not all(isinstance(text, str) for text in texts) or not isinstance(kernel.trusted, bool):
        yield f"kernel {kernel.name!r} is no text"
        return
    for binding in kernel.bindings:
        if not isinstance(binding.name, str) or not _IDENTIFIER.fullmatch(binding.name):
            yield f"kernel {kernel.name}: {binding.name!r} is no name"
        if binding.dtype not in BY_NAME or binding.access not in get_args(Access) or binding.mode not in get_args(Mode):
            yield f"kernel {kernel.name}: {binding.name} is {binding.dtype!r}, {binding.access!r}, {binding.mode!r}"
    for param in kernel.params:
        if not isinstance(param.name, str) or not _IDENTIFIER.fullmatch(param.name) or param.type not in STRUCT_FORMATS:
            yield f"kernel {kernel.name}: {param.name!r} of type {param.type!r} is no parameter"
    for what, names in (("binding", [b.name for b in kernel.bindings]), ("parameter", [p.name for p in kernel.params])):
        if len(set(names)) < len(names):
            yield f"kernel {kernel.name} has two {what}s of one name"
    size = kernel.workgroup_size
    if not _are_numbers(size, 1, MAX_THREADS, 3) or prod(size) > MAX_THREADS:
        yield f"kernel {kernel.name}: {size!r} is no size of a workgroup"
        return
    said = _WORKGROUP_SIZE.search(kernel.body)
    if said is not None and all(part.strip().rstrip("u").isdigit() for part in said[1].split(",") if part.strip()):
        text = [int(part.strip().rstrip("u")) for part in said[1].split(",") if part.strip()]
        if tuple([*text, 1, 1][:3]) != size:
            yield f"kernel {kernel.name} has workgroups of {text} threads, not of {size}"


def _clear(number: int, step: Clear) -> Iterator[str]:
    if not is_number(step.buffer) or not is_number(step.size_bytes, 0, MAX_BYTES) or step.size_bytes % WORD_BYTES:
        yield f"step {number} clears {step.size_bytes!r} bytes"


def _step(number: int, step: Step) -> Iterator[str]:
    if not is_number(step.kernel) or not _are_numbers(step.bindings):
        yield f"step {number}: {step.kernel!r}, {step.bindings!r}"
    if not _are_numbers(step.grid, 1, MAX_GRID, 3):
        yield f"step {number}: {step.grid!r} is not a grid"
    for word in step.words:
        if not _is_word(word):
            yield f"step {number}: {word!r} is no parameter"


def _is_word(word: Any) -> bool:
    if isinstance(word, Offset):
        return is_number(word.tensor) and is_number(word.shift, 0, 4) and is_number(word.ahead, 0, 0xFFFFFFFF)
    if isinstance(word, Scalar):
        return is_number(word.index, 0, MAX_SCALARS)
    if isinstance(word, Random):
        return is_number(word.part, 0, 3) and is_number(word.ahead, 0, STREAM_MASK)
    return is_number(word, 0, 0xFFFFFFFF)


def _spec(spec: TensorSpec) -> Iterator[str]:
    sizes = _are_numbers(spec.shape, 0, MAX_BYTES) and _are_numbers(spec.strides, 0, MAX_BYTES, len(spec.shape))
    if not is_number(spec.buffer) or not is_number(spec.byte_offset, 0, MAX_BYTES) or not sizes:
        yield f"{spec!r} is no tensor"
    elif spec.dtype not in BY_NAME:
        yield f"there is no dtype {spec.dtype!r}"


# What refers to what


def _references(plan: PlanParts) -> Iterator[str]:
    buffers = range(len(plan.buffers))
    roles = [buffer.role for buffer in plan.buffers]
    for what, numbers in (("argument", plan.arguments), ("tensor", plan.tensors)):
        for k, number in enumerate(numbers):
            if not is_number(number) or number not in buffers:
                yield f"{what} {k} lies in buffer {number}, which does not exist"
    for what, specs in (("input", plan.inputs), ("output", plan.outputs)):
        for k, spec in enumerate(specs):
            if spec.buffer not in buffers:
                yield f"{what} {k} lies in buffer {spec.buffer}, which does not exist"
    for number, _ in plan.constants:
        if number not in buffers or roles[number] != "constant":
            yield f"buffer {number}, of which there are contents, is no constant"
    if {n for n, role in enumerate(roles) if role == "constant"} != {n for n, _ in plan.constants}:
        yield "a constant has no contents, or several"
    if roles.count("errors") > 1 or any(b.size_bytes != ERROR_FLAG_BYTES for b in plan.buffers if b.role == "errors"):
        yield f"its error flags are not one buffer of {ERROR_FLAG_BYTES} bytes"
    for number, step in enumerate(plan.steps):
        if any(buffer not in buffers for buffer in touched(step)):
            yield f"step {number} names a buffer that does not exist"
        elif isinstance(step, Step):
            if step.kernel >= len(plan.kernels):
                yield f"step {number} names kernel {step.kernel}, which does not exist"
            else:
                yield from _dispatch(plan, number, step)
    yield from _structure(plan)


def _dispatch(plan: PlanParts, number: int, step: Step) -> Iterator[str]:
    kernel = plan.kernels[step.kernel]
    if len(step.bindings) != len(kernel.bindings):
        yield f"step {number}: {kernel.name} has {len(kernel.bindings)} bindings, not {len(step.bindings)}"
    if len(step.words) != len(kernel.params):
        yield f"step {number}: {kernel.name} has {len(kernel.params)} parameters, not {len(step.words)}"
    for word, param in zip(step.words, kernel.params):
        if isinstance(word, Offset) and word.tensor >= len(plan.tensors):
            yield f"step {number} asks where tensor {word.tensor} starts, which does not exist"
        elif isinstance(word, (Offset, Random)) and param.type == "f32":
            yield f"step {number}: {kernel.name}: {param.name} is a float, not {word}"
    for buffer, binding in zip(step.bindings, kernel.bindings):
        is_flags = plan.buffers[buffer].role == "errors"
        if is_flags != (binding.name == "errors"):
            yield f"step {number}: {kernel.name}: {binding.name} and buffer {buffer} are not both the error flags"
    tensors = {word.tensor for word in step.words if isinstance(word, Offset) and word.tensor < len(plan.tensors)}
    for tensor in tensors:
        if plan.tensors[tensor] not in step.bindings:
            yield f"step {number}: {kernel.name} asks where tensor {tensor} starts, which it is not given"


def _structure(plan: PlanParts) -> Iterator[str]:
    if plan.result is None:
        if plan.outputs:
            yield "how its outputs are arranged is not said"
        return
    try:
        leaves = leaves_of(plan.result)
    except ValueError as error:
        yield str(error)
        return
    if sorted(leaves) != list(range(len(plan.outputs))):
        yield f"{len(plan.outputs)} outputs are arranged as {plan.result!r}"


# Sizes and roles


def _sizes(plan: PlanParts) -> Iterator[str]:
    given = set(plan.arguments)
    if len(given) < len(plan.arguments):
        yield "two of its arguments are one buffer"
    for number, buffer in enumerate(plan.buffers):
        used = number in plan.lifetimes  # an empty tensor has memory that nobody uses
        if buffer.role == "errors" and number in given:
            yield f"buffer {number}, the error flags, is an argument"
        elif buffer.role not in ("temporary", "errors") and used and number not in given:
            yield f"buffer {number}, which has the role {buffer.role}, is no argument"
        elif buffer.role == "temporary" and used and number not in given and buffer.size_bytes == 0:
            yield f"temporary {number} has no size"
        if buffer.donated and buffer.role not in _NAMED_ROLES:
            yield f"buffer {number}, which has the role {buffer.role}, is donated"
    names = [buffer.name for buffer in plan.buffers if buffer.name]
    if len(set(names)) < len(names):
        yield "two of its buffers have one name"
    yield from _interface(plan)
    for number, step in enumerate(plan.steps):
        if isinstance(step, Clear) and step.size_bytes > _words_bytes(plan.buffers[step.buffer].size_bytes):
            yield f"step {number} clears {step.size_bytes} bytes of {plan.buffers[step.buffer].size_bytes}"


def _interface(plan: PlanParts) -> Iterator[str]:
    """Of the inputs and the outputs."""
    sources = [spec.buffer for spec in plan.inputs]
    if len(set(sources)) < len(sources):
        yield "two of its inputs are one buffer"
    for k, spec in enumerate(plan.inputs):
        if plan.buffers[spec.buffer].role not in _NAMED_ROLES:
            yield f"input {k} lies in buffer {spec.buffer}, which has the role {plan.buffers[spec.buffer].role}"
        elif spec.byte_offset:
            yield f"input {k} starts {spec.byte_offset} bytes after its buffer"
        yield from _fits(plan, f"input {k}", spec)
    for k, spec in enumerate(plan.outputs):
        if plan.buffers[spec.buffer].role in ("temporary", "errors"):
            yield f"output {k} lies in buffer {spec.buffer}, which has the role {plan.buffers[spec.buffer].role}"
        elif spec.byte_offset % BY_NAME[spec.dtype].itemsize:
            yield f"output {k} starts {spec.byte_offset} bytes after its buffer, between two elements"
        yield from _fits(plan, f"output {k}", spec)


def _words_bytes(size_bytes: int) -> int:
    """The size of the whole words that so many bytes lie in."""
    return -(-size_bytes // WORD_BYTES) * WORD_BYTES


def _fits(plan: PlanParts, what: str, spec: TensorSpec) -> Iterator[str]:
    end = spec.byte_offset + extent(spec.shape, spec.strides) * BY_NAME[spec.dtype].itemsize
    size = plan.buffers[spec.buffer].size_bytes
    if end > size:
        yield f"{what} ends {end} bytes into buffer {spec.buffer}, which has {size}"


# Who writes what, and when


def _uses(plan: PlanParts) -> Iterator[str]:
    """Writes into what is read only, two bindings of what is written, and what is read before it is written."""
    written = {n for n, b in enumerate(plan.buffers) if b.role in INITIALISED}
    for number, step in enumerate(plan.steps):
        if isinstance(step, Clear):
            yield from _written(plan, f"step {number}", [step.buffer])
            written.add(step.buffer)
            continue
        kernel = plan.kernels[step.kernel]
        targets = [b for b, binding in zip(step.bindings, kernel.bindings) if binding.access == "read_write"]
        yield from _written(plan, f"step {number}: {kernel.name}", targets)
        for buffer in targets:
            if step.bindings.count(buffer) > 1 and plan.buffers[buffer].role != "errors":
                yield f"step {number}: {kernel.name} writes buffer {buffer}, which it is given twice"
        for buffer, binding in zip(step.bindings, kernel.bindings):
            if binding.access == "read" and buffer not in written:
                yield f"step {number}: {kernel.name} reads buffer {buffer}, which nothing has written"
        written.update(step.bindings)
    for k, spec in enumerate(plan.outputs):
        if spec.buffer not in written and 0 not in spec.shape:
            yield f"output {k} lies in buffer {spec.buffer}, which nothing has written"


def _written(plan: PlanParts, who: str, targets: Iterable[int]) -> Iterator[str]:
    for buffer in targets:
        if plan.buffers[buffer].role in READ_ONLY:
            yield f"{who} writes buffer {buffer}, which has the role {plan.buffers[buffer].role}"
