"""The cache of batches' plans: what a recording is compiled to, found again when the same recording comes back.

Its key (``Recording.key``) is its operations, which of their arguments start at the same place, and which allocations
are still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.caches import Cache
from torch_webgpu.compiler.compile import Compilation
from torch_webgpu.compiler.fuse.patterns import BUILT_IN, Pattern
from torch_webgpu.compiler.options import Options
from torch_webgpu.config import is_printed, print_stage
from torch_webgpu.runtime.observer import span

from .executable import Executable
from .recording import graph_of

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .recording import Recording
    from .settings import Settings

PLAN_CACHE_SIZE = 2048


@dataclass(eq=False)
class CachedPlan:
    """What recordings of one key are compiled to, and bound to a device once they run. ``lists``: of the recording's
    lists those that must lie in memory. ``counts``: operations that joined another's kernel, that have one of their
    own, that are not run at all; None where nothing could join. ``is_empty``: nobody sees what was recorded.
    """

    compilation: Compilation
    lists: tuple[int, ...]
    counts: tuple[int, int, int] | None
    is_empty: bool
    executable: Executable | None = None

    def bind(self, device: Device) -> Executable:
        """Its executable, made the first time. Raises what lowering it raises."""
        if self.executable is None:
            plan = self.compilation.plan
            if is_printed("plan"):
                calls = len(self.compilation.graph.calls)
                print_stage("plan", f"of {calls} operations on webgpu:{device.index}", str(plan))
            self.executable = Executable(plan, device, widths(self.compilation))
        return self.executable

    def apart(self, number: int, device: Device) -> Executable:
        """The executable of one fused call by itself."""
        return Executable(self.compilation.part(number).plan, device, widths(self.compilation))


def widths(compilation: Compilation) -> list[int]:
    """How many scalars each recorded operation has."""
    return [len(row) for row in compilation.graph.scalars]


class FusionCounts(NamedTuple):
    """Operations that joined another's kernel, that had one of their own, that were not run; plans that were found and
    made; how often each pattern occurred.
    """

    fusions: int
    bypasses: int
    eliminated: int
    plan_hits: int
    plan_misses: int
    patterns: dict[str, int]


class PlanCache:
    """Compiles recordings and keeps the most recently used plans, of one device and one set of options each."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, Options], Cache[object, CachedPlan]] = {}  # by device and what decides its plans
        self._current: dict[int, tuple[Cache[object, CachedPlan], Options]] = {}  # by device, under today's settings
        self.hits = 0
        self.misses = 0
        self.fusions = 0
        self.bypasses = 0
        self.eliminated = 0
        self.patterns = {pattern.name: pattern for pattern in BUILT_IN}
        self.pattern_counts: Counter[str] = Counter()

    def set_pattern(self, name: str, pattern: Pattern | None) -> None:
        """The chain that has a name from now on, and perhaps a kernel; None for none."""
        self.pattern_counts.pop(name, None)
        self.patterns.pop(name, None)
        if pattern is not None:
            self.patterns[name] = pattern
        self.clear()

    def clear(self) -> None:
        """Forgets all plans."""
        self.plans.clear()
        self._current.clear()

    def settings_changed(self) -> None:
        """What is looked up from now on is compiled under other settings."""
        self._current.clear()

    def counts(self) -> FusionCounts:
        """What :meth:`look_up` has counted."""
        patterns = {name: self.pattern_counts[name] for name in self.patterns}
        return FusionCounts(self.fusions, self.bypasses, self.eliminated, self.hits, self.misses, patterns)

    def look_up(self, recording: Recording, device: Device, settings: Settings) -> CachedPlan:
        """The plan of a recording, compiled if it is new. Counts what it does."""
        plans, options = self._current.get(device.index) or self._begin(device, settings)
        cached = plans.get(recording.key) or plans.promote(recording.key)
        if cached is not None:
            self.hits += 1
        else:
            self.misses += 1
            count = len(recording.nodes())
            with span(device, "plan", f"of {count} operation{'' if count == 1 else 's'}"):
                cached = plans[recording.key] = compiled(recording, device, options)
        if cached.counts is not None:
            fused, alone, dropped = cached.counts
            self.fusions += fused
            self.bypasses += alone
            self.eliminated += dropped
            for name, times in cached.compilation.patterns:
                self.pattern_counts[name] += times
        return cached

    def options(self, settings: Settings, horizontal: bool) -> Options:
        """What the compilation of a batch may do."""
        window, patterns = settings.fusion_window, tuple(self.patterns.values())
        return Options(settings.fusion, window, settings.fusion_min_size, horizontal and settings.fusion, patterns)

    def whole_function_options(self, settings: Settings) -> Options:
        """What the compilation of a whole function may do: it is done once, and may look at all there is."""
        return replace(self.options(settings, True), fusion=True, window=None, horizontal=True)

    def _begin(self, device: Device, settings: Settings) -> tuple[Cache[object, CachedPlan], Options]:
        horizontal = settings.horizontal_fusion
        if horizontal is None:  # on a CPU a kernel's compilation takes longer than its dispatch ever will
            horizontal = not device.target.software
        options = self.options(settings, horizontal)
        plans = self.plans.get((device.index, options))
        if plans is None:
            plans = self.plans[device.index, options] = Cache("plans of batches", PLAN_CACHE_SIZE)
        self._current[device.index] = plans, options
        return self._current[device.index]


def compiled(recording: Recording, device: Device, options: Options) -> CachedPlan:
    """What a recording is compiled to."""
    compilation = Compilation(graph_of(recording), device.target, options)
    fused = compilation.fused
    alone = sum(step.unchanged for step in fused)
    run = sum(len(step.nodes) for step in fused)
    recorded = len(recording.ops)
    counts = (run - alone, alone, recorded - run) if options.fusion and recorded > 1 else None
    return CachedPlan(compilation, compilation.lists, counts, not fused)
