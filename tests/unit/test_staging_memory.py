"""Host memory that is kept for collectives."""

from __future__ import annotations

import pytest

from torch_webgpu.distributed.staging import SMALLEST_BYTES, HostMemory, block_bytes


@pytest.mark.parametrize("size", [0, 1, 256, 257, 1000, 4096, 4097, 28351488, 176446464, (1 << 30) + 1])
def test_a_block_is_large_enough_and_wastes_little(size: int) -> None:
    block = block_bytes(size)
    assert block >= size
    assert block - size < max(size / 4, SMALLEST_BYTES) or size == 0


def test_a_block_is_used_again_for_what_is_about_as_large() -> None:
    memory = HostMemory()
    block = memory.take(100_000)
    memory.give(block)
    assert memory.take(block.numel() - 1).data_ptr() == block.data_ptr()
    assert memory.kept_bytes == 0
