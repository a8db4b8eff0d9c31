"""Where the lines of tensors along one dimension lie: what a transform's first pass reads and its last one writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.ir.operation import Spec


@dataclass(frozen=True)
class Lines:
    """The lines of two tensors along one dimension, in the order of the first one's memory, slowest first.

    ``sizes``: of the other dimensions, joined where they can be; ``strides``: theirs, of each tensor; ``steps``: from
    one element of a line to the next, of each tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Sequence[Spec], dim: int, dims: int) -> Lines:
        """``dims``: how many dimensions count; complex numbers as pairs of float64 have one more."""
        first = tensors[0]
        others = [d for d in range(dims) if d != dim and first.shape[d] > 1]
        others.sort(key=lambda d: [-t.strides[d] for t in tensors])
        sizes: list[int] = []
        strides: list[list[int]] = [[] for _ in tensors]
        for d in others:
            size = first.shape[d]
            if sizes and all(s[-1] == t.strides[d] * size for s, t in zip(strides, tensors, strict=True)):
                sizes[-1] *= size
                for s, t in zip(strides, tensors, strict=True):
                    s[-1] = t.strides[d]
            else:
                sizes.append(size)
                for s, t in zip(strides, tensors, strict=True):
                    s.append(t.strides[d])
        return cls(tuple(sizes), tuple(map(tuple, strides)), tuple([t.strides[dim] for t in tensors]))

    def adjacent(self, tensor: int) -> bool:
        """Whether neighbouring lines of a tensor are closer to each other than neighbouring elements of a line."""
        return bool(self.sizes) and 0 < self.strides[tensor][-1] < self.steps[tensor]
