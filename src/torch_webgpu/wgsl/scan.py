"""Scans as WGSL: reductions whose maps see, at each point, the state of the points up to it.

A workgroup goes along its rows block by block. Of a block each lane merges a run of consecutive points; the lanes'
totals are scanned in workgroup memory (Hillis & Steele 1986) and carried on to the next block. Long rows are split: a
first kernel leaves the state of each split, and every workgroup of the second begins by merging those before its own.
"""

from __future__ import annotations

from .fold import FoldWriter, merged
from .launch import WORKGROUP, Launch

RUN = 4
"""Consecutive points that a lane takes of a block."""


class ScanWriter(FoldWriter):
    """The kernel that stores a scan's results, after the states of earlier splits if the rows are split."""

    def build(self) -> Launch:
        splits, lanes = self.tiling.splits, self.tiling.lanes
        declared = self.state_functions(1)
        declared += self.partial_function(splits) if splits > 1 else []
        # Two pages of states, so that a step of the scan needs one barrier.
        declared += self.shared(pages=2)
        main = [*self.head(), *self.chunk()]
        if splits > 1:
            main += [*self.accumulate_partials("split"), *self.tree(everywhere=True)]
            main += ["  workgroupBarrier();"] if lanes > 1 else []
            main.append("  var carry = acc;")
        else:
            main.append("  var carry = identity();")
        main.append(f"  for (var block = start; block < end; block += {lanes * RUN}u) {{")
        main += [f"    let r0 = block + lane * {RUN}u;", *self.run(), *self.scan_lanes(), *self.store(), "  }"]
        return self.finish(declared, main)

    def run(self) -> list[str]:
        """``s0…``: this lane's runs of the block; ``a0…``: the states of its points, each merged with those before."""
        operands, width = self.operands, self.tiling.width
        text = []
        for u in range(0, RUN, width):
            at = f"(r0 + {u}u)"
            text.append("    " + operands.load(f"s{u}", f"min{at[:-1]}, end - {width}u)"))
            for e, contribution in enumerate(operands.contributions(f"s{u}", at)):
                state = f"gather1({contribution})"
                before = f"a{u + e - 1}" if u + e else ""
                text.append(f"    var a{u + e} = {before or 'identity()'};")
                both = merged([before, state]) if before else state
                text.append(f"    if (r0 + {u + e}u < end) {{ a{u + e} = {both}; }}")
        return text

    def scan_lanes(self) -> list[str]:
        """``before``: the state of everything before this lane's points; moves ``carry`` past the block."""
        lanes = self.tiling.lanes
        if lanes == 1:
            return ["    let before = carry;", f"    carry = merge(carry, a{RUN - 1});"]
        step = self.tiling.rows if self.tiling.across else 1
        text = [f"    var total = a{RUN - 1};", "    states[lid] = total;", "    workgroupBarrier();"]
        width, page = 1, 0
        while width < lanes:
            left = f"states[{page}u + lid - {width * step}u]"
            page = WORKGROUP - page
            text.append(f"    if (lane >= {width}u) {{ total = merge({left}, total); }}")
            text += [f"    states[{page}u + lid] = total;", "    workgroupBarrier();"]
            width *= 2
        last = f"lid % {step}u + {(lanes - 1) * step}u" if self.tiling.across else f"lid - lane + {lanes - 1}u"
        return [
            *text,
            "    var before = carry;",
            f"    if (lane > 0u) {{ before = merge(carry, states[{page}u + lid - {step}u]); }}",
            f"    carry = merge(carry, states[{page}u + {last}]);",
            "    workgroupBarrier();",
        ]

    def store(self) -> list[str]:
        text = []
        for u in range(0, RUN, self.tiling.width):
            states = [merged(["before", f"a{u + e}"]) for e in range(self.tiling.width)]
            run, at = f"s{u}", f"(r0 + {u}u)"
            stores = self.operands.load_for_maps(run, at, "      ")
            stores += self.operands.store(run, at, states, "      ")
            text += [f"    if (live && r0 + {u}u < end) {{", *stores, "    }"]
        return text
