"""``torch.webgpu.compile_stats``: what came of ``torch.compile``."""

from __future__ import annotations

from torch_webgpu.compile.counts import COUNTS

from .records import Record


def compile_stats() -> Record:
    """Since the start: ``graphs`` compiled (a forward and a backward pass are two), ``plans`` made for them (one for
    each set of shapes and numbers, when it is first needed), ``runs`` of plans, each one submission, ``patterns``: the
    name of a pattern → the matches that were rewritten, and ``between``: what runs between plans instead, as
    "operator: why" → the number of graphs it is in.

    A graph that is one plan adds nothing to ``between`` and one run a call. Graphs that come from a cache on disk were
    rewritten in another process, and add nothing to ``patterns``.
    """
    between = {f"{name}: {why}": n for (name, why), n in COUNTS.between.items()}
    patterns = Record(COUNTS.patterns)
    return Record(
        graphs=COUNTS.graphs, plans=COUNTS.plans, runs=COUNTS.runs, patterns=patterns, between=Record(between)
    )
