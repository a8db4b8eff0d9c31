"""A program's shader module: its entry points, what each must be given, and its override constants.

A module is plain WGSL, with bind groups of its own. What an entry point uses of them are its arguments, in the order of
group and binding: storage buffers are tensors, uniforms are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from torch_webgpu.caches import memoized
from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError, did_you_mean
from torch_webgpu.wgsl.module import Declaration, Module
from torch_webgpu.wgsl.tokens import is_name, significant_tokens, syntax_error, tokens
from torch_webgpu.wgsl.types import UnknownTypeError, constant

CACHE_SIZE = 256
MAX_RANK = 64
LAYOUT_NAMES = ("numel", "rank", "offset", "size_<d>", "stride_<d>", "size(d)", "stride(d)", "at(i)")
"""After a tensor's name and an underscore: what a kernel may read of its layout."""
_LAYOUT_NAME = re.compile(r"(\w+?)_(?:(size|stride)_(\d+)|(numel|rank|offset|size|stride|at))")
Space = Literal["storage", "uniform", "immediate"]


@dataclass(frozen=True)
class Resource:
    """A variable that each call binds an argument to. ``type`` is its type as it is written, without blanks."""

    name: str
    space: Space
    is_written: bool
    type: str
    group: int
    binding: int

    @property
    def is_tensor(self) -> bool:
        return self.space == "storage"


@dataclass(frozen=True)
class Override:
    """An override constant: its type, ``""`` where none is written, its default as written, its ``@id``."""

    name: str
    type: str
    default: str
    number: str


@dataclass(frozen=True)
class EntryPoint:
    """A kernel of a module. Equal ones are the same kernel in every process."""

    text: str
    name: str

    @property
    def source(self) -> ShaderSource:
        return ShaderSource.parse(self.text)

    def __reduce__(self) -> tuple[type[EntryPoint], tuple[str, str]]:
        return EntryPoint, (self.text, self.name)

    @cached_property
    def declarations(self) -> list[Declaration]:
        """What it leads to, itself among them."""
        return self.source.module.reachable([self.name])

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Its arguments, in the order of group and binding; immediates come last."""
        used = {declaration.name for declaration in self.declarations}
        used |= {found[0] for found in map(layout_name, self.undeclared) if found is not None}
        return tuple([resource for resource in self.source.resources if resource.name in used])

    @cached_property
    def undeclared(self) -> frozenset[str]:
        """The names that it uses and the module does not declare."""
        mentioned = frozenset().union(*[declaration.mentions for declaration in self.declarations])
        return mentioned - self.source.module.declared

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """The override constants that it leads to."""
        return tuple([override_of(d) for d in self.declarations if d.kind == "override"])

    def resource(self, name: str) -> Resource:
        return next(resource for resource in self.resources if resource.name == name)


@dataclass(frozen=True)
class ShaderSource:
    """A module's text, parsed."""

    text: str

    @staticmethod
    def parse(text: str) -> ShaderSource:
        """Raises ShaderCompileError, which says where it cannot be read, or what tensors cannot be bound to."""
        return _parsed(text)

    @cached_property
    def module(self) -> Module:
        return Module.parse(self.text)

    @cached_property
    def entry_points(self) -> tuple[str, ...]:
        return tuple([d.name for d in self.module.declarations if d.kind == "fn" and "compute" in d.attributes])

    def entry(self, name: str) -> EntryPoint:
        """The entry point of that name. AttributeError where there is none."""
        if name in self.entry_points:
            return EntryPoint(self.text, name)
        if name in self.module.by_name:
            raise AttributeError(
                f"{name!r} is no entry point of this shader library: a kernel is a function with @compute. "
                f"Its entry points: {', '.join(self.entry_points)}"
            )
        meant = did_you_mean(name, self.entry_points)
        raise AttributeError(
            f"this shader library has no entry point {name!r}{meant}: it has {', '.join(self.entry_points) or 'none'}"
        )

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All variables that arguments are bound to, in the order of group and binding."""
        resources = [self._resource(d) for d in self.module.declarations if d.kind == "var" and _is_resource(d)]
        for entry in self.entry_points:  # kernels of one text may each have their own
            used = {d.name for d in self.module.reachable([entry])}
            places: dict[tuple[int, int], str] = {}
            for r in resources:
                if r.name in used and r.space != "immediate":
                    first = places.setdefault((r.group, r.binding), r.name)
                    if first != r.name:
                        raise self.error(r.name, f"@group({r.group}) @binding({r.binding}) is {first}'s already")
        return tuple(sorted(resources, key=lambda r: (r.space == "immediate", r.group, r.binding)))

    def _resource(self, declaration: Declaration) -> Resource:
        name: str = declaration.name
        space: Any = declaration.address_space
        if space not in get_args(Space):
            raise self.error(
                name,
                f"{name} is neither a storage buffer (a tensor) nor a uniform (a number): textures and samplers cannot "
                "be bound",
            )
        sequence = significant_tokens(declaration.text)
        listed = sequence[sequence.index("var") + 1 : sequence.index(name, sequence.index("var"))]
        if ":" not in sequence:
            raise self.error(name, f"{name} has no type")
        colon = sequence.index(":", sequence.index(name, sequence.index("var")))
        type_ = "".join(sequence[colon + 1 : -1])
        group = binding = 0
        if space != "immediate":
            if missing := {"group", "binding"} - declaration.attributes.keys():
                raise self.error(name, f"{name} has no @{' and no @'.join(sorted(missing))}")
            group, binding = [self._number(declaration, attribute) for attribute in ("group", "binding")]
        return Resource(name, space, "read_write" in listed or "write" in listed, type_, group, binding)

    def _number(self, declaration: Declaration, attribute: str) -> int:
        try:
            return constant(declaration.attributes[attribute], self.module.by_name)
        except UnknownTypeError as error:
            raise self.error(declaration.name, f"@{attribute} of {declaration.name}: {error}") from None

    def check_names(self) -> None:
        """Raises for a name that is declared twice."""
        names: set[str] = set()
        for declaration in self.module.declarations:
            if declaration.name and declaration.name in names:
                raise self.error(declaration.name, f"{declaration.name} is declared already", nth=1)
            names.add(declaration.name)

    def error(self, name: str, problem: str, nth: int = 0) -> ShaderCompileError:
        """What is wrong with the declaration of that name, of several the ``nth``."""
        return compile_error(self.text, self._declared_at(name, nth), problem)

    def _declared_at(self, name: str, nth: int) -> int:
        """The index among the text's tokens where a name is declared."""
        before: list[str] = []
        for gap, declaration in zip(self.module.gaps, self.module.declarations):
            before += tokens(gap)
            own = tokens(declaration.text)
            nth -= declaration.name == name
            if declaration.name == name and nth < 0:
                kind = own.index(declaration.kind)
                return len(before) + next(k for k in range(kind, len(own)) if own[k] == name)
            before += own
        raise KeyError(name)


def _is_resource(declaration: Declaration) -> bool:
    return declaration.address_space not in ("private", "workgroup", "function")


@memoized("shader modules of programs", CACHE_SIZE)
def _parsed(text: str) -> ShaderSource:
    source = ShaderSource(text)
    try:
        module = source.module
    except ShaderSyntaxError as error:
        raise ShaderCompileError(f"the WGSL does not compile: {error}", error.line, error.column) from None
    if not source.entry_points:
        functions = ", ".join(d.name for d in module.declarations if d.kind == "fn")
        raise ShaderCompileError(
            "the WGSL has no entry point: a kernel is a function with @compute and @workgroup_size"
            + (f". Its functions: {functions}" if functions else "")
        )
    source.check_names()
    source.resources  # noqa: B018  raises what is wrong with them
    return source


def layout_name(name: str) -> tuple[str, str, int] | None:
    """The tensor that a name like ``x_size_0`` tells something of, what that is, and the dimension, -1 without one."""
    match = _LAYOUT_NAME.fullmatch(name)
    if match is None or int(match[3] or 0) >= MAX_RANK:
        return None
    return match[1], match[2] or match[4], int(match[3]) if match[3] else -1


def override_of(declaration: Declaration) -> Override:
    """What an ``override`` declares."""
    sequence = significant_tokens(declaration.text)
    rest = sequence[sequence.index(declaration.name, sequence.index("override")) + 1 : -1]
    equals = rest.index("=") if "=" in rest else len(rest)
    type_ = "".join(rest[1:equals]) if rest[:1] == [":"] else ""
    return Override(
        declaration.name, type_, "".join(rest[equals + 1 :]), declaration.attributes.get("id", "").rstrip("ui")
    )


def compile_error(text: str, token: int, problem: str) -> ShaderCompileError:
    """An error about a token of a text, with its line and column, the line itself and a caret."""
    error = syntax_error(tokens(text), token, problem)
    return ShaderCompileError(f"the WGSL does not compile: {error}", error.line, error.column)


def names_in(sequence: Sequence[str]) -> frozenset[str]:
    return frozenset(filter(is_name, sequence))
