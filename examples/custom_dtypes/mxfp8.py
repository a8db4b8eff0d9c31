"""Block-scaled floats of 8 bits, as the OCP Microscaling specification has them (MXFP8, E4M3).

A number is a float8_e4m3fn times a power of two that each 32 numbers share, a float8_e8m0fnu:
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf, section 6.3.

    python examples/custom_dtypes/mxfp8.py                # device="webgpu"
    python examples/custom_dtypes/mxfp8.py --device cpu
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from torch_webgpu.extend.dtypes import DTypeComponent, DTypeConfig, register_dtype

LARGEST_EXPONENT = 8
"""Of float8_e4m3fn, whose largest number is 448 = 1.75 * 2**8."""


def store(numbers: Tensor) -> dict[str, Tensor]:
    """``numbers`` and ``codes`` are (…, blocks, 32), ``scale`` is (…, blocks, 1)."""
    largest = numbers.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
    scale = torch.exp2(exponent.clamp(-127, 127).to(torch.float32)).to(torch.float8_e8m0fnu)
    codes = (numbers / scale.to(torch.float32)).clamp(-448, 448)
    return {"codes": codes.to(torch.float8_e4m3fn), "scale": scale}


mxfp8 = register_dtype(DTypeConfig(
    name="mxfp8",
    components={
        "codes": torch.float8_e4m3fn,
        "scale": DTypeComponent(torch.float8_e8m0fnu, elements=32),
    },
    wgsl="codes * scale",
    store=store,
    promote={torch.float32: torch.float32, torch.float16: torch.float32},
))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    weight, x = torch.randn(256, 512, device=device), torch.randn(64, 512, device=device)
    small = mxfp8(weight)
    print(small[0, :32])
    for name, result, expected in (
        ("weight", small.dequantize(), weight),
        ("x @ weight.t()", x @ small.t(), x @ weight.t()),
        ("weight * weight", (small * small).dequantize(), weight * weight),
    ):
        print(f"{name} differs by {((result - expected).norm() / expected.norm()).item():.1%}")


if __name__ == "__main__":
    main()
