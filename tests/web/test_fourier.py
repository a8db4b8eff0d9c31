"""Fourier transforms in a page: in one pass, in several, and by Bluestein's algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.export import export

from .chromium import tensor_of


class Filter(nn.Module):
    """Takes the highest frequencies away, of the rows and of the columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        kept = torch.arange(spectrum.shape[-1], device=x.device) < spectrum.shape[-1] // 2
        return torch.fft.irfft2(spectrum * kept, s=x.shape)


@pytest.mark.parametrize("n", [60, 17, 2560])
def test_fourier_transforms(page: Any, folders: Path, n: int) -> None:
    x = torch.linspace(-1, 1, 4 * n).square().reshape(4, n)
    export(Filter(), x, folders / f"fourier{n}")
    result = page.evaluate(
        """async ([url, values]) => {
          const model = await Model.load(url);
          return packed((await model.run({x: new Float32Array(values)})).output);
        }""",
        [f"/exports/fourier{n}/", x.flatten().tolist()],
    )
    torch.testing.assert_close(tensor_of(result), Filter()(x), rtol=1e-5, atol=1e-5)
