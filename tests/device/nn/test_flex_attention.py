"""FlexAttention without ``torch.compile`` on the device against the CPU; gradients against plain autograd there."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check, outcome
from tests.device.processes import assert_ends_well
from torch.nn.attention import flex_attention as flex

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:return_lse")

Q, K, V = torch.randn(2, 4, 24, 8), torch.randn(2, 4, 24, 8), torch.randn(2, 4, 24, 8)


def causal(batch, head, q, kv):
    return q >= kv


def causal_score(score, batch, head, q, kv):
    return torch.where(q >= kv, score, -float("inf"))


def relative(score, batch, head, q, kv):
    return score + 0.1 * (q - kv)


def softcap(score, batch, head, q, kv):
    return 4 * torch.tanh(score / 4)


@pytest.mark.parametrize("score_mod", [None, causal_score, softcap])
def test_score_mod(device, score_mod):
    check(device, lambda *t: flex.flex_attention(*t, score_mod=score_mod), Q, K, V, tol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(device, dtype):
    """Both round the probabilities to the half type, and the result."""
    half = [t.to(dtype) for t in (Q, K, V)]
    check(device, lambda *t: flex.flex_attention(*t, score_mod=relative), *half, tol=2 * torch.finfo(dtype).eps)


def test_captured_tensor_block_mask_groups_scale_and_sums(device):
    bias = torch.randn(4)

    def fn(q, k, v, bias):
        mask = flex.create_block_mask(causal, 2, None, 24, 24, device=q.device, BLOCK_SIZE=8)
        out = flex.flex_attention(
            q,
            k[:, :2],
            v[:, :2],
            score_mod=lambda s, b, h, i, j: s + bias[h],
            block_mask=mask,
            scale=0.3,
            enable_gqa=True,
            return_lse=True,
        )
        return *out, mask.kv_num_blocks, mask.kv_indices, mask.to_dense()

    check(device, fn, Q, K, V, bias, tol=1e-4)


def test_transposed_inputs_keep_their_layout(device):
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (Q, K, V))
    assert flex.flex_attention(*(t.to(device) for t in (q, k, v))).stride() == flex.flex_attention(q, k, v).stride()
    check(device, flex.flex_attention, q, k, v, tol=1e-4)


def attention(q, k, v, bias):
    """What the call below computes, of plain operators."""
    scores = q @ k.transpose(-2, -1) / 8**0.5 + bias[:, None, None]
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, -float("inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def test_gradients_as_of_plain_operators(device):
    """PyTorch refuses gradients on the CPU."""
    bias = torch.randn(4)

    def with_gradients(fn, place):
        leaves = [t.detach().to(place).requires_grad_() for t in (Q, K, V, bias)]
        out, sums = fn(*leaves)
        (out.sin().sum() + sums.cos().sum()).backward()
        return [out.detach().cpu(), sums.detach().cpu(), *(t.grad.cpu() for t in leaves)]

    def fn(q, k, v, bias):
        mask = flex.create_block_mask(causal, None, None, 24, 24, device=q.device)
        return flex.flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h], block_mask=mask, return_lse=True
        )

    torch.testing.assert_close(with_gradients(fn, device), with_gradients(attention, "cpu"), rtol=1e-4, atol=1e-4)


def test_autocast(device):
    with torch.autocast("cpu", torch.bfloat16):
        expected = flex.flex_attention(Q, K, V, score_mod=relative)
    with torch.autocast(device.type, torch.bfloat16):
        actual = flex.flex_attention(*(t.to(device) for t in (Q, K, V)), score_mod=relative)
    torch.testing.assert_close(actual.cpu(), expected)


def test_other_higher_order_operators_under_autocast(device):
    x = torch.ones(3, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        taken = torch.cond(x.sum() > 2, lambda x: x @ x, lambda x: (x + x) @ x, (x,))
    assert taken.item() == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: flex.flex_attention(q, k[..., :4], v),
        lambda q, k, v: flex.flex_attention(q, k[:, :2], v[:, :2]),
        lambda q, k, v: flex.flex_attention(q[:1], k, v),
        lambda q, k, v: flex.flex_attention(q[0], k[0], v[0]),
        lambda q, k, v: flex.flex_attention(
            q, k, v, block_mask=flex.create_block_mask(causal, None, None, 16, 16, device=q.device, BLOCK_SIZE=8)
        ),
    ],
    ids=["embedding", "heads", "batch", "dimensions", "mask of another length"],
)
def test_errors(device, call):
    expected = outcome(call, Q, K, V)
    assert isinstance(expected[0], type)
    assert outcome(call, *(t.to(device) for t in (Q, K, V))) == expected


def test_devices_are_still_listed():
    """A canary for aten/attention/flex_attention.py: allow_webgpu."""
    q = torch.empty(1, 1, 1, 1, device="webgpu")
    with pytest.raises(ValueError, match="webgpu"):
        flex._validate_device.__wrapped__(q, q, q)


def test_higher_order_operators_still_stop_at_the_autocast_key():
    """A canary for aten/dispatch/torch_abi.py: pass_autocast_through."""
    script = """
        from torch._ops import _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS as passed
        assert passed.count(torch._C.DispatchKey.AutocastPrivateUse1) == 1  # ours
    """
    assert_ends_well(script)


def test_importing_webgpu_imports_no_flex_attention():
    assert_ends_well(
        f"""
        import sys
        assert "{flex.__name__}" not in sys.modules
        import {flex.__name__} as flex
        assert flex._validate_device.__wrapped__
        """
    )
