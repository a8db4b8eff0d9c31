"""What a program may choose: when a batch is submitted, and what is fused in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch_webgpu.config import config
from torch_webgpu.ir.operation import Extern, Operation

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

    def ends_before(self, op: Operation, recorded: int) -> bool:
        """Whether a batch of so many operations is better submitted before ``op``: at least half full it may be.

        Batches cut by their length alone would end at another place in every iteration of a loop, and hardly two would
        have the same plan. So they are cut by what is recorded, as in content-defined chunking: before a hand-written
        kernel, such as a product, which needs its operands in memory anyway, or else before a few operations that a
        hash picks. Wherever a loop's first batch began, the later ones soon end at the same places every time.
        """
        if op.body.__class__ is Extern:
            return 2 * recorded >= self.threshold
        return op.id & 7 == 0 and 4 * recorded >= 3 * self.threshold
