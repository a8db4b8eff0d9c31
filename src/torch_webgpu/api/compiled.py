"""``torch.webgpu.compile_stats``: what came of ``torch.compile``."""

from __future__ import annotations

from torch_webgpu.compile.counts import COUNTS

from .records import Record


def compile_stats() -> Record:
    """Since the start: ``graphs`` compiled (a forward and a backward pass are two), ``plans`` made for them (one for
    each set of shapes and numbers), ``runs`` of plans, each one submission, and ``between``: what runs between plans
    instead, as "operator: why" → the number of graphs it is in.

    A graph that is one plan adds nothing to ``between`` and one run a call.
    """
    between = {f"{name}: {why}": n for (name, why), n in COUNTS.between.items()}
    return Record(graphs=COUNTS.graphs, plans=COUNTS.plans, runs=COUNTS.runs, between=Record(between))
