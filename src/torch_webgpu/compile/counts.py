"""What ``torch.compile`` made on webgpu and how it runs, counted since the process started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """``patterns``: name → matches of it that were rewritten. ``between``: (operator, why it is no part of a plan) → in
    how many graphs.
    """

    graphs: int = 0
    plans: int = 0
    runs: int = 0
    patterns: Counter[str] = field(default_factory=Counter)
    between: Counter[tuple[str, str]] = field(default_factory=Counter)


COUNTS = Counts()
