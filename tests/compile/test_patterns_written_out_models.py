"""Models of transformers whose attention is written out: each layer's is found, and results are the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.plans import dispatches, with_and_without_patterns

transformers = pytest.importorskip("transformers")

LAYERS = 2
SIZES = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
IMAGES = {**SIZES, "image_size": 32, "patch_size": 16}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": ("GPT2Model", "GPT2Config", {"n_layer": LAYERS, "n_head": 4, "n_embd": 32}),
    "BERT": ("BertModel", "BertConfig", SIZES),
    "T5": ("T5EncoderModel", "T5Config", {"num_layers": LAYERS, "num_heads": 4, "d_model": 32, "d_kv": 8, "d_ff": 64}),
    "Qwen2": ("Qwen2Model", "Qwen2Config", {**SIZES, "num_key_value_heads": 2}),
    "ViT": ("ViTModel", "ViTConfig", IMAGES),
    "CLIP": ("CLIPVisionModel", "CLIPVisionConfig", IMAGES),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str, found: dict[str, int]) -> None:
    model_class, config_class, sizes = MODELS[name]
    is_text = "image_size" not in sizes
    config = getattr(transformers, config_class)(
        **sizes, attn_implementation="eager", **({"vocab_size": 100} if is_text else {})
    )
    model = getattr(transformers, model_class)(config).eval()
    given: dict[str, torch.Tensor] = {"pixel_values": torch.randn(2, 3, 32, 32)}
    if is_text:
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[0, 4:] = 0
        given = {"input_ids": torch.arange(14).view(2, 7), "attention_mask": mask}
    steps = []
    with torch.no_grad():
        expected = model(**given)[0]
        model.to("webgpu")
        there = {key: t.to("webgpu") for key, t in given.items()}
        for got, made in with_and_without_patterns(lambda: torch.compile(model)(**there)[0]):
            steps.append(dispatches(made))
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert found["written out"] == LAYERS
    assert steps[0] <= steps[1] - LAYERS
