"""What can be wrong with a plan.

A plan that passes names nothing that is not there, fits into the buffers that it says it has, and reads nothing before
it is written. Its kernels are another matter: what they compute, and where, is up to their text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.layout import extent
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Kernel

from .requirements import NO_REQUIREMENTS, Requirements, features_of
from .steps import (
    ERROR_FLAG_BYTES,
    INITIALISED,
    READ_ONLY,
    BufferSpec,
    Clear,
    Label,
    Offset,
    Random,
    Scalar,
    Step,
    TensorSpec,
    touched,
    whole_words,
)
from .structure import leaves_of
from .verify_parts import (
    is_number,
    verify_buffer,
    verify_clear,
    verify_constant,
    verify_kernel,
    verify_label,
    verify_operator,
    verify_random_blocks,
    verify_spec,
    verify_step,
)

_NAMED_ROLES = ("input", "weight", "state")


class PlanParts(Protocol):
    """A plan, as far as it is checked."""

    @property
    def buffers(self) -> Sequence[BufferSpec]: ...
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
    def requires(self) -> Requirements: ...
    @property
    def lifetimes(self) -> Mapping[int, tuple[int, int]]: ...


def verify(plan: PlanParts) -> list[str]:
    """What is wrong with a plan, a sentence each; nothing if it can be bound wherever its kernels compile."""
    for check in (_parts, _references, _sizes, _function, _uses):
        if problems := [*check(plan)]:
            return problems  # what comes later relies on what came before
    return []


def _parts(plan: PlanParts) -> Iterator[str]:
    for number, buffer in enumerate(plan.buffers):
        yield from verify_buffer(number, buffer)
    for kernel in plan.kernels:
        yield from verify_kernel(kernel)
    for number, step in enumerate(plan.steps):
        yield from verify_clear(number, step) if isinstance(step, Clear) else verify_step(number, step)
    for spec in (*plan.inputs, *plan.outputs):
        yield from verify_spec(spec)
    if plan.labels and len(plan.labels) != len(plan.steps):
        yield f"{len(plan.steps)} steps have {len(plan.labels)} labels"
    for label in plan.labels:
        yield from verify_label(label)
    yield from verify_random_blocks(plan.random_blocks)
    for number, digest in plan.constants:
        yield from verify_constant(number, digest)
    for number, name in plan.operators:
        yield from verify_operator(number, name)


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
    if [n for n, role in enumerate(roles) if role == "constant"] != sorted([n for n, _ in plan.constants]):
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
    yield from _required(plan)


def _required(plan: PlanParts) -> Iterator[str]:
    """What its own parts need and it does not require. A batch's plan may say nothing: it does not travel."""
    requires = plan.requires
    if not plan.kernels or (requires == NO_REQUIREMENTS and plan.result is None):
        return
    needs = (
        ("max_buffers", requires.max_buffers, [len(kernel.bindings) for kernel in plan.kernels]),
        ("workgroup_threads", requires.workgroup_threads, [prod(kernel.workgroup_size) for kernel in plan.kernels]),
        ("max_buffer_bytes", requires.max_buffer_bytes, [buffer.size_bytes for buffer in plan.buffers]),
    )
    for name, limit, sizes in needs:
        if not is_number(limit, needed := max(sizes, default=0)):
            yield f"it requires {name} {limit!r}, and uses {needed}"
    for kernel in plan.kernels:
        for feature in sorted(features_of(kernel).difference(requires.features)):
            yield f"{kernel.name} uses {feature}, which the plan does not require"


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
    raises = False
    for number_of_buffer, binding in zip(step.bindings, kernel.bindings):
        buffer = plan.buffers[number_of_buffer]
        is_flags = buffer.role == "errors"
        raises = raises or is_flags
        if is_flags != (binding.name == ERROR_FLAGS.name):
            yield f"step {number}: {kernel.name}: {binding.name} and buffer {number_of_buffer} are not both the flags"
        elif 0 < buffer.size_bytes < (itemsize := BY_NAME[binding.dtype].itemsize):
            yield (
                f"step {number}: {kernel.name}: {binding.name} has elements of {itemsize} bytes, "
                f"and buffer {number_of_buffer} has {buffer.size_bytes}"
            )
    if raises and {operator for operator, _ in plan.operators}.isdisjoint(step.words):
        yield f"step {number}: {kernel.name} raises flags for an operator without a name"
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
    arguments = set(plan.arguments)
    if len(arguments) < len(plan.arguments):
        yield "two of its arguments are one buffer"
    for number, buffer in enumerate(plan.buffers):
        used = number in plan.lifetimes  # an empty tensor has memory that nobody uses
        if buffer.role == "errors" and number in arguments:
            yield f"buffer {number}, the error flags, is an argument"
        elif buffer.role not in ("temporary", "errors") and used and number not in arguments:
            yield f"buffer {number}, which has the role {buffer.role}, is no argument"
        elif buffer.role == "temporary" and used and number not in arguments and buffer.size_bytes == 0:
            yield f"temporary {number} has no size"
        if not used and number not in arguments and buffer.role != "errors":
            yield f"buffer {number}, which has the role {buffer.role}, is used by nothing"
        if buffer.donated and buffer.role not in _NAMED_ROLES:
            yield f"buffer {number}, which has the role {buffer.role}, is donated"
    names = [buffer.name for buffer in plan.buffers if buffer.name]
    if len(set(names)) < len(names):
        yield "two of its buffers have one name"
    yield from _interface(plan)
    for number, step in enumerate(plan.steps):
        if isinstance(step, Clear) and step.size_bytes > whole_words(plan.buffers[step.buffer].size_bytes):
            yield f"step {number} clears {step.size_bytes} bytes of {plan.buffers[step.buffer].size_bytes}"
        elif isinstance(step, Step):
            yield from _starts(plan, number, step)


def _starts(plan: PlanParts, number: int, step: Step) -> Iterator[str]:
    """Parameters that say where a view of a tensor starts, beyond the tensor's end."""
    for word in step.words:
        if isinstance(word, Offset) and word.ahead:
            start, size = word.ahead << word.shift, plan.buffers[plan.tensors[word.tensor]].size_bytes
            if start > size:
                yield f"step {number} starts {start} bytes after tensor {word.tensor}, which has {size}"


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


def _function(plan: PlanParts) -> Iterator[str]:
    """Of the plan of a function, which has all that it needs: what it is called with, constants, and new tensors."""
    if plan.result is None:
        if plan.inputs or plan.constants:
            yield "it has inputs or constants, and how its outputs are arranged is not said"
        return
    sources = [spec.buffer for spec in plan.inputs]
    if list(plan.tensors) != sources:
        yield f"it asks where the tensors of the buffers {plan.tensors} start, and its inputs lie in {tuple(sources)}"
    given, arguments = set(sources), set(plan.arguments)
    known = given.union([number for number, _ in plan.constants])
    results = {spec.buffer for spec in plan.outputs if plan.buffers[spec.buffer].role == "output"}
    for number in sorted(known - arguments):
        yield f"buffer {number}, which has the role {plan.buffers[number].role}, is no argument"
    for number in sorted(arguments - known - results):
        yield f"buffer {number}, an argument, is neither an input nor a constant nor an output"
    for spec in plan.outputs:
        if spec.buffer not in arguments:
            yield f"buffer {spec.buffer}, an output, is no argument"
    for k, spec in enumerate(plan.inputs):
        end, size = _end(spec), plan.buffers[spec.buffer].size_bytes
        if end != size:
            yield f"input {k} has {end} bytes, and buffer {spec.buffer} has {size}"
        if plan.buffers[spec.buffer].donated:
            yield f"buffer {spec.buffer}, an input of a function, is donated"
    for number, step in enumerate(plan.steps):
        if isinstance(step, Step) and any(isinstance(word, Scalar) for word in step.words):
            yield f"step {number} needs a number that no function is given"


def wrong_contents(plan: PlanParts, contents: Mapping[str, bytes]) -> Iterator[str]:
    """Which of the contents that are at hand do not fill their constants."""
    for number, digest in plan.constants:
        size = plan.buffers[number].size_bytes
        if digest in contents and len(contents[digest]) not in (size, whole_words(size)):
            yield f"the contents of buffer {number} have {len(contents[digest])} bytes, and it has {size}"


def _end(spec: TensorSpec) -> int:
    """The byte after a tensor's last one; 0 for one without elements, which may start anywhere."""
    count = extent(spec.shape, spec.strides)
    return spec.byte_offset + count * BY_NAME[spec.dtype].itemsize if count else 0


def _fits(plan: PlanParts, what: str, spec: TensorSpec) -> Iterator[str]:
    end = _end(spec)
    size = plan.buffers[spec.buffer].size_bytes
    if end > size:
        yield f"{what} ends {end} bytes into buffer {spec.buffer}, which has {size}"


# Who writes what, and when


def _uses(plan: PlanParts) -> Iterator[str]:
    """Writes into what is read only, two bindings of what is written, and what is read before it is written."""
    written = {n for n, b in enumerate(plan.buffers) if b.role in INITIALISED}
    cleared: dict[int, int] = {}  # the bytes of what nothing but zeros was written into
    for number, step in enumerate(plan.steps):
        if isinstance(step, Clear):
            yield from _written(plan, f"step {number}", [step.buffer])
            if plan.buffers[step.buffer].role == "errors":
                yield f"step {number} clears the error flags"
            if step.buffer not in written or step.buffer in cleared:
                cleared[step.buffer] = max(step.size_bytes, cleared.get(step.buffer, 0))
            written.add(step.buffer)
            continue
        kernel = plan.kernels[step.kernel]
        targets = [b for b, binding in zip(step.bindings, kernel.bindings) if binding.access == "read_write"]
        yield from _written(plan, f"step {number}: {kernel.name}", targets)
        for buffer in targets:
            cleared.pop(buffer, None)
            if step.bindings.count(buffer) > 1:
                yield f"step {number}: {kernel.name} writes buffer {buffer}, which it is given twice"
        for buffer, binding in zip(step.bindings, kernel.bindings):
            if binding.access == "read" and buffer not in written:
                yield f"step {number}: {kernel.name} reads buffer {buffer}, which nothing has written"
        written.update(step.bindings)
    for k, spec in enumerate(plan.outputs):
        if spec.buffer not in written and 0 not in spec.shape:
            yield f"output {k} lies in buffer {spec.buffer}, which nothing has written"
        elif spec.buffer in cleared and _end(spec) > whole_words(cleared[spec.buffer]):
            yield f"output {k} ends beyond the {cleared[spec.buffer]} bytes of buffer {spec.buffer} that are cleared"
    yield from _unused(plan)


def _unused(plan: PlanParts) -> Iterator[str]:
    """Kernels, operators and random numbers that are there for nothing, or are not there."""
    steps = [step for step in plan.steps if isinstance(step, Step)]
    run = {step.kernel for step in steps}
    for number, kernel in enumerate(plan.kernels):
        if number not in run:
            yield f"kernel {number}, {kernel.name}, is run by no step"
    blocks = max([word.ahead + 1 for s in steps for word in s.words if isinstance(word, Random)], default=0)
    if blocks > plan.random_blocks:
        yield f"it uses {plan.random_blocks} blocks of the random stream, and reads block {blocks - 1}"
    if not plan.operators:
        return
    numbers = [number for number, _ in plan.operators]
    if len(set(numbers)) < len(numbers):
        yield "two of its operators have one number"
    flags = {n for n, buffer in enumerate(plan.buffers) if buffer.role == "errors"}
    raised = {word for s in steps if not flags.isdisjoint(s.bindings) for word in s.words if isinstance(word, int)}
    for number, name in plan.operators:
        if number not in raised:
            yield f"no step raises flags for operator {number}, {name}"


def _written(plan: PlanParts, who: str, targets: Iterable[int]) -> Iterator[str]:
    for buffer in targets:
        if plan.buffers[buffer].role in READ_ONLY:
            yield f"{who} writes buffer {buffer}, which has the role {plan.buffers[buffer].role}"
