"""Per-element operators against CPU PyTorch, where PyTorch's own samples do not look: special values, the limits of
integers, conversions, Python numbers, doubles, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check, same

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
NAN, INF = float("nan"), float("inf")
SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -7.25, 100.0, -65504.0, 1e-3, INF, -INF, NAN)
names = lambda value: str(value).removeprefix("torch.")
title = lambda fn: fn.__name__.strip("<>")


@pytest.fixture(autouse=True)
def no_fallback(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here has a kernel of its own, but what PyTorch refuses may be refused by the CPU's kernel."""
    before = torch.webgpu.fallback_stats()
    yield
    if not request.node.stash.get(REFUSED, False):
        assert torch.webgpu.fallback_stats() == before


REFUSED = pytest.StashKey[bool]()


def pairs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value with every value."""
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def limits(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 3], dtype=dtype)


# Special values

SIGN_EXACT = [
    torch.neg, torch.abs, torch.floor, torch.ceil, torch.trunc, torch.round, torch.relu, torch.square,
    F.hardtanh, F.leaky_relu, F.hardswish, F.silu, torch.positive, torch.sqrt, torch.reciprocal,
]  # fmt: skip
UNARY = [
    torch.sign, torch.sgn, torch.frac, torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.rsqrt, torch.isnan,
    torch.isinf, torch.isfinite, torch.isposinf, torch.isneginf, torch.signbit, torch.nan_to_num, torch.logit,
    torch.angle, torch.log1p, torch.expm1, torch.erf, F.relu6, F.elu, F.gelu, F.mish, F.softplus,
    F.logsigmoid, F.hardsigmoid, F.hardshrink, F.softshrink, F.celu, F.selu,
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=names)
@pytest.mark.parametrize("fn", SIGN_EXACT, ids=title)
def test_special_values_and_signs_of_zero(fn: Any, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    check(device, fn, x)
    kept = ~torch.isnan(fn(x))
    assert torch.equal(torch.signbit(fn(x.to(device)).cpu())[kept], torch.signbit(fn(x))[kept])


@pytest.mark.parametrize("dtype", FLOATS, ids=names)
@pytest.mark.parametrize("fn", UNARY, ids=title)
def test_special_values(fn: Any, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    # CPU PyTorch's vectorised gelu(inf) is NaN, its scalar one inf.
    check(device, fn, x[x < INF] if fn is F.gelu else x)


BINARY = [
    torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.maximum, torch.minimum, torch.fmax, torch.fmin,
    torch.div, torch.remainder, torch.fmod, torch.floor_divide, torch.pow, torch.atan2, torch.hypot, torch.copysign,
    torch.nextafter, torch.heaviside, torch.xlogy, torch.logaddexp, torch.logaddexp2, torch.clamp_min, torch.clamp_max,
    torch.logical_and, torch.logical_xor, torch.where,
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=names)
@pytest.mark.parametrize("fn", BINARY, ids=title)
def test_special_pairs(fn: Any, dtype: torch.dtype, device: torch.device) -> None:
    a, b = pairs(torch.tensor(SPECIAL, dtype=dtype))
    call = (lambda a, b: torch.where(a > b, a, b)) if fn is torch.where else fn
    if fn is torch.remainder and dtype != torch.float32:
        # CPU PyTorch's half remainder by infinity is NaN, its float32 one is the dividend or infinity.
        a, b = a[~torch.isinf(b)], b[~torch.isinf(b)]
    check(device, call, a, b)


IDENTITIES = {
    "difference": lambda y: y - y,
    "quotient": lambda y: y / y,
    "equal": lambda y: y == y,
    "different": lambda y: y != y,
    "relu": torch.relu,
    "threshold at zero": lambda y: F.threshold(y, 0.0, 0.0),
    "maximum": lambda y: torch.maximum(y, y),
    "larger": lambda y: torch.where(y > -y, y, -y),
    "not smaller": lambda y: torch.where(y >= y * 2, y, y * 2),
    "larger than a number": lambda y: torch.where(y > 1, y, 1.0),
    "magnitude": lambda y: torch.where(y < 0, -y, y),
    "nan to zero": lambda y: torch.where(y != y, 0.0, y),
    "lerp": lambda y: y.lerp(y, 0.5),
    "remainder": lambda y: y.remainder(y),
    "negated twice": lambda y: y.neg().neg(),
    "one over one over": lambda y: 1 / (1 / y),
    "root of square": lambda y: (y * y).sqrt(),
    "sum with zero": lambda y: y + 0.0,
    "sum with zero times": lambda y: y.add(y, alpha=0.0),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_drivers_fold_no_nan_away(name: str, device: torch.device) -> None:
    """The operand computed in the same kernel, so that a compiler sees that the operands are one number."""
    check(device, lambda x: IDENTITIES[name](x * 1.5), torch.tensor(SPECIAL))


def test_a_number_that_does_not_fit_is_refused_as_on_the_cpu(device: torch.device) -> None:
    """The first number that an operator sees for a layout, too; later ones find a prepared kernel."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bool):
        for size, number in enumerate((NAN, INF, 1e30, 300, -300, 2.5, -1), start=61):
            same(device, lambda t, number=number: t.masked_fill(t > 0, number), torch.ones(size).to(dtype))


CPU_SCALARS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "masked_fill_": lambda x, s: x.masked_fill_(x > 0, s),
    "masked_fill of less": lambda x, s: x.int().masked_fill(x > 0, s),
    "copysign": torch.copysign,
    "where": lambda x, s: torch.where(x > 0, s, x),
    "maximum": torch.maximum,
    "pow": torch.pow,
    "lerp": lambda x, s: torch.lerp(x, x, s),
    "clamp": lambda x, s: x.clamp(max=s),
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([1], device=x.device), s),
    "index_put": lambda x, s: x.index_put((torch.tensor([1], device=x.device),), s),
}


@pytest.mark.parametrize("name", CPU_SCALARS)
def test_cpu_tensors_without_dimensions(name: str, device: torch.device) -> None:
    """They may stand beside a device's tensors wherever CUDA lets them, as numbers do."""
    x, s = torch.randn(7), torch.tensor(-2.5)
    for _ in range(2):
        expected = CPU_SCALARS[name](x.clone(), s)
        torch.testing.assert_close(CPU_SCALARS[name](x.to(device), s).cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("bounds", [{"min": NAN}, {"max": NAN}, {"min": NAN, "max": 1.0}], ids=str)
def test_a_bound_that_is_nan(bounds: dict[str, float], device: torch.device) -> None:
    """NaN everywhere, as documented. Some builds of CPU PyTorch ignore the bound, so they are not asked."""
    x = torch.tensor(SPECIAL).to(device)
    assert x.clamp(**bounds).isnan().all()
    assert (x * 1.5).clamp(**bounds).isnan().all()
    assert x.clone().clamp_(**bounds).isnan().all()


# Integers


@pytest.mark.parametrize("dtype", INTEGERS, ids=names)
@pytest.mark.parametrize(
    "fn",
    [
        torch.add, torch.sub, torch.mul, torch.eq, torch.lt, torch.maximum, torch.minimum, torch.bitwise_and,
        torch.bitwise_or, torch.bitwise_xor, torch.gcd, torch.lcm, lambda a, b: torch.add(a, b, alpha=3),
        lambda a, b: torch.addcmul(a, b, b, value=2), lambda a, b: a / b, lambda a, b: a**2 + b**3,
    ],
    ids=title,
)  # fmt: skip
def test_integers_wrap(fn: Any, dtype: torch.dtype, device: torch.device) -> None:
    a, b = pairs(limits(dtype))
    if fn in (torch.gcd, torch.lcm):
        # The magnitude of the smallest number overflows: CPU PyTorch's results depend on the order of its steps.
        kept = (a != torch.iinfo(dtype).min) & (b != torch.iinfo(dtype).min) if dtype.is_signed else a == a
        a, b = a[kept], b[kept]
        kept = (a != 0) | (b != 0) if fn is torch.lcm else a == a
        a, b = a[kept], b[kept]
    check(device, fn, a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=names)
@pytest.mark.parametrize("mode", ["floor", "trunc", "floor_divide", "remainder", "fmod"])
def test_integer_division(mode: str, dtype: torch.dtype, device: torch.device) -> None:
    a, b = pairs(limits(dtype))
    overflows = (a == torch.iinfo(dtype).min) & (b == -1) if dtype.is_signed else torch.zeros_like(a, dtype=torch.bool)
    a, b = a[(b != 0) & ~overflows], b[(b != 0) & ~overflows]
    fn = getattr(torch, mode, None) if mode not in ("floor", "trunc") else None
    check(device, fn or (lambda a, b: torch.div(a, b, rounding_mode=mode)), a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=names)
@pytest.mark.parametrize("mode", ["floor_divide", "remainder", "fmod"])
def test_integer_division_by_zero_gives_zero(mode: str, dtype: torch.dtype, device: torch.device) -> None:
    x = limits(dtype).to(device)
    assert not getattr(torch, mode)(x, torch.zeros_like(x)).any()


@pytest.mark.parametrize("dtype", INTEGERS, ids=names)
def test_shifts_and_powers(dtype: torch.dtype, device: torch.device) -> None:
    bits = torch.iinfo(dtype).bits
    shifts = torch.tensor([0, 1, 3, bits - 1, bits, bits + 1, 100], dtype=dtype)
    a, b = limits(dtype).repeat_interleave(len(shifts)), shifts.repeat(len(limits(dtype)))
    check(device, torch.bitwise_left_shift, a, b)
    check(device, torch.bitwise_right_shift, a, b)
    check(device, lambda a, b: a << b, a, b)
    exponents = torch.tensor([0, 1, 2, 3, 7], dtype=dtype)
    a, b = limits(dtype).repeat_interleave(len(exponents)), exponents.repeat(len(limits(dtype)))
    check(device, torch.pow, a, b)
    if dtype.is_signed:
        check(device, torch.pow, torch.tensor([1, -1, -1, 2, 0, -5], dtype=dtype), torch.full((6,), -3, dtype=dtype))
        check(device, torch.pow, torch.tensor([1, -1, -1, 2, 0, -5], dtype=dtype), torch.full((6,), -2, dtype=dtype))


# Conversions


def samples_of(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Values of one dtype that C can convert to another; all of them if that is defined."""
    if source.is_floating_point:
        values = [*SPECIAL, 65519.0, 65520.0, 6e-8, 2.9e-8, 1 / 3, 2049.0, 2051.0, 16777217.0, 126.9, -127.9]
        x = torch.tensor(values, dtype=source)
        if target in INTEGERS:
            info = torch.iinfo(target)
            x = x[torch.isfinite(x)]
            x = x[(x.double() > float(info.min) - 1) & (x.double() < float(info.max) + 1)]
        return x
    if source == torch.bool:
        return torch.tensor([False, True])
    extra = torch.tensor([2**24 + 1, 2**24 + 3, 2**53 + 1, 2049, 65519, 65520, 255, 128], dtype=torch.int64).to(source)
    return torch.cat([limits(source), extra])


@pytest.mark.parametrize("source", DTYPES, ids=names)
@pytest.mark.parametrize("target", DTYPES, ids=names)
def test_conversions(source: torch.dtype, target: torch.dtype, device: torch.device) -> None:
    check(device, lambda x: x.to(target), samples_of(source, target))


@pytest.mark.parametrize("source", DTYPES, ids=names)
def test_complex_conversions(source: torch.dtype, device: torch.device) -> None:
    check(device, lambda x: x.to(torch.complex64), samples_of(source, torch.float32))
    z = torch.complex(torch.tensor([0.0, 1.5, 0.0, -0.0, NAN]), torch.tensor([0.0, 0.0, 2.0, -0.0, 0.0]))
    check(device, lambda z: z.to(torch.bool), z)


# Python numbers

UINT8, INT32, INT64 = (torch.tensor([1, 44, 255], dtype=d) for d in (torch.uint8, torch.int32, torch.int64))
HALF, FLOAT = torch.tensor([0.1, -0.0, 3.0], dtype=torch.float16), torch.tensor([0.1, -0.0, 3.0])
BOOL = torch.tensor([True, False, True])
WITH_NUMBERS: list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]] = [
    *[(UINT8, fn) for fn in (
        lambda u: u + 300, lambda u: u - 300, lambda u: u * 300, lambda u: 300 - u, lambda u: u == 300,
        lambda u: u > 300, lambda u: u > -1, lambda u: u // 300, lambda u: u % 300, lambda u: u & 300,
        lambda u: u << 300, lambda u: u.clamp(max=300), lambda u: u.clamp(min=-1), lambda u: u**300,
        lambda u: u.masked_fill(u > 2, 300), lambda u: u.masked_fill(u > 2, -1), lambda u: u.masked_fill(u > 2, 2.5),
        lambda u: u.masked_fill(u > 2, NAN), lambda u: torch.where(u > 2, u, 300), lambda u: torch.where(u > 2, u, -1),
        lambda u: u + 2.5, lambda u: u * True, lambda u: u / 2, lambda u: u.add(u, alpha=300), lambda u: u.le(2.7),
        lambda u: torch.pow(300, u), lambda u: torch.remainder(300, u), lambda u: u.add_(2.5), lambda u: u.mul_(-1),
    )],
    *[(INT32, fn) for fn in (
        lambda i: i + 2**40, lambda i: i > 2**40, lambda i: i == 2**40, lambda i: i + 2**70, lambda i: i * -(2**31),
        lambda i: i**-1, lambda i: i**0.5, lambda i: i.clamp(min=1.5), lambda i: i.add(i, alpha=2.5), lambda i: 1 / i,
        lambda i: i / 0, lambda i: i * 1j, lambda i: i.sub_(1.5), lambda i: i.clamp(min=torch.tensor(1.5)),
        lambda i: i.square(), lambda i: ~i, lambda i: -i, lambda i: abs(-i), lambda i: i.add(i, alpha=True),
    )],
    *[(INT64, fn) for fn in (
        lambda x: x + 2**62, lambda x: x * 2**62, lambda x: x > 2.5, lambda x: x == 2**63, lambda x: x + 2**63,
        lambda x: x // -(2**62), lambda x: x ^ -1, lambda x: x << 62, lambda x: x**7, lambda x: 2**x,
    )],
    *[(HALF, fn) for fn in (
        lambda h: h == 0.1, lambda h: h >= 0.1, lambda h: h * 0.1, lambda h: h + 1e9,
        lambda h: h.masked_fill(h > 1, 1e9),
        lambda h: h.clamp(max=1e9), lambda h: torch.where(h > 1, h, 0.1), lambda h: h.nan_to_num(nan=1e9),
        lambda h: h + torch.tensor(0.1), lambda h: h * torch.tensor(0.1, dtype=torch.float64), lambda h: h.pow(2),
    )],
    *[(FLOAT, fn) for fn in (
        lambda f: f * 1e300, lambda f: f.clamp(max=1e300), lambda f: f == 1e300, lambda f: f**2, lambda f: f**-1,
        lambda f: f**-2, lambda f: f**0.5, lambda f: f**0, lambda f: f**2.5, lambda f: 2**f, lambda f: 1**f,
        lambda f: f.clamp(2.0, 1.0), lambda f: f.lerp(f, 1e300), lambda f: f * (1 + 2j),
        lambda f: f.masked_fill(f > 1, INF), lambda f: f & 1, lambda f: f + True, lambda f: f.fmod(-0.03),
        lambda f: f.lerp(f + 1, 0.75), lambda f: f.add(f, alpha=2), lambda f: torch.rsub(f, 2, alpha=3),
    )],
    *[(BOOL, fn) for fn in (
        lambda b: b + 1, lambda b: b + True, lambda b: b - True, lambda b: b * 2.5, lambda b: b * b, lambda b: -b,
        lambda b: ~b, lambda b: b ^ True, lambda b: b < True, lambda b: b.sign(), lambda b: b.masked_fill(b, 5),
        lambda b: b.maximum(~b), lambda b: b.logical_not(), lambda b: b / 2, lambda b: b.add(b, alpha=True),
    )],
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(WITH_NUMBERS)))
def test_python_numbers(index: int, device: torch.device, request: pytest.FixtureRequest) -> None:
    tensor, fn = WITH_NUMBERS[index]
    request.node.stash[REFUSED] = not same(device, fn, tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=names)
@pytest.mark.parametrize("other", DTYPES, ids=names)
def test_promotion(dtype: torch.dtype, other: torch.dtype, device: torch.device) -> None:
    a, b = torch.tensor([[0, 1], [3, 2]]).to(dtype), torch.tensor([1, 2]).to(other)
    for x, y in ((a, b), (a, b[0]), (a[0, 1], b[1]), (a[0, 1], b)):
        check(device, torch.add, x, y)
        check(device, torch.lt, x, y)
        check(device, torch.true_divide, x, y)
    assert (a.to(device) * b[1]).dtype == (a * b[1]).dtype


# Double precision, where the adapter has it

DOUBLES = torch.tensor(
    [0.0, -0.0, 1.0, -2.5, 1 / 3, 1e300, 5e-324, -1e-310, 2.0**53 + 1, 255.9, INF, -INF, NAN]
).double()
DOUBLES[4], DOUBLES[5], DOUBLES[6] = 1 / 3, 1e300, 5e-324


@pytest.mark.parametrize(
    "fn",
    [
        lambda d: d + d, lambda d: d * 1e-300, lambda d: d - 1 / 3,
        lambda d: d / 3, lambda d: -d.abs(), lambda d: d > 1e-310,
        lambda d: d.clamp(-1, 2), lambda d: torch.where(d > 0, d, -1.5),
        lambda d: d.maximum(d.flip(0)), lambda d: d.isnan(),
        lambda d: d.floor() + d.ceil() - d.trunc() + d.round(), lambda d: d.float(),
        lambda d: d.half(), lambda d: d != d,
        lambda d: d[:5].long(), lambda d: d[:5].int(), lambda d: d.bool(),
        lambda d: d.sqrt(), lambda d: d**2, lambda d: 1 / d,
        lambda d: (d[:5] * 100).long().double() + 2**53, lambda d: d.isinf(),
        lambda d: d[:9].lerp(d[:9] * 3, 0.25), lambda d: d.sign(),
        lambda d: d.masked_fill(d > 1, 1e308), lambda d: d.addcmul(d, d, value=1e-200),
        lambda d: d.fill_(1e-320), lambda d: d * INF,
        lambda d: 1 / torch.full_like(d, -0.0),
    ],
    ids=title,
)  # fmt: skip
@pytest.mark.float64
def test_doubles(fn: Any, device: torch.device) -> None:
    check(device, fn, DOUBLES)


@pytest.mark.float64
def test_kernels_of_many_doubles_as_numbers_compile(device: torch.device) -> None:
    """Compilers must see no loops in what each of them takes: LLVM 15 does not end with dozens."""
    drawn = torch.rand(10, 5, dtype=torch.float64, device=device)
    zeros, ones = torch.zeros_like(drawn), torch.ones_like(drawn)
    for k in range(8):
        ones = (ones + 2.0**k) * 0.75
    assert bool(torch.isclose(zeros, torch.zeros_like(drawn), rtol=0, atol=0, equal_nan=True).all())
    assert 0 <= drawn.min().item() <= drawn.max().item() < 1
    expected = 1.0
    for k in range(8):
        expected = (expected + 2.0**k) * 0.75
    assert ones.cpu().unique().tolist() == [expected]


# Gradients


@pytest.mark.parametrize(
    "fn",
    [
        F.relu, F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh,
        F.hardshrink, F.softshrink, F.softplus, F.logsigmoid, F.relu6, F.tanhshrink, torch.sigmoid, torch.tanh,
        torch.abs, torch.sqrt, torch.log, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.clamp(-0.5, 0.5),
        lambda x: F.threshold(x, 0.1, 20.0), lambda x: F.glu(x, 0), lambda x: torch.logit(x, eps=0.1),
        lambda x: F.prelu(x, x.new_tensor([0.25]).requires_grad_()), lambda x: F.mse_loss(x, x.detach() * 2),
        lambda x: F.smooth_l1_loss(x, x.detach() * 2, beta=0.5), lambda x: F.huber_loss(x, x.detach() * 2, delta=0.5),
        lambda x: F.l1_loss(x, x.detach() * 2, reduction="sum"), lambda x: F.softsign(x), lambda x: x**3 / (1 + x**2),
        lambda x: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).to(x.dtype), reduction="none"),
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), pos_weight=x.new_tensor([2.0])),
        lambda x: F.kl_div(x, x.detach().sigmoid(), reduction="batchmean"), lambda x: torch.lerp(x, x * x, 0.3),
        lambda x: F.soft_margin_loss(x, x.detach().sign()),
        lambda x: torch.where(x > 0, x, x * 2).masked_fill(x > 1, 3),
        lambda x: torch.maximum(x, -x) + torch.minimum(x, x * x), lambda x: torch.addcdiv(x, x, 2 + x * x, value=0.5),
    ],
    ids=title,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=names)
def test_gradients(fn: Any, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(device, fn, x, backward=True, tol=1e-5 if dtype == torch.float32 else 0.04)


SPECIAL_PARTS = [0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), NAN]


@pytest.mark.parametrize("other", ["complex", "real", "integer", "number"])
def test_complex_products_and_quotients_of_what_is_not_finite(other: str, device: torch.device) -> None:
    """Drivers fold products with the zero imaginary part of a real operand."""
    z = torch.tensor([complex(x, y) for x in SPECIAL_PARTS for y in SPECIAL_PARTS])
    many = {"complex": z, "real": torch.tensor(SPECIAL_PARTS), "integer": torch.tensor([0, 1, -3])}
    if other == "number":
        for number in (*SPECIAL_PARTS, 2j, complex(0, float("inf"))):
            check(device, lambda z, n=number: (z * n, z / n, n / z), z)
        return
    w = many[other]
    a, b = z.repeat_interleave(len(w)), w.repeat(len(z))
    check(device, lambda a, b: (a * b, b * a), a, b)
    check(device, lambda a, b: (a / b, b / a), a, b)


@pytest.mark.parametrize(
    "name", ["reciprocal", "sqrt", "abs", "angle", "isnan", "isinf", "neg", "sgn", "log", "square"]
)
def test_complex_functions_of_what_is_not_finite(name: str, device: torch.device) -> None:
    check(device, getattr(torch, name), torch.tensor([complex(x, y) for x in SPECIAL_PARTS for y in SPECIAL_PARTS]))


def test_complex_gradients(device: torch.device) -> None:
    def value(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x[0], x[1])
        return (
            z.abs() + z.angle() + (z * z.conj()).real + z.exp().imag + torch.view_as_real(z / (1 + z * z)).sum(-1)
        ).sum()

    check(device, value, torch.randn(2, 10, generator=torch.Generator().manual_seed(2)), backward=True, tol=1e-4)


def test_rrelu_draws_a_slope_for_each_negative_element(device: torch.device) -> None:
    x = torch.linspace(-1, 1, 101, device=device)
    y = F.rrelu(x, 0.2, 0.4, training=True)
    slopes = (y / x)[:50]
    assert torch.equal(y[50:].cpu(), x[50:].cpu())
    assert 0.2 <= slopes.min().item() < slopes.max().item() <= 0.4
    assert torch.allclose(F.rrelu(x, 0.2, 0.4).cpu(), F.leaky_relu(x.cpu(), 0.3))


INTEGER_DIVISIONS = (
    lambda x, d: x // d,
    lambda x, d: x % d,
    torch.fmod,
    lambda x, d: torch.div(x, d, rounding_mode="trunc"),
    lambda x, d: torch.div(x, d, rounding_mode="floor"),
    lambda x, d: x.clone().floor_divide_(d),
    lambda x, d: x.clone().remainder_(d),
    lambda x, d: x.clone().fmod_(d),
    lambda x, d: x.clone().div_(d, rounding_mode="floor"),
)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("divide", INTEGER_DIVISIONS)
def test_integers_divided_by_the_number_zero_raise(device, divide, dtype):
    x = torch.tensor([5, 0, 3]).to(dtype)
    for zero in (0, False, torch.tensor(0)):
        for tensor in (x, x.to(device), x.to(device)):  # the last call is one that was seen before
            with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
                divide(tensor, zero)
    assert torch.equal(divide(x.to(device), 2).cpu(), divide(x, 2))


@pytest.mark.parametrize("divide", INTEGER_DIVISIONS)
def test_no_integers_are_divided_by_zero(device, divide):
    for where in ("cpu", device, device):
        assert divide(torch.empty(0, 5, dtype=torch.int64, device=where), 0).shape == (0, 5)


@pytest.mark.parametrize("divide", INTEGER_DIVISIONS)
def test_a_zero_among_divisors_gives_zero(device, divide):
    """As with CUDA, nothing is raised; the other quotients are right."""
    x, d = torch.tensor([7, -7, 9, 0]), torch.tensor([2, 0, -4, 0])
    want = torch.where(d == 0, 0, divide(x, d.where(d != 0, 1)))
    assert torch.equal(divide(x.to(device), d.to(device)).cpu(), want)


@pytest.mark.parametrize("divide", INTEGER_DIVISIONS)
def test_floats_divided_by_the_number_zero(device, divide):
    x = torch.tensor([5.0, 0.0, -3.0])
    torch.testing.assert_close(divide(x.to(device), 0).cpu(), divide(x, 0), equal_nan=True)
    torch.testing.assert_close(torch.tensor([5, -3]).to(device).div(0).cpu(), torch.tensor([5, -3]).div(0))


@pytest.mark.parametrize("name", ["atan", "asinh", "sinh", "tanh", "erf", "round", "special.i1", "special.bessel_j1"])
def test_odd_functions_of_one_negated_number(device, name):
    """Mesa 22's compiler got the sign of some wrong, in kernels of one element."""
    fn = attrgetter(name)(torch)
    for value in (0.3, 8.7, -0.3, -8.7):
        for before in (torch.neg, lambda x: -x.abs()):
            x = before(torch.tensor([value], device=device))
            torch.testing.assert_close(fn(x).cpu(), fn(before(torch.tensor([value]))), rtol=1e-5, atol=1e-6)
