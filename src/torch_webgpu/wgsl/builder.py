"""Kernels that Python writes: from expressions and layouts to a :class:`Kernel`.

Sizes, strides, offsets and scalars are parameters, so one kernel serves every shape of the same rank and kind of
layout. Each thread owns a run of consecutive points, so that it owns whole 32-bit words of packed outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME, COMPUTE_TYPE
from torch_webgpu.ir.graph import Expr, Operation, Pointwise, Spec, walk
from torch_webgpu.layout import broadcast_strides, collapse, contiguous_strides, iteration_order

from .expr import convert, emit, join_param, param_parts
from .kernel import Binding, Kernel, Mode, Param
from .quads import QUAD, quads_text

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
        offset = self.params.add(f"o{k}", Source("offset", arg))
        kind = self.layout(k)
        if kind == "scalar":
            return offset
        if kind == "linear":
            return f"{offset} + i"
        terms = []
        for d, stride in enumerate(self.strides[k]):
            if stride:
                terms.append(
                    f"c{d}" if stride == 1 and d == self.rank - 1 else f"c{d} * {self.params.add(f't{k}_{d}', stride)}"
                )
        return " + ".join([offset, *terms])


MAIN = (
    f"@compute @workgroup_size({WORKGROUP})",
    "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
    "        @builtin(local_invocation_index) lid: u32) {",
    f"  let t = (wid.y * nwg.x + wid.x) * {WORKGROUP}u + lid;",
)


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
    if indexing.rank == 1 and not in_order and moves_by_four(op, indexing):
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
        text = packed_text(words, coordinates + lines + stores, numel, run)
    else:
        call = f"  if (t < {numel}) {{ point(t); }}"
        text = "\n".join(["fn point(i: u32) {", *coordinates, *lines, *stores, "}", *MAIN, call, "}", ""])
    kernel = Kernel(op.name, text, bindings, tuple(params.params), workgroup_size=(WORKGROUP, 1, 1), trusted=True)
    return Built(kernel, order, tuple(params.values), grid_for(-(-prod(shape) // run)))


def moves_by_four(op: Operation, indexing: Indexing) -> bool:
    """Whether every output lies in iteration order, starts at a multiple of four, and some can be moved by fours.

    64-bit outputs are stored one by one; strided arguments need coordinates, which fours do not have.
    """
    layouts = [indexing.layout(k) for k in range(len(op.args))]
    outputs = [(spec, layouts[k]) for k, spec in enumerate(op.args) if k >= op.n_inputs]
    whole = all(layout == "linear" and (spec.aligned or BY_NAME[spec.dtype].itemsize > 4) for spec, layout in outputs)
    return whole and "strided" not in layouts and any(BY_NAME[spec.dtype].itemsize <= 4 for spec, _ in outputs)


def build_quads(op: Operation, alias: tuple[int, ...], indexing: Indexing, params: ParamList, numel: str) -> Built:
    """The kernel of a pointwise operation that moves four elements at a time."""
    assert isinstance(op.body, Pointwise)
    modes: dict[int, Mode] = dict.fromkeys(range(op.n_inputs, len(op.args)), "plain")
    bindings, names, order = bind(op.args, alias, op.n_inputs, modes)
    leaves = list(walk(op.body.roots))
    scalars = params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])
    used = {e.args[0] for e in leaves if e.op == "load"} | modes.keys()
    offsets = {k: params.add(f"o{k}", Source("offset", k)) for k in sorted(used)}
    roots = [stored(root, op.args[k].dtype) for root, k in zip(op.body.roots, modes, strict=True)]
    layouts = [indexing.layout(k) for k in range(len(op.args))]
    text = quads_text(op, roots, names, layouts, offsets, scalars, numel, MAIN)
    kernel = Kernel(op.name, text, bindings, tuple(params.params), workgroup_size=(WORKGROUP, 1, 1), trusted=True)
    return Built(kernel, order, tuple(params.values), grid_for(-(-prod(op.outputs[0].shape) // QUAD)))


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


def packed_text(outputs: Sequence[Packed], point: Sequence[str], numel: str, run: int) -> str:
    """A kernel in which a thread computes ``run`` points and stores their packed outputs a word at a time.

    The tensor's last word may be partly somebody else's: what lies beyond the tensor is kept.
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
    for e in range(run):
        text.append(f"  if (base + {e}u < {numel}) {{")
        text.append(f"    let q = point(base + {e}u);")
        for o in outputs:
            word = f"{o.field}_w{e - e % o.per_word}"
            text.append(f"    {word} = {o.dtype}_pack({word}, {e % o.per_word}u, q.{o.field});")
        text.append("  }")
    return "\n".join([*text, *stores, "}", ""])
