"""What is wrong with a program's WGSL, in the program's own lines and columns.

What a device compiles is the linked text, whose lines are nobody's. So the program's text is put before the compiler as
it stands, with the few names declared that this package adds: what it then says is about the program's lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError
from torch_webgpu.target import Target
from torch_webgpu.wgsl.bounds import bounded_module
from torch_webgpu.wgsl.module import Module
from torch_webgpu.wgsl.tokens import is_trivia, last_name, tokens
from torch_webgpu.wgsl.types import UnknownTypeError
from torch_webgpu.wgsl.workgroup_memory import workgroup_bytes

from .shader_source import EntryPoint, ShaderSource, compile_error
from .shader_uses import THREADS, uses_of
from .shader_variant import Variant, constant_names

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

_PLACE = re.compile(r"(?:┌─ [^\n]*?:|parsing WGSL: :)(\d+):(\d+)")
_NAGA_PROBLEM = re.compile(r"error: ([^\n]*)")
_NAGA_LABEL = re.compile(r"│\s+\^+ ([^\n]+)")
_TINT_PROBLEM = re.compile(r"\d+:\d+ error: ([^\n]*)")
_TINT_NOTE = re.compile(r"^:?(\d+):(\d+) note: ([^\n]*)", re.MULTILINE)
_FEATURES = {
    "float16": (re.compile(r"f16|vec[234]h|mat[234]x[234]h"), "16-bit floats (shader-f16)"),
    "float64": (re.compile(r"f64"), "64-bit floats"),
    "int64": (re.compile(r"i64|u64"), "64-bit integers"),
    "matrices": (re.compile(r"subgroup_matrix\w+|subgroupMatrix\w+"), "matrices of a subgroup"),
    "subgroups": (re.compile(r"subgroup\w*|quad(?:Broadcast|Swap[XY]|SwapDiagonal)"), "subgroup operations"),
}
"""What a text may use that not every adapter has, by the target's name for it."""


def check_source(source: ShaderSource, device: Device) -> None:
    """Raises ShaderCompileError for a module that the device's compiler refuses."""
    problem = _problem(source, device)
    if problem is not None:
        raise problem


def _problem(source: ShaderSource, device: Device) -> ShaderCompileError | None:
    target = device.target
    return _missing_feature(source, target) or _first_problem(source, device) or _unbounded(source, target)


def _unbounded(source: ShaderSource, target: Target) -> ShaderCompileError | None:
    """What keeps the linker from checking the bounds of a text that the compiler takes, where that is its task."""
    if target.dialect == "tint" and not target.checks_bounds:
        try:
            bounded_module(source.module, {r.name: r.type for r in source.resources})
        except ShaderSyntaxError as error:
            return ShaderCompileError(f"the WGSL does not compile: {error}", error.line, error.column)
        except UnknownTypeError as error:
            return ShaderCompileError(f"the WGSL does not compile: {error}")
    return None


def check_entry(variant: Variant, target: Target) -> None:
    """Raises ShaderCompileError for what an entry point needs and the target has not."""
    entry = variant.entry
    names = constant_names(variant)
    module = Module.parse("\n".join([d.text for d in names.values()]))
    try:
        needed = workgroup_bytes(module, {})
    except ValueError:
        return  # what it is, the compiler knows
    if needed > target.workgroup_bytes:
        name = next(d.name for d in entry.declarations if d.address_space == "workgroup")
        raise entry.source.error(
            name,
            f"{entry.name} uses {needed} bytes of workgroup memory, and this adapter has {target.workgroup_bytes}",
        )


def explained(variant: Variant, error: ShaderCompileError, device: Device) -> ShaderCompileError:
    """The error of a kernel that does not compile, about the program's text where its compiler refuses that, too."""
    source = variant.entry.source
    problem = _problem(source, device)
    if problem is not None:
        return problem
    entry = variant.entry
    told = _told(str(error))
    return entry.source.error(entry.name, f"{entry.name} does not compile for this call: {told}")


def _told(message: str) -> str:
    """The first problem in a compiler's message."""
    for pattern in (_TINT_PROBLEM, _NAGA_PROBLEM):
        if found := pattern.search(message):
            return found[1].strip()
    return message.strip()


def _missing_feature(source: ShaderSource, target: Target) -> ShaderCompileError | None:
    for name, (pattern, text) in _FEATURES.items():
        if getattr(target, name):
            continue
        for k, token in enumerate(tokens(source.text)):
            if not is_trivia(token) and pattern.fullmatch(last_name(token)) and token[0] != ".":
                return compile_error(source.text, k, f"this adapter has no {text}, which {token} needs")
    return None


def _first_problem(source: ShaderSource, device: Device) -> ShaderCompileError | None:
    """What the compiler first says about a text, if anything."""
    text, lines_before = _checked_text(source, device.target)
    eng = engine()
    with Uninterrupted(), eng.lock:
        messages = device.opened.pipelines.problems(text, "shader")
    if not messages:
        return None
    return _placed(source.text, messages[0], lines_before, device.target)


def _placed(text: str, message: str, lines_before: int, target: Target) -> ShaderCompileError:
    """A compiler's message as an error about the program's text."""
    place = _PLACE.search(message)
    problem = _told(message)
    if target.dialect == "naga" and (label := _NAGA_LABEL.search(message)) and label[1].strip() not in problem:
        problem += f" ({label[1].strip()})"
    lines = text.splitlines()
    line = int(place[1]) - lines_before if place else 0
    if place is None or not 1 <= line <= len(lines):
        return ShaderCompileError(f"the WGSL does not compile: {problem}")
    column = int(place[2])
    if target.dialect == "tint":  # which counts bytes
        column = len(lines[line - 1].encode()[: column - 1].decode(errors="replace")) + 1
    said = f"line {line}, column {column}: {problem}\n  {lines[line - 1]}\n  {' ' * (column - 1)}^"
    notes = [
        f"\nline {int(note[1]) - lines_before}, column {note[2]}: {note[3]}"
        for note in _TINT_NOTE.finditer(message)
        if 1 <= int(note[1]) - lines_before <= len(lines)
    ]
    return ShaderCompileError(f"the WGSL does not compile: {said}{''.join(notes)}", line, column)


def _checked_text(source: ShaderSource, target: Target) -> tuple[str, int]:
    """The program's text with what it may take for granted, and how many lines come before it."""
    text = source.text
    if target.dialect == "naga":
        text = _without_directives(text)
    enables = []
    used = {token for token in tokens(text) if not is_trivia(token)}
    if any(_FEATURES["float16"][0].fullmatch(token) for token in used):
        enables.append("enable f16;")
    if target.dialect == "tint":
        if any(_FEATURES["subgroups"][0].fullmatch(token) for token in used):
            enables.append("enable subgroups;")
        if any(token.startswith("subgroup_matrix") for token in used):
            enables.append("enable chromium_experimental_subgroup_matrix;")
            enables.append("diagnostic(off, chromium.subgroup_matrix_uniformity);")
    declared = "".join([f"{line}\n" for line in _added_declarations(source)])
    return f"{' '.join(enables)}\n{text}\n{declared}", 1


def _without_directives(text: str) -> str:
    """``text`` with blanks for the directives that naga refuses, and that it does without."""
    module = Module.parse(text)
    for directive in module.directives:
        if directive.startswith(("enable", "requires")):
            text = text.replace(directive, re.sub(r"[^\n]", " ", directive), 1)
    return text


def _added_declarations(source: ShaderSource) -> Iterator[str]:
    """Declarations of the names that tell tensors' layouts, as far as they are used."""
    declared: dict[str, str] = {}
    for name in source.entry_points:
        entry = EntryPoint(source.text, name)
        uses = uses_of(entry)
        for use in uses.tensors.values():
            for layout in use.names:
                word = f"{use.resource.name}_{layout}"
                if layout in ("size", "stride", "at"):
                    declared[word] = f"fn {word}(k: u32) -> u32 {{ return k; }}"
                else:
                    declared[word] = f"@group(3) @binding({900 + len(declared)}) var<uniform> {word}: u32;"
        if any(slot.kind == "threads" for slot in uses.slots):
            declared[THREADS] = f"@group(3) @binding({900 + len(declared)}) var<uniform> {THREADS}: vec3<u32>;"
    return iter(declared.values())
