"""Random numbers: the generator against its reference, distributions against their own moments, seeds and states."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn import functional as F

N = 20_000


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1234)


@pytest.fixture
def no_fallback(device: torch.device) -> Iterator[None]:
    before = dict(torch.webgpu.fallback_stats()) if device.type == "webgpu" else {}
    yield
    after = torch.webgpu.fallback_stats() if device.type == "webgpu" else {}
    assert {op: n for op, n in after.items() if n != before.get(op)} == {}


# The generator --------------------------------------------------------------------------------------------------------


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 in Python integers, from the paper."""
    c, k, mask = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


# From kat_vectors of Random123 (https://github.com/DEShawResearch/random123): counter, key, output.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize("arithmetic", ["native", "emulated"])
def test_known_answers(case: int, arithmetic: str) -> None:
    from tests.device.wgsl.wgsl_runner import EMULATED, NATIVE, kernel_over, run_kernel, supported

    from torch_webgpu.wgsl.kernel import Binding

    counter, key, want = KNOWN_ANSWERS[case]
    assert philox(counter, key) == want
    target = NATIVE if arithmetic == "native" else EMULATED
    if not supported(target):
        pytest.skip("the adapter lacks a feature of the native dialect")
    store = """
        let r = philox(vec4<u32>(x_load(0u), x_load(1u), x_load(2u), x_load(3u)), vec2<u32>(x_load(4u), x_load(5u)));
        y_store(0u, r.x); y_store(1u, r.y); y_store(2u, r.z); y_store(3u, r.w);"""
    kernel = kernel_over(store, Binding("x", "u32"), Binding("y", "u32", "read_write"))
    inputs = [np.array(counter + key, np.uint32), np.zeros(4, np.uint32)]
    (got,) = run_kernel(kernel, inputs, 1, target, params=np.array([1], np.uint32).tobytes())
    assert got.view(np.uint32).tolist() == want


def test_stream_is_the_same_everywhere(device: torch.device) -> None:
    """Element i of the n-th fill is lane i % 4 of block offset + i / 4, under the seed: no adapter decides anything."""
    if device.type != "webgpu":
        pytest.skip("about this backend's streams")
    seed = 0x1234567890ABCDEF
    generator = torch.Generator(device=device).manual_seed(seed)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    torch.empty(7, device=device).uniform_(generator=generator)  # takes blocks 0 and 1
    got = torch.empty(10, device=device).uniform_(generator=generator).tolist()
    bits = [lane for block in (2, 3, 4) for lane in philox([block, 0, 0, 0], key)][:10]
    assert got == [(b >> 8) * 2.0**-24 for b in bits]
    generator.manual_seed(seed)
    integers = torch.empty(5, dtype=torch.int64, device=device).random_(0, 1000, generator=generator).tolist()
    assert integers == [b % 1000 for block in (0, 1) for b in philox([block, 0, 0, 0], key)][:5]
    half = torch.empty(4, dtype=torch.bfloat16, device=device)
    assert half.uniform_(generator=generator.manual_seed(seed)).tolist() == [
        (b >> 24) * 2.0**-8 for b in philox([0, 0, 0, 0], key)
    ]


def test_offsets_carry_into_the_high_word(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about this backend's streams")
    generator = torch.Generator(device=device).manual_seed(7)
    generator.set_offset(2**32 - 1)
    got = torch.empty(8, device=device).uniform_(generator=generator).tolist()
    bits = philox([2**32 - 1, 0, 0, 0], [7, 0]) + philox([0, 1, 0, 0], [7, 0])
    assert got == [(b >> 8) * 2.0**-24 for b in bits]


def test_strided_targets_get_the_same_numbers(device: torch.device) -> None:
    def fill(x: torch.Tensor) -> list[Any]:
        torch.manual_seed(3)
        return x.uniform_().tolist()

    want = fill(torch.empty(6, 5, device=device))
    assert fill(torch.empty(5, 6, device=device).t()) == want
    assert fill(torch.empty(6, 10, device=device)[:, ::2]) == want
    halves = torch.zeros(6, 10, dtype=torch.bfloat16, device=device)
    torch.manual_seed(3)
    contiguous = torch.empty(6, 5, dtype=torch.bfloat16, device=device).normal_()
    torch.manual_seed(3)
    assert torch.equal(halves[:, 1::2].normal_().cpu(), contiguous.cpu())
    assert halves[:, ::2].count_nonzero().item() == 0
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(1, device=device).expand(3).uniform_()


# Distributions --------------------------------------------------------------------------------------------------------

CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any]] = {
    "uniform": (lambda x: x.uniform_(), scipy.stats.uniform()),
    "uniform range": (lambda x: x.uniform_(-3, 5), scipy.stats.uniform(-3, 8)),
    "normal": (lambda x: x.normal_(), scipy.stats.norm()),
    "normal scaled": (lambda x: x.normal_(2, 0.5), scipy.stats.norm(2, 0.5)),
    "exponential": (lambda x: x.exponential_(2.0), scipy.stats.expon(scale=0.5)),
    "cauchy": (lambda x: x.cauchy_(1, 2), scipy.stats.cauchy(1, 2)),
    "log_normal": (lambda x: x.log_normal_(0.5, 0.25), scipy.stats.lognorm(0.25, scale=np.exp(0.5))),
    "gamma 0.3": (lambda x: torch._standard_gamma(torch.full_like(x, 0.3)), scipy.stats.gamma(0.3)),
    "gamma 1": (lambda x: torch._standard_gamma(torch.full_like(x, 1.0)), scipy.stats.gamma(1)),
    "gamma 7.5": (lambda x: torch._standard_gamma(torch.full_like(x, 7.5)), scipy.stats.gamma(7.5)),
    "gamma 1000": (lambda x: torch._standard_gamma(torch.full_like(x, 1000.0)), scipy.stats.gamma(1000)),
    "dirichlet": (
        lambda x: torch._sample_dirichlet(torch.tensor([2.0, 3.0, 1.0], device=x.device).expand(len(x), 3))[:, 0],
        scipy.stats.beta(2, 4),
    ),
    "normal tensors": (
        lambda x: torch.normal(torch.full_like(x, 3), torch.full_like(x, 2)),
        scipy.stats.norm(3, 2),
    ),
    "normal mean": (lambda x: torch.normal(torch.full_like(x, 3), 0.5), scipy.stats.norm(3, 0.5)),
    "normal std": (lambda x: torch.normal(-1.0, torch.full_like(x, 2)), scipy.stats.norm(-1, 2)),
    "normal of deviation 1": (lambda x: torch.normal(torch.full_like(x, 3)), scipy.stats.norm(3, 1)),
    "normal out": (
        lambda x: torch.normal(torch.full_like(x, 3), 1.0, out=torch.empty_like(x)),
        scipy.stats.norm(3, 1),
    ),
}
DISCRETE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any]] = {
    "geometric": (lambda x: x.geometric_(0.3), scipy.stats.geom(0.3)),
    "bernoulli": (lambda x: x.bernoulli_(0.3), scipy.stats.bernoulli(0.3)),
    "bernoulli tensor": (lambda x: x.bernoulli_(torch.full_like(x, 0.7)), scipy.stats.bernoulli(0.7)),
    "bernoulli of": (lambda x: torch.full_like(x, 0.2).bernoulli(), scipy.stats.bernoulli(0.2)),
    "poisson 0.5": (lambda x: torch.poisson(torch.full_like(x, 0.5)), scipy.stats.poisson(0.5)),
    "poisson 9": (lambda x: torch.poisson(torch.full_like(x, 9)), scipy.stats.poisson(9)),
    "poisson 10": (lambda x: torch.poisson(torch.full_like(x, 10)), scipy.stats.poisson(10)),
    "poisson 300": (lambda x: torch.poisson(torch.full_like(x, 300)), scipy.stats.poisson(300)),
    "poisson 1e6": (lambda x: torch.poisson(torch.full_like(x, 1e6)), scipy.stats.poisson(1e6)),
    "binomial few": (lambda x: binomial(x, 12, 0.2), scipy.stats.binom(12, 0.2)),
    "binomial many": (lambda x: binomial(x, 200, 0.3), scipy.stats.binom(200, 0.3)),
    "binomial likely": (lambda x: binomial(x, 100, 0.9), scipy.stats.binom(100, 0.9)),
    "binomial huge": (lambda x: binomial(x, 100_000, 0.5), scipy.stats.binom(100_000, 0.5)),
    "randint": (lambda x: torch.randint(-3, 8, x.shape, device=x.device), scipy.stats.randint(-3, 8)),
    "random_": (lambda x: x.random_(100), scipy.stats.randint(0, 100)),
    "multinomial": (
        lambda x: torch.multinomial(torch.tensor([1.0, 0, 3], device=x.device), len(x), replacement=True),
        scipy.stats.rv_discrete(values=([0, 1, 2], [0.25, 0, 0.75])),
    ),
    "multinomial rows": (
        lambda x: torch.multinomial(torch.tensor([1.0, 0, 3], device=x.device).expand(len(x), 3), 1)[:, 0],
        scipy.stats.rv_discrete(values=([0, 1, 2], [0.25, 0, 0.75])),
    ),
}


def binomial(x: torch.Tensor, n: int, p: float) -> torch.Tensor:
    return torch.binomial(torch.full_like(x, n), torch.full_like(x, p))


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, device: torch.device) -> None:
    sample, distribution = CONTINUOUS[name]
    values = sample(torch.empty(N, device=device)).cpu().double().numpy()
    assert scipy.stats.kstest(values, distribution.cdf).pvalue > 1e-4


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str, device: torch.device) -> None:
    sample, distribution = DISCRETE[name]
    values = sample(torch.empty(N, device=device)).cpu().double().numpy()
    assert np.array_equal(values, np.round(values))
    # The largest gap between the distribution functions, by the bound of Dvoretzky, Kiefer and Wolfowitz.
    points = np.unique(values)
    empirical = np.searchsorted(np.sort(values), points, side="right") / N
    assert np.abs(empirical - distribution.cdf(points)).max() < np.sqrt(np.log(2 / 1e-5) / (2 * N))
    assert (distribution.pmf(points) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_other_floating_types(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(N, dtype=dtype, device=device).cpu()
    parts = torch.view_as_real(x).flatten() * 2**0.5 if dtype.is_complex else x
    assert scipy.stats.kstest(parts.double().numpy(), scipy.stats.norm.cdf).pvalue > 1e-4 or dtype == torch.bfloat16
    assert abs(parts.double().mean().item()) < 0.04
    u = torch.rand(N, dtype=dtype, device=device).cpu()
    parts = (torch.view_as_real(u).flatten() if dtype.is_complex else u).double()
    assert 0 <= parts.min().item() < 0.01
    assert 0.98 < parts.max().item() < 1
    assert abs(parts.mean().item() - 0.5) < 0.012
    if not dtype.is_complex:
        assert torch.empty(100, dtype=dtype, device=device).exponential_().min().item() > 0
        assert torch.poisson(torch.full((100,), 4.0, dtype=dtype, device=device)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_uniform_never_reaches_its_end(dtype: torch.dtype, device: torch.device) -> None:
    for low, high in ((0, 1), (0.1, 0.3), (-1e-3, 1e-3), (100, 100.5), (-5, 0), (2, 2)):
        x = torch.empty(N, dtype=dtype, device=device).uniform_(low, high).cpu()
        assert x.min() >= torch.tensor(low, dtype=dtype)
        assert (x.double() < high).all() or low == high or torch.tensor(low, dtype=dtype).item() >= high


@pytest.mark.float64
def test_double_uniforms_use_all_their_bits(device: torch.device) -> None:
    x = torch.rand(N, dtype=torch.float64, device=device).cpu()
    assert (x * 2**53 == (x * 2**53).floor()).all()
    assert (x * 2**30 != (x * 2**30).floor()).any()
    assert scipy.stats.kstest(x.numpy(), scipy.stats.uniform.cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32], ids=str
)
def test_default_integers_span_their_type(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.empty(N, dtype=dtype, device=device).random_().cpu().double()
    largest = 1 if dtype == torch.bool else 2.0**24 if dtype == torch.float32 else torch.iinfo(dtype).max
    assert x.min().item() >= 0
    assert largest * 0.98 <= x.max().item() <= largest
    assert abs(x.mean().item() / largest - 0.5) < 0.02


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 2**31), (-(2**31), 2**31), (-(2**40), 2**40), (-(2**63), 2**63 - 1), (0, 2**63 - 1), (5, 6),
        (-(2**63), 42), (-(2**63), 0), (-(2**62), 2**63 - 1), (-(2**63), 2**62), (-1, 2**63 - 1),
    ],
)  # fmt: skip
def test_wide_integer_ranges(low: int, high: int, device: torch.device) -> None:
    x = torch.empty(N, dtype=torch.int64, device=device).random_(low, high).cpu()
    assert int(x.min()) >= low
    assert int(x.max()) < high
    # What 64 bits leave when they are divided by the span, as PyTorch takes it: the first numbers come twice as often.
    span = high - low
    twice = 2**64 - span if span > 2**63 else 0
    mean = (twice * twice + (span - twice) * (span + twice) / 2) / (span + twice) - 0.5
    assert abs((x.double().mean().item() - low - mean) / span) < 0.02


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32], ids=str
)
def test_integers_without_an_end_go_up_to_the_last_without_gaps(dtype: torch.dtype, device: torch.device) -> None:
    low = 3 if dtype == torch.uint8 else -100
    seen = [torch.empty(N, dtype=dtype, device=where).random_(low, None).cpu().double() for where in (device, "cpu")]
    largest = 2 ** {torch.float16: 11, torch.float32: 24}[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max
    for x in seen:
        assert x.min().item() >= low
        assert x.max().item() <= float(largest)
        assert abs((x.mean().item() - (low + largest) / 2) / (largest - low)) < 0.02


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float16, -5, 2**15), (torch.float32, 0, 2**25), (torch.bfloat16, -300, 4), (torch.float16, 0, 70000),
        (torch.uint8, -1, 4), (torch.bool, 0, 3), (torch.int16, 0, 40000), (torch.float32, 7, 7),
        (torch.complex64, 0, 3), (torch.float32, -(2**63), None),
    ],
)  # fmt: skip
def test_integer_bounds_are_refused_and_warned_of_as_on_the_cpu(dtype, low, high, device: torch.device) -> None:
    def said(where: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                torch.empty(2, dtype=dtype, device=where).random_(low, high)
            except RuntimeError as error:
                return [str(error)]
        return [str(w.message).split("(Triggered")[0] for w in caught]

    assert said(device) == said("cpu")


def test_integer_bounds(device: torch.device) -> None:
    for dtype, low, high in ((torch.uint8, 0, 300), (torch.int8, -200, 0), (torch.bool, 0, 3), (torch.int32, 0, 2**40)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.randint(low, high, (3,), dtype=dtype, device=device)
    x = torch.randint(0, 4999, (N,), dtype=torch.float16, device=device)
    assert x.max().item() <= 4998
    with pytest.raises(RuntimeError, match="'from' to be less than 'to'"):
        torch.empty(3, device=device).random_(5, 5)


def test_parameters_do_not_compile_anew(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about this backend's pipelines")
    x = torch.empty(10, device=device)
    x.uniform_(1, 2)
    torch.randint(3, 9, (10,), device=device).cpu()
    before = torch.webgpu.memory_stats()["pipelines"]
    for k in range(5):
        x.uniform_(k, k + 1.5)
        torch.randint(k, 100 + k, (10,), device=device).cpu()
    assert torch.webgpu.memory_stats()["pipelines"] == before


# Permutations, choices, dropout ---------------------------------------------------------------------------------------


def test_permutations(device: torch.device) -> None:
    for n in (0, 1, 5, 1000):
        assert torch.randperm(n, device=device).sort().values.tolist() == list(range(n))
    firsts = torch.stack([torch.randperm(4, device=device) for _ in range(400)])[:, 0].bincount(minlength=4)
    assert firsts.min().item() > 60
    assert torch.randperm(5, dtype=torch.int32, device=device).dtype == torch.int32
    out = torch.empty(0, dtype=torch.int16, device=device)
    assert torch.randperm(6, out=out).shape == (6,)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.randperm(300, dtype=torch.uint8, device=device)
    assert torch.randperm(256, dtype=torch.uint8, device=device).long().bincount().tolist() == [1] * 256
    with pytest.raises(RuntimeError, match="greater than 2049"):
        torch.randperm(2050, dtype=torch.float16, device=device)
    with pytest.raises(RuntimeError):
        torch.randperm(-1, device=device)


def test_choices_without_replacement(device: torch.device) -> None:
    weights = torch.tensor([[0.0, 1, 2, 3], [1, 1, 1, 1]], device=device)
    x = torch.multinomial(weights, 3).cpu()
    assert sorted(x[0].tolist()) == [1, 2, 3]
    assert len(set(x[1].tolist())) == 3
    for bad, message in (
        ([-1.0, 2], "element < 0"),
        ([float("nan"), 1], "nan"),
        ([0.0, 0], "sum of probabilities <= 0"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.multinomial(torch.tensor(bad, device=device), 1).cpu()
    with pytest.raises(RuntimeError, match="cannot sample"):
        torch.multinomial(torch.ones(2, device=device), 3)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dropout(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(N, dtype=dtype, device=device, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02
    assert y.max().item() == torch.tensor(4 / 3, dtype=dtype).item()
    assert F.dropout(x, 0.5, training=False) is x or torch.equal(F.dropout(x, 0.5, training=False).cpu(), x.cpu())
    assert F.dropout(x, 1.0).count_nonzero().item() == 0
    assert torch.equal(F.dropout(x, 0.0).cpu(), x.detach().cpu())
    out, mask = torch._fused_dropout(x.detach(), 0.75)
    assert mask.dtype == torch.uint8
    assert torch.equal((out != 0).cpu(), mask.bool().cpu())


@pytest.mark.usefixtures("no_fallback")
def test_other_dropouts(device: torch.device) -> None:
    x = torch.ones(64, 32, 5, 5, device=device)
    channels = F.dropout2d(x, 0.5).cpu()
    assert ((channels == 0).all((2, 3)) | (channels == 2).all((2, 3))).all()
    assert 0.4 < (channels[..., 0, 0] != 0).float().mean() < 0.6
    assert F.dropout1d(x[0], 0.5).shape == (32, 5, 5)
    assert F.dropout3d(x[:, :, None], 0.5).shape == (64, 32, 1, 5, 5)
    z = torch.randn(N, device=device)
    for alpha in (F.alpha_dropout(z, 0.3, training=True), F.feature_alpha_dropout(z.view(-1, 4), 0.3, training=True)):
        assert abs(alpha.mean().item()) < 0.1
        assert abs(alpha.std().item() - 1) < 0.1
    y = F.rrelu(torch.full((N,), -2.0, device=device), 0.1, 0.3, training=True)
    assert abs(y.mean().item() + 0.4) < 0.01
    assert y.min().item() >= -0.6
    assert y.max().item() <= -0.2


def test_invalid_parameters(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    for make in (
        lambda: x.uniform_(1, 0),
        lambda: x.normal_(0, -1),
        lambda: x.exponential_(0),
        lambda: x.geometric_(0),
        lambda: x.cauchy_(0, 0),
        lambda: x.log_normal_(0, 0),
        lambda: x.bernoulli_(1.5),
        lambda: torch.normal(x, x - 1),
        lambda: torch.normal(x, -1.0),
        lambda: torch.normal(x, torch.ones(2, device=device)),
    ):
        with pytest.raises(RuntimeError):
            make()
    for dtype, low, high in (
        (torch.float16, 0, 1e6),
        (torch.float32, -3e38, 3e38),
        (torch.bfloat16, -1e39, 0),
        (torch.float32, 2, 1),
    ):
        with pytest.raises(RuntimeError) as on_cpu:
            torch.empty(2, dtype=dtype).uniform_(low, high)
        with pytest.raises(RuntimeError, match=re.escape(str(on_cpu.value))):
            torch.empty(2, dtype=dtype, device=device).uniform_(low, high)
    with pytest.raises(NotImplementedError, match="uniform_"):
        torch.zeros(3, dtype=torch.int64, device=device).uniform_()
    with pytest.raises(NotImplementedError, match=r"normal.* not implemented for 'Long'"):
        torch.normal(x, 1.0, out=torch.zeros(3, dtype=torch.int64, device=device))
    assert torch.poisson(torch.tensor([-1.0, float("nan"), 0.0], device=device)).isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradient_of_gamma_samples(dtype: torch.dtype, device: torch.device) -> None:
    shapes = torch.cat([torch.linspace(low, high, 500) for low, high in ((0.01, 1), (1, 8), (8.5, 100))]).to(dtype)
    samples = torch.distributions.Gamma(shapes.double(), 1).sample().to(dtype)
    before = torch.webgpu.fallback_stats()
    got = torch._standard_gamma_grad(shapes.to(device), samples.to(device)).cpu()
    want = torch._standard_gamma_grad(shapes.double(), samples.double()).to(dtype)
    torch.testing.assert_close(got, want, rtol={torch.float32: 2e-3}.get(dtype, 1e-2), atol=1e-5)
    assert torch.webgpu.fallback_stats() == before
