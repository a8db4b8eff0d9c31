"""A component of an element type: a plain tensor that its tensors have."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DTypeComponent:
    """A plain tensor that a tensor of the dtype has.

    ``elements``: how many neighbours along the last dimension one element of the component serves: 1 if each has its
    own, 2 for two 4-bit numbers in a byte, 32 for a scale of each 32.
    """

    dtype: torch.dtype
    elements: int = 1
