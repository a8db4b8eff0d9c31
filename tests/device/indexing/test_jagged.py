"""Jagged rows as a padded batch, against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(9,), (9, 5), (9, 2, 3), (0, 4)])
@pytest.mark.parametrize("longest", [1, 4, 6])
def test_jagged_to_padded(longest: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    offsets = torch.tensor([0, 2, 2, 6, 9]).clamp(max=shape[0])
    pad = lambda x, at: torch.ops.aten._jagged_to_padded_dense_forward(x, [at], [longest], -1.5)
    before = torch.webgpu.fallback_stats()
    check(device, pad, torch.randn(shape).to(dtype), offsets)
    check(device, pad, torch.randn((2 * shape[0], *shape[1:])).to(dtype)[::2], offsets)
    assert torch.webgpu.fallback_stats() == before
