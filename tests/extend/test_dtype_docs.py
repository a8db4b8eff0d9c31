"""What docs/custom-dtypes.md shows is what the examples have, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from torch_webgpu.extend.dtypes import DTypeTensor

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_quotes_the_examples_and_what_it_shows_runs(examples, device):
    page = (ROOT / "docs" / "custom-dtypes.md").read_text("utf-8")
    described, used, multiplied = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    sources = {name: (ROOT / "examples" / "custom_dtypes" / f"{name}.py").read_text("utf-8") for name in examples}
    assert described.strip() in sources["int4x2"]
    assert multiplied.strip() in sources["dual"]
    x, bias = torch.randn(3, 256, device=device), torch.randn(512, device=device)
    names = {"torch": torch, "int4x2": examples["int4x2"].int4x2, "x": x, "bias": bias}
    exec(used.replace('"webgpu"', repr(str(device))), names)
    assert isinstance(names["weight"], DTypeTensor)
    assert names["y"].shape == (3, 512)
