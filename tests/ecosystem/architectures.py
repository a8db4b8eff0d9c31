"""Small models of the architectures of ``transformers``: random weights from a fixed seed, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

VOCABULARY = 99
LENGTH = 12
BATCH = 2


@dataclass(frozen=True)
class Architecture:
    """``head`` is the name of a class of ``transformers``, ``inputs()`` a batch with labels for its loss."""

    model_type: str
    head: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    generates: bool = False
    quick: bool = False
    """Whether it is in every run, rather than in ``make ecosystem`` alone: one of each kind."""

    def model(self) -> torch.nn.Module:
        """The model on the CPU, in evaluation mode (without dropout)."""
        import transformers

        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(self.model_type, **self.config)
        cls = getattr(transformers, self.head)
        model = cls.from_config(config) if hasattr(cls, "from_config") else cls(config)
        return spread(model).eval()

    def batch(self) -> dict[str, Any]:
        torch.manual_seed(1)
        return self.inputs()


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights of 0.02 leave every output about zero. Of variance 1 / fan-in, they tell one input from another."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (BATCH, length))


def text() -> dict[str, torch.Tensor]:
    """Two sentences, the second one padded on the left, as decoders are fed."""
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def routed_text() -> dict[str, Any]:
    """With the loss that spreads tokens over the experts."""
    return {**text(), "output_router_logits": True}


def classified_text() -> dict[str, torch.Tensor]:
    """Two sentences, the second one padded on the right, and a class for each."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -3:] = 0
    return {"input_ids": tokens(), "attention_mask": mask, "labels": torch.tensor([0, 1])}


def translation() -> dict[str, torch.Tensor]:
    return {**classified_text(), "labels": tokens(7)}


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.tensor([0, 1])}


def captioned_image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "input_ids": tokens(), "return_loss": True}


def speech() -> dict[str, torch.Tensor]:
    """A log-mel spectrogram and its transcript."""
    return {"input_features": torch.randn(BATCH, 16, 40), "labels": tokens(7)}


def waveform() -> dict[str, torch.Tensor]:
    """Two short sounds, and a class for each."""
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.tensor([0, 1])}


SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **SPECIAL,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"image_size": 32, "patch_size": 8}
TRANSLATOR = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    **SPECIAL,
}
CAUSAL, CLASSIFIER, TO_TEXT = "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"
IMAGES = "AutoModelForImageClassification"


def decoder(model_type: str, config: dict[str, Any], inputs: Any = text, quick: bool = False) -> Architecture:
    return Architecture(model_type, CAUSAL, {**GROUPED, **config}, inputs, generates=True, quick=quick)


DECODERS = [
    decoder("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, quick=True),
    decoder("llama", {}, quick=True),
    decoder("qwen2", {"tie_word_embeddings": True}),
    decoder("qwen3", {"head_dim": 8}),
    decoder("mistral", {"sliding_window": 8}),
    decoder("gemma", {"head_dim": 8}),
    decoder("gemma2", {"head_dim": 8, "sliding_window": 8}),
    decoder("phi3", {}),
    decoder("gpt_neox", {}),
    decoder("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    decoder("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, routed_text, quick=True),
    decoder(
        "qwen3_moe",
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        routed_text,
    ),
    decoder("mamba", {"state_size": 8}),
]
ENCODERS = [
    Architecture("bert", CLASSIFIER, SIZES, classified_text, quick=True),
    Architecture("roberta", CLASSIFIER, SIZES, classified_text),
    Architecture(
        "distilbert",
        CLASSIFIER,
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        classified_text,
    ),
    Architecture(
        "deberta-v2", CLASSIFIER, {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, classified_text
    ),
    Architecture(
        "modernbert",
        CLASSIFIER,
        {**SIZES, "global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
        classified_text,
    ),
]
TRANSLATORS = [
    Architecture(
        "t5",
        TO_TEXT,
        {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **TRANSLATOR, "decoder_start_token_id": 0},
        translation,
        generates=True,
        quick=True,
    ),
    Architecture("bart", TO_TEXT, TRANSLATOR, translation, generates=True),
]
SEEING = [
    Architecture("vit", IMAGES, VISION, image, quick=True),
    Architecture(
        "swin",
        IMAGES,
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        image,
    ),
    Architecture("convnext", IMAGES, {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, image),
    Architecture(
        "resnet", IMAGES, {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, image
    ),
    Architecture(
        "clip", "CLIPModel", {"text_config": SIZES, "vision_config": VISION, "projection_dim": 16}, captioned_image
    ),
]
HEARING = [
    Architecture(
        "whisper",
        "AutoModelForSpeechSeq2Seq",
        {
            **TRANSLATOR,
            "num_mel_bins": 16,
            "max_source_positions": 20,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        speech,
        generates=True,
        quick=True,
    ),
    Architecture(
        "wav2vec2",
        "AutoModelForAudioClassification",
        {
            **SIZES,
            "conv_dim": [16, 16, 16],
            "conv_stride": [5, 2, 2],
            "conv_kernel": [10, 3, 2],
            "num_feat_extract_layers": 3,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
            "mask_time_prob": 0.0,
        },
        waveform,
    ),
]
ARCHITECTURES = {a.model_type: a for a in (*DECODERS, *ENCODERS, *TRANSLATORS, *SEEING, *HEARING)}


QUICK = tuple(n for n, a in ARCHITECTURES.items() if a.quick)


def parameters(names: Iterable[str], quick: tuple[str, ...] = QUICK) -> list[Any]:
    """The architectures as parameters of a test: those that are not in every run marked slow."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]
