"""What reductions and scans share: states in WGSL, how contributions and lanes merge, which thread has which points.

One text serves every shape of the same rank: sizes, strides and offsets are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.combine import accumulators, pairwise
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Operation, Reduction

from .expr import compute_type, convert, emit, function
from .indexing import ENTRY, GROUPS, ahead
from .kernel import Binding
from .launch import WORKGROUP, Launch
from .operands import Operands, combines
from .tiling import UNROLL, Space, Tiling, doubles, in_flight

Runs = Sequence[tuple[str, str]]
"""Names of runs, each with its first point."""


def partial_dtype(dtype: str) -> str:
    """How a state lies in a temporary: in whole words."""
    return "i32" if dtype == "bool" else dtype


def partial_bytes(body: Reduction, states: int) -> tuple[int, ...]:
    """The sizes of the temporaries that hold ``states`` states."""
    return tuple(BY_NAME[partial_dtype(d)].itemsize * states for d in accumulators(body.values, body.combine))


def merged(states: Sequence[str]) -> str:
    """WGSL that merges states pairwise."""
    return pairwise(lambda a, b: f"merge({a}, {b})", states)


def tree(lanes: int, stride: int = 1, lane: str = "lid", shared: str = "states", merge: str = "merge") -> list[str]:
    """Statements that merge what ``lanes`` threads, a power of two ``stride`` apart, left in the array ``shared``, for
    the first of them.
    """
    text = []
    while lanes > 1:
        lanes //= 2
        both = f"{merge}({shared}[lid], {shared}[lid + {lanes * stride}u])"
        text += ["  workgroupBarrier();", f"  if ({lane} < {lanes}u) {{ {shared}[lid] = {both}; }}"]
    return text


def in_batches(
    number: str, first: str, stop: str, unit: int, batch: int, statements: Callable[[Runs], list[str]]
) -> list[str]:
    """A loop over the runs from ``first`` to ``stop`` that are ``unit`` points apart: ``batch`` of them at a time, so
    that so many loads are underway, and what is left one by one.
    """
    text = [f"  var {number} = {first};"]
    if batch > 1:
        text += [
            f"  let {number}_whole = {stop} - min({stop}, {(batch - 1) * unit}u);",
            f"  for (; {number} < {number}_whole; {number} += {batch * unit}u) {{",
            *statements([(f"s{u}", ahead(number, u * unit)) for u in range(batch)]),
            "  }",
        ]
    return [*text, f"  for (; {number} < {stop}; {number} += {unit}u) {{", *statements([("s", number)]), "  }"]


SHUFFLED = {"f32", "i32", "u32"}


class FoldWriter:
    """Writes one kernel over the ``space`` of a fold.

    ``lane`` is a thread's number among those that share output ``o``; ``live`` says whether there is such an output.
    ``reads``: the kernel evaluates the contributions. ``stores``: it writes the outputs, not partial results.
    ``subgroup``: how many threads the host's subgroups have; 0 where that is not known.
    """

    def __init__(
        self,
        op: Operation,
        alias: tuple[int, ...],
        space: Space,
        tiling: Tiling,
        *,
        reads: bool,
        stores: bool,
        subgroup: int = 0,
    ) -> None:
        assert isinstance(op.body, Reduction)
        self.op, self.body, self.space, self.tiling = op, op.body, space, tiling
        self.operands = Operands(op, alias, space, tiling.width, op.body.values if reads else (), stores)
        self.params = self.operands.params
        self.states = accumulators(op.body.values, op.body.combine)
        self.unit = tiling.lanes * tiling.width
        self.unroll = in_flight(op.body, tiling.width)
        self.subgroup = subgroup
        types = {compute_type(d) for d in self.states}
        self.shuffles = tiling.lanes <= subgroup and not tiling.across and types <= SHUFFLED
        """Whether the lanes of an output hand each other what they have: no workgroup memory, and nobody waits."""

    @property
    def extent(self) -> str:
        """The parameter that says how many points an output has."""
        return self.params.add("extent", self.space.extent)

    # Functions of states

    def state_functions(self, *gathers: int) -> list[str]:
        """The struct of the states, their identity, their merge, and ``gatherN`` for each number of contributions."""
        identity: list[Expr] = []
        both: list[Expr] = []
        for combine, dtype in combines(self.body):
            first, dtypes = len(both), combine.dtypes(dtype)
            identity += combine.identity(dtype)
            a, b = (tuple(Expr("acc", (side, first + j), d) for j, d in enumerate(dtypes)) for side in "ab")
            both += combine.merge(a, b)
        lines, names = emit(both, lambda e: f"{e.args[0]}.a{e.args[1]}")
        _, constants = emit(identity, self.operands.leaf)
        text = [
            self.state_struct(),
            f"fn identity() -> Acc {{ return Acc({', '.join(constants)}); }}",
            *function("merge(a: Acc, b: Acc)", "Acc", lines, f"Acc({', '.join(names)})"),
        ]
        for n in sorted(set(gathers)):
            text += self.gather_function(n)
        return text

    def state_struct(self) -> str:
        return f"struct Acc {{ {', '.join(f'a{k}: {compute_type(d)}' for k, d in enumerate(self.states))} }}"

    def gather_function(self, n: int) -> list[str]:
        """The state of ``n`` contributions."""
        positions = [Expr("acc", ("r", u), "u32") for u in range(n)]
        gathered: list[Expr] = []
        for j, (combine, dtype) in enumerate(combines(self.body)):
            gathered += combine.gather([Expr("acc", (f"v{j}", u), dtype) for u in range(n)], positions)
        lines, names = emit(gathered, lambda e: f"p{e.args[1]}.{e.args[0]}")
        arguments = ", ".join(f"p{u}: Contribution" for u in range(n))
        return function(f"gather{n}({arguments})", "Acc", lines, f"Acc({', '.join(names)})")

    def partial_function(self, partials: int) -> list[str]:
        """The state that partial result ``r`` of ``partials`` is."""
        count = self.params.add("partials", partials)
        loads = []
        for k, d in enumerate(self.states):
            self.operands.bind(Binding(f"t{k}", partial_dtype(d)), k)
            loads.append(convert(f"t{k}_load({self.partial_number('r', count)})", partial_dtype(d), d, fits=True))
        return function("partial(o: u32, r: u32)", "Acc", [], f"Acc({', '.join(loads)})")

    def partial_number(self, r: str, count: str) -> str:
        """Where partial result ``r`` of ``count`` of output ``o`` is: beside those that its reader's threads read with
        it.
        """
        if self.tiling.across and (self.body.maps or self.body.running):
            return f"{r} * {self.params.add('outputs', self.space.outputs)} + o"
        return f"o * {count} + {r}"

    # Statements of the entry point

    def head(self) -> list[str]:
        """The entry point's beginning: which output, which lane, which split a thread has."""
        lanes, rows = self.tiling.lanes, self.tiling.rows
        lane, row = ("lid / {}u", "lid % {}u") if self.tiling.across else ("lid % {}u", "lid / {}u")
        width = rows if self.tiling.across else lanes
        text = [*GROUPS, f"  let lane = {lane.format(width)};"]
        tile = "group"
        if self.tiling.splits > 1:
            splits = self.params.add("splits", self.tiling.splits)
            text += [f"  let split = group % {splits};", f"  let tile = group / {splits};"]
            tile = "tile"
        outputs = self.params.add("outputs", self.space.outputs)
        output = f"{tile} * {rows}u + {row.format(width)}"
        return [
            *text,
            f"  let live = {output} < {outputs};",
            # A thread without an output reads what the last one does, and writes nothing.
            f"  let o = min({output}, {outputs} - 1u);",
            *self.operands.coordinates("o", self.space.kept, "c"),
            *self.operands.row(),
        ]

    def chunk(self) -> list[str]:
        """The range of points, uniform in the workgroup, that this split takes."""
        extent = self.extent
        if self.tiling.splits == 1:
            return ["  let start = 0u;", f"  let end = {extent};"]
        unit = self.unit * self.unroll
        length = -(-self.space.extent // (self.tiling.splits * unit)) * unit
        chunk = self.params.add("chunk", length)
        return [
            f"  let start = min(split * {chunk}, {extent});",
            f"  let end = start + min({chunk}, {extent} - start);",
        ]

    def accumulate(self) -> list[str]:
        """``acc``: this lane's share of the points from ``start`` to ``end``."""
        operands = self.operands

        def merge(runs: Runs) -> list[str]:
            contributions = [text for run in runs for text in operands.contributions(*run)]
            loads = ["    " + operands.load(*run) for run in runs]
            return [*loads, f"    acc = merge(acc, {self.gather(contributions)});"]

        first = f"start + lane * {self.tiling.width}u"
        return [
            "  let last = select(start, end, live);",
            "  var acc = identity();",
            *in_batches("i", first, "last", self.unit, self.unroll, merge),
        ]

    def gather(self, contributions: Sequence[str]) -> str:
        return f"gather{len(contributions)}({', '.join(contributions)})"

    def accumulate_partials(self, count: str) -> list[str]:
        """``acc``: this lane's share of the first ``count`` partial results."""

        def merge(runs: Runs) -> list[str]:
            loads = [f"    let {name} = partial(o, {at});" for name, at in runs]
            return [*loads, f"    acc = merge(acc, {merged([name for name, _ in runs])});"]

        return ["  var acc = identity();", *in_batches("i", "lane", count, self.tiling.lanes, UNROLL[1], merge)]

    def tree(self, everywhere: bool, value: str = "acc", shared: str = "states", merge: str = "merge") -> list[str]:
        """Merges the lanes' ``value`` of each output in the array ``shared``, for lane 0 or for all its lanes."""
        lanes, rows, across = self.tiling.lanes, self.tiling.rows, self.tiling.across
        if lanes == 1:
            return []
        if self.shuffles:
            return [f"  {value} = {merge}({value}, {self.of_lane(value, step)});" for step in doubles(1, lanes)]
        text = [f"  {shared}[lid] = {value};", *tree(lanes, rows if across else 1, "lane", shared, merge)]
        if not everywhere:
            return [*text, f"  {value} = {shared}[lid];"]
        first = f"lid % {rows}u" if across else "lid - lane"
        return [*text, "  workgroupBarrier();", f"  {value} = {shared}[{first}];"]

    def of_lane(self, value: str, away: int) -> str:
        """The lane's ``value``, a state or a number, whose number differs by ``away``."""
        if value != "acc":
            return f"subgroupShuffleXor({value}, {away}u)"
        parts = [f"subgroupShuffleXor(acc.a{k}, {away}u)" for k in range(len(self.states))]
        return f"Acc({', '.join(parts)})"

    def shared(self, name: str = "states", kind: str = "Acc", pages: int = 1) -> list[str]:
        """The array in which the lanes merge."""
        waits = self.tiling.lanes > 1 and not self.shuffles
        return [f"var<workgroup> {name}: array<{kind}, {pages * WORKGROUP}>;"] if waits else []

    def finish(self, declared: Sequence[str], main: Sequence[str]) -> Launch:
        """The kernel with these declarations and this entry point, over all outputs and splits."""
        text = [*self.operands.functions(), *declared, *main, "}"]
        if self.shuffles:
            text = [line.replace(ENTRY, f"{ENTRY} @subgroup_size({self.subgroup})") for line in text]
        lines = "\n".join([*(line for line in text if line.strip()), ""])
        groups = -(-self.space.outputs // self.tiling.rows) * self.tiling.splits
        operands = self.operands
        return self.params.launch(self.op.name, lines, operands.bindings, operands.order, groups * WORKGROUP)
