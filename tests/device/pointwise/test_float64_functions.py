"""Functions of float64 on adapters that have it, against the CPU in float64: a few units in the last place.

Bounds are in units of 2⁻⁵² of the result, measured on lavapipe and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

pytestmark = pytest.mark.float64
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, 2.5, math.inf, -math.inf, math.nan, 1e16, 1e22, 5e-324, 1e-310)
COUNT = 4000
UNARY = {
    "exp": 2, "exp2": 2, "expm1": 2, "log": 2, "log2": 2, "log10": 2, "log1p": 2, "sin": 2, "cos": 2, "tan": 3,
    "asin": 3, "acos": 2, "atan": 2, "sinh": 3, "cosh": 3, "tanh": 3, "asinh": 3, "acosh": 3, "atanh": 3, "sigmoid": 3,
    "sinc": 3, "erf": 2, "erfinv": 3, "sign": 0, "frexp": 0,
    "floor": 0, "ceil": 0, "trunc": 0, "round": 0, "frac": 0,
}  # fmt: skip
BINARY = {"atan2": 2, "hypot": 2, "copysign": 0, "pow": 4, "floor_divide": 0, "fmax": 0, "fmin": 0, "nextafter": 0}


@pytest.fixture(autouse=True)
def natively() -> Iterator[None]:
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def numbers() -> Iterator[torch.Tensor]:
    """Around one, within one, larger, of every magnitude short of the ends of the range, halves, and special ones."""
    draw = torch.randn(COUNT, dtype=torch.float64)
    yield from (draw, torch.rand(COUNT, dtype=torch.float64) * 2 - 1, draw * 50)
    yield draw.sign() * torch.exp2(torch.rand(COUNT, dtype=torch.float64) * 1400 - 700)
    yield torch.cat(
        [torch.exp2(torch.arange(54.0, dtype=torch.float64)) * 1.5 + part for part in (-1, -0.5, 0.25, 0.5)]
    )
    yield torch.tensor(SPECIAL, dtype=torch.float64)


def agree(got: torch.Tensor, wanted: torch.Tensor, bound: float, *arguments: torch.Tensor) -> None:
    got = got.cpu()
    if not wanted.is_floating_point():
        assert torch.equal(got, wanted)
        return
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    apart = (got - wanted).abs() / wanted.abs().clamp(min=2.0**-1022) * 2**52
    worst = torch.where(same, 0.0, apart.nan_to_num(math.inf)).argmax()
    assert same[worst] or apart[worst] <= bound, (apart[worst], [a[worst].item() for a in arguments])


@pytest.mark.parametrize("name", UNARY)
def test_functions(device, name):
    fn = getattr(torch, name)
    for x in numbers():
        if name == "sigmoid":
            x = x.clamp(min=-700)  # the CPU's is 0 from there on
        got, wanted = fn(x.to(device)), fn(x)
        pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
        for one, other in pairs:
            agree(one, other, UNARY[name], x)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(device, name):
    fn = getattr(torch, name)
    for x in numbers():
        for y in (x.roll(1), x.roll(7), torch.randn(len(x), dtype=torch.float64)):
            agree(fn(x.to(device), y.to(device)), fn(x, y), BINARY[name], x, y)


@pytest.mark.parametrize("fn", [torch.fmod, torch.remainder])
def test_remainders(device, fn):
    """C's fmod, which is exact; where quotients are large the CPU's vectors give NaN."""
    for x in numbers():
        y = x.roll(3)
        pairs = list(zip(x.tolist(), y.tolist(), strict=True))
        exact = [math.fmod(a, b) if math.isfinite(a) and b else math.nan for a, b in pairs]
        if fn is torch.remainder:
            exact = [r + b if r and (r < 0) != (b < 0) else r for r, (_, b) in zip(exact, pairs, strict=True)]
        agree(fn(x.to(device), y.to(device)), torch.tensor(exact, dtype=torch.float64), 0, x, y)


@pytest.mark.parametrize(
    ("fn", "low", "high", "bound"),
    [
        (torch.erfc, -6, 26, 3),
        (torch.special.erfcx, -4, 26, 20),
        (torch.special.ndtri, 1e-6, 1, 5),
        (torch.special.log_ndtr, -30, 5, 8),
        (torch.special.ndtr, -1, 8, 3),  # below, 1 + erf(x / sqrt(2)) cancels
        (torch.lgamma, 0.1, 40, 4),
        (torch.lgamma, 40, 1e6, 4),
        (torch.digamma, 2, 40, 8),
        (lambda x: torch.polygamma(3, x), 0.2, 20, 12),
        (lambda x: torch.special.zeta(x, torch.full_like(x, 1.5)), 1.1, 10, 8),
    ],
)
def test_special_functions(device, fn: Callable[[torch.Tensor], torch.Tensor], low, high, bound):
    x = torch.rand(COUNT, dtype=torch.float64) * (high - low) + low
    agree(fn(x.to(device)), fn(x), bound, x)


def test_trigamma(device):
    """Against values of mpmath; the CPU's errors are a million units."""
    x = torch.tensor([0.25, 1.0, 2.0, 7.5, 100.0, -0.5], dtype=torch.float64)
    exact = [17.197329154507111, 1.6449340668482264, 0.64493406684822644, 0.1426158966967038, 0.010050166663333571]
    wanted = torch.tensor([*exact, 8.9348022005446793], dtype=torch.float64)
    agree(torch.polygamma(1, x.to(device)), wanted, 8, x)


def test_what_is_composed_of_them(device):
    x = torch.randn(7, 50, dtype=torch.float64)
    labels = torch.arange(7)
    for fn in (
        lambda x: x.softmax(-1), lambda x: x.log_softmax(0), lambda x: x.logsumexp(1), torch.nn.functional.gelu,
        torch.nn.functional.softplus, lambda x: torch.nn.functional.cross_entropy(x, labels.to(x.device)),
        lambda x: x.float().softmax(-1, dtype=torch.float64), lambda x: torch.float_power(x.float().abs(), 2.5),
    ):  # fmt: skip
        own = x.to(device).requires_grad_()
        other = x.clone().requires_grad_()
        got, wanted = fn(own), fn(other)
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-13, atol=1e-14)
        got.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(own.grad.cpu(), other.grad, rtol=1e-6, atol=1e-12)  # some by float32
