"""What is fused: the fusion controls."""

from __future__ import annotations

from torch_webgpu.engine.record import engine

from .records import Record


def enable_fusion() -> None:
    """Recorded operations are fused into as few kernels as mean the same (the default)."""
    engine().change(fusion=True)


def disable_fusion() -> None:
    """Every recorded operation gets a kernel of its own: for finding out whether fusion is to blame."""
    engine().change(fusion=False)


def is_fusion_enabled() -> bool:
    return engine().settings.fusion


def set_fusion_window(n: int) -> None:
    """How many kernels back an operation looks for one to join (default 64); 0 fuses nothing."""
    engine().change(fusion_window=n)


def set_fusion_min_size(n: int) -> None:
    """The number of elements from which per-element operations are fused (default 0: always)."""
    engine().change(fusion_min_size=n)


def get_fusion_stats() -> Record:
    """Since the start: ``fusions`` operations that joined another's kernel, ``bypasses`` that ran in one of their own,
    ``eliminated`` whose results nobody could see, how often a recording's plan was found again or made, and under
    ``patterns`` how often each pattern of ``get_fusion_patterns`` occurred in a kernel since it was added.

    Entries are attributes, too: ``get_fusion_stats().fusions``.
    """
    counts = engine().fusion_counts()
    return Record(counts._asdict() | {"patterns": Record(counts.patterns)})
