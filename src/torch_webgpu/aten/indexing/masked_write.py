"""Writes through one mask of values that do not depend on how many elements it selects: no position is read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_webgpu.aten.dispatch.memory_overlap import check_apart


def only_mask(indices: Sequence[torch.Tensor | None]) -> tuple[int, torch.Tensor] | None:
    """The boolean mask among indices that are all slices but for it, and its first dimension."""
    tensors = [(at, index) for at, index in enumerate(indices) if index is not None]
    if len(tensors) != 1 or tensors[0][1].dtype != torch.bool:
        return None
    return tensors[0]


def put_by_mask(self: torch.Tensor, at: int, mask: torch.Tensor, values: torch.Tensor, accumulate: bool) -> bool:
    """``self[…, mask] = values``, for a mask over the dimensions of ``self`` from ``at`` on. False where each selected
    position has a value of its own, where shapes do not fit, where elements of ``self`` share memory, and for a mask
    without dimensions.
    """
    if not mask.dim() or any(stride == 0 and size > 1 for stride, size in zip(self.stride(), self.shape)):
        return False
    after = self.dim() - at - mask.dim()
    extra = max(values.dim() - (at + 1 + after), 0)
    if (extra and accumulate) or any(size != 1 for size in values.shape[:extra]):
        return False
    shape = list(values.shape[extra:])
    selected = len(shape) - after - 1  # the dimension of the positions, where there is one
    if selected >= 0:
        if shape[selected] != 1:
            return False
        shape[selected : selected + 1] = [1] * mask.dim()
    if len(shape) > self.dim() or any(n not in (1, size) for n, size in zip(reversed(shape), reversed(self.shape))):
        return False
    mask = mask.to(self.device).reshape(*mask.shape, *[1] * after)
    if values.is_cpu and not accumulate:
        self.masked_fill_(mask, values.item())
        return True
    values = values.to(self.device)
    check_apart(self, [values])
    values = values.reshape(shape)
    self.copy_(torch.where(mask, self + values if accumulate else values, self))
    return True
