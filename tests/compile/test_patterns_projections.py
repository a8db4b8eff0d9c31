"""Products of one row: norms that are part of them, gated linear units, and what looks like these and is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.compile.plans import dispatches, plans
from torch import nn

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROUNDING = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
Function = Callable[..., torch.Tensor]


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """As transformers writes it."""
    wide = x.to(torch.float32)
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def swiglu(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, a)) * F.linear(x, b)


def compare(f: Function, *inputs: torch.Tensor, dynamic: bool | None = None) -> int:
    """Checks a function of webgpu tensors against eager mode and double precision; how many dispatches it has."""
    tolerance = max(ROUNDING[t.dtype] for t in inputs if t.is_floating_point())
    with torch.no_grad(), plans() as made:
        want, in_double = f(*inputs), f(*[t.cpu().double() for t in inputs])
        got = torch.compile(f, fullgraph=True, dynamic=dynamic)(*inputs)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got.cpu().double(), in_double, rtol=tolerance, atol=tolerance)
    return dispatches(made)


def row(k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(1, 1, k) * 3).to("webgpu", dtype)


def matrix(n: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(n, k) / k**0.5).to("webgpu", dtype)


def vector(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n).to("webgpu", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(24, 64), (1, 8), (5, 37), (130, 1028), (9, 2049)])
def test_a_norm_before_products(n: int, k: int, dtype: torch.dtype, found: dict[str, int]) -> None:
    def f(x: torch.Tensor, gain: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = rms_norm(x, gain)
        return torch.cat((F.linear(y, a, bias), F.linear(y, b)), -1)

    inputs = row(k, dtype), vector(k, dtype), matrix(n, k, dtype), matrix(n + 3, k, dtype), vector(n, dtype)
    assert compare(f, *inputs) <= 3  # the products, perhaps one by one, and what joins them
    assert found == {"normed product": 2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(24, 64), (1, 8), (5, 37), (130, 1028), (9, 2049)])
@pytest.mark.parametrize("vectors", [0, 1, 2])
def test_layer_norm_before_products(vectors: int, n: int, k: int, dtype: torch.dtype, found: dict[str, int]) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, *of: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(x, x.shape[-1:], *of, eps=1e-3)
        return torch.cat((F.linear(y, a, bias), F.linear(y, b)), -1)

    inputs = row(k, dtype), matrix(n, k, dtype), matrix(n + 3, k, dtype), vector(n, dtype)
    assert compare(f, *inputs, *(vector(k, dtype) for _ in range(vectors))) <= 3
    assert found == {"normed product": 2}


@pytest.mark.parametrize("shift", [1e3, -1e5])
def test_layer_norm_of_a_row_far_from_zero(shift: float, found: dict[str, int]) -> None:
    """Its variance by sums of squares alone would have no digits."""
    x, gain, offset, a = row(768) + shift, vector(768), vector(768), matrix(8, 768)
    f: Function = lambda x, gain, offset, a: F.linear(F.layer_norm(x, (768,), gain, offset), a)
    want = f(*(t.cpu().double() for t in (x, gain, offset, a)))
    got = torch.compile(f)(x, gain, offset, a)
    rounding = abs(shift) * 2**-22  # of the row's mean
    torch.testing.assert_close(got.cpu().double(), want, rtol=rounding, atol=rounding + 1e-5)
    assert found == {"normed product": 1}


def test_layer_norm_of_equal_and_of_large_numbers(found: dict[str, int]) -> None:
    f: Function = lambda x, gain, a: F.linear(F.layer_norm(x, (24,), gain), a)
    compare(f, torch.full((1, 1, 24), 7.0, device="webgpu"), vector(24), matrix(8, 24))
    compare(f, row(24) * 1e15, vector(24), matrix(8, 24))
    assert found


def test_layer_norm_before_a_vocabulary(found: dict[str, int]) -> None:
    f: Function = lambda x, gain, a: F.linear(F.layer_norm(x, (4,), gain), a)
    compare(f, row(4), vector(4), matrix((1 << 14) + 1, 4))
    assert not found


def test_layer_norm_under_autocast(found: dict[str, int]) -> None:
    """It is float32 then, and the products are not."""
    norm, linear, x = nn.LayerNorm(32).to("webgpu"), nn.Linear(32, 8).to("webgpu"), row(32)
    with torch.no_grad(), torch.autocast("webgpu", torch.float16):
        got = torch.compile(lambda x: linear(norm(x)))(x)
        torch.testing.assert_close(got, linear(norm(x)), rtol=1e-2, atol=1e-2)
    assert found == {"normed product": 1}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n", "k"), [(24, 64), (1, 8), (7, 37), (66, 1028)])
def test_a_gated_linear_unit(n: int, k: int, biased: bool, dtype: torch.dtype, found: dict[str, int]) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
        one, other = biases or (None, None)
        return F.silu(F.linear(x, a, one)) * F.linear(x, b, other)

    biases = (vector(n, dtype), vector(n, dtype)) if biased else ()
    assert compare(f, row(k, dtype), matrix(n, k, dtype), matrix(n, k, dtype), *biases) == 1
    assert found == {"gated product": 1}


ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, found: dict[str, int]) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, b) * ACTIVATIONS[name](F.linear(x, a))

    assert compare(f, row(16), matrix(8, 16), matrix(8, 16)) == 1
    assert found == {"gated product": 1}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_a_layer(dtype: torch.dtype, found: dict[str, int]) -> None:
    """Norm, gated linear unit and what follows, with the residual: two dispatches."""

    def f(x: torch.Tensor, gain: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return x + F.linear(swiglu(rms_norm(x, gain), a, b), c)

    inputs = row(32, dtype), vector(32, dtype), matrix(88, 32, dtype), matrix(88, 32, dtype), matrix(32, 88, dtype)
    assert compare(f, *inputs) == 2
    assert found == {"normed product": 2, "gated product": 1}


@pytest.mark.parametrize("eps", [None, 1e-5])
def test_the_module(eps: float | None, found: dict[str, int]) -> None:
    norm, linear = nn.RMSNorm(20, eps=eps).to("webgpu"), nn.Linear(20, 12).to("webgpu")
    with torch.no_grad():
        norm.weight.copy_(torch.randn(20))
        x = torch.randn(1, 20, device="webgpu")
        got = torch.compile(lambda x: linear(norm(x)))(x)
        want = linear.cpu()(norm.cpu()(x.cpu()))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    assert found == {"normed product": 1}


def test_a_gain_that_is_computed(found: dict[str, int]) -> None:
    """As Gemma's."""
    compare(lambda x, gain, a: F.linear(rms_norm(x, 1 + gain), a), row(24), vector(24), matrix(8, 24))
    assert found == {"normed product": 1}


def test_a_vector_of_zeros_and_large_numbers(found: dict[str, int]) -> None:
    f: Function = lambda x, gain, a: F.linear(rms_norm(x, gain), a)
    compare(f, torch.zeros(1, 1, 24, device="webgpu"), vector(24), matrix(8, 24))
    compare(f, row(24) * 1e15, vector(24), matrix(8, 24))
    assert found


OTHERS: dict[str, Function] = {
    "several rows": lambda x, g, a, b: F.linear(rms_norm(x.expand(1, 3, 16), g), a),
    "the norm is needed by itself": lambda x, g, a, b: F.linear(y := rms_norm(x, g), a).sum() + y,
    "layer norm of several rows": lambda x, g, a, b: F.linear(F.layer_norm(x.view(1, 4, 4), (4,)).view(1, 16), a),
    "layer norm is needed by itself": lambda x, g, a, b: F.linear(y := F.layer_norm(x, (16,), g), a).sum() + y,
    "another power": lambda x, g, a, b: F.linear(g * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1)), a),
    "of another tensor": lambda x, g, a, b: F.linear(g * (x * (x * 2).pow(2).mean(-1, True).add(1).rsqrt()), a),
    "a sum": lambda x, g, a, b: F.linear(g * (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1)), a),
    "two inputs": lambda x, g, a, b: F.silu(F.linear(x, a)) * F.linear(x + 1, b),
    "two shapes": lambda x, g, a, b: F.silu(F.linear(x, a)) * F.linear(x, b[:1]),
    "not activated": lambda x, g, a, b: F.linear(x, a) * F.linear(x, b),
    "activated again": lambda x, g, a, b: (s := F.silu(F.linear(x, a))) * F.linear(x, b) + s,
    "the other product is needed": lambda x, g, a, b: F.silu(F.linear(x, a)) * (p := F.linear(x, b)) + p,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_looks_like_it_is_left_alone(name: str, found: dict[str, int]) -> None:
    compare(OTHERS[name], row(16), vector(16), matrix(8, 16), matrix(8, 16))
    assert not found


def test_matrices_that_lie_otherwise(found: dict[str, int]) -> None:
    """Contiguous across the sum, the products' own kernels are better; parts of a matrix are read where they are."""
    compare(lambda x, g, a: rms_norm(x, g).view(1, 16) @ a, row(16), vector(16), matrix(16, 8))
    assert not found
    packed: Function = lambda x, w: F.silu(F.linear(x, w[:8])) * F.linear(x, w[8:])
    assert compare(packed, row(16), matrix(16, 16)) == 1
    assert found == {"gated product": 1}


def test_an_epilogue_of_its_own(found: dict[str, int]) -> None:
    f: Function = lambda x, g, a, r: (r + F.linear(rms_norm(x, g), a)).clamp(min=0) * 2
    assert compare(f, row(16), vector(16), matrix(8, 16), row(8)) == 1
    assert found == {"normed product": 1}


def test_a_row_that_is_written_between_its_norm_and_the_product(found: dict[str, int]) -> None:
    def f(x: torch.Tensor, gain: torch.Tensor, a: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = rms_norm(x, gain)
        x.index_fill_(0, at, 0)
        return F.linear(y, a)

    inputs, at = (row(16)[0], vector(16), matrix(8, 16)), torch.tensor([0], device="webgpu")
    with torch.no_grad():
        got, want = (g(inputs[0].clone(), *inputs[1:], at) for g in (torch.compile(f), f))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not found


def test_training_is_as_it_was(found: dict[str, int]) -> None:
    """A backward pass needs what these leave out."""
    parameters = [t.requires_grad_() for t in (vector(16), matrix(8, 16), matrix(8, 16))]
    x = row(16)
    f: Function = lambda x, g, a, b: swiglu(rms_norm(x, g), a, b).square().sum()
    want = torch.autograd.grad(f(x, *parameters), parameters)
    got = torch.autograd.grad(torch.compile(f)(x, *parameters), parameters)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
