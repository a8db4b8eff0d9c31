"""Kernels over lists: one dispatch computes the same per-element expressions for several tuples of tensors.

A kernel has one binding per column (tensor argument) and tuple, and a workgroup works for one tuple, which it finds by
comparing its number with the tuples' first workgroups. Element counts, offsets and numbers are parameters, so that one
kernel serves all sizes. A thread owns four consecutive elements, as in :mod:`.quads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from torch_webgpu.caches import memoized
from torch_webgpu.dtypes import KINDS
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import ListLayout, Number

from .expr import compute_type, convert, emit_stored, struct_function
from .indexing import GROUPS, LANES, QUAD, all_inside
from .kernel import Binding, Kernel, Param, ParamType
from .launch import WORKGROUP, grid_for

ELEMENTS_PER_GROUP = WORKGROUP * QUAD
PARAM_TYPES: dict[str, ParamType] = {
    letter: type_ for letter, kind in KINDS.items() for type_ in get_args(ParamType) if kind.wgsl == type_
}
"""The kinds of numbers that an operation over lists can take, as parameters of one word."""
KERNEL_CACHE_SIZE = 512


@dataclass(frozen=True)
class Column:
    """One tensor argument of every tuple.

    ``written``: its elements are stored. ``offset``: some tensor of it does not start where its buffer does.
    """

    dtype: str
    layout: ListLayout
    written: bool = False
    offset: bool = False

    @property
    def compute(self) -> str:
        return compute_type(self.dtype)


@dataclass(frozen=True)
class PerTuple:
    """What a kernel over lists computes: ``roots[j]`` is stored into column ``targets[j]``.

    The expressions' leaves are ``load k`` (of column ``k``) and ``param k`` (number ``k``).
    """

    name: str
    roots: tuple[Expr, ...]
    targets: tuple[int, ...]
    columns: tuple[Column, ...]
    numbers: tuple[Number, ...]


def groups_of(numels: Sequence[int]) -> tuple[list[int], tuple[int, int, int]]:
    """Each tuple's first workgroup, and the grid."""
    groups = [-(-numel // ELEMENTS_PER_GROUP) for numel in numels]
    *starts, total = accumulate(groups, initial=0)
    return starts, grid_for(total * WORKGROUP)


@memoized("kernels over lists", KERNEL_CACHE_SIZE)
def build_horizontal(body: PerTuple, tuples: int) -> Kernel:
    """The kernel for ``tuples`` tuples.

    Bindings: the columns in order, each as many times as there are tuples (a shared one once). Parameters: the numbers
    in order, then per tuple its element count, its first workgroup (but the first tuple's), and the offsets of the
    columns that have some; whatever each tuple has its own of comes ``tuples`` times in a row.
    """
    return _Builder(body, tuples).kernel()


class _Builder:
    def __init__(self, body: PerTuple, tuples: int) -> None:
        self.body, self.tuples = body, tuples
        self.params: list[Param] = []
        leaves = [e for e in walk(body.roots) if not any(isinstance(a, Expr) for a in e.args)]
        self.loaded = sorted({e.args[0] for e in leaves if e.op == "load"})
        self.own = [k for k, number in enumerate(body.numbers) if number.each]
        assert all(e.op in ("load", "param", "const") for e in leaves)

    def kernel(self) -> Kernel:
        text = "\n".join([*self.point(), *self.accessors(), *self.main(), ""])
        name, params = self.body.name, tuple(self.params)
        return Kernel(name, text, self.bindings(), params, workgroup_size=(WORKGROUP, 1, 1), trusted=True)

    def names(self, k: int) -> list[str]:
        """The bindings of column ``k``."""
        column = self.body.columns[k]
        letter = "y" if column.written else "x"
        return [f"{letter}{k}_{j}" for j in range(1 if column.layout == "shared" else self.tuples)]

    def bindings(self) -> tuple[Binding, ...]:
        return tuple(
            Binding(name, column.dtype, "read_write" if column.written else "read")
            for k, column in enumerate(self.body.columns)
            for name in self.names(k)
        )

    def variables(self) -> dict[str, list[str]]:
        """Declarations of what differs from tuple to tuple, and the parameter with each tuple's value."""
        declared: dict[str, list[str]] = {}

        def differs(name: str, type_: ParamType = "u32") -> None:
            known = ["0u"] if name == "start" else []  # the first tuple starts at workgroup 0
            values = [f"{name}_{j}" for j in range(len(known), self.tuples)]
            self.params += [Param(value, type_) for value in values]
            declared[f"{name}: {type_}"] = [*known, *(f"P.{value}" for value in values)]

        for k, number in enumerate(self.body.numbers):
            if number.each:
                differs(f"s{k}", PARAM_TYPES[number.kind])
            else:
                self.params.append(Param(f"s{k}", PARAM_TYPES[number.kind]))
        differs("numel")
        differs("start")
        for k, column in enumerate(self.body.columns):
            if column.offset and column.layout == "shared":
                self.params.append(Param(f"o{k}"))
            elif column.offset:
                differs(f"o{k}")
        return declared

    def point(self) -> list[str]:
        """The function that computes one element's results."""
        body = self.body

        def leaf(e: Expr) -> str:
            k = e.args[0]
            if e.op == "load":
                return convert(f"a{k}", body.columns[k].dtype, e.dtype, fits=True)
            return f"s{k}" if body.numbers[k].each else f"P.s{k}"

        lines, values = emit_stored(body.roots, [body.columns[k].dtype for k in body.targets], leaf)
        arguments = [f"a{k}: {body.columns[k].compute}" for k in self.loaded]
        arguments += [f"s{k}: {PARAM_TYPES[body.numbers[k].kind]}" for k in self.own]
        fields = [f"y{k}: {body.columns[k].compute}" for k in body.targets]
        return struct_function(f"point({', '.join(arguments)})", "Point", fields, lines, values)

    def accessors(self) -> list[str]:
        """``load_k(tuple, …)`` and ``store_k``: the switch over a column's bindings, the same way for a workgroup."""
        text = []
        for k, column in enumerate(self.body.columns):
            four = column.layout == "elements"
            suffix, value = ("load4", f"vec4<{column.compute}>") if four else ("load", column.compute)
            if k in self.loaded or column.written:
                calls = [f"return {name}_{suffix}(at);" for name in self.names(k)]
                text += switch(f"load_{k}(own: u32, at: u32) -> {value}", calls)
            if column.written:
                calls = [f"{name}_store4(at, v);" for name in self.names(k)]
                text += switch(f"store_{k}(own: u32, at: u32, v: {value})", calls)
        return text

    def main(self) -> list[str]:
        body = self.body
        text = [
            *GROUPS,
            *find_own(self.variables()),
            f"  let t = (group - start) * {WORKGROUP}u + lid;",
            f"  let base = t * {QUAD}u;",
            "  if (base >= numel) { return; }",
        ]
        text += [f"  let a{k} = load_{k}(own, {self.place(k)});" for k in self.loaded]
        for lane in LANES:
            passed = [f"a{k}.{lane}" if body.columns[k].layout == "elements" else f"a{k}" for k in self.loaded]
            text.append(f"  let q{lane} = point({', '.join([*passed, *(f's{k}' for k in self.own)])});")
        text.append(f"  let whole = base + {QUAD}u <= numel;")
        for k in body.targets:
            text += self.store(k)
        return [*text, "}"]

    def place(self, k: int) -> str:
        """What column ``k`` is loaded from: a group of four elements, or the number's element."""
        column = self.body.columns[k]
        offset = "0u" if not column.offset else f"P.o{k}" if column.layout == "shared" else f"o{k}"
        if column.layout != "elements":
            return offset
        return f"{offset} / {QUAD}u + t" if column.offset else "t"

    def store(self, k: int) -> list[str]:
        """Statements that store column ``k``; what lies beyond the tensor is kept."""
        place = self.place(k)
        return [
            f"  var r{k} = vec4<{self.body.columns[k].compute}>({', '.join(f'q{lane}.y{k}' for lane in LANES)});",
            f"  if (!whole) {{ r{k} = select(load_{k}(own, {place}), r{k}, {all_inside('base', 'numel')}); }}",
            f"  store_{k}(own, {place}, r{k});",
        ]


def find_own(declared: Mapping[str, Sequence[str]]) -> list[str]:
    """Statements that find ``own``, the last tuple whose parameter ``start`` is not above ``group``.

    ``declared``: what else differs from tuple to tuple, as declarations, and each tuple's value of it.
    """
    text = ["  var own = 0u;", *(f"  var {name} = {values[0]};" for name, values in declared.items())]
    names = [name.split(":")[0] for name in declared]
    for j, values in enumerate(zip(*declared.values(), strict=True)):
        assigned = " ".join(f"{name} = {value};" for name, value in zip(names, values, strict=True))
        text += [f"  if (group >= P.start_{j}) {{ own = {j}u; {assigned} }}"] if j else []
    return text


def switch(signature: str, calls: Sequence[str]) -> list[str]:
    """A function that does the ``own``-th of ``calls``."""
    *cases, last = calls
    if not cases:
        return [f"fn {signature} {{ {last} }}"]
    leave = "" if last.startswith("return") else " return;"
    # The last one follows the switch: every path of a function must be seen to return.
    lines = [f"    case {j}u: {{ {call}{leave} }}" for j, call in enumerate(cases)]
    return [f"fn {signature} {{", "  switch own {", *lines, "    default: {}", "  }", f"  {last}", "}"]
