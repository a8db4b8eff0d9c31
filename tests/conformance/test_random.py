"""Random operators: seeds reproduce, different seeds differ, and the numbers have the distribution they should have.

Each statistic is compared with its expectation in units of its own standard error: 5 of them are exceeded by chance
once in two million.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from .target import DEVICE

N = 40_000
SIGMAS = 5
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def new(dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    return torch.empty(shape or (N,), dtype=dtype, device=DEVICE)


# name → (draw in a dtype, mean, standard deviation)
DRAWS = {
    "rand": (lambda d: torch.rand(N, dtype=d, device=DEVICE), 0.5, math.sqrt(1 / 12)),
    "rand_like": (lambda d: torch.rand_like(new(d)), 0.5, math.sqrt(1 / 12)),
    "uniform_": (lambda d: new(d).uniform_(-1, 3), 1.0, 4 * math.sqrt(1 / 12)),
    "randn": (lambda d: torch.randn(N, dtype=d, device=DEVICE), 0.0, 1.0),
    "randn_like": (lambda d: torch.randn_like(new(d)), 0.0, 1.0),
    "normal_": (lambda d: new(d).normal_(2, 0.5), 2.0, 0.5),
    "normal": (lambda d: torch.normal(torch.ones(N, dtype=d, device=DEVICE), 2.0), 1.0, 2.0),
    "bernoulli_": (lambda d: new(d).bernoulli_(0.3), 0.3, math.sqrt(0.3 * 0.7)),
    "bernoulli": (lambda d: torch.bernoulli(torch.full((N,), 0.25, dtype=d, device=DEVICE)), 0.25, math.sqrt(0.1875)),
    "exponential_": (lambda d: new(d).exponential_(2.0), 0.5, 0.5),
    "dropout": (lambda d: F.dropout(torch.ones(N, dtype=d, device=DEVICE), 0.2), 1.0, math.sqrt(0.2 / 0.8)),
}
INTEGER_DRAWS = {
    "randint": (lambda d: torch.randint(-3, 8, (N,), dtype=d, device=DEVICE), 2.0, math.sqrt((11**2 - 1) / 12)),
    "random_": (lambda d: new(d).random_(0, 100), 49.5, math.sqrt((100**2 - 1) / 12)),
    "bernoulli_": (lambda d: new(d).bernoulli_(0.5), 0.5, 0.5),
}
CASES = [(name, draw, d) for name, draw in DRAWS.items() for d in FLOATS]
CASES += [(name, draw, d) for name, draw in INTEGER_DRAWS.items() for d in (torch.int64, torch.int32)]


@pytest.mark.parametrize(("name", "draw", "dtype"), CASES, ids=lambda v: v if isinstance(v, str) else str(v)[6:16])
def test_distribution(name, draw, dtype):
    function, mean, std = draw
    torch.manual_seed(0)
    x = function(dtype).cpu().double()
    # Rounding to a half-width dtype may shift the mean by a part of its spacing.
    spacing = torch.finfo(dtype).eps * (abs(mean) + std) if dtype.is_floating_point else 0.0
    assert x.isfinite().all()
    assert abs(x.mean().item() - mean) <= SIGMAS * std / math.sqrt(N) + spacing
    kurtosis = ((x - x.mean()) ** 4).mean().item() / x.var().item() ** 2
    variance_error = std**2 * math.sqrt(max(kurtosis - 1, 0.05) / N)
    assert abs(x.var().item() - std**2) <= SIGMAS * variance_error + 2 * std * spacing
    correlation = torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1].item()
    assert abs(correlation) <= SIGMAS / math.sqrt(N)


@pytest.mark.parametrize("name", DRAWS)
def test_seed(name):
    draw = DRAWS[name][0]
    numbers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        numbers.append((draw(torch.float32).cpu(), draw(torch.float32).cpu()))
    assert torch.equal(numbers[0][0], numbers[1][0])
    assert torch.equal(numbers[0][1], numbers[1][1])
    assert not torch.equal(numbers[0][0], numbers[0][1]), "two draws in a row gave the same numbers"
    assert not torch.equal(numbers[0][0], numbers[2][0]), "two seeds gave the same numbers"


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_excludes_the_upper_end(dtype):
    torch.manual_seed(0)
    x = torch.rand(1 << 20, dtype=dtype, device=DEVICE)
    assert x.min().item() >= 0
    assert x.max().item() < 1


def test_randint_covers_its_range():
    torch.manual_seed(0)
    counts = torch.bincount(torch.randint(0, 10, (N,), device=DEVICE).cpu(), minlength=10).double()
    chi_squared = ((counts - N / 10) ** 2 / (N / 10)).sum().item()
    assert len(counts) == 10
    assert chi_squared < 40  # 9 degrees of freedom: exceeded by chance once in 10⁵


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_randperm_is_a_permutation(n):
    torch.manual_seed(0)
    permutation = torch.randperm(n, device=DEVICE)
    assert permutation.dtype == torch.int64
    assert torch.equal(permutation.cpu().sort().values, torch.arange(n))
    if n > 10:
        assert not torch.equal(permutation.cpu(), torch.randperm(n, device=DEVICE).cpu())


def test_multinomial_follows_the_weights():
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0], device=DEVICE)
    counts = torch.bincount(torch.multinomial(weights, N, replacement=True).cpu(), minlength=4).double() / N
    expected = torch.tensor([0.0, 0.125, 0.25, 0.625], dtype=torch.float64)
    assert ((counts - expected).abs() <= SIGMAS * (expected * (1 - expected) / N).sqrt()).all()
    without = torch.multinomial(weights[1:], 3, replacement=False).cpu()
    assert sorted(without.tolist()) == [0, 1, 2]


def test_dropout_scales_what_it_keeps_and_gradients_alike():
    torch.manual_seed(0)
    x = torch.rand(N, device=DEVICE).add_(0.5).requires_grad_()
    y = F.dropout(x, 0.25)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y.cpu() != 0
    torch.testing.assert_close(y.detach().cpu()[kept], x.detach().cpu()[kept] / 0.75)
    torch.testing.assert_close(grad.cpu(), kept.float() / 0.75)
    assert torch.equal(F.dropout(x, 0.25, training=False).cpu(), x.cpu())
