"""Exported models give in Chromium what CPU PyTorch gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_webgpu.export import export

Results = Callable[[str], dict[str, dict[str, torch.Tensor]]]


def digits() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The network of ``examples/digits.py``, with statistics of some images."""
    layers = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Dropout(0.25), nn.Flatten(), nn.Linear(512, 10))
    with torch.no_grad():
        model(torch.rand(64, 1, 8, 8))
    return model.eval(), (torch.rand(8, 1, 8, 8),)


class Strides(nn.Module):
    """Outputs that are transposed, expanded, a column, a view of a view."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.t(), x.sum(1, keepdim=True).expand(4, 3), y[:, 1], y[1:, 1:].t()[0], y


class DTypes(nn.Module):
    """Every dtype as input and as output, and outputs without elements and without dimensions."""

    def forward(
        self, f: torch.Tensor, half: torch.Tensor, brain: torch.Tensor, i: torch.Tensor, flag: torch.Tensor,
        byte: torch.Tensor, scalar: torch.Tensor, empty: torch.Tensor,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        return {
            "half": half * 3 + 1, "brain": brain.exp(), "floored": (i * 3) // 2, "large": i << 40, "flag": ~flag,
            "wrapped": byte + 200, "signed": byte.to(torch.int8), "scalar": scalar + f.sum(), "empty": empty * 2,
            "from_empty": empty.sum(0), "infinite": f / 0, "masked": f.masked_fill(f > 0, float("-inf")), "is": f > 0,
            "short": i.to(torch.int16), "int32": i.to(torch.int32), "count": flag.sum(),
        }  # fmt: skip


class Indexing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.tied = nn.Linear(16, 50, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, i: torch.Tensor) -> dict[str, Any]:
        h = self.table(i)
        values, indices = h.sum(-1).topk(3)
        best = h.mean(-1).argmax(1)
        return {
            "top": (values, indices),
            "best": best,
            "scan": h.cumsum(1),
            "logits": self.tied(h),
            "sorted": h.sort(-1)[0],
        }


class Recurrent(nn.Module):
    """Its output has the strides of a sequence that comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Constants(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return x * weights + x.new_tensor([4.0, 5.0, 6.0]), weights


def models() -> dict[str, tuple[nn.Module, Any]]:
    torch.manual_seed(0)
    some = {
        "f": torch.randn(3, 5), "half": torch.randn(7).half(), "brain": torch.randn(3, 3).bfloat16(),
        "i": torch.tensor([[-5, 3], [7, 1 << 20]]), "flag": torch.tensor([True, False, True, True, False]),
        "byte": torch.arange(250, 256, dtype=torch.uint8), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3),
    }  # fmt: skip
    return {
        "mlp": (nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10), nn.Softmax(-1)), torch.randn(4, 64)),
        "digits": digits(),
        "strides": (Strides(), torch.randn(4, 3)),
        "dtypes": (DTypes(), some),
        "indexing": (Indexing(), torch.randperm(50)[:14].view(2, 7)),  # no two are equal: ties have no order
        "recurrent": (Recurrent(), torch.randn(2, 5, 6)),
        "constants": (Constants(), torch.randn(2, 3)),
        "transposed input": (Strides(), torch.randn(3, 4).t()),
        "attention": (Attention(), torch.randn(2, 5, 16)),
    }


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.norm(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def flat(outputs: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(outputs) if t is not None]


@pytest.mark.parametrize("name", models())
def test_a_model_gives_what_the_cpu_gives(name: str, folders: Path, example: Results) -> None:
    model, inputs = models()[name]
    export(model, inputs, folders / name)
    with torch.no_grad():
        if isinstance(inputs, dict):
            expected = model(**inputs)
        else:
            expected = model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    actual = example(name)["forward"]
    if isinstance(expected, dict):
        assert [key.partition(".")[0] for key in actual] == [
            key for key, value in expected.items() for _ in flat(value)
        ]
    assert len(actual) == len(flat(expected))
    for a, b in zip(actual.values(), flat(expected)):
        half = b.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(a, b, **({} if half or not b.is_floating_point() else {"rtol": 1e-5, "atol": 2e-6}))


def test_half_precision_weights(folders: Path, example: Results) -> None:
    model, inputs = digits()
    export(model, inputs, folders / "half", dtype=torch.float16)
    with torch.no_grad():
        expected = model(*inputs)
    actual = example("half")["forward"]["output"]
    assert actual.dtype == torch.float16
    torch.testing.assert_close(actual.float(), expected, rtol=0.01, atol=0.02)
    assert (folders / "half" / "model.safetensors").stat().st_size < 24_000


@pytest.mark.parametrize(("dtype", "part"), [("int8", 0.27), ("int4", 0.21)])
def test_packed_weights(dtype: str, part: float, folders: Path, example: Results) -> None:
    """The page computes with them what the CPU does, and they stay packed in files and on the GPU."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).eval(), torch.randn(3, 256)
    plain = export(model, x, folders / "plain")
    for rows in (x[:1], x):
        report = export(model, rows, folders / dtype, quantize=dtype)
        assert report.weight_bytes < part * plain.weight_bytes
        assert report.gpu_bytes < 1.1 * part * plain.gpu_bytes
        with torch.no_grad():
            expected = torch.webgpu.quantize_(copy.deepcopy(model), dtype)(rows)
        torch.testing.assert_close(example(dtype)["forward"]["output"], expected, rtol=1e-5, atol=2e-6)
