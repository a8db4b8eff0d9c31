"""Kernels that Python writes: from expressions and layouts to a :class:`Kernel`.

Sizes, strides, offsets and scalars are parameters, so one kernel serves every shape of the same rank and kind of
layout. Each thread owns a run of consecutive points, so that it owns whole 32-bit words of packed outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME, COMPUTE_TYPE
from torch_webgpu.ir.graph import Expr, Operation, Pointwise, Spec, walk
from torch_webgpu.layout import broadcast_strides, collapse, contiguous_strides, iteration_order

from .code_size import MAX_UNROLLED, code_size
from .expr import convert, emit, join_param, param_parts
from .kernel import Binding, Kernel, Mode, Param
from .quad_runs import RUN, quad_runs_text, runs_of_quads
from .quads import QUAD, Place, quads_text
from .transposed import TILE, Turn, Turned, transposed_text, turn

WORKGROUP = 256
MAX_GROUPS = 65535


@dataclass(frozen=True)
class Source:
    """Where a kernel parameter comes from.

    ``kind`` "offset": the storage offset of argument ``index``; "scalar": part ``index`` of the scalars.
    """

    kind: str
    index: int


Value = int | float | Source


def grid_for(threads: int) -> tuple[int, int, int]:
    """Workgroups for ``threads`` threads of a kernel that numbers its groups ``wid.y * nwg.x + wid.x``."""
    groups = max(1, -(-threads // WORKGROUP))
    rows = -(-groups // MAX_GROUPS)
    return (-(-groups // rows), rows, 1)


class ParamList:
    """The parameters of a kernel under construction, each with the value it gets at launch."""

    def __init__(self) -> None:
        self.params: list[Param] = []
        self.values: list[Value] = []

    def add(self, name: str, value: Value, type_: str = "u32") -> str:
        self.params.append(Param(name, type_))  # type: ignore[arg-type]
        self.values.append(value)
        return f"P.{name}"

    def scalars(self, kinds: Sequence[str], used: Sequence[int]) -> dict[int, str]:
        """Adds the scalar arguments in ``used``; returns each one's WGSL."""
        first, texts = 0, {}
        for k, kind in enumerate(kinds):
            parts = param_parts(kind)
            if k in used:
                for j, type_ in enumerate(parts):
                    self.add(f"s{k}_{j}", Source("scalar", first + j), type_)
                texts[k] = join_param(f"s{k}", kind)
            first += len(parts)
        return texts


class Indexing:
    """How each argument's element number follows from a point's row-major number ``i`` in the iteration space."""

    def __init__(self, sizes: tuple[int, ...], strides: Sequence[tuple[int, ...]], params: ParamList) -> None:
        self.sizes = sizes
        self.strides = strides
        self.params = params
        self.rank = len(sizes)

    def layout(self, k: int) -> str:
        """ "linear" (element ``i``), "scalar" (always element 0) or "strided"."""
        if all(s == 0 or n == 1 for s, n in zip(self.strides[k], self.sizes, strict=True)):
            return "scalar"
        return "linear" if self.strides[k] == contiguous_strides(self.sizes) else "strided"

    def coordinates(self) -> list[str]:
        """Statements that split ``i`` into coordinates ``c0…``."""
        if self.rank == 1:
            return ["  let c0 = i;"]
        lines = [f"  let r{self.rank - 1} = i;"]
        for d in range(self.rank - 1, 0, -1):
            size = self.params.add(f"n{d}", self.sizes[d])
            lines.append(f"  let c{d} = r{d} % {size};")
            lines.append(f"  let r{d - 1} = r{d} / {size};")
        lines.append("  let c0 = r0;")
        return lines

    def element(self, k: int, arg: int) -> str:
        """The WGSL of argument ``k``'s element number; ``arg`` is the argument its offset belongs to."""
        offset = self.offset(k, arg)
        kind = self.layout(k)
        if kind == "scalar":
            return offset
        if kind == "linear":
            return f"{offset} + i"
        return " + ".join([offset, *self.steps(k, {d: f"c{d}" for d in range(self.rank)})])

    def offset(self, k: int, arg: int) -> str:
        return self.params.add(f"o{k}", Source("offset", arg))

    def steps(self, k: int, coordinates: Mapping[int, str]) -> list[str]:
        """What the ``coordinates`` of some dimensions add to argument ``k``'s element number."""
        terms = []
        for d, coordinate in coordinates.items():
            stride = self.strides[k][d]
            if stride:
                last = stride == 1 and d == self.rank - 1
                terms.append(coordinate if last else f"{coordinate} * {self.params.add(f't{k}_{d}', stride)}")
        return terms

    def place(self, k: int, spec: Spec, first: Mapping[int, str], limit: str = "") -> Place:
        """Where argument ``k``'s elements of four points lie, ``first`` being the coordinates of the first of them.

        ``limit`` is the last coordinate there is, if the innermost dimension need not consist of whole groups of four.
        """
        offset, inner, last = self.offset(k, k), self.strides[k][-1], self.rank - 1
        if self.layout(k) == "scalar":
            return Place((offset,))
        head = [offset, *self.steps(k, {d: c for d, c in first.items() if d != last})]
        if not inner:
            return Place((" + ".join(head),))
        fours = self.in_fours(k, spec)
        step = "" if inner == 1 else f" * {self.params.add(f't{k}_{last}', inner)}"
        elements = []
        for e in range(QUAD):
            coordinate = f"{first[last]} + {e}u" if e else first[last]
            if limit and not fours:
                coordinate = f"min({coordinate}, {limit})"
            elif step:
                coordinate = f"({coordinate})"
            elements.append(" + ".join([*head, coordinate + step]))
        return Place(tuple(elements), fours)

    def in_fours(self, k: int, spec: Spec, inner: int = -1) -> bool:
        """Whether argument ``k``'s elements along dimension ``inner`` are groups of four of its buffer."""
        inner %= self.rank
        others = [s for d, (s, n) in enumerate(zip(self.strides[k], self.sizes, strict=True)) if d != inner and n > 1]
        dense = self.strides[k][inner] == 1 and (self.rank == 1 or self.sizes[inner] % QUAD == 0)
        return dense and spec.aligned and BY_NAME[spec.dtype].itemsize <= 4 and all(s % QUAD == 0 for s in others)


GROUPS = (
    f"@compute @workgroup_size({WORKGROUP})",
    "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
    "        @builtin(local_invocation_index) lid: u32) {",
    "  let group = wid.y * nwg.x + wid.x;",
)
MAIN = (*GROUPS, f"  let t = group * {WORKGROUP}u + lid;")


@dataclass(frozen=True)
class Built:
    """A kernel and how to launch it: the argument behind each binding, each parameter's value, the grid."""

    kernel: Kernel
    bindings: tuple[int, ...]
    values: tuple[Value, ...]
    grid: tuple[int, int, int]


def points(
    shape: tuple[int, ...], args: Sequence[Spec], first: Spec, in_order: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The iteration space of ``args`` broadcast to ``shape``, in the memory order of ``first`` unless ``in_order``."""
    strides = [broadcast_strides(spec.shape, spec.strides, shape) for spec in args]
    if in_order:
        return shape or (1,), [s or (0,) for s in strides]
    return collapse(shape, strides, iteration_order(shape, broadcast_strides(first.shape, first.strides, shape)))


def store_mode(spec: Spec, layout: str, native_f16: bool) -> Mode:
    """How an output is written: plainly, a packed word at a time, or element-wise with atomics on the word."""
    dtype = BY_NAME[spec.dtype]
    if not dtype.is_subword or (spec.dtype == "f16" and native_f16):
        return "plain"
    return "word" if layout == "linear" and spec.aligned else "atomic"


def stored(root: Expr, dtype: str) -> Expr:
    """``root`` without a last rounding or wrapping that storing as ``dtype`` does anyway."""
    if root.op == "to_dtype" and root.dtype == dtype and BY_NAME[root.args[0].dtype].kind == BY_NAME[dtype].kind:
        return root.args[0]
    return root


def build_pointwise(op: Operation, alias: tuple[int, ...], native_f16: bool) -> Built:
    """The kernel of a pointwise operation. ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    body = op.body
    assert isinstance(body, Pointwise)
    shape = op.outputs[0].shape
    leaves = [e for e in walk(body.roots) if e.op in ("load", "param", "index", "linear")]
    in_order = any(e.op == "index" for e in leaves)
    linear = any(e.op == "linear" for e in leaves)
    first = Spec("f32", shape, tuple(range(len(shape), 0, -1))) if linear else op.outputs[0]
    sizes, strides = points(shape, op.args, first, in_order)

    params = ParamList()
    numel = params.add("numel", prod(shape))
    indexing = Indexing(sizes, strides, params)
    one_by_one = QUAD * code_size(body.roots) > MAX_UNROLLED
    if not in_order and not one_by_one and moves_by_four(op, indexing):
        turned = None if linear else turn(op, sizes, strides)
        if turned is not None:
            return build_transposed(op, alias, indexing, turned)
        return build_quads(op, alias, indexing, params, numel)
    modes = {
        op.n_inputs + j: store_mode(spec, indexing.layout(op.n_inputs + j), native_f16)
        for j, spec in enumerate(op.outputs)
    }
    run = max((4 // BY_NAME[op.args[k].dtype].itemsize for k, mode in modes.items() if mode == "word"), default=1)
    bindings, names, order = bind(op.args, alias, op.n_inputs, modes)
    scalars = params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])

    def leaf(e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            text = f"{names[k]}_load({indexing.element(k, k)})"
            return convert(text, op.args[k].dtype, e.dtype, fits=True)
        if e.op == "param":
            return scalars[e.args[0]]
        return "i" if e.op == "linear" else f"i32(c{e.args[0]})"

    roots = [stored(root, op.args[k].dtype) for root, k in zip(body.roots, modes, strict=True)]
    lines, results = emit(roots, leaf)
    strided = any(indexing.layout(k) == "strided" for k in range(len(op.args)))
    coordinates = indexing.coordinates() if strided or in_order else []
    packed = [k for k, mode in modes.items() if mode == "word"]
    stores = []
    for k, root, result in zip(modes, roots, results, strict=True):
        value = convert(result, root.dtype, op.args[k].dtype, fits=True)
        if k in packed:
            stores.append(f"  packed.f{k} = {value};")
        else:
            stores.append(f"  {names[k]}_store({indexing.element(k, k)}, {value});")
    if packed:
        words = [Packed(names[k], op.args[k].dtype, f"f{k}", params.add(f"o{k}", Source("offset", k))) for k in packed]
        text = packed_text(words, coordinates + lines + stores, numel, run, one_by_one)
    else:
        call = f"  if (t < {numel}) {{ point(t); }}"
        text = "\n".join(["fn point(i: u32) {", *coordinates, *lines, *stores, "}", *MAIN, call, "}", ""])
    kernel = Kernel(op.name, text, bindings, tuple(params.params), workgroup_size=(WORKGROUP, 1, 1), trusted=True)
    return Built(kernel, order, tuple(params.values), grid_for(-(-prod(shape) // run)))


def moves_by_four(op: Operation, indexing: Indexing) -> bool:
    """Whether every output lies in iteration order, starts at a multiple of four, and some can be moved by fours.

    64-bit outputs are stored one by one. Of several dimensions the innermost must consist of groups of four.
    """
    outputs = [(spec, indexing.layout(k)) for k, spec in enumerate(op.args) if k >= op.n_inputs]
    whole = all(layout == "linear" and (spec.aligned or BY_NAME[spec.dtype].itemsize > 4) for spec, layout in outputs)
    even = indexing.rank == 1 or indexing.sizes[-1] % QUAD == 0
    return whole and even and any(BY_NAME[spec.dtype].itemsize <= 4 for spec, _ in outputs)


@dataclass(frozen=True)
class Parts:
    """What a kernel that moves four elements at a time is made of, besides its text."""

    bindings: tuple[Binding, ...]
    names: dict[int, str]
    order: tuple[int, ...]
    scalars: dict[int, str]
    roots: list[Expr]
    used: list[int]

    @staticmethod
    def of(op: Operation, alias: tuple[int, ...], params: ParamList) -> Parts:
        assert isinstance(op.body, Pointwise)
        modes: dict[int, Mode] = dict.fromkeys(range(op.n_inputs, len(op.args)), "plain")
        leaves = list(walk(op.body.roots))
        scalars = params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])
        used = sorted({e.args[0] for e in leaves if e.op == "load"} | modes.keys())
        roots = [stored(root, op.args[k].dtype) for root, k in zip(op.body.roots, modes, strict=True)]
        bindings, names, order = bind(op.args, alias, op.n_inputs, modes)
        return Parts(bindings, names, order, scalars, roots, used)

    def built(self, op: Operation, text: str, params: ParamList, threads: int) -> Built:
        kernel = Kernel(
            op.name, text, self.bindings, tuple(params.params), workgroup_size=(WORKGROUP, 1, 1), trusted=True
        )
        return Built(kernel, self.order, tuple(params.values), grid_for(threads))


def build_quads(op: Operation, alias: tuple[int, ...], indexing: Indexing, params: ParamList, numel: str) -> Built:
    """The kernel of a pointwise operation that moves four elements at a time."""
    parts = Parts.of(op, alias, params)
    count = prod(indexing.sizes)
    main = [*MAIN, f"  let base = t * {QUAD}u;", f"  if (base >= {numel}) {{ return; }}"]
    strided = any(indexing.layout(k) == "strided" for k in parts.used)
    if strided:
        main += ["  let i = base;", *indexing.coordinates()]
    many = indexing.rank > 1
    coordinates = {d: f"c{d}" for d in range(indexing.rank)}
    places = {}
    for k in parts.used:
        linear = indexing.layout(k) == "linear"
        if linear and many:
            offset = indexing.offset(k, k)
            elements = tuple([f"{offset} + base + {e}u" if e else f"{offset} + base" for e in range(QUAD)])
            places[k] = Place(elements, indexing.in_fours(k, op.args[k]))
        else:
            first = {0: "base"} if linear else coordinates
            places[k] = indexing.place(k, op.args[k], first, "" if many else f"{numel} - 1u")
    if not strided and runs_of_quads(op, parts.roots, places, count):
        text = quad_runs_text(op, parts.roots, parts.names, places, parts.scalars, numel, GROUPS, WORKGROUP)
        return parts.built(op, text, params, -(-count // (QUAD * RUN)))
    text = quads_text(op, parts.roots, parts.names, places, parts.scalars, numel, main)
    return parts.built(op, text, params, -(-count // QUAD))


def build_transposed(op: Operation, alias: tuple[int, ...], indexing: Indexing, turned: Turn) -> Built:
    """The kernel of a pointwise operation some of whose inputs lie across its outputs."""
    params = indexing.params = ParamList()
    parts = Parts.of(op, alias, params)
    sizes, last, m = indexing.sizes, indexing.rank - 1, turned.m
    n_tiles, m_tiles = (-(-sizes[d] // TILE) for d in (last, m))
    others = [d for d in range(indexing.rank) if d not in (last, m)]
    corner = [
        f"  let n = {params.add('n', sizes[last])};",
        f"  let m = {params.add('m', sizes[m])};",
        f"  let n0 = {TILE}u * (group % {params.add('n_tiles', n_tiles)});",
        "  let rest = group / P.n_tiles;",
        f"  let m0 = {TILE}u * (rest % {params.add('m_tiles', m_tiles)});",
        f"  if (rest >= P.m_tiles * {params.add('slices', prod(sizes[d] for d in others))}) {{ return; }}",
        *split_number("rest / P.m_tiles", others, sizes, params),
    ]
    outer = {d: f"c{d}" for d in others}
    tiles = {}
    for k in turned.inputs:
        head = [indexing.offset(k, k), *indexing.steps(k, {**outer, last: "n0"}), "m0"]
        fours = indexing.in_fours(k, op.args[k], m)
        tiles[k] = Turned(parts.names[k], " + ".join(head), f"P.t{k}_{last}", fours)
    first = {**outer, m: "cm", last: "cn"}
    places = {k: indexing.place(k, op.args[k], first) for k in parts.used if k not in tiles}
    text = transposed_text(op, parts.roots, parts.names, tiles, places, parts.scalars, GROUPS, corner)
    return parts.built(op, text, params, n_tiles * m_tiles * prod(sizes[d] for d in others) * WORKGROUP)


def split_number(number: str, dims: Sequence[int], sizes: tuple[int, ...], params: ParamList) -> list[str]:
    """Statements that split ``number`` into the coordinates ``c{d}`` of ``dims``, the last the fastest."""
    lines, rest = [], f"({number})"
    for d in reversed(dims[1:]):
        size = params.add(f"n{d}", sizes[d])
        lines += [f"  let c{d} = {rest} % {size};", f"  let r{d} = {rest} / {size};"]
        rest = f"r{d}"
    return [*lines, f"  let c{dims[0]} = {rest};"] if dims else lines


def bind(
    args: Sequence[Spec], alias: tuple[int, ...], n_inputs: int, modes: dict[int, Mode]
) -> tuple[tuple[Binding, ...], dict[int, str], tuple[int, ...]]:
    """Bindings for ``args``, one per storage that is written, with the name each argument goes by.

    WebGPU forbids binding one buffer twice in a dispatch when either use writes, so arguments that share a storage
    with an output go through that output's binding.
    """
    written = {alias[k]: k for k in modes}
    names: dict[int, str] = {}
    bindings: list[Binding] = []
    order: list[int] = []
    for k, spec in enumerate(args):
        owner = written.get(alias[k], k)
        if owner not in names:
            name = f"{'y' if owner in modes else 'x'}{owner}"
            names[owner] = name
            bindings.append(
                Binding(name, args[owner].dtype, "read_write" if owner in modes else "read", modes.get(owner, "plain"))
            )
            order.append(owner)
        if args[owner].dtype != spec.dtype:
            raise ValueError(f"arguments {owner} and {k} share a storage but not a dtype")
        names[k] = names[owner]
    return tuple(bindings), names, tuple(order)


@dataclass(frozen=True)
class Packed:
    """An output written in whole words: its binding, dtype, field of the point's result, and offset parameter."""

    binding: str
    dtype: str
    field: str
    offset: str

    @property
    def per_word(self) -> int:
        return 4 // BY_NAME[self.dtype].itemsize


def packed_text(outputs: Sequence[Packed], point: Sequence[str], numel: str, run: int, one_by_one: bool = False) -> str:
    """A kernel in which a thread computes ``run`` points and stores their packed outputs a word at a time.

    The tensor's last word may be partly somebody else's: what lies beyond the tensor is kept. ``one_by_one``: the
    points are computed in a loop.
    """
    fields = ", ".join(f"{o.field}: {COMPUTE_TYPE[BY_NAME[o.dtype].kind]}" for o in outputs)
    text = [f"struct Packed {{ {fields} }}", "fn point(i: u32) -> Packed {", "  var packed: Packed;", *point]
    text += ["  return packed;", "}", *MAIN, f"  let base = t * {run}u;", f"  if (base >= {numel}) {{ return; }}"]
    stores = []
    for o in outputs:
        for first in range(0, run, o.per_word):
            word, at = f"{o.field}_w{first}", f"({o.offset} + base + {first}u) / {o.per_word}u"
            text.append(f"  var {word} = 0u;")
            text.append(
                f"  if (base + {first}u < {numel} && base + {first + o.per_word}u > {numel}) "
                f"{{ {word} = {o.binding}_load_word({at}); }}"
            )
            stores.append(f"  if (base + {first}u < {numel}) {{ {o.binding}_store_word({at}, {word}); }}")
    if one_by_one:
        text += [f"  for (var e = 0u; e < {run}u; e += 1u) {{", f"    if (base + e >= {numel}) {{ break; }}"]
        text.append("    let q = point(base + e);")
        for o in outputs:
            for first in range(0, run, o.per_word):
                word = f"{o.field}_w{first}"
                pack = f"{word} = {o.dtype}_pack({word}, e % {o.per_word}u, q.{o.field});"
                text.append(f"    if (e / {o.per_word}u == {first // o.per_word}u) {{ {pack} }}")
        return "\n".join([*text, "  }", *stores, "}", ""])
    for e in range(run):
        text.append(f"  if (base + {e}u < {numel}) {{")
        text.append(f"    let q = point(base + {e}u);")
        for o in outputs:
            word = f"{o.field}_w{e - e % o.per_word}"
            text.append(f"    {word} = {o.dtype}_pack({word}, {e % o.per_word}u, q.{o.field});")
        text.append("  }")
    return "\n".join([*text, *stores, "}", ""])
