"""The models that both engines run: as an export of this package's, and as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OUTPUT = "output"


class Block(nn.Module):
    """A transformer's block as GPT-2 has it: x [batch, length, width] → the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small language model: ids [batch, length] → logits [batch, length, vocabulary]."""

    def __init__(
        self, vocabulary: int = 256, width: int = 64, heads: int = 4, layers: int = 2, length: int = 32
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions)))


def digits() -> nn.Module:
    """The network of ``examples/digits.py``."""
    layers = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Dropout(0.25), nn.Flatten(), nn.Linear(512, 10))


MODELS = {
    "digits": (digits, lambda: torch.rand(8, 1, 8, 8)),
    "transformer": (Transformer, lambda: torch.randint(0, 256, (1, 32))),
    "block": (lambda: Block(768, 12), lambda: torch.randn(1, 8, 768)),
    "block-token": (lambda: Block(768, 12), lambda: torch.randn(1, 1, 768)),
}
"""Name → what makes the model, what makes its input."""


def write(name: str, folder: Path) -> None:
    """Writes a model twice, ``ours`` and ``model.onnx``, and ``example.safetensors`` with what the CPU makes of it."""
    make, example = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval(), example()
    names = {"input_names": ["x"], "output_names": [OUTPUT]}
    torch.webgpu.export(model, x, folder / "ours", page=False, **names)
    torch.onnx.export(model, (x,), folder / "model.onnx", dynamo=True, external_data=False, verbose=False, **names)
