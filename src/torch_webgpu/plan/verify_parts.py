"""What can be wrong with the parts of a plan, each by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any, get_args

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Access, Binding, Kernel, Mode
from torch_webgpu.wgsl.launch import MAX_GROUPS

from .steps import (
    ROLES,
    STREAM_MASK,
    STRUCT_FORMATS,
    WORD_BYTES,
    BufferSpec,
    Clear,
    Label,
    Offset,
    Random,
    Scalar,
    Step,
    TensorSpec,
    Word,
)

MAX_WORKGROUPS = 1 << 32
"""Workgroups of a dispatch: as many as kernels can number."""
MAX_THREADS = 1024
MAX_BYTES = 1 << 48
MAX_SCALARS = 1 << 24
_IDENTIFIER = re.compile(r"(?!__)(?!_$)[A-Za-z_]\w*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TYPE = re.compile(r"[A-Za-z_]\w*(<[\w<>, ]+>)?")
_WORKGROUP_SIZE = re.compile(r"@workgroup_size\(([^()]*)\)")


def is_number(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> bool:
    """Whether it is an integer, and no boolean, within these bounds."""
    return type(value) is int and least <= value <= most


def are_numbers(values: Any, least: int = 0, most: int = (1 << 63) - 1, count: int | None = None) -> bool:
    return (
        isinstance(values, tuple)
        and (count is None or len(values) == count)
        and all(is_number(value, least, most) for value in values)
    )


def _is_dtype(name: Any) -> bool:
    return isinstance(name, str) and name in BY_NAME


def verify_buffer(number: int, buffer: BufferSpec) -> Iterator[str]:
    if buffer.role not in ROLES:
        yield f"buffer {number} has the role {buffer.role!r}, which does not exist"
    elif not is_number(buffer.size_bytes, 0, MAX_BYTES):
        yield f"buffer {number} has {buffer.size_bytes!r} bytes"
    elif (type(buffer.donated), type(buffer.name)) != (bool, str):
        yield f"buffer {number}: {buffer.donated!r}, {buffer.name!r}"


def verify_label(label: Label) -> Iterator[str]:
    if not isinstance(label.operation, str) or not is_number(label.size_bytes, 0, MAX_BYTES):
        yield f"{label!r} is no label"


def verify_random_blocks(blocks: Any) -> Iterator[str]:
    if not is_number(blocks, 0, STREAM_MASK):
        yield f"it uses {blocks!r} blocks of the random stream"


def verify_constant(number: Any, digest: Any) -> Iterator[str]:
    if not is_number(number) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        yield f"constant {number!r} has the digest {digest!r}"


def verify_operator(number: Any, name: Any) -> Iterator[str]:
    if not is_number(number, 0, 0xFFFFFFFF) or not isinstance(name, str):
        yield f"operator {number!r} is called {name!r}"


# Kernels


def verify_kernel(kernel: Kernel) -> Iterator[str]:
    if not all(isinstance(text, str) for text in (kernel.name, kernel.body)) or not isinstance(kernel.trusted, bool):
        yield f"kernel {kernel.name!r} is no text"
        return
    for binding in kernel.bindings:
        yield from _binding(kernel, binding)
    for param in kernel.params:
        type_ = param.type
        is_named = isinstance(param.name, str) and _IDENTIFIER.fullmatch(param.name)
        if not is_named or not isinstance(type_, str) or type_ not in STRUCT_FORMATS:
            yield f"kernel {kernel.name}: {param.name!r} of type {type_!r} is no parameter"
    for what, names in (("binding", [b.name for b in kernel.bindings]), ("parameter", [p.name for p in kernel.params])):
        if any(name in names[:k] for k, name in enumerate(names)):
            yield f"kernel {kernel.name} has two {what}s of one name"
    size = kernel.workgroup_size
    if not are_numbers(size, 1, MAX_THREADS, 3) or prod(size) > MAX_THREADS:
        yield f"kernel {kernel.name}: {size!r} is no size of a workgroup"
        return
    said = _WORKGROUP_SIZE.search(kernel.body)
    if said is not None:
        text = [part.strip().rstrip("u") for part in said[1].split(",") if part.strip()]
        # Where a constant says it, that is up to the text.
        if all(map(str.isdecimal, text)) and [*text, "1", "1"][:3] != [str(n) for n in size]:
            yield f"kernel {kernel.name} has workgroups of {', '.join(text)} threads, not of {size}"


def _binding(kernel: Kernel, binding: Binding) -> Iterator[str]:
    name, dtype, access, mode = binding.name, binding.dtype, binding.access, binding.mode
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        yield f"kernel {kernel.name}: {name!r} is no name"
    if not _is_dtype(dtype) or access not in get_args(Access) or mode not in get_args(Mode):
        yield f"kernel {kernel.name}: {name} is {dtype!r}, {access!r}, {mode!r}"
    elif mode == "atomic" and (access == "read" or dtype == "f64"):
        yield f"kernel {kernel.name}: {name}, {dtype} that it only reads or a double, cannot be atomic"
    elif not _is_type(binding.type):
        yield f"kernel {kernel.name}: {name} has the type {binding.type!r}, which is none"
    elif name == ERROR_FLAGS.name and binding != ERROR_FLAGS:
        yield f"kernel {kernel.name}: {name}, the error flags, are {dtype}, {access}, {mode}"


def _is_type(type_: Any) -> bool:
    """Whether it can be a type of WGSL; the empty text of a binding that is no variable counts as one."""
    return isinstance(type_, str) and (not type_ or _TYPE.fullmatch(type_) is not None)


def verify_text(kernel: Kernel) -> Iterator[str]:
    """What a stranger's kernel says that ours never do, and that nothing would check: resources of its own, and memory
    that is reached past the functions which keep indices in range.
    """
    try:
        module = kernel.module
    except ShaderCompileError as error:
        yield str(error)
        return
    if "compute" not in module.attributes:
        yield f"kernel {kernel.name} has no entry point"
    if resources := module.attributes & {"group", "binding", "id"}:
        yield f"kernel {kernel.name} declares resources of its own: {', '.join(sorted(resources))}"
    reached = [binding.name for binding in kernel.bindings if _is_raw(binding.name, module.names)]
    if reached:
        yield f"kernel {kernel.name} reaches {', '.join(reached)} past the functions that check bounds"
    if any(name.startswith(f"{ERROR_FLAGS.name}_") for name in module.names):
        yield f"kernel {kernel.name} writes the error flags by itself"


def _is_raw(name: str, mentioned: frozenset[str]) -> bool:
    """Whether the variables that a binding is linked to are among those names."""
    windows = re.compile(rf"{re.escape(name)}_(buf|w\d+)")
    return any(windows.fullmatch(one) for one in mentioned)


# Steps and tensors


def verify_clear(number: int, step: Clear) -> Iterator[str]:
    if not is_number(step.buffer) or not is_number(step.size_bytes, 0, MAX_BYTES) or step.size_bytes % WORD_BYTES:
        yield f"step {number} clears {step.size_bytes!r} bytes"


def verify_step(number: int, step: Step) -> Iterator[str]:
    if not is_number(step.kernel) or not are_numbers(step.bindings):
        yield f"step {number}: {step.kernel!r}, {step.bindings!r}"
    if not are_numbers(step.grid, 1, MAX_GROUPS, 3) or prod(step.grid) > MAX_WORKGROUPS:
        yield f"step {number}: {step.grid!r} is not a grid"
    for word in step.words:
        if not _is_word(word):
            yield f"step {number}: {word!r} is no parameter"


def _is_word(word: Word | Any) -> bool:
    if type(word) is int:  # most are
        return 0 <= word <= 0xFFFFFFFF
    if isinstance(word, Offset):
        return is_number(word.tensor) and is_number(word.shift, 0, 4) and is_number(word.ahead, 0, 0xFFFFFFFF)
    if isinstance(word, Scalar):
        return is_number(word.index, 0, MAX_SCALARS)
    if isinstance(word, Random):
        return is_number(word.part, 0, 3) and is_number(word.ahead, 0, STREAM_MASK)
    return False


def verify_spec(spec: TensorSpec) -> Iterator[str]:
    sizes = are_numbers(spec.shape, 0, MAX_BYTES) and are_numbers(spec.strides, 0, MAX_BYTES, len(spec.shape))
    if not is_number(spec.buffer) or not is_number(spec.byte_offset, 0, MAX_BYTES) or not sizes:
        yield f"{spec!r} is no tensor"
    elif not _is_dtype(spec.dtype):
        yield f"there is no dtype {spec.dtype!r}"
    elif _points(spec.shape) > MAX_BYTES:
        yield f"a tensor of shape {spec.shape} has more elements than any memory"


def _points(shape: tuple[int, ...]) -> int:
    """The product of the sizes but for zeros, as far as it matters."""
    points = 1
    for size in shape:
        points *= size or 1
        if points > MAX_BYTES:
            break
    return points
