"""A kernel with its override constants and the size of its workgroups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_webgpu.caches import memoized
from torch_webgpu.wgsl.module import Declaration, Module
from torch_webgpu.wgsl.types import UnknownTypeError, constant

from .shader_source import EntryPoint, override_of

CACHE_SIZE = 1024
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants. ``constants``: override constants and WGSL for their values, by name."""

    entry: EntryPoint
    constants: tuple[tuple[str, str], ...] = ()
    group_size: Triple | None = None

    def texts(self) -> dict[str, str]:
        return dict(self.constants)


def constants_text(declaration: Declaration, values: Mapping[str, str]) -> str:
    """An override constant as a constant."""
    override = override_of(declaration)
    type_ = f": {override.type}" if override.type else ""
    return f"const {override.name}{type_} = {values.get(override.name, override.default)};"


def constant_names(variant: Variant) -> dict[str, Declaration]:
    """The entry point's declarations, its override constants as constants."""
    values = variant.texts()
    found = {d.name: d for d in variant.entry.declarations}
    for name, declaration in found.items():
        if declaration.kind == "override":
            (found[name],) = Module.parse(constants_text(declaration, values)).declarations
    return found


@memoized("workgroup sizes of programs' kernels", CACHE_SIZE)
def workgroup_size(variant: Variant) -> Triple:
    """What a call asks for, or else the text. ShaderCompileError where that cannot be understood."""
    if variant.group_size is not None:
        return variant.group_size
    entry = variant.entry
    names = constant_names(variant)
    said = names[entry.name].attributes.get("workgroup_size")
    if said is None:
        raise entry.source.error(entry.name, f"{entry.name} has no @workgroup_size")
    try:
        size = [constant(part, names) for part in said.split(",") if part.strip()]
    except UnknownTypeError as error:
        raise entry.source.error(
            entry.name, f"@workgroup_size of {entry.name}: {error}. Say it with group_size= of the call"
        ) from None
    x, y, z = [*size, 1, 1][:3]
    return x, y, z
