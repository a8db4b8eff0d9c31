"""Kernels whose element numbers come from index tensors: reads through them (gather) and writes through them (scatter).

Both walk an iteration space of points; a point's place in the data tensor is a strided offset, as in any pointwise
kernel, plus a stride times an index for every *term*. All of index_select, gather, take, advanced indexing, scatter and
their kin are instances that differ in strides only. An index out of range is flagged and touches no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.ir.ops import TABLE
from torch_webgpu.layout import Shape, collapse, contiguous_strides, iteration_order
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import Packed, bind, packed_text, per_point, store_mode
from torch_webgpu.wgsl.indexing import QUAD, Indexing
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding, Mode
from torch_webgpu.wgsl.launch import ERRORS, Lowered, ParamList, Source

WORD = 0xFFFFFFFF
ROWS = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}


@dataclass(frozen=True)
class Term:
    """A dimension of the data tensor that an index tensor addresses; ``wraps``: negative indices count from its end.

    ``dim``: its number, for error messages; None where indices address all elements.
    """

    size: int
    stride: int
    wraps: bool
    dim: int | None = None


@dataclass(frozen=True)
class IndexGeometry:
    """The points of an iteration space and what they name.

    ``strides``: one tuple per argument, over ``shape``: data, each term's index tensor, then the result of a read or
    the source of a write (absent for a scalar). They may be negative. ``base`` is added to the data's element number.
    """

    shape: Shape
    strides: tuple[Shape, ...]
    terms: tuple[Term, ...]
    base: int = 0

    @property
    def indexed_dims(self) -> tuple[tuple[int, int], ...]:
        """The number and the size of each dimension that indices address (:meth:`.Operation.flag_name`)."""
        return tuple([(term.dim, term.size) for term in self.terms if term.dim is not None])


class Walk:
    """The WGSL that takes a point ``i`` to elements, shared by reads and writes.

    ``quads``: a thread owns four neighbouring points, for which coordinates and indices are worked out once: possible
    where the innermost dimension is a multiple of four that no index tensor varies along.
    """

    def __init__(self, geometry: IndexGeometry, order: tuple[int, ...], op: Operation) -> None:
        self.params = ParamList()
        self.numel = self.params.add("numel", prod(geometry.shape))
        self.geometry = geometry
        self.op = op
        self.sizes, strides = collapse(geometry.shape, geometry.strides, order)
        self.indexing = Indexing(self.sizes, [tuple(s & WORD for s in row) for row in strides], self.params)
        n_terms = len(geometry.terms)
        self.quads = self.sizes[-1] % QUAD == 0 and all(strides[1 + j][-1] == 0 for j in range(n_terms))

    def coordinates(self) -> list[str]:
        return self.indexing.coordinates()

    def data_element(self, arg: int) -> str:
        """The data tensor's element number once ``p0…`` hold the terms' positions; ``arg`` has its storage offset."""
        text = self.indexing.element(0, arg)
        if self.geometry.base:
            text += f" + {self.params.add('base', self.geometry.base & WORD)}"
        for j, term in enumerate(self.geometry.terms):
            text += f" + p{j} * {self.params.add(f'step{j}', term.stride)}"
        return text

    def in_fours(self, k: int, spec: Spec) -> bool:
        """Whether the four elements of stride ``k`` (0 the data, -1 result or source) can be moved in one access."""
        *outer, inner = self.indexing.strides[k]
        steps = [*outer, self.geometry.base, *(term.stride for term in self.geometry.terms)] if k == 0 else outer
        small = BY_NAME[spec.dtype].itemsize <= QUAD
        return small and spec.aligned and inner == 1 and all(step % QUAD == 0 for step in steps)

    def four(self, k: int, arg: int, name: str, element: str, prefix: str) -> tuple[list[str], list[str]]:
        """Statements that load four elements from ``element`` on, and the WGSL of each one's value."""
        if self.in_fours(k, self.op.args[arg]):
            return [f"let {prefix} = {name}_load4(({element}) / {QUAD}u);"], [f"{prefix}.{lane}" for lane in "xyzw"]
        return [f"let {prefix} = {element};"], [f"{name}_load({place})" for place in self.four_places(k, prefix)]

    def four_places(self, k: int, first: str) -> list[str]:
        """The element numbers of four points along stride ``k``, of which the first's is ``first``."""
        step = self.indexing.strides[k][-1]
        if step == 0:
            return [first] * QUAD
        step_text = self.params.add(f"inner{k % len(self.indexing.strides)}", step) if step != 1 else "1u"
        return [first, *(f"{first} + {e}u * {step_text}" for e in range(1, QUAD))]

    def positions(self, names: dict[int, str], elements: list[str]) -> tuple[list[str], str]:
        """Statements that read and check the indices at ``elements``, and the condition that all are usable."""
        if not self.geometry.terms:
            return [], "true"
        number = self.params.add("op", self.op.id)
        lines, conditions = [], []
        for j, (term, element) in enumerate(zip(self.geometry.terms, elements, strict=True)):
            kind = BY_NAME[self.op.args[1 + j].dtype].kind
            size = self.params.add(f"size{j}", term.size)
            check = "wrapped" if term.wraps else "checked"
            lines.append(f"  let p{j} = {check}_index_{kind}({number}, {names[1 + j]}_load({element}), {size});")
            conditions.append(f"p{j} < {size}")
        return lines, " && ".join(conditions)

    def index_elements(self) -> list[str]:
        return [self.indexing.element(1 + j, 1 + j) for j in range(len(self.geometry.terms))]

    def launch(self, text: str, bindings: tuple[Binding, ...], order: tuple[int, ...], threads: int) -> Lowered:
        if self.geometry.terms:
            bindings += (ERROR_FLAGS,)
            order += (ERRORS,)
        return Lowered((self.params.launch(self.op.name, text, bindings, order, threads),))


def lower_read(op: Operation, alias: tuple[int, ...], target: Target, geometry: IndexGeometry) -> Lowered:
    """``result[p] = data[place of p]`` for arguments (data, index tensors…, result)."""
    result = len(op.args) - 1
    walk = Walk(geometry, iteration_order(geometry.shape, geometry.strides[-1]), op)
    if (
        walk.quads
        and walk.in_fours(-1, op.args[result])
        and walk.indexing.strides[-1] == contiguous_strides(walk.sizes)
    ):
        return read_by_fours(walk, alias)
    dtype = op.args[result].dtype
    mode = store_mode(op.args[result], walk.indexing.layout(result), target.float16)
    bindings, names, order = bind(op.args, alias, op.n_inputs, {result: mode})
    compute = BY_NAME[dtype].compute
    checks, condition = walk.positions(names, walk.index_elements())
    lines = [
        *walk.coordinates(),
        *checks,
        f"  var v: {compute};",
        f"  if ({condition}) {{ v = {names[0]}_load({walk.data_element(0)}); }}",
    ]
    if mode == "word":
        run = 4 // BY_NAME[dtype].itemsize
        output = Packed(names[result], dtype, "f", walk.params.add("out", Source("offset", result)))
        text = packed_text([output], [*lines, "  packed.f = v;"], walk.numel, run)
        return walk.launch(text, bindings, order, -(-prod(geometry.shape) // run))
    store = f"  {names[result]}_store({walk.indexing.element(result, result)}, v);"
    return walk.launch(per_point([*lines, store], walk.numel), bindings, order, prod(geometry.shape))


def read_by_fours(walk: Walk, alias: tuple[int, ...]) -> Lowered:
    op = walk.op
    result = len(op.args) - 1
    bindings, names, order = bind(op.args, alias, op.n_inputs, {result: "plain"})
    compute = BY_NAME[op.args[result].dtype].compute
    checks, condition = walk.positions(names, walk.index_elements())
    loads, values = walk.four(0, 0, names[0], walk.data_element(0), "d")
    offset = walk.params.add("out", Source("offset", result))
    lines = [
        *walk.coordinates(),
        *checks,
        f"  var v: vec4<{compute}>;",
        f"  if ({condition}) {{ {' '.join(loads)} v = vec4<{compute}>({', '.join(values)}); }}",
        f"  {names[result]}_store4(({offset} + i) / {QUAD}u, v);",
    ]
    return walk.launch(per_point(lines, walk.numel, QUAD), bindings, order, prod(walk.sizes) // QUAD)


def combines_atomically(dtype: str, combine: str) -> bool:
    """Whether concurrent writes of one element can be combined; else one thread has to do a whole line of them."""
    if combine == "set" or combine == "add":
        return dtype != "f64" or combine == "set"
    return dtype not in ("i64", "c64", "f64")


def lower_write(
    op: Operation, alias: tuple[int, ...], target: Target, geometry: IndexGeometry, combine: str
) -> Lowered:
    """``data[place of p] = combine(data[place of p], source[p])`` for arguments (data, index tensors…, [source,] data).

    ``combine``: "set" (of several writes to an element any one wins), "add", "mul", "min", "max". Without a source
    argument the value is the operation's scalar.
    """
    written = len(op.args) - 1
    has_source = len(op.args) - 2 > len(geometry.terms)
    walk = Walk(geometry, tuple(range(len(geometry.shape))), op)
    in_fours = combine == "set" and walk.quads and walk.in_fours(0, op.args[written])
    mode = "plain" if in_fours else write_mode(op.args[written].dtype, combine, target)
    bindings, names, order = bind_target(op, alias, mode)
    run = QUAD if walk.quads else 1
    checks, condition = walk.positions(names, walk.index_elements())
    loads: list[str] = []
    if not has_source:
        values = [walk.params.scalars(op.param_kinds, [0])[0]] * run
    elif walk.quads:
        element = walk.indexing.element(written - 1, written - 1)
        loads, values = walk.four(-1, written - 1, names[written - 1], element, "s")
    else:
        values = [f"{names[written - 1]}_load({walk.indexing.element(written - 1, written - 1)})"]
    y, place = names[written], walk.data_element(written)
    if in_fours:
        compute = BY_NAME[op.args[written].dtype].compute
        writes = [f"{y}_store4(({place}) / {QUAD}u, vec4<{compute}>({', '.join(values)}));"]
    else:
        function = f"{y}_store" if mode == "plain" else f"{y}_atomic_{combine}"
        places = walk.four_places(0, "e") if walk.quads else ["e"]
        writes = [f"let e = {place};", *(f"{function}({at}, {v});" for at, v in zip(places, values, strict=True))]
    write = f"  if ({condition}) {{ {' '.join([*loads, *writes])} }}"
    text = per_point([*walk.coordinates(), *checks, write], walk.numel, run)
    return walk.launch(text, bindings, order, prod(geometry.shape) // run)


def write_mode(dtype: str, combine: str, target: Target) -> Mode:
    if combine != "set":
        return "atomic"
    packed = BY_NAME[dtype].is_subword and not (dtype == "f16" and target.float16)
    return "atomic" if packed else "plain"


def bind_target(
    op: Operation, alias: tuple[int, ...], mode: Mode
) -> tuple[tuple[Binding, ...], dict[int, str], tuple[int, ...]]:
    """Bindings of a write: the inputs but the first, which is the target as it was, then the target."""
    target = len(op.args) - 1
    bindings, names, order = bind(op.args[1:], alias_of_rest(alias), op.n_inputs - 1, {target - 1: mode})
    return bindings, {k + 1: name for k, name in names.items()}, tuple(k + 1 for k in order)


def alias_of_rest(alias: tuple[int, ...]) -> tuple[int, ...]:
    """The aliasing pattern without argument 0."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(a, k) for k, a in enumerate(alias[1:]))


def lower_serial_write(
    op: Operation,
    alias: tuple[int, ...],
    target: Target,
    geometry: IndexGeometry,
    dim: int,
    combine: str,
    rounded: str = "",
) -> Lowered:
    """:func:`lower_write` for types without the atomics: a thread owns all points that differ in ``dim`` only.

    Two points that name one element must not differ in any other dimension, as is so for scatters along ``dim``. Writes
    to an element happen in order, so this is exact where addition is not associative, too. ``rounded``: "f16" or
    "bf16", to which each result is rounded in a target of float32.
    """
    count = geometry.shape[dim]
    rest = IndexGeometry(
        drop(geometry.shape, dim), tuple(drop(s, dim) for s in geometry.strides), geometry.terms, geometry.base
    )
    written = len(op.args) - 1
    walk = Walk(rest, tuple(range(len(rest.shape))), op)
    dtype = op.args[written].dtype
    bindings, names, order = bind_target(op, alias, "plain")

    def stepping(text: str, k: int) -> str:
        return f"{text} + k * {walk.params.add(f'along{k}', geometry.strides[k][dim] & WORD)}"

    indices = [stepping(walk.indexing.element(1 + j, 1 + j), 1 + j) for j in range(len(rest.terms))]
    checks, condition = walk.positions(names, indices)
    source = stepping(walk.indexing.element(written - 1, written - 1), written - 1)
    place = stepping(walk.data_element(written), 0)
    y = names[written]
    combined = (
        TABLE[ROWS[combine]].wgsl[BY_NAME[dtype].kind].format(f"{y}_load(e)", f"{names[written - 1]}_load({source})")
    )
    combined = f"round_{rounded}({combined})" if rounded else combined
    lines = [
        *walk.coordinates(),
        f"  for (var k = 0u; k < {walk.params.add('count', count)}; k += 1u) {{",
        *checks,
        f"  if ({condition}) {{ let e = {place}; {y}_store(e, {combined}); }}",
        "  }",
    ]
    return walk.launch(per_point(lines, walk.numel), bindings, order, prod(rest.shape))


def drop(values: Shape, dim: int) -> Shape:
    return values[:dim] + values[dim + 1 :]
