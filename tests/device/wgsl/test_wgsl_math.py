"""The float and complex functions of the WGSL library against SciPy and PyTorch in double precision.

Each row names the bound on the relative error, measured on the software adapter and rounded up. Where the function has
zeros that are no special points, errors below ``floor`` in magnitude count as relative to ``floor``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.special as sp
import torch
from tests.device.wgsl.wgsl_runner import EMULATED, NATIVE, call, supported

from torch_webgpu.target import Target

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1.2e-38, 3.4e38, -3.4e38, 0.5, -0.5, 2.0, -2.0], np.float32
)
SMALLEST_NORMAL = 1.2e-38


def dense(low: float, high: float, count: int = 20_000) -> np.ndarray:
    return np.linspace(low, high, count).astype(np.float32)


def every_magnitude(count: int = 20_000) -> np.ndarray:
    """Random normal numbers of every exponent and both signs."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values) & (np.abs(values) >= SMALLEST_NORMAL)]


@dataclass(frozen=True)
class Unary:
    """``exact`` maps float64 to float64; ``ranges`` are where it is looked at closely, beside every magnitude."""

    name: str
    exact: Callable[[np.ndarray], np.ndarray]
    bound: float
    ranges: tuple[tuple[float, float], ...]
    floor: float = 0.0
    everywhere: bool = True

    def __str__(self) -> str:
        return self.name


def double(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: function(torch.from_numpy(values)).numpy()


def rounded_sinc(x: np.ndarray) -> np.ndarray:
    """As CPU PyTorch: the product with pi is rounded before its sine is taken."""
    product = (x.astype(np.float32) * np.float32(np.pi)).astype(np.float64)
    return np.where(product == 0, 1.0, np.sin(product) / np.where(product == 0, 1.0, product))


UNARY = (
    Unary("exp", np.exp, 2e-7, ((-105, 90), (-1, 1))),
    Unary("exp2", np.exp2, 2e-7, ((-151, 130), (-1, 1))),
    Unary("expm1", np.expm1, 2e-7, ((-20, 90), (-1, 1))),
    Unary("sigmoid", sp.expit, 3e-7, ((-90, 20),)),
    Unary("log", np.log, 2e-7, ((0, 4), (0.9, 1.1))),
    Unary("log2", np.log2, 2e-7, ((0, 4), (0.9, 1.1))),
    Unary("log10", np.log10, 2e-7, ((0, 4), (0.9, 1.1))),
    Unary("log1p", np.log1p, 3e-7, ((-1, 3), (-0.1, 0.1))),
    Unary("sin", np.sin, 3e-7, ((-10, 10), (-9000, 9000), (1e5, 1e8))),
    Unary("cos", np.cos, 3e-7, ((-10, 10), (-9000, 9000), (1e5, 1e8))),
    Unary("tan", np.tan, 4e-7, ((-10, 10), (-9000, 9000), (1e5, 1e8))),
    Unary("asin", np.arcsin, 4e-7, ((-1.01, 1.01),)),
    Unary("acos", np.arccos, 4e-7, ((-1.01, 1.01),)),
    Unary("atan", np.arctan, 3e-7, ((-5, 5),)),
    Unary("sinh", np.sinh, 3e-7, ((-90, 90), (-1, 1))),
    Unary("cosh", np.cosh, 3e-7, ((-90, 90), (-1, 1))),
    Unary("tanh", np.tanh, 3e-7, ((-10, 10),)),
    Unary("asinh", np.arcsinh, 3e-7, ((-5, 5),)),
    Unary("acosh", np.arccosh, 4e-7, ((0.9, 10),)),
    Unary("atanh", np.arctanh, 4e-7, ((-1.01, 1.01),)),
    # Of less than 9e-38 the part that is added is denormal, which WGSL lets an adapter flush; SwiftShader does.
    Unary("erf", sp.erf, 2e-7, ((-5, 5),), floor=SMALLEST_NORMAL / 2e-7),
    Unary("erfc", sp.erfc, 5e-7, ((-5, 10),)),
    Unary("erfcx", sp.erfcx, 6e-7, ((-9.3, 60),), everywhere=False),
    Unary("erfinv", sp.erfinv, 5e-7, ((-1.01, 1.01),)),
    Unary("ndtr", sp.ndtr, 2e-5, ((-13, 10),)),
    Unary("log_ndtr", sp.log_ndtr, 2e-6, ((-30, 4),), everywhere=False),
    Unary("ndtri", sp.ndtri, 1e-6, ((0, 1), (1e-30, 1e-3))),
    Unary("lgamma", sp.gammaln, 4e-7, ((0, 20), (0.9, 2.1)), everywhere=False),
    Unary("lgamma", sp.gammaln, 1e-5, ((-9.7, 0),), floor=0.1, everywhere=False),
    Unary("digamma", sp.digamma, 1e-5, ((0.01, 100), (-3.9, -3.1)), floor=0.1, everywhere=False),
    Unary("trigamma", double(lambda x: torch.special.polygamma(1, x)), 2e-6, ((-9.9, 30),), everywhere=False),
    Unary("sinc", rounded_sinc, 6e-7, ((-30, 30),), floor=1e-3, everywhere=False),
    Unary("i0", sp.i0, 5e-7, ((-88, 88),), everywhere=False),
    Unary("i0e", sp.i0e, 5e-7, ((-20, 20),)),
    Unary("i1", sp.i1, 5e-7, ((-88, 88),), everywhere=False),
    Unary("i1e", sp.i1e, 5e-7, ((-20, 20),)),
    Unary("modified_bessel_i0", sp.i0, 5e-7, ((-20, 20),), everywhere=False),
    Unary("modified_bessel_i1", sp.i1, 5e-7, ((-20, 20),), everywhere=False),
    Unary("modified_bessel_k0", sp.k0, 1e-6, ((-1, 80),)),
    Unary("modified_bessel_k1", sp.k1, 1e-6, ((-1, 80),)),
    Unary("scaled_modified_bessel_k0", sp.k0e, 1e-6, ((-1, 80),)),
    Unary("scaled_modified_bessel_k1", sp.k1e, 1e-6, ((-1, 80),)),
    Unary("bessel_j0", sp.j0, 2e-6, ((-100, 100),), floor=0.1, everywhere=False),
    Unary("bessel_j1", sp.j1, 2e-6, ((-100, 100),), floor=0.1, everywhere=False),
    Unary("bessel_y0", sp.y0, 6e-6, ((-1, 100),), floor=0.1, everywhere=False),
    Unary("bessel_y1", sp.y1, 6e-6, ((-1, 100),), floor=0.1, everywhere=False),
    Unary("spherical_bessel_j0", lambda x: sp.spherical_jn(0, x), 4e-7, ((-30, 30),), floor=0.05, everywhere=False),
    Unary("airy_ai", lambda x: sp.airy(x)[0], 2e-5, ((-10, 12),), floor=0.05, everywhere=False),
    Unary("round_half_even", np.round, 0, ((-5, 5), (8e6, 9e6))),
    Unary("trunc", np.trunc, 0, ((-5, 5), (8e6, 9e6))),
    Unary("frexp_mantissa", lambda x: np.frexp(x)[0], 0, ((-5, 5),)),
)


def assert_close(got: np.ndarray, exact: np.ndarray, bound: float, floor: float, *operands: np.ndarray) -> None:
    """Relative errors within the bound; infinities and NaN where a correctly rounded result has them."""
    got = got.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
        scale = np.maximum(np.abs(exact), max(floor, SMALLEST_NORMAL))
        error = np.where(np.isfinite(rounded), np.abs(got - exact) / scale, 0.0)
        wrong = np.where(
            np.isfinite(rounded), ~(error <= bound), (got != rounded) & ~(np.isnan(got) & np.isnan(rounded))
        )
        # Results that round to a denormal may be flushed, and ones at the overflow threshold may go either way.
        wrong &= ~((np.abs(exact) < SMALLEST_NORMAL) & (np.abs(got) < 2 * SMALLEST_NORMAL))
        wrong &= ~((np.abs(exact) > 3.4028e38) & (np.abs(got) > 3.4028e38))
    worst = [(*(float(operand[k]) for operand in operands), got[k], exact[k]) for k in np.flatnonzero(wrong)[:5]]
    assert not wrong.any(), f"{wrong.sum()} wrong (largest error {np.nanmax(error):.2e}), e.g. {worst}"


@pytest.mark.parametrize("case", UNARY, ids=lambda case: f"{case.name}-{case.ranges[0][0]}")
def test_unary(case: Unary) -> None:
    close = np.concatenate([dense(*limits) for limits in case.ranges])
    values = np.concatenate([SPECIAL, every_magnitude(), close]) if case.everywhere else close
    with np.errstate(all="ignore"):
        exact = case.exact(values.astype(np.float64))
    assert_close(call(f"{case.name}_f", values), exact, case.bound, case.floor, values)


def every_pair() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, of magnitudes, and a dense grid."""
    left = [np.repeat(SPECIAL, len(SPECIAL)), every_magnitude()[:8000], dense(-10, 10)]
    right = [np.tile(SPECIAL, len(SPECIAL)), every_magnitude()[::-1][:8000], dense(-3, 3)[::-1]]
    return np.concatenate(left), np.concatenate(right)


# What is exact in float32 too. PyTorch's own fmod gives up (NaN) where the quotient does not fit.
EXACT = {
    "fmod": np.fmod,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "min": np.minimum,
    "max": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_binary(name: str) -> None:
    a, b = every_pair()
    with np.errstate(all="ignore"):
        expected = EXACT[name](a, b)
    got = call(f"{name}_f", a, b)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if name == "nextafter":  # its denormal results are bits that nothing computed with
        same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    worst = [(a[k], b[k], got[k], expected[k]) for k in np.flatnonzero(~same)[:5]]
    assert same.all(), f"{(~same).sum()} differ, e.g. {worst}"


@pytest.mark.parametrize("name", ["remainder", "floor_divide"])
def test_python_division(name: str) -> None:
    special = SPECIAL[np.abs(SPECIAL) != SPECIAL[7]]  # whose remainders are denormals
    a, b = np.concatenate([dense(-100, 100), special]), np.concatenate([dense(-3, 3)[::-1], special[::-1]])
    expected = getattr(torch, name)(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(call(f"{name}_f", a, b), expected)


@pytest.mark.parametrize(
    ("name", "exact", "bound"),
    [("pow", np.power, 2e-7), ("atan2", np.arctan2, 4e-7), ("hypot", np.hypot, 4e-7), ("quotient", np.divide, 4e-7)],
)
def test_binary(name: str, exact: Callable[..., np.ndarray], bound: float) -> None:
    a, b = every_pair()
    with np.errstate(all="ignore"):
        assert_close(call(f"{name}_f", a, b), exact(a.astype(np.float64), b.astype(np.float64)), bound, 0.0, a, b)


def test_division_rounds_to_nearest() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(-100, 100, 1 << 16).astype(np.float32) for _ in range(2))
    b[:1000], a[:1000] = np.arange(1, 1001), np.arange(1, 1001) * rng.integers(1, 1000, 1000)
    np.testing.assert_array_equal(call("div_f", a, b), a / b)
    np.testing.assert_array_equal(call("trunc_divide_f", a, b), np.trunc(a / b))


def test_pow_of_large_exponents_and_negative_bases() -> None:
    near_one, large = dense(0.9, 1.1), dense(-900, 900)
    assert_close(
        call("pow_f", near_one, large), near_one.astype(float) ** large.astype(float), 2e-7, 0.0, near_one, large
    )
    base, whole = dense(-20, 20), np.round(dense(-20, 20)[::-1])
    assert_close(call("pow_f", base, whole), np.power(base.astype(float), whole.astype(float)), 2e-7, 0.0, base, whole)


def test_sign_of_zero() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    for name in [
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "tanh",
        "asinh",
        "atanh",
        "expm1",
        "log1p",
        "erf",
        "round_half_even",
        "trunc",
    ]:
        np.testing.assert_array_equal(np.signbit(call(f"{name}_f", zeros)), [False, True], err_msg=name)


def test_bit_predicates() -> None:
    values = np.concatenate([SPECIAL, every_magnitude()])
    checks = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit}
    for name, exact in checks.items():
        np.testing.assert_array_equal(call(f"{name}_f", values, result="bool"), exact(values), err_msg=name)
    exponents = call("frexp_exponent_f", values, result="i32")
    np.testing.assert_array_equal(exponents, torch.frexp(torch.from_numpy(values))[1])


POLYNOMIALS = [
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str) -> None:
    x = np.concatenate([np.tile(np.array([0, 1, -1, 0.5], np.float32), 4), dense(-1.2, 1.2, 4000)])
    degrees = np.random.default_rng(0).integers(-1, 14, 4000).astype(np.float32)
    n = np.concatenate([np.repeat(np.array([-1, 0, 3, 10], np.float32), 4), degrees])
    exact = getattr(torch.special, name)(torch.from_numpy(x).double(), torch.from_numpy(n).double()).numpy()
    assert_close(call(f"{name}_f", x, n), exact, 1e-4, 1.0, x, n)


@pytest.mark.parametrize("largest", [3, 30, 150, 1000, 1e5])
@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma(name: str, largest: float) -> None:
    rng = np.random.default_rng(1)
    a = rng.uniform(0, largest, 4000).astype(np.float32)
    x = (a * rng.uniform(0, 3, 4000)).astype(np.float32)
    edges = np.array([0.0, 1.0, np.inf, np.nan, -1.0], np.float32)
    a, x = np.concatenate([np.repeat(edges, 5), a]), np.concatenate([np.tile(edges, 5), x])
    exact = getattr(torch, name)(torch.from_numpy(a).double(), torch.from_numpy(x).double()).numpy()
    assert_close(call(f"{name}_f", a, x), exact, 1e-4, 1e-2, a, x)


def test_zeta_and_polygamma() -> None:
    x, q = dense(1.01, 25, 4000), dense(0.1, 30, 4000)[::-1]
    exact = torch.special.zeta(torch.from_numpy(x).double(), torch.from_numpy(q.copy()).double()).numpy()
    assert_close(call("zeta_f", x, q), exact, 2e-6, 0.0, x, q)
    for n in (0, 1, 2, 3, 6):
        order, x = np.full(4000, n, np.float32), dense(0.1, 20, 4000)
        exact = torch.special.polygamma(n, torch.from_numpy(x).double()).numpy()
        assert_close(call("polygamma_f", order, x), exact, 1e-5, 0.1 if n == 0 else 0.0, order, x)


COMPLEX_UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "sigmoid",
    "reciprocal",
    "sgn",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
]


def complex_values() -> np.ndarray:
    rng = np.random.default_rng(5)
    plane = rng.standard_normal(6000) + 1j * rng.standard_normal(6000)
    circle = np.exp(2j * np.pi * rng.random(1000))
    return np.concatenate([plane * 10.0 ** rng.uniform(-3, 1, 6000), circle]).astype(np.complex64)


def on_the_axes() -> np.ndarray:
    """Both sides of every branch cut: pairs whose zeros have signs."""
    parts = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0], np.float32)
    return np.stack([np.repeat(parts, len(parts)), np.tile(parts, len(parts))], 1).view(np.complex64).ravel()


@pytest.mark.parametrize("name", COMPLEX_UNARY)
def test_complex_unary(name: str) -> None:
    values = complex_values()
    function = getattr(torch, name)
    exact = function(torch.from_numpy(values.astype(np.complex128))).numpy()
    got = call(f"c_{name}", values, result="c64")
    assert np.max(np.abs(got - exact) / np.abs(exact)) < 1e-5
    axes = on_the_axes()
    expected = torch.view_as_real(function(torch.from_numpy(axes))).numpy()
    got = call(f"c_{name}", axes, result="c64").view(np.float32).reshape(-1, 2)
    close = np.isclose(got, expected, rtol=3e-6, atol=2e-7, equal_nan=True)
    worst = [(axes[k], got[k], expected[k]) for k in np.flatnonzero(~close.all(1))[:5]]
    assert close.all(), worst


def test_complex_binary() -> None:
    a = complex_values()
    b = a[::-1].copy()
    wide_a, wide_b = a.astype(np.complex128), b.astype(np.complex128)
    power = (b / np.maximum(1, np.abs(b) / 5)).astype(np.complex64)
    for name, got, exact in (
        ("mul", call("c_mul", a, b, result="c64"), wide_a * wide_b),
        ("div", call("c_div", a, b, result="c64"), wide_a / wide_b),
        ("pow", call("c_pow", a, power, result="c64"), wide_a**power),
        ("abs", call("c_abs", a), np.abs(wide_a)),
        ("angle", call("c_angle", a), np.angle(wide_a)),
    ):
        assert np.max(np.abs(got - exact) / np.abs(exact)) < 1e-5, name


@pytest.mark.parametrize("target", [NATIVE, EMULATED], ids=["native", "emulated"])
def test_philox(target: Target) -> None:
    """The known answer of the Random123 distribution."""
    if not supported(target):
        pytest.skip("the adapter lacks shader-f16, shader-int64 or shader-f64")
    zeros, index = np.zeros(4, np.uint32), np.arange(4, dtype=np.uint32)
    got = call("random_bits", zeros, zeros, zeros, zeros, index, result="u32", target=target)
    np.testing.assert_array_equal(got, np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint32))


def test_random_moments() -> None:
    count = 1 << 18
    seed = [np.full(count, word, np.uint32) for word in (7, 1, 5, 0)]
    index = np.arange(count, dtype=np.uint32)
    uniform = call("random_uniform", *seed, index).astype(float)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    np.testing.assert_allclose([uniform.mean(), uniform.var()], [1 / 2, 1 / 12], atol=3e-3)
    normal = call("random_normal", *seed, index).astype(float)
    np.testing.assert_allclose([normal.mean(), normal.var(), (normal**4).mean()], [0, 1, 3], atol=4e-2)


def test_logarithms_of_denormals() -> None:
    """Taken apart as integers, which no adapter flushes."""
    values = np.array([1e-45, 3e-42, 1e-40, 1.1e-38], np.float32)
    for name, exact in (("log_f", np.log), ("log2_f", np.log2), ("log10_f", np.log10)):
        np.testing.assert_allclose(call(name, values), exact(values.astype(np.float64)), rtol=2e-7)


def test_exponential_at_its_limits() -> None:
    values = np.array([88.722, 88.73, -87.32, -87.34, 1e38, -1e38], np.float32)
    with np.errstate(over="ignore"):
        exact = np.exp(values.astype(np.float64)).astype(np.float32)
    got = call("exp_f", values)
    np.testing.assert_allclose(got[[0, 2]], exact[[0, 2]], rtol=2e-7)
    assert got[[1, 3, 4, 5]].tolist() == [np.inf, 0.0, np.inf, 0.0]
