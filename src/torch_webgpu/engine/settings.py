"""What a program may choose: when a batch is submitted, and what is fused in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch_webgpu.config import config

UNBOUNDED = 1 << 30
"""A threshold that no batch reaches."""


@dataclass(frozen=True)
class Settings:
    """``threshold``: how many recorded operations are a batch. ``delay_ms``: when an incomplete one is submitted,
    0 for never. ``fusion_window``: how many kernels back an operation looks for one to join. ``fusion_min_size``: the
    number of elements from which per-element operations are fused. ``horizontal_fusion``: whether independent small
    dispatches of a batch become one; None where the adapter is no CPU. ValueError for numbers that mean nothing.
    """

    batching: bool = field(default_factory=lambda: config().batching)
    threshold: int = 64
    delay_ms: float = 16.0
    fusion: bool = field(default_factory=lambda: config().fusion)
    fusion_window: int = field(default_factory=lambda: config().fusion_window)
    fusion_min_size: int = 0
    horizontal_fusion: bool | None = None

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise ValueError(f"a batch holds at least one operation, not {self.threshold}")
        if self.delay_ms < 0:
            raise ValueError(f"a delay cannot be negative: {self.delay_ms} ms")
        if self.fusion_window < 0:
            raise ValueError(f"a window cannot be negative: {self.fusion_window}")
        if self.fusion_min_size < 0:
            raise ValueError(f"a size cannot be negative: {self.fusion_min_size}")

    @cached_property
    def unended(self) -> int:
        """A batch of fewer operations goes on, whatever is recorded."""
        half, full = -(-self.threshold // 2), self.threshold - 1
        return min(half, full) if self.batching else 0

    @property
    def planning(self) -> tuple[object, ...]:
        """Those that decide what recorded operations become."""
        return self.fusion, self.fusion_window, self.fusion_min_size, self.horizontal_fusion
