"""Models with random weights as programs run them, for ``compile.py``: a step in eager mode, and what compiles it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _harness import Device
from torch import nn

ROUND = 32
"""Steps of decoding after which a cache is as it was after the prompt."""
Step = Callable[[], Any]


@dataclass
class Case:
    """A model's step, and what compiles it. The function that is compiled returns tensors alone: Dynamo's packages
    cannot hold others.
    """

    eager: Step
    compile: Callable[[], Step]


def qwen(device: Device, quick: bool, dtype: torch.dtype) -> tuple[Any, Any]:
    """The shape of Qwen2.5-0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
    large = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936}
    heads = {"num_attention_heads": 4 if quick else 14, "num_key_value_heads": 2}
    config = Qwen2Config(**(small if quick else large), **heads, max_position_embeddings=2048, tie_word_embeddings=True)
    return Qwen2ForCausalLM(config).to(device.device, dtype).eval(), config


def inference(device: Device, run: Any, step: Callable[[Any], torch.Tensor]) -> Case:
    """A step of ``run``, compiled as a user would for inference."""
    mode = "reduce-overhead" if device.device.type == "cuda" else None
    return Case(partial(step, run), lambda: partial(step, torch.compile(run, mode=mode)))


def copied(run: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """What inference returns, in memory of its own."""
    with torch.no_grad():
        return run(*inputs).clone()


def decode(dtype: torch.dtype) -> Callable[[Device, bool], Case]:
    """One token after a prompt, batch 1, static cache."""

    def case(device: Device, quick: bool) -> Case:
        from transformers import StaticCache

        model, config = qwen(device, quick, dtype)
        cache = StaticCache(config=config, max_cache_len=64 if quick else 1024)
        token = torch.zeros(1, 1, dtype=torch.long, device=device.device)
        place = torch.full((1,), 16, dtype=torch.long, device=device.device)

        def logits() -> torch.Tensor:
            inputs = {"input_ids": token, "past_key_values": cache, "cache_position": place, "use_cache": True}
            return model(**inputs, return_dict=False)[0]

        steps = itertools.count()

        def step(run: Any) -> torch.Tensor:
            with torch.no_grad():
                if next(steps) % ROUND == 0:
                    for layer in cache.layers:  # which count on the device what they hold
                        if layer.is_initialized:
                            layer.cumulative_length.fill_(16)
                return run().clone()

        return inference(device, logits, step)

    return case


def prefill(dtype: torch.dtype) -> Callable[[Device, bool], Case]:
    """A prompt of 512 tokens."""

    def case(device: Device, quick: bool) -> Case:
        model, _ = qwen(device, quick, dtype)
        tokens = torch.randint(1000, (1, 32 if quick else 512), device=device.device)

        def logits(tokens: torch.Tensor) -> torch.Tensor:
            return model(input_ids=tokens, use_cache=False, return_dict=False)[0]

        return inference(device, logits, lambda run: copied(run, tokens))

    return case


def training(
    model: nn.Module,
    run: Any,
    loss: Callable[[Any], torch.Tensor],
    around: Callable[[], AbstractContextManager[Any]],
) -> Case:
    """A step of AdamW, of which ``run`` is compiled: ``loss(run)``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(run: Any) -> torch.Tensor:
        with around():
            value = loss(run)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return Case(partial(step, run), lambda: partial(step, torch.compile(run)))


def autocasting(device: Device, dtype: torch.dtype | None) -> Callable[[], AbstractContextManager[Any]]:
    """What surrounds the forward pass."""
    return (lambda: torch.autocast(device.device.type, dtype=dtype)) if dtype else nullcontext


def gpt2(autocast: torch.dtype | None) -> Callable[[Device, bool], Case]:
    """A training step of GPT-2 124M, 8 × 512 tokens."""

    def case(device: Device, quick: bool) -> Case:
        from transformers import GPT2Config, GPT2LMHeadModel

        small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000} if quick else {}
        model = GPT2LMHeadModel(GPT2Config(**small)).to(device.device)
        model.loss_type = "ForCausalLM"  # unnamed, it is warned of, which breaks the graph on any device
        shape = (2, 32) if quick else (8, 512)
        tokens = torch.randint(0, 1000, shape, device=device.device)

        def loss(tokens: torch.Tensor) -> torch.Tensor:
            return model(input_ids=tokens, labels=tokens, return_dict=False)[0]

        return training(model, loss, lambda run: run(tokens), autocasting(device, autocast))

    return case


def images(device: Device, quick: bool, dtype: torch.dtype = torch.float32, least: int = 32) -> torch.Tensor:
    """32 of 224 × 224; two small ones in a quick run."""
    shape = (2, 3, least, least) if quick else (32, 3, 224, 224)
    return torch.randn(shape, dtype=dtype, device=device.device)


def vision_training(name: str, small: str, autocast: torch.dtype | None = None) -> Callable[[Device, bool], Case]:
    """A training step of a model of torchvision on 32 images of 224 × 224."""

    def case(device: Device, quick: bool) -> Case:
        from torchvision.models import get_model

        model = get_model(small if quick else name).to(device.device)
        x = images(device, quick)
        labels = torch.randint(0, 1000, (len(x),), device=device.device)
        return training(model, model, lambda run: F.cross_entropy(run(x), labels), autocasting(device, autocast))

    return case


def vision_inference(name: str, small: str, dtype: torch.dtype, least: int = 32) -> Callable[[Device, bool], Case]:
    """A model of torchvision on 32 images of 224 × 224."""

    def case(device: Device, quick: bool) -> Case:
        from torchvision.models import get_model

        model = get_model(small if quick else name).to(device.device, dtype).eval()
        x = images(device, quick, dtype, least)
        return inference(device, model, lambda run: copied(run, x))

    return case


def bert(device: Device, quick: bool) -> Case:
    """BERT-base on 8 × 128 tokens."""
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(**(small if quick else {}))).to(device.device).eval()
    tokens = torch.zeros(2 if quick else 8, 128, dtype=torch.long, device=device.device)

    def hidden(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, return_dict=False)[0]

    return inference(device, hidden, lambda run: copied(run, tokens))


def whisper(device: Device, quick: bool) -> Case:
    """Whisper-small's encoder on 30 seconds of sound, float16."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    small = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
    large = {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072}
    model = WhisperEncoder(WhisperConfig(**(small if quick else large))).to(device.device, torch.float16).eval()
    sound = torch.randn(1, 80, 3000, dtype=torch.float16, device=device.device)

    def hidden(sound: torch.Tensor) -> torch.Tensor:
        return model(sound, return_dict=False)[0]

    return inference(device, hidden, lambda run: copied(run, sound))


class Residual(nn.Module):
    """Of a diffusion model: two convolutions with group norms, and what a step's embedding adds."""

    def __init__(self, channels: int, results: int, embedding: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(32, channels), nn.GroupNorm(32, results)))
        self.convs = nn.ModuleList(
            (nn.Conv2d(channels, results, 3, padding=1), nn.Conv2d(results, results, 3, padding=1))
        )
        self.embed = nn.Linear(embedding, results)
        self.skip = nn.Conv2d(channels, results, 1) if channels != results else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.embed(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](y)))


class Transformer(nn.Module):
    """Of a diffusion model: attention over an image, attention to a text, and a gated linear unit."""

    def __init__(self, channels: int, text: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.qkv, self.query = (nn.Linear(channels, n * channels, bias=False) for n in (3, 1))
        self.key_value = nn.Linear(text, 2 * channels, bias=False)
        self.results = nn.ModuleList(nn.Linear(channels, channels) for _ in range(2))
        self.gate, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def attend(self, *qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = y + self.results[0](self.attend(*self.qkv(self.norms[0](y)).chunk(3, -1)))
        keys = self.key_value(text).chunk(2, -1)
        y = y + self.results[1](self.attend(self.query(self.norms[1](y)), *keys))
        a, gate = self.gate(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(a * F.gelu(gate))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """The shape of Stable Diffusion's, with one residual block and one transformer at each size."""

    def __init__(self, channels: tuple[int, ...], embedding: int = 1280, text: int = 768) -> None:
        super().__init__()
        pairs = list(itertools.pairwise((channels[0], *channels)))
        self.first = nn.Conv2d(4, channels[0], 3, padding=1)
        self.down = nn.ModuleList(Residual(a, b, embedding) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in channels)
        self.middle = Residual(channels[-1], channels[-1], embedding)
        ups = list(itertools.pairwise((channels[-1], *channels[::-1])))
        self.enlarge = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ups)
        self.up = nn.ModuleList(Residual(2 * b, b, embedding) for _, b in ups)
        self.attention = nn.ModuleList(Transformer(c, text) for c in (*channels, *channels[::-1]))
        self.norm, self.last = nn.GroupNorm(32, channels[0]), nn.Conv2d(channels[0], 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x, attention, kept = self.first(x), iter(self.attention), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = next(attention)(block(x, t), text)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, t)
        for block, enlarge in zip(self.up, self.enlarge, strict=True):
            x = enlarge(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = next(attention)(block(torch.cat((x, kept.pop()), 1), t), text)
        return self.last(F.silu(self.norm(x)))


def unet(device: Device, quick: bool) -> Case:
    """A step of a diffusion model on two latent images of 64 × 64, float16."""
    made = {"device": device.device, "dtype": torch.float16}
    model = UNet((32, 64) if quick else (320, 640, 1280)).to(**made).eval()
    size = 16 if quick else 64
    inputs = torch.randn(2, 4, size, size, **made), torch.randn(2, 1280, **made), torch.randn(2, 77, 768, **made)
    return inference(device, model, lambda run: copied(run, *inputs))


class WordModel(nn.Module):
    """A language model with an LSTM of two layers."""

    def __init__(self, words: int, features: int) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(words, features), nn.Linear(features, words)
        self.lstm = nn.LSTM(features, features, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(self.embedding(tokens))[0])


def lstm(device: Device, quick: bool) -> Case:
    """A training step of a language model of 512 features and 10,000 words, 64 × 64 tokens."""
    words, shape = (100, (4, 8)) if quick else (10_000, (64, 64))
    model = WordModel(words, 32 if quick else 512).to(device.device)
    tokens = torch.randint(0, words, shape, device=device.device)

    def loss(run: Any) -> torch.Tensor:
        return F.cross_entropy(run(tokens).flatten(0, 1), tokens.flatten())

    return training(model, model, loss, nullcontext)


def small_gpt(device: Device, quick: bool) -> Case:
    """A training step of a language model of characters: 65 of them, six layers of 384 features, 64 × 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2} if quick else {"n_layer": 6, "n_embd": 384, "n_head": 6}
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.2)
    config = GPT2Config(**sizes, **dropout, vocab_size=65, n_positions=256, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device.device)
    model.loss_type = "ForCausalLM"
    tokens = torch.randint(0, 65, (2, 16) if quick else (64, 256), device=device.device)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens, return_dict=False)[0]

    return training(model, loss, lambda run: run(tokens), nullcontext)


class GraphNetwork(nn.Module):
    """Two layers that sum over a graph's edges, with ``index_add`` and indexing as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(128, 256), nn.Linear(256, 40)))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        def summed(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weights[:, None])

        return summed(self.layers[1](F.relu(summed(self.layers[0](x)))))


def graph_network(device: Device, quick: bool) -> Case:
    """A training step on a graph of 170,000 nodes and 1.2 million edges."""
    nodes, edges = (100, 700) if quick else (170_000, 1_200_000)
    model = GraphNetwork().to(device.device)
    x, weights = torch.randn(nodes, 128, device=device.device), torch.rand(edges, device=device.device)
    ends = torch.randint(0, nodes, (2, edges), device=device.device)
    labels = torch.randint(0, 40, (nodes,), device=device.device)
    return training(model, model, lambda run: F.cross_entropy(run(x, ends, weights), labels), nullcontext)


CASES: dict[str, Callable[[Device, bool], Case]] = {
    "decode float32": decode(torch.float32),
    "decode float16": decode(torch.float16),
    "decode bfloat16": decode(torch.bfloat16),
    "prefill 512": prefill(torch.float32),
    "prefill 512 float16": prefill(torch.float16),
    "prefill 512 bfloat16": prefill(torch.bfloat16),
    "GPT-2 training": gpt2(None),
    "GPT-2 training bfloat16": gpt2(torch.bfloat16),
    "GPT-2 training float16": gpt2(torch.float16),
    "small GPT training": small_gpt,
    "ResNet-50 inference": vision_inference("resnet50", "resnet18", torch.float32),
    "ResNet-50 training": vision_training("resnet50", "resnet18"),
    "ResNet-50 training float16": vision_training("resnet50", "resnet18", torch.float16),
    "ConvNeXt-T training": vision_training("convnext_tiny", "convnext_tiny"),
    "ViT-B/16 inference float16": vision_inference("vit_b_16", "vit_b_16", torch.float16, 224),
    "UNet inference float16": unet,
    "Whisper encoder float16": whisper,
    "BERT-base inference": bert,
    "LSTM training": lstm,
    "graph network training": graph_network,
}
