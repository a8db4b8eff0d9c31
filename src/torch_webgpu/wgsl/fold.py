"""What reductions and scans share: states in WGSL, points and partial results that become states, lanes that merge.

One text serves every shape of the same rank: sizes, strides and offsets are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtypes import BY_NAME, COMPUTE_TYPE
from ..ir.combine import COMBINES, accumulators
from ..ir.graph import Expr, Operation, Reduction, walk
from .builder import WORKGROUP, Built, ParamList, Source, Value, bind, grid_for, stored
from .expr import convert, emit
from .kernel import Binding, Kernel, Mode
from .tiling import Space, Tiling

UNROLL = 4


@dataclass(frozen=True)
class Stages:
    """Kernels that run one after the other, and the bytes of the temporaries they share.

    Temporary ``t`` is binding ``n_args + t`` of the kernels.
    """

    built: tuple[Built, ...]
    temporaries: tuple[int, ...] = ()


def partial_dtype(dtype: str) -> str:
    """How a state lies in a temporary: in whole words."""
    return "i32" if dtype == "bool" else dtype


def partial_bytes(body: Reduction, states: int) -> tuple[int, ...]:
    """The sizes of the temporaries that hold ``states`` states."""
    return tuple(BY_NAME[partial_dtype(d)].itemsize * states for d in accumulators(body.values, body.combine))


def compute_type(dtype: str) -> str:
    return COMPUTE_TYPE[BY_NAME[dtype].kind]


class FoldWriter:
    """Writes one kernel over the ``space`` of a reduction; ``evaluated`` are the expressions it computes.

    Names in the text: ``o`` is the number of an output, ``c0…`` its coordinates; ``r`` that of a reduced point, ``d0…``
    its coordinates; ``b3`` argument 3's element number at the output's first point; ``lane`` the thread's number among
    those that share an output. ``stores``: the kernel writes the outputs, not partial results.
    """

    def __init__(
        self,
        op: Operation,
        alias: tuple[int, ...],
        space: Space,
        tiling: Tiling,
        native_f16: bool,
        evaluated: Sequence[Expr],
        stores: bool,
    ) -> None:
        assert isinstance(op.body, Reduction)
        self.op, self.body, self.space, self.tiling = op, op.body, space, tiling
        self.params = ParamList()
        self._known: dict[str, str] = {}
        self.states = accumulators(op.body.values, op.body.combine)
        leaves = [e for e in walk(evaluated) if not any(isinstance(a, Expr) for a in e.args)]
        self.loaded = sorted({e.args[0] for e in leaves if e.op == "load"})
        first_map = op.n_inputs + len(op.body.roots)
        self.roots = range(op.n_inputs, first_map) if stores else range(0)
        self.maps = range(first_map, len(op.args)) if stores else range(0)
        self.word_maps = [k for k in self.maps if tiling.run > 1 and self.is_packed(k, native_f16)]
        modes: dict[int, Mode] = {
            k: "word" if k in self.word_maps else "plain" for k in range(op.n_inputs, len(op.args))
        }
        bindings, self.names, order = bind(op.args, alias, op.n_inputs, modes)
        used = {self.names[k] for k in (*self.loaded, *self.roots, *self.maps)}
        self.bindings = [b for b in bindings if b.name in used]
        self.order = [k for b, k in zip(bindings, order) if b.name in used]
        self.scalars = self.params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])

    def is_packed(self, k: int, native_f16: bool) -> bool:
        dtype = self.op.args[k].dtype
        return BY_NAME[dtype].is_subword and not (native_f16 and dtype == "f16")

    # Parameters and element numbers

    def param(self, name: str, value: Value) -> str:
        """A parameter by name, declared at its first use."""
        if name not in self._known:
            self._known[name] = self.params.add(name, value)
        return self._known[name]

    def coordinates(self, number: str, sizes: Sequence[int], letter: str) -> list[str]:
        """Statements that split ``number`` into coordinates ``{letter}0…``, the last the fastest."""
        lines, rest = [], number
        for d in range(len(sizes) - 1, 0, -1):
            size = self.param(f"n{letter}{d}", sizes[d])
            lines += [f"  let {letter}{d} = {rest} % {size};", f"  let {letter}q{d} = {rest} / {size};"]
            rest = f"{letter}q{d}"
        return [*lines, f"  let {letter}0 = {rest};"]

    def steps(self, k: int, strides: Sequence[int], letter: str) -> list[str]:
        """The terms that coordinates add to argument ``k``'s element number."""
        terms = []
        for d, stride in enumerate(strides):
            if stride == 1:
                terms.append(f"{letter}{d}")
            elif stride:
                terms.append(f"{letter}{d} * {self.param(f's{letter}{k}_{d}', stride)}")
        return terms

    def base(self, k: int) -> str:
        offset = self.param(f"o{k}", Source("offset", k))
        return " + ".join([offset, *self.steps(k, self.space.kept_strides[k], "c")])

    def bases(self) -> list[str]:
        return [f"  let b{k} = {self.base(k)};" for k in sorted({*self.loaded, *self.roots, *self.maps})]

    def element(self, k: int) -> str:
        return " + ".join([f"b{k}", *self.steps(k, self.space.reduced_strides[k], "d")])

    def leaf(self, e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            return convert(f"{self.names[k]}_load({self.element(k)})", self.op.args[k].dtype, e.dtype, fits=True)
        if e.op == "param":
            return self.scalars[e.args[0]]
        if e.op == "acc":
            return f"acc.a{e.args[0]}"
        if e.op == "reduced":
            return "r"
        if e.op == "index":
            return f"i32({self.coordinate(e.args[0])})"
        assert e.op == "linear", e
        number = "0u"
        for d, size in enumerate(self.body.shape):
            number = f"({number} * {self.param(f'm{d}', size)} + {self.coordinate(d)})"
        return number

    def coordinate(self, dim: int) -> str:
        kept, reduced = self.space.kept_dims, self.space.reduced_dims
        return f"c{kept.index(dim)}" if dim in kept else f"d{reduced.index(dim)}"

    # Functions of the kernel

    def arguments(self, *more: str, typed: bool = False) -> str:
        """What a function of a point is given: the bases, the output's coordinates where asked for, ``more``."""
        needed = [f"b{k}" for k in sorted({*self.loaded, *self.maps})]
        needed += [f"c{d}" for d in range(len(self.space.kept))] if self.space.kept_dims else []
        return ", ".join([*(f"{n}: u32" if typed else n for n in needed), *more])

    def state_functions(self) -> list[str]:
        """The struct of the states, their identity, and how two of them merge."""
        fields = ", ".join(f"a{k}: {compute_type(d)}" for k, d in enumerate(self.states))
        identity: list[Expr] = []
        merged: list[Expr] = []
        for value, name in zip(self.body.values, self.body.combine, strict=True):
            combine, first = COMBINES[name], len(merged)
            dtypes = combine.dtypes(value.dtype)
            identity += combine.identity(value.dtype)
            a = tuple(Expr("acc", ("a", first + j), d) for j, d in enumerate(dtypes))
            b = tuple(Expr("acc", ("b", first + j), d) for j, d in enumerate(dtypes))
            merged += combine.merge(a, b)
        lines, names = emit(merged, lambda e: f"{e.args[0]}.a{e.args[1]}")
        _, constants = emit(identity, self.leaf)
        return [
            f"struct Acc {{ {fields} }}",
            f"fn identity() -> Acc {{ return Acc({', '.join(constants)}); }}",
            *("fn merge(a: Acc, b: Acc) -> Acc {", *lines, f"  return Acc({', '.join(names)});", "}"),
        ]

    def point_function(self) -> list[str]:
        """The state that one point contributes."""
        lifted: list[Expr] = []
        for value, name in zip(self.body.values, self.body.combine, strict=True):
            lifted += COMBINES[name].lift(value)
        lines, names = emit(lifted, self.leaf)
        return [
            f"fn point({self.arguments('r: u32', typed=True)}) -> Acc {{",
            *self.coordinates("r", self.space.reduced, "d"),
            *lines,
            f"  return Acc({', '.join(names)});",
            "}",
        ]

    def partial_function(self, partials: int) -> list[str]:
        """The state that partial result ``r`` of ``partials`` is."""
        count = self.param("partials", partials)
        loads = []
        for k, d in enumerate(self.states):
            self.bindings.append(Binding(f"t{k}", partial_dtype(d)))
            self.order.append(len(self.op.args) + k)
            loads.append(convert(f"t{k}_load(o * {count} + r)", partial_dtype(d), d, fits=True))
        return ["fn partial(o: u32, r: u32) -> Acc {", f"  return Acc({', '.join(loads)});", "}"]

    def map_function(self) -> list[str]:
        """Stores the maps at one point, except those that are stored a word at a time, which it returns."""
        roots = [stored(root, self.op.args[k].dtype) for root, k in zip(self.body.maps, self.maps, strict=True)]
        lines, results = emit(roots, self.leaf)
        fields, returned = [], []
        for k, root, result in zip(self.maps, roots, results, strict=True):
            dtype = self.op.args[k].dtype
            value = convert(result, root.dtype, dtype, fits=True)
            if k in self.word_maps:
                fields.append(f"m{k}: {compute_type(dtype)}")
                returned.append(value)
            else:
                lines.append(f"  {self.names[k]}_store({self.element(k)}, {value});")
        arguments = self.arguments("r: u32", "acc: Acc", typed=True)
        text = [f"struct Packed {{ {', '.join(fields)} }}"] if fields else []
        text.append(f"fn map_point({arguments}){' -> Packed' if fields else ''} {{")
        text += [*self.coordinates("r", self.space.reduced, "d"), *lines]
        text += [f"  return Packed({', '.join(returned)});"] if fields else []
        return [*text, "}"]

    # Statements of the entry point

    def head(self) -> list[str]:
        """The entry point's beginning: which output, which lane, which split a thread has."""
        lanes, rows = self.tiling.lanes, self.tiling.rows
        lane, row = ("lid / {}u", "lid % {}u") if self.tiling.across else ("lid % {}u", "lid / {}u")
        width = rows if self.tiling.across else lanes
        text = [
            f"@compute @workgroup_size({WORKGROUP})",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
            "        @builtin(local_invocation_index) lid: u32) {",
            "  let group = wid.y * nwg.x + wid.x;",
            f"  let lane = {lane.format(width)};",
        ]
        tile = "group"
        if self.tiling.splits > 1:
            splits = self.param("splits", self.tiling.splits)
            text += [f"  let split = group % {splits};", f"  let tile = group / {splits};"]
            tile = "tile"
        text.append(f"  let o = {tile} * {rows}u + {row.format(width)};")
        text.append(f"  let live = o < {self.param('outputs', self.space.outputs)};")
        return text + self.coordinates("o", self.space.kept, "c")

    def chunk(self) -> list[str]:
        """The range of points, uniform in the workgroup, that this split takes."""
        extent = self.param("extent", self.space.extent)
        if self.tiling.splits == 1:
            return ["  let start = 0u;", f"  let end = {extent};"]
        unit = self.tiling.lanes * UNROLL
        length = -(-self.space.extent // (self.tiling.splits * unit)) * unit
        chunk = self.param("chunk", length)
        return [
            f"  let start = min(split * {chunk}, {extent});",
            f"  let end = start + min({chunk}, {extent} - start);",
        ]

    def accumulate(self, call: str, first: str, last: str) -> list[str]:
        """``acc``: the states ``call`` gives for this lane's share of ``first`` to ``last``, merged.

        Four independent states keep enough loads in flight to hide their latency.
        """
        lanes = self.tiling.lanes
        return [
            f"  let last = select({first}, {last}, live);",
            f"  let bulk = last - min(last, {(UNROLL - 1) * lanes}u);",
            *(f"  var acc{u} = identity();" for u in range(UNROLL)),
            f"  var i = {first} + lane;",
            f"  for (; i < bulk; i += {UNROLL * lanes}u) {{",
            *(f"    let p{u} = {call.format(f'i + {u * lanes}u')};" for u in range(UNROLL)),
            *(f"    acc{u} = merge(acc{u}, p{u});" for u in range(UNROLL)),
            "  }",
            f"  for (; i < last; i += {lanes}u) {{ acc0 = merge(acc0, {call.format('i')}); }}",
            "  var acc = merge(merge(acc0, acc1), merge(acc2, acc3));",
        ]

    def tree(self, everywhere: bool) -> list[str]:
        """Merges the lanes' ``acc`` of each output, for lane 0 or for all its lanes."""
        lanes, rows, across = self.tiling.lanes, self.tiling.rows, self.tiling.across
        if lanes == 1:
            return []
        text = ["  states[lid] = acc;"]
        width = lanes
        while width > 1:
            width //= 2
            merged = f"merge(states[lid], states[lid + {width * (rows if across else 1)}u])"
            text += ["  workgroupBarrier();", f"  if (lane < {width}u) {{ states[lid] = {merged}; }}"]
        if not everywhere:
            return [*text, "  acc = states[lid];"]
        first = f"lid % {rows}u" if across else "lid - lane"
        return [*text, "  workgroupBarrier();", f"  acc = states[{first}];"]

    def map_calls(self, points: Sequence[str], states: Sequence[str], indent: str) -> list[str]:
        """Stores the maps at consecutive points, which fill whole words of the packed outputs."""
        calls = [f"map_point({self.arguments(r, acc)})" for r, acc in zip(points, states, strict=True)]
        if not self.word_maps:
            return [f"{indent}{call};" for call in calls]
        text = [f"{indent}let q{e} = {call};" for e, call in enumerate(calls)]
        for k in self.word_maps:
            dtype = self.op.args[k].dtype
            per_word = 4 // BY_NAME[dtype].itemsize
            for first in range(0, len(calls), per_word):
                word = "0u"
                for e in range(per_word):
                    word = f"{dtype}_pack({word}, {e}u, q{first + e}.m{k})"
                text.append(f"{indent}{self.names[k]}_store_word((b{k} + {points[first]}) / {per_word}u, {word});")
        return text

    def finish(self, text: Sequence[str]) -> Built:
        """The kernel with this text, over all outputs and splits."""
        groups = -(-self.space.outputs // self.tiling.rows) * self.tiling.splits
        kernel = Kernel(
            self.op.name,
            "\n".join([*text, ""]),
            tuple(self.bindings),
            tuple(self.params.params),
            workgroup_size=(WORKGROUP, 1, 1),
            trusted=True,
        )
        return Built(kernel, tuple(self.order), tuple(self.params.values), grid_for(groups * WORKGROUP))
