"""What operators over registered dtypes cost on the device: dispatches, and no copies of loaded numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture
def dispatches(device) -> Callable[[Callable[[], object]], int]:
    """How many dispatches a function takes."""
    if device.type != "webgpu":
        pytest.skip("dispatches are the device's")

    def count(function: Callable[[], object]) -> int:
        torch.webgpu.synchronize()
        return sum(len(kernel.dispatches) for kernel in torch.webgpu.explain(function).kernels)

    return count


@pytest.mark.parametrize(
    ("name", "store"),
    [("int4x2", 2), ("mxfp8", 1)],  # the scales of blocks first, then the bytes, which add up neighbours
)
def test_load_compute_store_is_one_kernel(examples, device, dispatches, name, store):
    dtype = getattr(examples[name], name)
    numbers = torch.randn(8, 64, device=device)
    x, y, row = dtype(numbers), dtype(numbers * 2), torch.randn(1, 64, device=device)
    assert dispatches(lambda: dtype(numbers)) == store
    assert dispatches(x.dequantize) == 1
    assert dispatches(lambda: x * y) == store
    assert dispatches(lambda: x * row) == 1
    assert dispatches(lambda: torch.relu(x.dequantize() + row)) == 1
    assert dispatches(lambda: x > y) == 1


def test_dual_numbers_are_one_kernel(examples, device, dispatches):
    dual = examples["dual"].dual
    x = dual.from_components(value=torch.randn(8, 64, device=device), derivative=torch.randn(8, 64, device=device))
    assert dispatches(lambda: (x * x + 2).sin() * x.exp()) == 1


@pytest.mark.parametrize("name", ["int4x2", "mxfp8"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_linear_layer_reads_its_weight_in_place(examples, device, dispatches, name, dtype, rows):
    """The product with bias and activation is one dispatch, whose weight is never stored as numbers."""
    weight = getattr(examples[name], name)(torch.randn(48, 64, device=device))
    x, bias = torch.randn(rows, 64, device=device).to(dtype), torch.randn(48, device=device).to(dtype)
    if name == "mxfp8":
        x, bias = x.float(), bias.float()
    assert dispatches(lambda: torch.relu(F.linear(x, weight, bias))) == 1
    expected = torch.relu(F.linear(x.float(), weight.dequantize(), bias.float()))
    torch.testing.assert_close(torch.relu(F.linear(x, weight, bias)).float(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("case", ["a view", "not transposed", "two dimensions of rows", "compiled"])
def test_products_in_other_forms_are_the_same_numbers(examples, device, case):
    weight = examples["int4x2"].int4x2(torch.randn(48, 128, device=device))
    x = torch.randn(2, 3, 128, device=device)
    numbers = weight.dequantize()
    if case == "a view":
        result, expected = F.linear(x[0, :, 64:], weight[8:, 64:]), F.linear(x[0, :, 64:], numbers[8:, 64:])
    elif case == "not transposed":
        y = torch.randn(5, 48, device=device)
        result, expected = y @ weight, y @ numbers
    elif case == "two dimensions of rows":
        result, expected = F.linear(x, weight), F.linear(x, numbers)
    else:
        result, expected = torch.compile(lambda x: F.linear(x, weight).relu())(x), F.linear(x, numbers).relu()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
