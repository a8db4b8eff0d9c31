"""Workgroup memory that starts as zeros, in a program's own WGSL: WGSL promises it, and devices are opened without it.

Dawn would zero the memory of all shaders or of none, wgpu-native's C interface of none. This package's own kernels
write before they read. https://www.w3.org/TR/WGSL/#address-spaces-workgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch_webgpu.errors import ShaderCompileError

from .kernel import Kernel
from .module import Declaration, Module
from .tokens import is_trivia, tokens
from .types import Names, UnknownTypeError, members, parts, resolved

_INDEX = "local_invocation_index"


def zeroed(kernel: Kernel, text: str) -> str:
    """The kernel's text, whose workgroup variables all threads zero together before anything else.

    Raises ShaderCompileError for a type that is not understood.
    """
    module = Module.parse(text)
    variables = [d for d in module.declarations if d.kind == "var" and d.address_space == "workgroup"]
    if not variables or module.entry is None:
        return text
    entry, threads = module.entry, prod(kernel.workgroup_size)
    thread, parameter = _thread(module, entry)
    try:
        lines = [line for d in variables for line in _zeros(d, thread, threads, module.by_name)]
    except UnknownTypeError as error:
        raise ShaderCompileError(f"kernel {kernel.name}: a workgroup variable cannot be zeroed: {error}") from None
    start = text.index(entry.text)
    body = entry.body
    assert body is not None
    head = entry.text[: len(entry.text) - len(body)]
    if parameter:
        head = _with_parameter(head, parameter)
    prologue = "".join([f"\n  {line}" for line in [*lines, "workgroupBarrier();"]])
    return f"{text[:start]}{head}{{{prologue}{body[1:]}{text[start + len(entry.text) :]}"


def _thread(module: Module, entry: Declaration) -> tuple[str, str]:
    """WGSL for a thread's number in its workgroup, and a parameter that is to be declared for it."""
    assert entry.signature is not None
    for parameter in entry.signature.parameters:
        if parameter.builtin == _INDEX:
            return parameter.name, ""
        declaration = module.by_name.get(parameter.type)
        if declaration is not None and declaration.kind == "struct":
            sequence = [token for token in tokens(declaration.text) if not is_trivia(token)]
            if _INDEX in sequence:
                k = sequence.index(_INDEX)
                return f"{parameter.name}.{sequence[sequence.index(':', k) - 1]}", ""
    name = "thread_of_group"
    while name in set(tokens(module.text)):
        name += "_"
    return name, f"@builtin({_INDEX}) {name}: u32"


def _with_parameter(head: str, parameter: str) -> str:
    """The beginning of a function up to its body, with one more parameter."""
    closed = head.rindex(")")
    before = head[:closed].rstrip()
    return f"{before}{'' if before[-1] in '(,' else ', '}{parameter}{head[closed:]}"


def _zeros(declaration: Declaration, thread: str, threads: int, names: Names) -> Iterator[str]:
    """Statements that zero a variable; those of an array's elements are shared out among the threads."""
    sequence = [token for token in tokens(declaration.text) if not is_trivia(token)]
    name = declaration.name
    type_ = resolved("".join(sequence[sequence.index(":", sequence.index(name)) + 1 : -1]), names)
    kind, arguments = parts(type_)
    if kind == "array" and len(arguments) > 1:
        yield f"for (var zeroed_0 = {thread}; zeroed_0 < u32({arguments[1]}); zeroed_0 += {threads}u) {{"
        yield from _zero(f"{name}[zeroed_0]", arguments[0], 1, names)
        yield "}"
    else:
        yield f"if ({thread} == 0u) {{"
        yield from _zero(name, type_, 0, names)
        yield "}"


def _zero(place: str, type_: str, depth: int, names: Names) -> Iterator[str]:
    """Statements that zero one place. Atomic values can only be stored by themselves."""
    type_ = resolved(type_, names)
    kind, arguments = parts(type_)
    if kind == "atomic":
        yield f"atomicStore(&{place}, {arguments[0]}());"
    elif not _has_atomics(type_, names):
        yield f"{place} = {type_}();"
    elif kind == "array":
        index = f"zeroed_{depth}"
        yield f"for (var {index} = 0u; {index} < u32({arguments[1]}); {index} += 1u) {{"
        yield from _zero(f"{place}[{index}]", arguments[0], depth + 1, names)
        yield "}"
    else:
        for member in members(names[type_], names):
            yield from _zero(f"{place}.{member.name}", member.type, depth, names)


def _has_atomics(type_: str, names: Names) -> bool:
    type_ = resolved(type_, names)
    kind, arguments = parts(type_)
    declaration = names.get(type_)
    if declaration is not None and declaration.kind == "struct":
        return any(_has_atomics(member.type, names) for member in members(declaration, names))
    return kind == "atomic" or (kind == "array" and _has_atomics(arguments[0], names))
