"""Attention whose sequence is sharded: the result and gradients are those of one process."""

from __future__ import annotations

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

DEVICE = "webgpu"


def inputs(heads: int, length: int) -> list[torch.Tensor]:
    """Query, key, value, and the gradient of the result."""
    torch.manual_seed(0)
    return [torch.randn(2, h, length, 16) for h in (4, heads, heads, 4)]


@pytest.mark.parametrize(
    ("causal", "balanced", "rotation", "heads", "length"),
    [
        (True, True, "allgather", 4, 64),
        (True, True, "alltoall", 2, 64),
        (True, False, "allgather", 2, 64),
        (False, False, "alltoall", 4, 64),
        (True, True, "allgather", 4, 8),  # few queries: another kernel
    ],
)
@on_ranks
def test_attention_is_that_of_one_process(causal: bool, balanced: bool, rotation: str, heads: int, length: int) -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh = init_device_mesh(DEVICE, (2,))
    options = {"is_causal": causal, "enable_gqa": heads != 4}
    *plain, slope = inputs(heads, length)
    for t in plain:
        t.requires_grad_()
    expected = F.scaled_dot_product_attention(*plain, **options)
    expected.backward(slope)
    before = _attention._cp_options.enable_load_balance
    _attention._cp_options.enable_load_balance = balanced
    _attention.set_rotate_method(rotation)
    ours = [t.to(DEVICE) for t in inputs(heads, length)]
    try:
        with context_parallel(mesh, buffers=ours, buffer_seq_dims=[2] * 4, no_restore_buffers=set(ours)):
            *parts, part_of_slope = ours
            for t in parts:
                t.requires_grad_()
            out = F.scaled_dot_product_attention(*parts, **options)
            assert out.shape[2] == length // 2
            out.backward(part_of_slope)
            found = _attention.context_parallel_unshard(mesh, [out.detach(), *(t.grad for t in parts)], [2] * 4)
    finally:
        _attention._cp_options.enable_load_balance = before
        _attention.set_rotate_method("allgather")
    for mine, theirs in zip(found, (expected.detach(), *(t.grad for t in plain)), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)


@on_ranks
def test_what_the_ring_cannot_do_is_refused() -> None:
    from torch.distributed.tensor.experimental import context_parallel

    ours = [t.to(DEVICE) for t in inputs(4, 16)[:3]]
    mesh = init_device_mesh(DEVICE, (2,))
    with context_parallel(mesh, buffers=ours, buffer_seq_dims=[2] * 3, no_restore_buffers=set(ours)):
        with pytest.raises(NotImplementedError, match=r"dropout_p=0\.5"):
            F.scaled_dot_product_attention(*ours, dropout_p=0.5, is_causal=True)
        mask = torch.zeros(2, 4, 8, 16, device=DEVICE)
        with pytest.raises(NotImplementedError, match="attn_mask"):
            F.scaled_dot_product_attention(*ours, mask)
