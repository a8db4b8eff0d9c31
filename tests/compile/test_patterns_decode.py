"""A decoding step of a language model of transformers: how many dispatches a layer has, and what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.plans import plans

from torch_webgpu.engine.record import engine

transformers = pytest.importorskip("transformers")

DISPATCHES_A_LAYER = 6
"""Norm and q/k/v, rotary embeddings and writes into the cache, attention, its projection, norm and gated linear unit,
its projection: an adapter that binds fewer buffers has more.
"""


ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])
"""PyTorch's function, or products and a softmax written out."""


def model_of(layers: int, dtype: torch.dtype, attention: str) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    return transformers.Qwen2ForCausalLM(config).eval().to(dtype)


def tokens_of(model: Any, run: Any, device: str, count: int = 2) -> list[torch.Tensor]:
    """The logits of a prompt of five tokens, and of each token after it, for fixed tokens."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    found = []
    with torch.no_grad():
        for first in (0, *range(5, 5 + count)):
            ids = torch.arange(first, 5 if first == 0 else first + 1, device=device)
            logits = run(input_ids=ids[None] % 320, past_key_values=cache, cache_position=ids, use_cache=True).logits
            found.append(logits[:, -1].clone())
    return found


@ATTENTION
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_decoding_step(dtype: torch.dtype, attention: str) -> None:
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2}[dtype]
    model = model_of(2, dtype, attention)
    on_cpu = tokens_of(model, model, "cpu")
    model.to("webgpu")
    eager = tokens_of(model, model, "webgpu")
    compiled = tokens_of(model, torch.compile(model), "webgpu")
    for got, want, reference in zip(compiled, eager, on_cpu, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(got.cpu(), reference, rtol=tolerance, atol=tolerance)


@ATTENTION
def test_dispatches_a_layer(attention: str) -> None:
    counts = []
    for layers in (1, 2):
        torch._dynamo.reset()
        model = model_of(layers, torch.float32, attention).to("webgpu")
        with plans() as made:
            tokens_of(model, torch.compile(model), "webgpu")
        counts.append(len(made[-1].steps))
    # x, gain, and of each product a matrix, a bias and a result
    buffers = engine().device(0).target.max_buffers
    apart = 0 if buffers >= 11 else 2 if buffers > 8 else 3
    assert counts[1] - counts[0] <= DISPATCHES_A_LAYER + apart
    assert counts[0] <= DISPATCHES_A_LAYER + 8
