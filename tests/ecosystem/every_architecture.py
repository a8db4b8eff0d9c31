"""Every architecture of ``transformers`` that can be made small: whatever the library has, named nowhere here.

A configuration is made small by setting those of ``SIZES`` that it has. Some cannot be: they check each other's
numbers, are of several models, or need libraries that are not installed. Those are skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from .architectures import spread

VOCABULARY, LENGTH, BATCH = 128, 12, 2
LARGEST = 30_000_000
"""Parameters of a model that is small enough."""
ATTEMPTS = 12

NUMBERS = {
    2: "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_key_value_heads",
    4: "num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads rotary_dim",
    8: "head_dim d_kv state_size qk_rope_head_dim qk_nope_head_dim v_head_dim patch_size",
    16: "q_lora_rank kv_lora_rank sliding_window num_mel_bins num_conv_pos_embeddings",
    32: "hidden_size n_embd d_model embed_dim dim embedding_size word_embed_proj_dim attention_hidden_size image_size",
    64: "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim hidden_dim n_inner max_position_embeddings",
    VOCABULARY: "vocab_size",
}
MIXTURES = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
RECURRENT = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
}
SEEING = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
HEARING = {
    "conv_dim": (32, 32),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embedding_groups": 4,
    "max_source_positions": 32,
    # What NumPy draws on the CPU is another matter under Dynamo.
    "apply_spec_augment": False,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OTHERS = {"type_vocab_size": 2, "n_positions": 64, "max_target_positions": 64, "partial_rotary_factor": 0.5}
SIZES: dict[str, Any] = {name: n for n, found in NUMBERS.items() for name in found.split()}
SIZES |= {**MIXTURES, **RECURRENT, **SEEING, **HEARING, **SPECIAL, **OTHERS}


@cache
def names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


@cache
def decoders() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [name for name in names() if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]


def small(cls: Any) -> Any:
    """A configuration of this class with the sizes that it has and takes."""
    usual = cls()
    had = {k: getattr(usual, k) for k in SIZES if getattr(usual, k, None) is not None}
    sizes = {k: SIZES[k] for k, v in had.items() if is_several(v) is is_several(SIZES[k])}
    for _ in range(ATTEMPTS):
        try:
            return cls(**sizes)
        except Exception as refusal:  # whatever a configuration raises of what it does not take
            for k in [k for k in sizes if k in str(refusal)] or ["num_key_value_heads"]:
                sizes.pop(k, None)
    return cls(**sizes)


def is_several(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def model_of(name: str, auto: str) -> torch.nn.Module:
    """The small model on the CPU, as ``transformers.AutoModel`` or another of its kind makes it; skips without one."""
    import transformers

    make = getattr(transformers, auto).from_config
    try:
        config = small(transformers.CONFIG_MAPPING[name])
        with torch.device("meta"):
            n = sum(p.numel() for p in make(config).parameters())
        if n > LARGEST:
            pytest.skip(f"{n / 1e6:.0f} million parameters, however small its sizes are asked to be")
        torch.manual_seed(0)
        return spread(make(config))
    except (Exception, SystemExit) as reason:
        pytest.skip(f"cannot be made small: {reason!s:.200}")


def batch_of(model: Any) -> dict[str, torch.Tensor]:
    """What the model takes first: two sentences, images or sounds."""
    torch.manual_seed(1)
    config, what = model.config, model.main_input_name
    if what == "input_ids":
        batch = {what: torch.randint(3, 100, (BATCH, LENGTH)), "attention_mask": torch.ones(BATCH, LENGTH).long()}
        batch["attention_mask"][0, -3:] = 0
        if config.is_encoder_decoder:
            batch["decoder_input_ids"] = torch.randint(3, 100, (BATCH, 7))
        return batch
    if what == "pixel_values":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else 32
        return {what: torch.randn(BATCH, getattr(config, "num_channels", 3), size, size)}
    if what == "input_values":
        return {what: torch.randn(BATCH, 1200)}
    if what == "input_features":
        batch = {what: torch.randn(BATCH, getattr(config, "num_mel_bins", 16), 64)}
        return {**batch, "decoder_input_ids": torch.randint(3, 100, (BATCH, 7))}
    pytest.skip(f"takes {what}")


def accepted(run: Callable[[], Any]) -> Any:
    """What ``run()`` returns on the CPU; skips if the model does not do that there."""
    try:
        return run()
    except Exception as reason:
        pytest.skip(f"does not do it on the CPU: {reason!s:.200}")
