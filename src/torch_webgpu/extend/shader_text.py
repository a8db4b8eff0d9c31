"""The text of a program's kernel for one call: tensors' elements found, numbers and constants filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch_webgpu.caches import memoized
from torch_webgpu.wgsl.kernel import ParamType
from torch_webgpu.wgsl.module import Module
from torch_webgpu.wgsl.types import constant, matrix_shape, members, parts, resolved, scalars, vector_length

from .shader_entry import Grid, started
from .shader_uses import uses_of
from .shader_variant import Triple, Variant, constants_text, workgroup_size

TEXT_CACHE_SIZE = 1024
_PARAM_TYPES: dict[str, ParamType] = {"f32": "f32", "f16": "f32", "i32": "i32", "u32": "u32"}


@dataclass(frozen=True)
class TensorLayout:
    """What of a tensor decides the text. ``owner``: which tensor argument's variable serves it; ``scale``: from the
    dtype's elements to the declared ones, as WGSL.
    """

    owner: int
    scale: str
    rank: int


@dataclass(frozen=True)
class ShaderText:
    """A kernel's text. ``params``: each parameter's name and type, and what its value is, for :func:`_value`."""

    body: str
    params: tuple[tuple[str, ParamType, tuple[str, int, int]], ...]
    workgroup_size: Triple


@memoized("texts of programs' kernels", TEXT_CACHE_SIZE)
def shader_text(variant: Variant, layouts: tuple[TensorLayout, ...], in_rows: bool) -> ShaderText:
    """The text for tensors that lie so. ``in_rows``: the workgroups along x are several rows of a grid."""
    return _Writer(variant, layouts, in_rows).text()


class _Writer:
    def __init__(self, variant: Variant, layouts: Sequence[TensorLayout], in_rows: bool) -> None:
        self._variant, self._in_rows = variant, in_rows
        self._uses = uses_of(variant.entry)
        self._layouts = dict(zip(self._uses.tensors, layouts, strict=True))
        self._places = list(self._uses.tensors)
        self._params: dict[str, tuple[ParamType, tuple[str, int, int]]] = {}
        self._functions: dict[str, str] = {}
        self._numbers = self._uniform_numbers()

    def text(self) -> ShaderText:
        sequence = [*self._uses.tokens]
        for slot in self._uses.slots:
            use = self._uses.tensors.get(slot.argument)
            if slot.kind == "index" and use is not None:
                start = "" if use.is_whole else f"{self._offset(slot.argument)} + "
                sequence[slot.token] = f"[{start}min(u32("
                sequence[slot.end] = f"), {self._param('last', slot.argument)})]"
                sequence[int(slot.name)] = self._variable(slot.argument)
            elif slot.kind == "length":
                sequence[slot.token : slot.end + 1] = [""] * (slot.end + 1 - slot.token)
                sequence[slot.token] = self._param("length", slot.argument)
            elif slot.kind == "variable":
                sequence[slot.token] = self._variable(slot.argument)
            elif slot.kind == "uniform":
                sequence[slot.token] = self._numbers[slot.argument]
            elif slot.kind == "layout":
                sequence[slot.token] = self._layout_value(slot.argument, slot.name)
            else:
                sequence[slot.token] = f"vec3<u32>({', '.join([self._thread_count(d) for d in range(3)])})"
        module = Module.parse("".join([*sequence, "\n", *[f"{text}\n" for text in self._functions.values()]]))
        size = workgroup_size(self._variant)
        grid = Grid(size, self._thread_count, partial(self._param, "groups", -1, 0), self._in_rows)
        values = self._variant.texts()
        reached = module.reachable(["main"])
        checks = [
            d for d in module.declarations if d.kind == "const_assert" and d.mentions <= {r.name for r in reached}
        ]
        texts = []
        for declaration in [*reached, *checks]:
            if declaration.kind == "var" and declaration.name in self._uses.variables:
                continue
            if declaration.kind == "override":
                texts.append(constants_text(declaration, values))
            elif declaration.name == "main":
                texts.append(started(declaration, reached, grid))
            else:
                texts.append(declaration.text)
        params = tuple([(name, type_, source) for name, (type_, source) in self._params.items()])
        return ShaderText("\n".join([*texts, ""]), params, size)

    # Parameters

    def _param(self, what: str, argument: int, number: int = 0, type_: ParamType = "u32") -> str:
        name = {"threads": f"threads_{'xyz'[number]}", "groups": f"groups_{'xyz'[number]}"}.get(what)
        if name is None:
            resource = self._variant.entry.resources[argument]
            suffix = f"_{number}" if what in ("size", "stride", "scalar") else ""
            name = f"{resource.name}__{what}{suffix}"
        self._params.setdefault(name, (type_, (what, argument, number)))
        return f"P.{name}"

    def _thread_count(self, dimension: int) -> str:
        return self._param("threads", -1, dimension)

    def _offset(self, argument: int) -> str:
        scale = self._layouts[argument].scale
        offset = self._param("offset", argument)
        return f"{offset}{scale}"

    def _variable(self, argument: int) -> str:
        return self._uses.variables[self._places[self._layouts[argument].owner]]

    # Layouts

    def _layout_value(self, argument: int, name: str) -> str:
        what, _, number = name.partition("_")
        rank = self._layouts[argument].rank
        if what == "rank":
            return f"{rank}u"
        if number:
            return self._param(what, argument, int(number))
        if what in ("size", "stride"):
            values = [self._param(what, argument, d) for d in range(rank)]
            lines = [f"  if (d == {d}u) {{ return {value}; }}" for d, value in enumerate(values)]
            return self._function(argument, what, "d", [*lines, f"  return {'1u' if what == 'size' else '0u'};"])
        if what == "at":
            lines = ["  var rest = i;", "  var at = 0u;"]
            for d in reversed(range(rank)):
                size, stride = self._param("size", argument, d), self._param("stride", argument, d)
                lines += [f"  at += rest % {size} * {stride};", f"  rest /= {size};"]
            return self._function(argument, "at", "i", [*lines, "  return at;"])
        return self._param(what, argument)

    def _function(self, argument: int, what: str, parameter: str, lines: Sequence[str]) -> str:
        name = f"{self._uses.variables[argument]}{what}"
        self._functions[name] = "\n".join([f"fn {name}({parameter}: u32) -> u32 {{", *lines, "}"])
        return name

    # Numbers

    def _uniform_numbers(self) -> dict[int, str]:
        """WGSL for each uniform's value."""
        values, first = {}, 0
        for k, resource in enumerate(self._variant.entry.resources):
            if resource.is_tensor:
                continue
            kinds = scalars(self._uses.types[k], self._uses.names)
            words = iter(
                [
                    f"f16({name})" if kind == "f16" else name
                    for j, kind in enumerate(kinds)
                    for name in [self._scalar(k, j, first + j, kind)]
                ]
            )
            value = self._constructed(self._uses.types[k], words)
            if len(kinds) > 1:
                name = f"{self._uses.variables[k]}value"
                self._functions[name] = f"fn {name}() -> {self._uses.types[k]} {{ return {value}; }}"
                value = f"{name}()"
            values[k] = value
            first += len(kinds)
        return values

    def _scalar(self, argument: int, number: int, index: int, kind: str) -> str:
        name = f"{self._variant.entry.resources[argument].name}__{number}"
        self._params[name] = (_PARAM_TYPES[kind], ("scalar", argument, index))
        return f"P.{name}"

    def _constructed(self, type_: str, words: Sequence[str] | object) -> str:
        """A value of a type, made of its scalars in their order."""
        names = self._uses.names
        type_ = resolved(type_, names)
        name, arguments = parts(type_)
        columns, rows = matrix_shape(type_)
        count = vector_length(type_) or columns * rows
        if count:
            return f"{type_}({', '.join([next(words) for _ in range(count)])})"  # type: ignore[call-overload]
        if name == "array":
            elements = [self._constructed(arguments[0], words) for _ in range(constant(arguments[1], names))]
            return f"{type_}({', '.join(elements)})"
        declaration = names.get(type_)
        if declaration is not None and declaration.kind == "struct":
            own = [self._constructed(member.type, words) for member in members(declaration, names)]
            return f"{type_}({', '.join(own)})"
        return next(words)  # type: ignore[call-overload]
