"""A page runs kernels of the program's own: those of examples/custom_kernel.py."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from torch_webgpu.export import export

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "custom_kernel.py"))


@torch.library.custom_op("web_tests::blur", mutates_args=())
def blur(image: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(image)
    torch.webgpu.compile_shader(EXAMPLE["BLUR"]).blur(image, out, threads=(image.shape[1], image.shape[0]))
    return out


@torch.library.custom_op("web_tests::scan", mutates_args=())
def scan(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    sums = torch.empty_like(x)
    torch.webgpu.compile_shader(EXAMPLE["SEGMENTED_SCAN"]).segmented_scan(x, starts, sums)
    return sums


blur.register_kernel("cpu")(EXAMPLE["blurred"])
scan.register_kernel("cpu")(EXAMPLE["scanned"])
blur.register_fake(torch.empty_like)
scan.register_fake(lambda x, starts: torch.empty_like(x))


class Filtered(nn.Module):
    def forward(self, image: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        image = blur(image * 2) + blur(image.T).T
        return scan(image.flatten(), starts)


def test_a_page_with_kernels_of_ones_own(
    folders: Path, example: Callable[[str], dict[str, dict[str, torch.Tensor]]]
) -> None:
    torch.manual_seed(0)
    image, starts = torch.rand(20, 30), (torch.rand(600) < 0.1).int()
    export(Filtered(), (image, starts), folders / "kernels")
    expected = Filtered()(image.double(), starts).float()  # the CPU's sums differ by cancellation
    torch.testing.assert_close(example("kernels")["forward"]["output"], expected)
