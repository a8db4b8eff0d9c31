"""Reductions as WGSL: any pointwise prologue, any combine, any epilogue, and maps that use the results at every point.

A thread merges what it loads, a tree in workgroup memory merges the threads of an output. A split reduction leaves its
states in temporaries, which a second kernel merges the same way.
"""

from __future__ import annotations

from ..ir.graph import Operation, Reduction
from .builder import WORKGROUP, Built, stored
from .expr import convert, emit
from .fold import UNROLL, FoldWriter, Stages, partial_bytes, partial_dtype
from .kernel import Binding
from .scan import ScanWriter
from .tiling import Space, Tiling, map_run, power_of_two, space_of, tile


def build_reduction(op: Operation, alias: tuple[int, ...], native_f16: bool) -> Stages:
    """The kernels of a reduction or scan. ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    body = op.body
    assert isinstance(body, Reduction)
    space = space_of(op, body)
    tiling = tile(space, body, map_run(op, body, space, native_f16))
    partials = tiling.splits if tiling.splits > 1 else 0
    if body.running:
        evaluated = (*body.values, *body.maps)
        last = ScanWriter(op, alias, space, tiling, native_f16, evaluated, stores=True).build()
    else:
        merging = Tiling(power_of_two(-(-partials // UNROLL)), across=False) if partials and not body.maps else tiling
        last = ReductionWriter(op, alias, space, merging, native_f16, partials).build()
    if not partials:
        return Stages((last,))
    first = PartialsWriter(op, alias, space, tiling, native_f16, body.values, stores=False).build()
    return Stages((first, last), partial_bytes(body, space.outputs * partials))


class ReductionWriter(FoldWriter):
    """The kernel that stores a reduction's results, from the points or from ``partials`` states per output."""

    def __init__(
        self,
        op: Operation,
        alias: tuple[int, ...],
        space: Space,
        tiling: Tiling,
        native_f16: bool,
        partials: int = 0,
    ) -> None:
        assert isinstance(op.body, Reduction)
        values = () if partials else op.body.values
        evaluated = (*values, *op.body.roots, *op.body.maps)
        super().__init__(op, alias, space, tiling, native_f16, evaluated, stores=True)
        self.partials = partials

    def build(self) -> Built:
        text = self.state_functions()
        text += self.partial_function(self.partials) if self.partials else self.point_function()
        text += self.map_function() if self.maps else []
        text += [f"var<workgroup> states: array<Acc, {WORKGROUP}>;"] if self.tiling.lanes > 1 else []
        text += self.head()
        text += self.chunk() if self.maps or not self.partials else []
        text += self.bases()
        if self.partials:
            text += self.accumulate("partial(o, {})", "0u", self.param("partials", self.partials))
        else:
            text += self.accumulate(f"point({self.arguments('{}')})", "start", "end")
        text += self.tree(everywhere=bool(self.maps))
        text += self.store_roots() if self.roots else []
        text += self.map_loop() if self.maps else []
        return self.finish([*text, "}"])

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
        points = [f"r + {e}u" if e else "r" for e in range(run)]
        return [
            "  let stop = select(start, end, live);",
            f"  for (var r = start + lane * {run}u; r < stop; r += {lanes * run}u) {{",
            *self.map_calls(points, ["acc"] * run, "    "),
            "  }",
        ]


class PartialsWriter(FoldWriter):
    """The kernel that leaves a state per output and split in temporaries."""

    def build(self) -> Built:
        text = [*self.state_functions(), *self.point_function()]
        text += [f"var<workgroup> states: array<Acc, {WORKGROUP}>;"] if self.tiling.lanes > 1 else []
        text += [*self.head(), *self.chunk(), *self.bases()]
        text += self.accumulate(f"point({self.arguments('{}')})", "start", "end")
        text += self.tree(everywhere=False)
        stores = []
        for k, d in enumerate(self.states):
            self.bindings.append(Binding(f"t{k}", partial_dtype(d), "read_write"))
            self.order.append(len(self.op.args) + k)
            number = f"o * {self.param('splits', self.tiling.splits)} + split"
            stores.append(f"    t{k}_store({number}, {convert(f'acc.a{k}', d, partial_dtype(d))});")
        return self.finish([*text, "  if (live && lane == 0u) {", *stores, "  }", "}"])
