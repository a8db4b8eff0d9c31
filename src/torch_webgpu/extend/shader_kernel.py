"""The lowering of a call of a program's kernel: one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.layout import extent
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding, Kernel
from torch_webgpu.wgsl.launch import MAX_GROUPS, Launch, Lowered, ParamList, Source, Value, grid_of
from torch_webgpu.wgsl.types import Names, array_stride, constant, member_offsets

from .shader_text import TensorLayout, shader_text
from .shader_uses import TensorUse, Uses, uses_of
from .shader_variant import Triple, Variant, workgroup_size

KINDS = {"f32": "f", "f16": "f", "i32": "i", "u32": "u"}
"""The compute kinds of the numbers that uniforms are made of."""


@dataclass(frozen=True)
class ShaderCall:
    """All that a call says but for its tensors and numbers; ``threads`` in all, along x, y and z."""

    variant: Variant
    threads: Triple


def lower_shader(op: Operation, alias: tuple[int, ...], target: Target, call: ShaderCall) -> Lowered:
    """Arguments: the tensors in the order of the entry point's, then those among them that are written."""
    uses = uses_of(call.variant.entry)
    places = list(uses.tensors)
    owners = owners_of(uses, alias)
    layouts = tuple(
        [
            TensorLayout(owners[k], scale_of(uses.tensors[place], op.args[k], uses.names), len(op.args[k].shape))
            for k, place in enumerate(places)
        ]
    )
    size = workgroup_size(call.variant)
    groups: Triple = tuple([-(-t // s) for t, s in zip(call.threads, size, strict=True)])  # type: ignore[assignment]
    in_rows = groups[0] > MAX_GROUPS
    text = shader_text(call.variant, layouts, in_rows)
    grid = grid_of(groups[0]) if in_rows else groups
    params = ParamList()
    for name, type_, source in text.params:
        params.add(name, _value(source, op, uses, places, call, groups), type_)
    written = {owners[k] for k, place in enumerate(places) if uses.tensors[place].resource.is_written}
    bound = [k for k in range(len(places)) if owners[k] == k]
    bindings = tuple(
        [
            Binding(
                uses.variables[places[k]],
                op.args[k].dtype,
                "read_write" if k in written else "read",
                type=_declared_type(uses, places[k]),
            )
            for k in bound
        ]
    )
    kernel = Kernel(call.variant.entry.name, text.body, bindings, tuple(params.params), text.workgroup_size)
    return Lowered((Launch(kernel, tuple(bound), tuple(params.values), grid),))


def owners_of(uses: Uses, alias: Sequence[int]) -> list[int]:
    """For each tensor the one through whose variable it is used: one that is written has to be bound once."""
    written: dict[int, int] = {}
    for k, use in enumerate(uses.tensors.values()):
        if use.resource.is_written:
            written.setdefault(alias[k], k)
    return [written.get(alias[k], k) for k in range(len(uses.tensors))]


def element_bytes(use: TensorUse, names: Names) -> int:
    """From one element of a tensor argument, as it is declared, to the next."""
    return array_stride(use.element, names)


def scale_of(use: TensorUse, spec: Spec, names: Names) -> str:
    """WGSL that brings a number of the dtype's elements to one of the declared elements."""
    if use.is_whole:
        return ""
    own, declared = BY_NAME[spec.dtype].itemsize, element_bytes(use, names)
    if declared >= own:
        return f" / {declared // own}u" if declared > own else ""
    return f" * {own // declared}u"


def _declared_type(uses: Uses, place: int) -> str:
    """A variable's type; of an array, whose part in the storage the kernel sees, without its length."""
    use = uses.tensors[place]
    return uses.types[place] if use.is_whole else f"array<{use.element}>"


def length_of(use: TensorUse, spec: Spec, names: Names) -> int:
    """How many declared elements a tensor argument has; the last may be partly another's, of packed types."""
    points = extent(spec.shape, spec.strides) if use.reads_strides else prod(spec.shape)
    size = points * BY_NAME[spec.dtype].itemsize - header_bytes(use, names)
    length = -(-size // element_bytes(use, names))
    return min(length, constant(use.length, names)) if use.length else length


def header_bytes(use: TensorUse, names: Names) -> int:
    """What a struct has before the array that it ends in."""
    if not use.member:
        return 0
    return next(offset for offset, member in member_offsets(names[use.type], names) if member.name == use.member)


def _value(
    source: tuple[str, int, int], op: Operation, uses: Uses, places: list[int], call: ShaderCall, groups: Triple
) -> Value:
    """The value of a parameter: ``source`` is what is asked of which argument, and a dimension or a part."""
    kind, argument, number = source
    if kind == "scalar":
        return Source("scalar", number)
    if kind == "threads":
        return call.threads[number]
    if kind == "groups":
        return groups[number]
    k = places.index(argument)
    spec, use = op.args[k], uses.tensors[argument]
    if kind == "offset":
        return Source("offset", k)
    if kind == "size":
        return spec.shape[number]
    if kind == "stride":
        return spec.strides[number]
    if kind == "numel":
        return prod(spec.shape)
    length = length_of(use, spec, uses.names)
    return max(length - 1, 0) if kind == "last" else length
