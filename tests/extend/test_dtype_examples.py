"""The dtypes of examples/custom_dtypes compute what they should, on the CPU and on the device."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F


def nibbles(packed: torch.Tensor) -> np.ndarray:
    codes = packed.cpu().numpy()
    return np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:-1], -1).astype(np.int64) - 8


def exact_numbers(*shape: int) -> torch.Tensor:
    """Multiples of a power of two that 4 bits hold, each block with a 7."""
    codes = torch.randint(-7, 8, shape)
    codes[..., ::32] = 7
    return codes * torch.tensor([0.25, 0.5, 2.0])[
        torch.randint(0, 3, (*shape[:-1], shape[-1] // 32))
    ].repeat_interleave(32, -1)


def test_numbers_that_four_bits_hold_are_kept(examples, place):
    numbers = exact_numbers(5, 3, 96)
    x = examples["int4x2"].int4x2(numbers.to(place))
    assert x.shape == (5, 3, 96)
    assert x.packed.shape == (5, 3, 48)
    assert x.scale.shape == (5, 3, 3)
    assert torch.equal(x.dequantize().cpu(), numbers)
    scales = np.repeat(x.scale.cpu().numpy(), 32, -1)
    assert np.array_equal(nibbles(x.packed) * scales, numbers.numpy())


def test_quantization_is_off_by_half_a_step_at_most(examples, place):
    numbers = torch.randn(16, 128)
    x = examples["int4x2"].int4x2(numbers.to(place))
    half = x.scale.cpu().repeat_interleave(32, -1) / 2
    assert torch.all((x.dequantize().cpu() - numbers).abs() <= half * 1.0001)
    assert (x.dequantize().cpu() - numbers).abs().max() > 0


def test_arithmetic_of_four_bit_numbers(examples, place):
    int4x2 = examples["int4x2"].int4x2
    a, b = exact_numbers(4, 64), exact_numbers(1, 64)
    x, y = int4x2(a.to(place)), int4x2(b.to(place))
    assert torch.equal((x + y).dequantize().cpu(), int4x2(a + b).dequantize())
    assert torch.equal((x * -2).dequantize().cpu(), a * -2)
    row = torch.randn(64)
    assert torch.equal((x * row.to(place)).cpu(), a * row)
    assert torch.equal((row.to(place) - x).cpu(), row - a)
    assert torch.equal((x > y).cpu(), a > b)
    either = int4x2(torch.where(b > 0, a, b)).dequantize()
    assert torch.equal(torch.where(y > 0, x, y).dequantize().cpu(), either)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 64), (33, 96), (2, 5, 64), (0, 64)])
def test_linear_layers_with_weights_of_four_bits(examples, place, dtype, shape):
    """Small integers: products are exact, in halves, too."""
    numbers = exact_numbers(34, shape[-1])
    x = torch.randint(-2, 3, shape).to(dtype)
    bias = torch.randint(-4, 5, (34,)).to(dtype)
    weight = examples["int4x2"].int4x2(numbers.to(place))
    expected = F.linear(x.double(), numbers.double(), bias.double())
    result = F.linear(x.to(place), weight, bias.to(place))
    assert result.dtype == dtype
    assert torch.equal(result.cpu().double(), expected)
    assert torch.equal((x.to(place) @ weight.t()).cpu().double(), expected - bias.double())


def mx_block(numbers: list[float]) -> list[float]:
    """A block as section 6.3 of the specification converts it, one number after the other."""
    largest = max(abs(x) for x in numbers)
    shared = 2.0 ** ((math.frexp(largest)[1] - 1 if largest else -1) - 8)
    codes = torch.tensor([max(-448.0, min(448.0, x / shared)) for x in numbers]).to(torch.float8_e4m3fn)
    return [code * shared for code in codes.float().tolist()]


def test_block_scaled_floats_are_those_of_the_specification(examples, place):
    numbers = torch.randn(6, 96) * torch.logspace(-6, 6, 96, base=2.0)
    numbers[0, :32] = 0
    numbers[1, :32] = torch.linspace(-8, 8, 32)
    x = examples["mxfp8"].mxfp8(numbers.to(place))
    expected = [[y for at in range(0, 96, 32) for y in mx_block(row[at : at + 32])] for row in numbers.tolist()]
    assert torch.equal(x.dequantize().cpu(), torch.tensor(expected))
    assert x.scale.dtype == torch.float8_e8m0fnu


def test_products_of_block_scaled_floats(examples, place):
    mxfp8 = examples["mxfp8"].mxfp8
    a, b = torch.randn(9, 64), torch.randn(12, 64)
    x, y = mxfp8(a.to(place)), mxfp8(b.to(place))
    numbers, others = mxfp8(a).dequantize(), mxfp8(b).dequantize()
    torch.testing.assert_close((x @ y.t()).cpu(), numbers @ others.t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((a.to(place) @ y.t()).cpu(), a @ others.t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        (x * y[:1]).dequantize().cpu(), mxfp8(numbers * others[:1]).dequantize(), rtol=0.13, atol=1e-6
    )


def test_dual_numbers_are_forward_mode_derivatives(examples, place):
    """Against torch.func.jvp of the same function."""
    example = examples["dual"]
    x, direction, weight = (torch.randn(4, 4, device=place) for _ in range(3))
    functions = {
        "add": lambda x: x + x + 2,
        "mul": lambda x: x * x * 3,
        "sin": torch.sin,
        "exp": torch.exp,
        "matmul": lambda x: (x @ weight) @ x,
        "together": lambda x: example.f(x, weight) - 2 * x.sin(),
        "sum": lambda x: (x * x).sum(0),
        "views": lambda x: x.t()[1:].reshape(2, -1).sin(),
    }
    for name, function in functions.items():
        result = function(example.dual.from_components(value=x, derivative=direction))
        value, derivative = torch.func.jvp(function, (x,), (direction,))
        torch.testing.assert_close(result.value, value, msg=lambda text: f"{name}: {text}")  # noqa: B023
        torch.testing.assert_close(result.derivative, derivative, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("name", ["int4x2", "mxfp8", "dual"])
def test_the_programs_run(examples, device, monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", [name, "--device", str(device)])
    torch.manual_seed(0)
    examples[name].main()
    printed = capsys.readouterr().out
    assert f"dtype={name}, device='{device}:0')" in printed
    if name == "dual":
        assert "as torch.func.jvp: True True" in printed
