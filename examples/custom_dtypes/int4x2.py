"""Weights of 4 bits: two in a byte, and a scale for each 32 of them.

python examples/custom_dtypes/int4x2.py                # device="webgpu"
python examples/custom_dtypes/int4x2.py --device cpu
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from torch_webgpu.extend.dtypes import DTypeComponent, DTypeConfig, register_dtype


def store(numbers: Tensor, i: Tensor) -> dict[str, Tensor]:
    """``numbers`` is (…, blocks, 16, 2), ``i`` which of a block's 32 each is. ``packed`` becomes (…, blocks, 16, 1),
    ``scale`` (…, blocks, 1, 1).
    """
    scale = numbers.abs().amax((-2, -1), keepdim=True) / 7
    codes = (numbers / torch.where(scale == 0, 1, scale)).round().clamp(-8, 7).to(torch.int32) + 8
    packed = (codes << i % 2 * 4).sum(-1, keepdim=True, dtype=torch.int32)
    return {"packed": packed.to(torch.uint8), "scale": scale}


int4x2 = register_dtype(
    DTypeConfig(
        name="int4x2",
        components={
            "packed": DTypeComponent(torch.uint8, elements=2),
            "scale": DTypeComponent(torch.float32, elements=32),
        },
        wgsl="(f32((packed >> (i % 2 * 4)) & 15) - 8.0) * scale",  # of a number's byte, scale and position
        store=store,
        promote={torch.float32: torch.float32, torch.float16: torch.float16},
    )
)


def quantize_linear_layers(model: nn.Module) -> nn.Module:
    """Gives every ``nn.Linear`` weights of 4 bits."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(int4x2(layer.weight.detach()), requires_grad=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device)
    x = torch.randn(8, 256, device=device)
    expected, size = model(x), sum(one.nbytes for one in model.parameters())
    quantize_linear_layers(model)
    weight = model[0].weight
    error = (model(x) - expected).norm() / expected.norm()
    kept = sum(component.nbytes for layer in (model[0], model[2]) for component in layer.weight.components.values())
    print(weight[:2, :32])
    print(f"{size / 1024:.0f} KiB of weights in float32, {kept / 1024:.0f} KiB in {int4x2.name}")
    print(f"the results differ by {error.item():.1%}")


if __name__ == "__main__":
    main()
