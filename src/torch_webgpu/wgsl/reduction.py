"""Reductions as WGSL: any pointwise prologue, any combine, any epilogue, and maps that use the results at every point.

One text serves every shape of the same rank: sizes, strides and offsets are parameters. A thread merges what it loads
into four independent states, a tree in workgroup memory merges the threads of an output. A split reduction leaves its
states in temporaries, which a second kernel merges the same way.
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
from .tiling import Space, Tiling, map_run, power_of_two, space_of, tile

UNROLL = 4


@dataclass(frozen=True)
class Stages:
    """Kernels that run one after the other, and the bytes of the temporaries they share.

    Temporary ``t`` is binding ``n_args + t`` of the kernels.
    """

    built: tuple[Built, ...]
    temporaries: tuple[int, ...] = ()


def build_reduction(op: Operation, alias: tuple[int, ...], native_f16: bool) -> Stages:
    """The kernels of a reduction. ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    body = op.body
    assert isinstance(body, Reduction)
    space = space_of(op, body)
    tiling = tile(space, body, map_run(op, body, space, native_f16))
    if tiling.splits == 1:
        return Stages((Writer(op, alias, space, tiling, native_f16).build(),))
    states = accumulators(body.values, body.combine)
    sizes = tuple(BY_NAME[partial_dtype(d)].itemsize * space.outputs * tiling.splits for d in states)
    merging = tiling if body.maps else Tiling(min(WORKGROUP, power_of_two(-(-tiling.splits // UNROLL))), across=False)
    first = Writer(op, alias, space, tiling, native_f16, to_partials=True).build()
    second = Writer(op, alias, space, merging, native_f16, partials=tiling.splits).build()
    return Stages((first, second), sizes)


def partial_dtype(dtype: str) -> str:
    """How a state lies in a temporary: in whole words."""
    return "i32" if dtype == "bool" else dtype


class Writer:
    """Writes one kernel of a reduction: over the points, or over ``partials`` states left by another one."""

    def __init__(
        self,
        op: Operation,
        alias: tuple[int, ...],
        space: Space,
        tiling: Tiling,
        native_f16: bool,
        *,
        to_partials: bool = False,
        partials: int = 0,
    ) -> None:
        assert isinstance(op.body, Reduction)
        self.op, self.body, self.space, self.tiling = op, op.body, space, tiling
        self.to_partials, self.partials = to_partials, partials
        self.params = ParamList()
        self._known: dict[str, str] = {}
        self.states = accumulators(op.body.values, op.body.combine)
        self.roots = range(op.n_inputs, op.n_inputs + len(op.body.roots))
        self.maps = range(self.roots.stop, len(op.args))
        self.loaded = self.loads()
        used = set(self.loaded) if to_partials else {*self.loaded, *self.roots, *self.maps}
        self.word_maps = [k for k in self.maps if tiling.run > 1 and BY_NAME[op.args[k].dtype].is_subword]
        if native_f16:
            self.word_maps = [k for k in self.word_maps if op.args[k].dtype != "f16"]
        modes: dict[int, Mode] = {k: "word" if k in self.word_maps else "plain" for k in (*self.roots, *self.maps)}
        bindings, names, order = bind(op.args, alias, op.n_inputs, modes)
        self.names = names
        kept = [(b, k) for b, k in zip(bindings, order) if any(names[a] == b.name for a in used)]
        self.bindings: list[Binding] = [b for b, _ in kept]
        self.order: list[int] = [k for _, k in kept]
        self.scalars = self.params.scalars(op.param_kinds, [e.args[0] for e in self.leaves() if e.op == "param"])

    # What this kernel evaluates

    def evaluated(self) -> tuple[Expr, ...]:
        body = self.body
        values = () if self.partials else body.values
        return values if self.to_partials else (*values, *body.roots, *body.maps)

    def leaves(self) -> list[Expr]:
        return [e for e in walk(self.evaluated()) if not any(isinstance(a, Expr) for a in e.args)]

    def loads(self) -> list[int]:
        return sorted({e.args[0] for e in self.leaves() if e.op == "load"})

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
        """Argument ``k``'s element number at the first reduced point of an output."""
        offset = self.param(f"o{k}", Source("offset", k))
        return " + ".join([offset, *self.steps(k, self.space.kept_strides[k], "c")])

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

    # Functions of the kernel. They are given the bases of the arguments and, where asked for, the output's coordinates.

    def arguments(self, *more: str, typed: bool = False) -> str:
        needed = [f"b{k}" for k in (*self.loaded, *(() if self.to_partials else self.maps))]
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
        """The state that one reduced point contributes, or that one partial result is."""
        if self.partials:
            n = len(self.op.args)
            splits = self.param("partials", self.partials)
            loads = []
            for k, d in enumerate(self.states):
                self.bindings.append(Binding(f"t{k}", partial_dtype(d)))
                self.order.append(n + k)
                loads.append(convert(f"t{k}_load(o * {splits} + r)", partial_dtype(d), d, fits=True))
            return ["fn point(o: u32, r: u32) -> Acc {", f"  return Acc({', '.join(loads)});", "}"]
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
        text = [f"fn map_point({arguments}){' -> Packed' if fields else ''} {{"]
        text += [*self.coordinates("r", self.space.reduced, "d"), *lines]
        if fields:
            text.insert(0, f"struct Packed {{ {', '.join(fields)} }}")
            text.append(f"  return Packed({', '.join(returned)});")
        return [*text, "}"]

    # The entry point

    def build(self) -> Built:
        groups = -(-self.space.outputs // self.tiling.rows) * self.tiling.splits
        functions = [*self.state_functions(), *self.point_function()]
        functions += self.map_function() if self.maps and not self.to_partials else []
        text = "\n".join([*functions, *self.main(), ""])
        kernel = Kernel(
            self.op.name,
            text,
            tuple(self.bindings),
            tuple(self.params.params),
            workgroup_size=(WORKGROUP, 1, 1),
            trusted=True,
        )
        return Built(kernel, tuple(self.order), tuple(self.params.values), grid_for(groups * WORKGROUP))

    def main(self) -> list[str]:
        lanes, rows, across = self.tiling.lanes, self.tiling.rows, self.tiling.across
        lane, row = (f"lid / {rows}u", f"lid % {rows}u") if across else (f"lid % {lanes}u", f"lid / {lanes}u")
        text = [
            f"var<workgroup> states: array<Acc, {WORKGROUP}>;" if lanes > 1 else "",
            f"@compute @workgroup_size({WORKGROUP})",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
            "        @builtin(local_invocation_index) lid: u32) {",
            "  let group = wid.y * nwg.x + wid.x;",
            f"  let lane = {lane};",
            *self.which_output(row),
        ]
        if not self.partials or self.maps:
            text += self.chunk()
        text += [f"  let b{k} = {self.base(k)};" for k in self.based()]
        text += self.accumulate()
        text += self.tree()
        text += self.results()
        return [line for line in text if line] + ["}"]

    def based(self) -> list[int]:
        return [*self.loaded] if self.to_partials else sorted({*self.loaded, *self.roots, *self.maps})

    def which_output(self, row: str) -> list[str]:
        rows = f"{self.tiling.rows}u"
        if self.tiling.splits > 1:
            splits = self.param("splits", self.tiling.splits)
            lines = [f"  let split = group % {splits};", f"  let o = (group / {splits}) * {rows} + {row};"]
        else:
            lines = [f"  let o = group * {rows} + {row};"]
        lines.append(f"  let live = o < {self.param('outputs', self.space.outputs)};")
        return lines + self.coordinates("o", self.space.kept, "c")

    def chunk(self) -> list[str]:
        """The range of reduced points that this workgroup takes; empty where there is no output."""
        extent = self.param("extent", self.space.extent)
        if self.tiling.splits == 1:
            return ["  let start = 0u;", f"  let end = select(0u, {extent}, live);"]
        step = self.tiling.lanes * UNROLL
        length = -(-self.space.extent // (self.tiling.splits * step)) * step
        chunk = self.param("chunk", length)
        return [
            f"  let start = min(split * {chunk}, {extent});",
            f"  let end = select(start, start + min({chunk}, {extent} - start), live);",
        ]

    def accumulate(self) -> list[str]:
        """The thread's own loop, with enough independent loads in flight to hide their latency."""
        lanes = self.tiling.lanes
        if self.partials:
            first, end = "0u", f"select(0u, {self.param('partials', self.partials)}, live)"
            call = "point(o, {})"
        else:
            first, end = "start", "end"
            call = f"point({self.arguments('{}')})"
        text = [f"  let last = {end};", f"  let bulk = last - min(last, {(UNROLL - 1) * lanes}u);"]
        text += [f"  var acc{u} = identity();" for u in range(UNROLL)]
        text.append(f"  var i = {first} + lane;")
        text.append(f"  for (; i < bulk; i += {UNROLL * lanes}u) {{")
        text += [f"    let p{u} = {call.format(f'i + {u * lanes}u')};" for u in range(UNROLL)]
        text += [f"    acc{u} = merge(acc{u}, p{u});" for u in range(UNROLL)]
        text.append("  }")
        text.append(f"  for (; i < last; i += {lanes}u) {{ acc0 = merge(acc0, {call.format('i')}); }}")
        text.append("  var acc = merge(merge(acc0, acc1), merge(acc2, acc3));")
        return text

    def tree(self) -> list[str]:
        """Merges the lanes of each output. Every thread has the result if there are maps, else lane 0."""
        lanes, rows, across = self.tiling.lanes, self.tiling.rows, self.tiling.across
        if lanes == 1:
            return []
        text = ["  states[lid] = acc;"]
        width = lanes
        while width > 1:
            width //= 2
            merged = f"merge(states[lid], states[lid + {width * (rows if across else 1)}u])"
            text += ["  workgroupBarrier();", f"  if (lane < {width}u) {{ states[lid] = {merged}; }}"]
        if self.to_partials or not self.maps:
            return [*text, "  acc = states[lid];"]
        first = f"lid % {rows}u" if across else "lid - lane"
        return [*text, "  workgroupBarrier();", f"  acc = states[{first}];"]

    def results(self) -> list[str]:
        if self.to_partials:
            return [f"  if (live && lane == 0u) {{ {self.store_partials()} }}"]
        text = self.store_roots() if self.roots else []
        return text + (self.map_loop() if self.maps else [])

    def store_partials(self) -> str:
        n, splits = len(self.op.args), self.param("splits", self.tiling.splits)
        stores = []
        for k, d in enumerate(self.states):
            self.bindings.append(Binding(f"t{k}", partial_dtype(d), "read_write"))
            self.order.append(n + k)
            stores.append(f"t{k}_store(o * {splits} + split, {convert(f'acc.a{k}', d, partial_dtype(d))});")
        return " ".join(stores)

    def store_roots(self) -> list[str]:
        """The epilogue, by one thread of each output. What it loads, it loads at the first reduced point."""
        roots = [stored(root, self.op.args[k].dtype) for root, k in zip(self.body.roots, self.roots, strict=True)]
        lines, results = emit(roots, self.leaf, prefix="e", indent="    ")
        chosen = "live && lane == 0u" + (" && split == 0u" if self.tiling.splits > 1 else "")
        text = [f"  if ({chosen}) {{", *(f"    let d{d} = 0u;" for d in range(len(self.space.reduced))), *lines]
        for k, root, result in zip(self.roots, roots, results, strict=True):
            value = convert(result, root.dtype, self.op.args[k].dtype, fits=True)
            text.append(f"    {self.names[k]}_store(b{k}, {value});")
        return [*text, "  }"]

    def map_loop(self) -> list[str]:
        run, lanes = self.tiling.run, self.tiling.lanes
        arguments = [self.arguments(f"r + {e}u" if e else "r", "acc") for e in range(run)]
        text = [f"  for (var r = start + lane * {run}u; r < end; r += {lanes * run}u) {{"]
        if not self.word_maps:
            return [*text, *(f"    map_point({a});" for a in arguments), "  }"]
        text += [f"    let q{e} = map_point({a});" for e, a in enumerate(arguments)]
        for k in self.word_maps:
            dtype = self.op.args[k].dtype
            per_word = 4 // BY_NAME[dtype].itemsize
            for first in range(0, run, per_word):
                word = "0u"
                for e in range(per_word):
                    word = f"{dtype}_pack({word}, {e}u, q{first + e}.m{k})"
                text.append(f"    {self.names[k]}_store_word((b{k} + r + {first}u) / {per_word}u, {word});")
        return [*text, "  }"]


def compute_type(dtype: str) -> str:
    return COMPUTE_TYPE[BY_NAME[dtype].kind]
