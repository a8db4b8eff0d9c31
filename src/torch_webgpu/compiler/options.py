"""What a compilation may do, and how far."""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.compiler.fuse.nodes import FusionLimits
from torch_webgpu.compiler.fuse.patterns import BUILT_IN, Pattern
from torch_webgpu.target import Target

MAX_FUSED_BUFFERS = 31
"""Of one fused kernel. Adapters may allow half a million, but the wider a kernel, the fewer recordings it serves."""


@dataclass(frozen=True)
class Options:
    """How :func:`.compile.compile` works.

    ``fusion``: whether calls join each other's kernels at all; ``window``: how many kernels back a call looks for one
    to join, None for all; ``min_numel``: elements from which that pays. ``horizontal``: whether independent dispatches
    become one. ``patterns``: the chains that have a name.
    """

    fusion: bool = True
    window: int | None = 64
    min_numel: int = 0
    horizontal: bool = False
    patterns: tuple[Pattern, ...] = BUILT_IN

    def limits(self, target: Target, calls: int) -> FusionLimits:
        """Those of fusion for a target, in a graph of so many calls. One buffer is the kernel's error flags."""
        buffers = min(target.max_buffers - 1, MAX_FUSED_BUFFERS)
        window = max(1, calls) if self.window is None else self.window
        return FusionLimits(buffers, window, self.min_numel, target.max_binding_bytes)


DEFAULT = Options()
