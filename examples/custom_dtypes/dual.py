"""Dual numbers: each is a value and its derivative, and operators carry both forward.

python examples/custom_dtypes/dual.py                # device="webgpu"
python examples/custom_dtypes/dual.py --device cpu
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from torch_webgpu.extend.dtypes import DTypeConfig, DTypeDisplayConfig, DTypeTensor, register_dtype


def number(value: Tensor, derivative: Tensor) -> dict[str, Tensor]:
    return {"value": value, "derivative": derivative}


def add(x: DTypeTensor, y: DTypeTensor, alpha: float = 1) -> dict[str, Tensor]:
    return number(x.value + alpha * y.value, x.derivative + alpha * y.derivative)


def mul(x: DTypeTensor, y: DTypeTensor) -> dict[str, Tensor]:
    return number(x.value * y.value, x.derivative * y.value + x.value * y.derivative)


def mm(x: DTypeTensor, y: DTypeTensor) -> dict[str, Tensor]:
    return number(x.value @ y.value, x.derivative @ y.value + x.value @ y.derivative)


def exp(x: DTypeTensor) -> dict[str, Tensor]:
    return number(x.value.exp(), x.value.exp() * x.derivative)


dual = register_dtype(DTypeConfig(
    name="dual",
    components={"value": torch.float32, "derivative": torch.float32},
    store=lambda numbers: number(numbers, torch.zeros_like(numbers)),  # a number is a constant
    promote={torch.float32: "dual"},
    operators={
        "add": add,
        "sub": lambda x, y, alpha=1: add(x, y, -alpha),
        "mul": mul,
        "mm": mm,
        "exp": exp,
        "sin": lambda x: number(x.value.sin(), x.value.cos() * x.derivative),
        "sum": lambda x, *args, **kwargs: number(x.value.sum(*args, **kwargs), x.derivative.sum(*args, **kwargs)),
    },
    display=DTypeDisplayConfig(element="{value:.4f}{derivative:+.4f}e"),
))  # fmt: skip


def f(x: Tensor, weight: Tensor) -> Tensor:
    return ((x * 3 + 1).sin() * x.exp()) @ weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    x, direction, weight = (torch.randn(3, 3, device=device) for _ in range(3))
    y = f(dual.from_components(value=x, derivative=direction), weight)
    value, derivative = torch.func.jvp(lambda x: f(x, weight), (x,), (direction,))
    print(y)
    print("as torch.func.jvp:", torch.allclose(y.value, value), torch.allclose(y.derivative, derivative, atol=1e-5))


if __name__ == "__main__":
    main()
