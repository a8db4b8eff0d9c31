"""``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` in evaluation: nested tensors, what padding comes back as."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.device.against_cpu import same
from torch import nn

from torch_webgpu.aten.attention import nested_layers
from torch_webgpu.aten.attention.nested_layers import sequences

PADDED = torch.tensor([[False, False, False, True, True], [False, True, True, True, True], [False] * 5])
GAPS = torch.tensor([[True, False, False, False, False], [False] * 5, [False, True, False, True, False]])
MASKS = {"bool": PADDED, "float": torch.zeros(3, 5).masked_fill(PADDED, -float("inf")), "gaps": GAPS, "none": None}


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    return copy.deepcopy(model).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_encoder(device, mask, norm_first, dtype):
    """Left-aligned padding comes back as zeros, other padding as it was computed."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(8) if mask == "float" else None
    model = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=not norm_first).eval().to(dtype)
    x, padding = torch.randn(3, 5, 8).to(dtype), MASKS[mask]
    padding = padding.to(dtype) if mask == "float" else padding
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        there = None if padding is None else padding.to(device)
        actual = moved(model, device)(x.to(device), src_key_padding_mask=there)
    if mask == "bool" and not norm_first:
        assert not actual.cpu()[PADDED].any()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [(3, 1, 5), (4, 4, 4), (0, 2, 1)], ids=str)
def test_layers_find_once_where_rows_go(device, lengths, monkeypatch):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    padding = torch.arange(5) >= torch.tensor(lengths)[:, None]
    x, there = torch.randn(3, 5, 8), moved(model, device)
    calls = []
    monkeypatch.setattr(nested_layers, "sequences", lambda *args: calls.append(args) or sequences(*args))
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        encode = lambda: there(x.to(device), src_key_padding_mask=padding.to(device))
        torch.testing.assert_close(encode().cpu(), expected, rtol=1e-5, atol=1e-5)
        assert len(calls) == 1
        dispatches = [name for kernel in torch.webgpu.explain(encode).kernels for name in kernel.dispatches]
    assert dispatches.count("attention_few") == 3
    assert dispatches.count("index_select") == (7 if len(set(lengths)) > 1 else 1)


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_nested_tensors(device, need_weights):
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    parts = [torch.randn(n, 8) for n in (3, 1, 4)]
    with torch.no_grad():
        x = torch.nested.nested_tensor(parts)
        there = torch.nested.nested_tensor([part.to(device) for part in parts])
        expected, _ = layer(x, x, x, need_weights=need_weights)
        actual, _ = moved(layer, device)(there, there, there, need_weights=need_weights)
    for a, b in zip(actual.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


def test_layers_of_nested_tensors_with_masks_are_refused(device):
    """As on the CPU."""
    layer = moved(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), device)
    attention, parameters = layer.self_attn, list(layer.parameters())
    x = torch.nested.nested_tensor([torch.randn(n, 8, device=device) for n in (3, 1)])
    mask = torch.zeros(2, 3, dtype=torch.bool, device=device)
    weights = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    others = [*parameters[8:], *parameters[4:8]]
    with torch.no_grad(), pytest.raises(RuntimeError, match="with mask is not supported"):
        torch._transformer_encoder_layer_fwd(x, 8, 2, *weights, False, False, 1e-5, *others, mask, 1)


def test_encoder_in_training_keeps_its_padding(device):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True), 2)
    x = torch.randn(3, 5, 8)
    expected = model(x, src_key_padding_mask=PADDED)
    actual = moved(model, device)(x.to(device), src_key_padding_mask=PADDED.to(device))
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert actual.cpu()[PADDED].any()


def test_padding_a_nested_tensor(device):
    x, kept = torch.randn(3, 5, 4), ~PADDED

    def through(size: tuple[int, ...] | None):
        return lambda x, kept: torch._nested_tensor_from_mask(x, kept).to_padded_tensor(-1.5, size)

    for kept in (~PADDED, ~PADDED & (torch.arange(5) < 4)):
        for size in (None, (3, 5, 4), (4, 7, 6)):
            assert same(device, through(size), x, kept)
        for size in ((3, 2, 4), (3, 5)):
            assert not same(device, through(size), x, kept)
    # The nested tensor is a copy.
    there = x.to(device)
    made = torch._nested_tensor_from_mask(there, kept.to(device))
    there.zero_()
    assert made.is_nested
    assert torch.equal(made.to_padded_tensor(0.0).cpu(), x[:, :4].masked_fill(~kept[:, :4, None], 0))


def test_a_nested_tensor_of_a_mask_is_packed(device):
    """As on the CPU: operators that look at the whole buffer see the sequences' elements and no others."""
    made = torch._nested_tensor_from_mask(torch.randn(3, 5, 4).to(device), ~PADDED.to(device))
    assert made.is_contiguous()
    assert made.untyped_storage().nbytes() == made.numel() * 4 == (~PADDED).sum() * 16


def test_masks_that_make_no_nested_tensor(device):
    x = torch.randn(3, 5, 4)
    for mask in (~GAPS, torch.ones(3, 5), torch.ones(3, 4).bool(), torch.ones(5).bool()):
        assert not same(device, torch._nested_tensor_from_mask, x, mask)
    aligned = torch._nested_tensor_from_mask_left_aligned
    for mask in (~GAPS, ~PADDED):
        assert aligned(x.to(device), mask.to(device)) is aligned(x, mask)


@pytest.mark.parametrize("masks", [("bool", None), ("float", None), (None, "bool"), (None, "float"), ("bool", "bool")])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_with_masks(device, need_weights, masks):
    """The fast path of evaluation, and training's."""
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x, causal = torch.randn(3, 5, 8), torch.ones(5, 5).triu(1).bool()
    padding = MASKS[masks[0]] if masks[0] else None
    attn = {"bool": causal, "float": torch.zeros(5, 5).masked_fill(causal, -float("inf")), None: None}[masks[1]]
    found = []
    for where in ("cpu", device):
        here = moved(model, where)
        for evaluated in (False, True):
            with torch.set_grad_enabled(not evaluated):
                q = x.to(where)
                options = {"key_padding_mask": padding, "attn_mask": attn}
                options = {k: None if v is None else v.to(where) for k, v in options.items()}
                out, weights = here.train(not evaluated)(q, q, q, need_weights=need_weights, **options)
                found.append((out.cpu(), None if weights is None else weights.cpu()))
    for expected, actual in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-5)
        assert (actual[1] is None) == (expected[1] is None)
        if actual[1] is not None:
            torch.testing.assert_close(actual[1], expected[1], rtol=1e-5, atol=1e-5)
