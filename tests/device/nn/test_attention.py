"""Attention, transformer and recurrent layers on the device against the CPU, forward and backward, no fallbacks."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from torch import nn

from torch_webgpu.aten.dispatch.fallback import fallback_stats


@pytest.fixture(autouse=True)
def no_fallback():
    before = fallback_stats()
    yield
    assert fallback_stats() == before


def check_module(device, module: nn.Module, *inputs: torch.Tensor, training: bool = True, tol: float = 1e-4) -> None:
    """Outputs, and when training the gradients of parameters and inputs, agree."""
    module.train(training)
    copies = {"cpu": module, str(device): deepcopy(module).to(device)}
    names = [name for name, _ in module.named_parameters()]

    def fn(*tensors):
        live = copies[str(device) if tensors[0].device.type == torch.device(device).type else "cpu"]
        return torch.func.functional_call(live, dict(zip(names, tensors[len(inputs) :])), tensors[: len(inputs)])

    with torch.set_grad_enabled(training):
        check(device, fn, *inputs, *(p.detach() for p in module.parameters()), backward=training, tol=tol)


Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 6, 7, 8), torch.randn(2, 6, 7, 8)


@pytest.mark.parametrize(
    "options",
    [{}, {"attn_mask": torch.randn(5, 7)}, {"attn_mask": torch.ones(5, 7).tril(2).bool()}, {"scale": 0.3}],
    ids=["plain", "added mask", "boolean mask", "scale"],
)
def test_sdpa(device, options):
    def fn(q, k, v):
        moved = {n: x.to(q.device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
        return F.scaled_dot_product_attention(q, k, v, **moved)

    check(device, fn, Q, K, V, backward=True, tol=1e-4)


def test_sdpa_causal_grouped_half(device):
    def causal(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)

    check(device, causal, K, K.flip(0), V, backward=True, tol=1e-4)
    check(device, grouped, Q, K, V, backward=True, tol=1e-4)
    check(device, causal, K.bfloat16(), K.flip(0).bfloat16(), V.bfloat16(), backward=True, tol=5e-2)


def test_sdpa_dropout(device):
    q, v = torch.zeros(4, 64, 8, device=device), torch.ones(4, 64, 8, device=device)
    out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    assert 0.8 < out.mean().item() < 1.2
    assert out.std().item() > 0.05


@pytest.mark.parametrize("training", [True, False])
def test_transformers(device, training):
    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 6, 16)
    options = {"dropout": 0.0, "batch_first": True}
    check_module(device, nn.TransformerEncoderLayer(16, 4, 32, **options), x, training=training)
    check_module(device, nn.TransformerDecoderLayer(16, 4, 32, **options), x, y, training=training)
    check_module(device, nn.Transformer(16, 4, 1, 1, 32, **options), x, y, training=training)


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.options = options

    def forward(self, x):
        options = {n: v.to(x.device) if isinstance(v, torch.Tensor) else v for n, v in self.options.items()}
        return self.attention(x, x, x, **options)


@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(device, training):
    torch.manual_seed(0)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for options in (
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": causal},
        {"key_padding_mask": padding},
    ):
        check_module(device, SelfAttention(**options), torch.randn(2, 5, 16), training=training)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    ("mask_type", "shape", "all_hidden"), [(0, (5, 5), (2,)), (1, (2, 5), (1,)), (2, (2, 4, 5, 5), (0, 1, 3))]
)
def test_fused_inference_with_masks(device, mask_type, shape, all_hidden, need_weights):
    """Queries that see no key are NaN, and what is not zero in a mask of another dtype hides, as on the CPU."""
    torch.manual_seed(0)
    hidden = torch.rand(shape) > 0.6
    hidden[all_hidden] = True

    def fn(x, qkv_weight, qkv_bias, weight, bias, mask):
        given = (x, x, x, 16, 4, qkv_weight, qkv_bias, weight, bias, mask, need_weights, True, mask_type)
        out, weights = torch._native_multi_head_attention(*given)
        return (out, weights) if need_weights else out

    tensors = torch.randn(2, 5, 16), torch.randn(48, 16), torch.randn(48), torch.randn(16, 16), torch.randn(16)
    for mask in (hidden, hidden * -3.0, torch.zeros(shape).masked_fill(hidden, -torch.inf)):
        check(device, fn, *tensors, mask, backward=False)


class MaskedEncoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)

    def forward(self, x):
        padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5], device=x.device)
        return self.encoder(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_encoder_with_padding(device, training, options):
    torch.manual_seed(0)
    check_module(device, MaskedEncoder(**options), torch.randn(2, 5, 16), training=training)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False}],
    ids=str,
)
def test_recurrent(device, layer, options):
    torch.manual_seed(0)
    check_module(device, layer(6, 5, **options), torch.randn(4, 3, 6))


def test_recurrent_variants(device):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6)
    check_module(device, nn.LSTM(6, 5, proj_size=3), x)
    check_module(device, nn.RNN(6, 5, nonlinearity="relu"), x)
    check_module(device, nn.LSTM(6, 5), x, training=False)
    check_module(device, nn.LSTM(6, 5).bfloat16(), x.bfloat16(), tol=5e-2)
    check_module(device, nn.GRU(6, 5).half(), x.half(), tol=2e-2)
    for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        check_module(device, cell(6, 5), x[0])


class Packed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer(6, 5, bidirectional=True)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 3]), enforce_sorted=False)
        out, state = self.layer(packed)
        return nn.utils.rnn.pad_packed_sequence(out)[0], state


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(device, layer):
    torch.manual_seed(0)
    check_module(device, Packed(layer), torch.randn(4, 3, 6))
