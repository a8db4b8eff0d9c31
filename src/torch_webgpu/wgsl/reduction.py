"""Reductions as WGSL: any pointwise prologue, any combine, any epilogue, and maps that use the results at every point.

A thread merges what it loads, a tree in workgroup memory merges the threads of an output. A split reduction leaves its
states in temporaries, which a second kernel merges the same way. Where there are maps and a row fits into the registers
of its threads, it is read once.
"""

from __future__ import annotations

from torch_webgpu.ir.graph import Operation, Reduction

from .builder import Built
from .expr import convert
from .fold import FoldWriter, Stages, partial_bytes, partial_dtype
from .kernel import Binding
from .operands import in_fours
from .quads import QUAD
from .scan import ScanWriter
from .tiling import Tiling, power_of_two, space_of, tile


def build_reduction(op: Operation, alias: tuple[int, ...]) -> Stages:
    """The kernels of a reduction or scan. ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    body = op.body
    assert isinstance(body, Reduction)
    space = space_of(op, body)
    tiling = tile(space, body, QUAD if in_fours(op, space, space.driver) else 1)
    split = tiling.splits > 1
    if body.running:
        last = ScanWriter(op, alias, space, tiling, reads=True, stores=True).build()
    elif not split:
        writer = ReductionWriter(op, alias, space, tiling, reads=True, stores=True)
        last = writer.build_resident(tiling.resident) if tiling.resident else writer.build()
    else:
        merging = tiling if body.maps else Tiling(power_of_two(-(-tiling.splits // 4)), across=False)
        last = ReductionWriter(op, alias, space, merging, reads=False, stores=True).build_from(tiling.splits)
    if not split:
        return Stages((last,))
    first = PartialsWriter(op, alias, space, tiling, reads=True, stores=False).build()
    return Stages((first, last), partial_bytes(body, space.outputs * tiling.splits))


class ReductionWriter(FoldWriter):
    """The kernel that stores a reduction's results."""

    def build(self) -> Built:
        """From the points."""
        declared = self.state_functions(self.tiling.width, self.tiling.width * self.unroll)
        main = [*self.head(), *self.chunk(), *self.accumulate(), *self.tree(bool(self.operands.maps))]
        return self.assemble(declared, [*main, *self.store_roots(), *self.map_loop()])

    def build_from(self, partials: int) -> Built:
        """From ``partials`` states per output. What the maps need of the points, they read."""
        declared = [*self.state_functions(), *self.partial_function(partials)]
        main = [*self.head(), *(self.chunk() if self.operands.maps else [])]
        main += self.accumulate_partials(self.param("partials", partials))
        main += [*self.tree(bool(self.operands.maps)), *self.store_roots(), *self.map_loop()]
        return self.assemble(declared, main)

    def build_resident(self, runs: int) -> Built:
        """From the points, of which each thread keeps ``runs`` runs in registers for the maps."""
        operands, width = self.operands, self.tiling.width
        extent = self.param("extent", self.space.extent)
        exact = self.space.extent == runs * self.unit
        main = self.head()
        everything: list[str] = []
        for u in range(runs):
            main.append(f"  let r{u} = lane * {width}u + {u * self.unit}u;")
            # Beyond the row's end a thread reads the row's beginning, and uses it for nothing.
            main.append("  " + operands.load(f"s{u}", f"r{u}" if exact else f"select(0u, r{u}, r{u} < {extent})"))
            everything += operands.contributions(f"s{u}", f"r{u}")
        if exact:
            main.append(f"  var acc = {self.gather(everything)};")
        else:
            main.append("  var acc = identity();")
            for u in range(runs):
                state = self.gather(everything[u * width : (u + 1) * width])
                main.append(f"  if (r{u} < {extent}) {{ acc = merge(acc, {state}); }}")
        main += [*self.tree(everywhere=True), *self.store_roots()]
        for u in range(runs):
            stores = operands.store(f"s{u}", f"r{u}", ["acc"] * width, "    ")
            main += [f"  if (live && r{u} < {extent}) {{", *stores, "  }"]
        gathers = runs * width if exact else width
        return self.assemble(self.state_functions(gathers), main)

    def assemble(self, declared: list[str], main: list[str]) -> Built:
        return self.finish([*self.operands.functions(), *declared, *self.shared(), *main, "}"])

    def store_roots(self) -> list[str]:
        """The epilogue, by one thread of each output."""
        if not self.operands.roots:
            return []
        chosen = "live && lane == 0u" + (" && split == 0u" if self.tiling.splits > 1 else "")
        return [f"  if ({chosen}) {{", *self.operands.store_roots("    "), "  }"]

    def map_loop(self) -> list[str]:
        if not self.operands.maps:
            return []
        width = self.tiling.width
        return [
            "  let stop = select(start, end, live);",
            f"  for (var r = start + lane * {width}u; r < stop; r += {self.unit}u) {{",
            "    " + self.operands.load("s", "r"),
            *self.operands.store("s", "r", ["acc"] * width, "    "),
            "  }",
        ]


class PartialsWriter(FoldWriter):
    """The kernel that leaves a state per output and split in temporaries."""

    def build(self) -> Built:
        declared = self.state_functions(self.tiling.width, self.tiling.width * self.unroll)
        main = [*self.head(), *self.chunk(), *self.accumulate(), *self.tree(everywhere=False)]
        stores = []
        for k, d in enumerate(self.states):
            self.operands.bind(Binding(f"t{k}", partial_dtype(d), "read_write"), k)
            number = f"o * {self.param('splits', self.tiling.splits)} + split"
            stores.append(f"    t{k}_store({number}, {convert(f'acc.a{k}', d, partial_dtype(d))});")
        main += ["  if (live && lane == 0u) {", *stores, "  }"]
        return self.finish([*self.operands.functions(), *declared, *self.shared(), *main, "}"])
