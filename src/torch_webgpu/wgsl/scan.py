"""Scans as WGSL: reductions whose maps see, at each point, the state of the points up to it.

A workgroup goes along its rows block by block. Of a block each lane merges a run of consecutive points; the lanes'
totals are scanned in workgroup memory (Hillis & Steele 1986) and carried on to the next block. Long rows are split: a
first kernel leaves the state of each split, and every workgroup of the second begins by merging those before its own.
"""

from __future__ import annotations

from .builder import WORKGROUP, Built
from .fold import UNROLL as RUN
from .fold import FoldWriter


class ScanWriter(FoldWriter):
    """The kernel that stores a scan's results, after ``partials`` states per row if there are any."""

    def build(self) -> Built:
        splits = self.tiling.splits
        text = [*self.state_functions(), *self.point_function(), *self.map_function()]
        text += self.partial_function(splits) if splits > 1 else []
        # Two generations of states, so that a step of the scan needs one barrier.
        text += [f"var<workgroup> states: array<Acc, {2 * WORKGROUP}>;"] if self.tiling.lanes > 1 else []
        text += [*self.head(), *self.chunk(), *self.bases()]
        if splits > 1:
            text += [*self.accumulate("partial(o, {})", "0u", "split"), *self.tree(everywhere=True)]
            text += ["  workgroupBarrier();"] if self.tiling.lanes > 1 else []
            text.append("  var carry = acc;")
        else:
            text.append("  var carry = identity();")
        text += [f"  for (var block = start; block < end; block += {self.tiling.lanes * RUN}u) {{"]
        text += self.run()
        text += self.scan_lanes()
        text += self.store()
        return self.finish([*text, "  }", "}"])

    def run(self) -> list[str]:
        """``s0…``: the states of this lane's points of the block, each merged with those before it."""
        text = [f"    let first = block + lane * {RUN}u;"]
        for u in range(RUN):
            at = f"first + {u}u"
            state = f"point({self.arguments(at)})"
            text.append(f"    var s{u} = {f's{u - 1}' if u else 'identity()'};")
            text.append(f"    if (live && {at} < end) {{ s{u} = {f'merge(s{u - 1}, {state})' if u else state}; }}")
        return text

    def scan_lanes(self) -> list[str]:
        """``before``: the state of everything before this lane's run; moves ``carry`` past the block."""
        lanes = self.tiling.lanes
        if lanes == 1:
            return ["    let before = carry;", f"    carry = merge(carry, s{RUN - 1});"]
        step = self.tiling.rows if self.tiling.across else 1
        text = [f"    var total = s{RUN - 1};", "    states[lid] = total;", "    workgroupBarrier();"]
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
        for first in range(0, RUN, self.tiling.run):
            points = [f"first + {first + e}u" for e in range(self.tiling.run)]
            states = [f"merge(before, s{first + e})" for e in range(self.tiling.run)]
            text += [f"    if (live && {points[-1]} < end) {{", *self.map_calls(points, states, "      "), "    }"]
        return text
