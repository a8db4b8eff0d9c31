"""How a quantity of memory moves over time, in torch.cuda's four numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """``current``, the ``peak`` of it, and all that was ever ``allocated`` and ``freed``."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, n: int) -> None:
        self.current += n
        self.allocated += n
        self.peak = max(self.peak, self.current)

    def remove(self, n: int) -> None:
        self.current -= n
        self.freed += n

    def reset_peak(self) -> None:
        """The peak starts again from what there is now."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """What was allocated and freed so far is forgotten."""
        self.allocated = self.freed = 0
