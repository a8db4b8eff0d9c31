"""Reductions as WGSL: any pointwise prologue, any combine, any epilogue, and maps that use the results at every point.

A thread merges what it loads, a tree in workgroup memory merges the threads of an output. A split reduction leaves its
states in temporaries, which a second kernel merges the same way. Where there are maps and a row fits into the registers
of its threads, it is read once.
"""

from __future__ import annotations

from dataclasses import replace

from torch_webgpu.ir.combine import COMBINES, accumulators, pairwise
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Operation, Reduction
from torch_webgpu.ir.ops import ops

from .expr import compute_type, convert, emit, scalar_function
from .fold import FoldWriter, Runs, in_batches, partial_bytes, partial_dtype
from .indexing import QUAD
from .kernel import Binding
from .launch import Launch, Lowered
from .operands import combines, runs_in_fours
from .scan import ScanWriter
from .tiling import Tiling, is_heavy, power_of_two, space_of, tile


def build_reduction(op: Operation, alias: tuple[int, ...], subgroup: int = 0, max_buffers: int = 0) -> Lowered:
    """The kernels of a reduction or scan. ``alias[k]`` is the first argument that shares argument ``k``'s storage.
    ``subgroup``: how many threads the host's subgroups have; 0 where that is not known. ``max_buffers``: how many
    buffers a kernel binds, if that is known: rows are not split where their states would be too many.
    """
    body = op.body
    assert isinstance(body, Reduction)
    space = space_of(op, body)
    tiling = tile(space, body, QUAD if runs_in_fours(op, space, space.driver) and not is_heavy(body) else 1)
    if 0 < max_buffers < len(set(alias)) + len(accumulators(body.values, body.combine)):
        tiling = replace(tiling, splits=1)
    split = tiling.splits > 1
    if body.running:
        last = ScanWriter(op, alias, space, tiling, reads=True, stores=True).build()
    elif not split:
        writer = ReductionWriter(op, alias, space, tiling, reads=True, stores=True, subgroup=subgroup)
        last = writer.build_resident(tiling.resident) if tiling.resident else writer.build()
    else:
        merging = tiling if body.maps else Tiling(power_of_two(-(-tiling.splits // 4)), across=False)
        last = ReductionWriter(op, alias, space, merging, reads=False, stores=True).build_from(tiling.splits)
    if not split:
        return Lowered((last,))
    first = ReductionWriter(op, alias, space, tiling, reads=True, stores=False).build_partials()
    return Lowered((first, last), partial_bytes(body, space.outputs * tiling.splits))


class ReductionWriter(FoldWriter):
    """The kernels that store a reduction's results, or what splits of its rows came to."""

    def build(self) -> Launch:
        """From the points."""
        declared, main = self.from_points(bool(self.operands.maps))
        return self.finish(declared, [*main, *self.store_roots(), *self.map_loop()])

    def build_from(self, partials: int) -> Launch:
        """From ``partials`` states per output. What the maps need of the points, they read."""
        maps = bool(self.operands.maps)
        declared = [*self.state_functions(), *self.partial_function(partials), *self.shared()]
        main = [*self.head(), *(self.chunk() if maps else [])]
        main += [*self.accumulate_partials(self.params.add("partials", partials)), *self.tree(maps)]
        return self.finish(declared, [*main, *self.store_roots(), *self.map_loop()])

    def build_partials(self) -> Launch:
        """The kernel that leaves a state per output and split in temporaries."""
        declared, main = self.from_points(everywhere=False)
        stores = []
        for k, d in enumerate(self.states):
            self.operands.bind(Binding(f"t{k}", partial_dtype(d), "read_write"), k)
            number = self.partial_number("split", self.params.add("splits", self.tiling.splits))
            stores.append(f"    t{k}_store({number}, {convert(f'acc.a{k}', d, partial_dtype(d))});")
        return self.finish(declared, [*main, "  if (live && lane == 0u) {", *stores, "  }"])

    def from_points(self, everywhere: bool) -> tuple[list[str], list[str]]:
        """Declarations and statements of ``acc``, of all points, for lane 0 or for all lanes of an output."""
        declared = [*self.state_functions(self.tiling.width, self.tiling.width * self.unroll), *self.shared()]
        return declared, [*self.head(), *self.chunk(), *self.accumulate(), *self.tree(everywhere)]

    def build_resident(self, runs: int) -> Launch:
        """From the points, of which each thread keeps ``runs`` runs in registers for the maps."""
        operands, width = self.operands, self.tiling.width
        extent = self.extent
        exact = self.space.extent == runs * self.unit
        main = self.head()
        everything: list[str] = []
        for u in range(runs):
            main.append(f"  let r{u} = lane * {width}u + {u * self.unit}u;")
            # Beyond the row's end a thread reads the row's beginning, and uses it for nothing.
            main.append("  " + operands.load(f"s{u}", f"r{u}" if exact else f"select(0u, r{u}, r{u} < {extent})"))
            everything += operands.contributions(f"s{u}", f"r{u}")
        if in_rounds(self.body):
            inside = "" if exact else "r{} < " + extent
            declared, reduced = self.rounds(everything, [inside.format(u // width) for u in range(runs * width)])
        else:
            declared, reduced = self.merges(everything, runs, exact)
        main += [*reduced, *self.store_roots(), *operands.once()]
        for u in range(runs):
            stores = operands.load_for_maps(f"s{u}", f"r{u}", "    ")
            stores += operands.store(f"s{u}", f"r{u}", ["acc"] * width, "    ")
            main += [f"  if (live && r{u} < {extent}) {{", *stores, "  }"]
        return self.finish(declared, main)

    def merges(self, contributions: list[str], runs: int, exact: bool) -> tuple[list[str], list[str]]:
        """Declarations and statements of ``acc``: each thread gathers its contributions, a tree merges the threads."""
        width = self.tiling.width
        declared = [*self.state_functions(runs * width if exact else width), *self.shared()]
        if exact:
            return declared, [f"  var acc = {self.gather(contributions)};", *self.tree(everywhere=True)]
        text = ["  var acc = identity();"]
        for u in range(runs):
            state = self.gather(contributions[u * width : (u + 1) * width])
            text.append(f"  if (r{u} < {self.extent}) {{ acc = merge(acc, {state}); }}")
        return declared, [*text, *self.tree(everywhere=True)]

    def rounds(self, contributions: list[str], inside: list[str]) -> tuple[list[str], list[str]]:
        """Declarations and statements of ``acc``, by the combine's rounds; ``inside[i]``: whether point ``i`` exists.

        A round costs one cheap operation per element and merge, and no state of several scalars is ever merged.
        """
        (combine, dtype), kind = *combines(self.body), compute_type(self.body.values[0].dtype)
        assert combine.rounds is not None
        element, count, a, b = (Expr("acc", (name,), dtype) for name in ("x", "count", "a", "b"))
        declared: list[str] = []
        results: list[Expr] = []
        main = [f"  let count = {convert(self.extent, 'u32', dtype)};"]
        main += [f"  let p{i} = {contribution}.v0;" for i, contribution in enumerate(contributions)]
        for n, step in enumerate(combine.rounds.rounds):
            declared += scalar_function(f"value{n}", step.value(element, *results), element, *results)
            declared += scalar_function(f"merge{n}", step.merge(a, b), a, b)
            declared += scalar_function(f"share{n}", step.share(a, count), a, count)
            declared += self.shared(f"states{n}", kind)
            before = "".join(f", t{k}" for k in range(n))
            values = [f"value{n}(p{i}{before})" for i in range(len(contributions))]
            _, (nothing,) = emit([ops.constant(step.identity, dtype)], self.operands.leaf)
            values = [f"select({nothing}, {v}, {there})" if there else v for v, there in zip(values, inside)]
            merged = pairwise(lambda a, b, n=n: f"merge{n}({a}, {b})", values)  # type: ignore[misc]
            main.append(f"  var t{n} = share{n}({merged}, count);")
            main += self.tree(True, f"t{n}", f"states{n}", f"merge{n}")
            results.append(Expr("acc", (f"t{n}",), dtype))
        lines, names = emit(combine.rounds.state(count, *results), lambda e: e.args[0], prefix="f")
        return [self.state_struct(), *declared], [*main, *lines, f"  let acc = Acc({', '.join(names)});"]

    def store_roots(self) -> list[str]:
        """The epilogue, by one thread of each output."""
        if not self.operands.roots:
            return []
        chosen = "live && lane == 0u" + (" && split == 0u" if self.tiling.splits > 1 else "")
        return [f"  if ({chosen}) {{", *self.operands.store_roots("    "), "  }"]

    def map_loop(self) -> list[str]:
        """The maps of all points from ``start`` to ``end``."""
        if not self.operands.maps:
            return []
        first = f"start + lane * {self.tiling.width}u"
        return [
            *self.operands.once(),
            "  let stop = select(start, end, live);",
            *in_batches("r", first, "stop", self.unit, self.unroll, self.load_and_store),
        ]

    def load_and_store(self, runs: Runs) -> list[str]:
        """Statements that load runs, and then store their maps."""
        text = []
        for run, at in runs:
            text += ["    " + self.operands.load(run, at), *self.operands.load_for_maps(run, at, "    ")]
        for run, at in runs:
            text += self.operands.store(run, at, ["acc"] * self.tiling.width, "    ")
        return text


def in_rounds(body: Reduction) -> bool:
    """Whether a row that is held in registers is reduced in rounds."""
    return len(body.combine) == 1 and COMBINES[body.combine[0]].rounds is not None
