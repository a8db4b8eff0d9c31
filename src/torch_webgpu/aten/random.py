"""Random numbers: every distribution is an expression over the uniform, normal or integer stream of a generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.random import state_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.graph import Expr, Pointwise, Spec
from torch_webgpu.ir.ops import ops

from .factories import device_index
from .register import check_writable, opmath
from .torch_abi import aten, impl, outputs_of

# Mantissa bits: uniform numbers keep as many as their type holds, so that rounding never reaches the excluded bound.
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 24}
STREAM_PARAMS = 4

Expression = Callable[[Expr, list[Expr]], Expr]
"""From a draw and the distribution's parameters to a value."""


def stream(kind: str) -> Expr:
    """This point's draw: ``kind`` is random_uniform, random_normal, random_bits or random_bits64."""
    return getattr(ops, kind)(*(ops.param(k, "u32") for k in range(STREAM_PARAMS)), ops.linear())  # type: ignore[no-any-return]


def draw(
    name: str,
    self: torch.Tensor,
    kind: str,
    expression: Expression,
    parameters: list[float | int],
    generator: torch.Generator | None,
    dtype: str = "f32",
    static: Any = (),
) -> torch.Tensor:
    """Fills ``self`` with ``expression(draw, parameters)``; the parameters are scalars of ``dtype``."""
    check_writable(self.shape, self.stride())
    if self.numel() == 0:
        return self

    def body(specs: tuple[Spec, ...]) -> Pointwise:
        symbols = [ops.param(STREAM_PARAMS + k, dtype) for k in range(len(parameters))]
        return Pointwise((ops.to_dtype(expression(stream(kind), symbols), specs[0].dtype),))

    scalars = stream_scalars(generator, self, per_block=2 if kind == "random_bits64" else 4)
    scalars += [(BY_NAME[dtype].kind, value) for value in parameters]
    engine().record(name, [], [self], body, (kind, static), scalars)
    return self


def stream_scalars(generator: torch.Generator | None, like: torch.Tensor, per_block: int = 4) -> list[tuple[str, Any]]:
    """Reserves a draw per element of ``like``; the stream's four parameters."""
    blocks = -(-like.numel() // per_block)
    seed, offset = state_of(generator, like.device.index).reserve(blocks)
    return [("u", half & 0xFFFFFFFF) for number in (seed, offset) for half in (number, number >> 32)]


def truncated(u: Expr, digits: int) -> Expr:
    """A uniform number with only its first ``digits`` bits."""
    if digits >= 24:
        return u
    scale = float(1 << digits)
    return ops.mul(ops.floor(ops.mul(u, ops.like(u, scale))), ops.like(u, 1 / scale))


def uniform_(self: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("uniform_", self)
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    digits = DIGITS[self.dtype]

    def expression(u: Expr, p: list[Expr]) -> Expr:
        return ops.add(ops.mul(truncated(u, digits), p[1]), p[0])

    return draw("aten.uniform_", self, "random_uniform", expression, [low, high - low], generator, static=digits)


def normal_(self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    require_floating("normal_", self, complex_too=True)
    if self.is_complex():
        normal_(torch.view_as_real(self), mean, std / 2**0.5, generator=generator)
        return self

    def expression(z: Expr, p: list[Expr]) -> Expr:
        return ops.add(ops.mul(z, p[1]), p[0])

    return draw("aten.normal_", self, "random_normal", expression, [mean, std], generator)


def open_uniform(u: Expr) -> Expr:
    """(0, 1] from [0, 1), so that a logarithm is finite."""
    return ops.sub(ops.like(u, 1), u)


def exponential_(self: torch.Tensor, lambd: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("exponential_", self)
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")

    def expression(u: Expr, p: list[Expr]) -> Expr:
        return ops.truediv(ops.neg(ops.log(open_uniform(u))), p[0])

    return draw("aten.exponential_", self, "random_uniform", expression, [lambd], generator)


def geometric_(self: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")

    def expression(u: Expr, q: list[Expr]) -> Expr:
        return ops.maximum(ops.ceil(ops.truediv(ops.log(open_uniform(u)), ops.log1p(ops.neg(q[0])))), ops.like(u, 1))

    return draw("aten.geometric_", self, "random_uniform", expression, [p], generator)


def cauchy_(self: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("cauchy_", self)
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")

    def expression(u: Expr, p: list[Expr]) -> Expr:
        angle = ops.mul(ops.sub(u, ops.like(u, 0.5)), ops.like(u, 3.141592653589793))
        return ops.add(ops.mul(ops.tan(angle), p[1]), p[0])

    return draw("aten.cauchy_", self, "random_uniform", expression, [median, sigma], generator)


def log_normal_(self: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("log_normal_", self)
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")

    def expression(z: Expr, p: list[Expr]) -> Expr:
        return ops.exp(ops.add(ops.mul(z, p[1]), p[0]))

    return draw("aten.log_normal_", self, "random_normal", expression, [mean, std], generator)


def bernoulli_float(self: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    check_probability(p)

    def expression(u: Expr, q: list[Expr]) -> Expr:
        return ops.lt(u, q[0])

    return draw("aten.bernoulli_", self, "random_uniform", expression, [p], generator)


def check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")


def bernoulli_tensor(self: torch.Tensor, p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    check_writable(self.shape, self.stride())
    if p.device.type == "cpu":
        p = p.to(self.device)
    if self.numel() == 0:
        return self

    def body(specs: tuple[Spec, ...]) -> Pointwise:
        probability = ops.to_dtype(ops.load(0, specs[0].dtype), "f32")
        return Pointwise((ops.to_dtype(ops.lt(stream("random_uniform"), probability), specs[1].dtype),))

    engine().record("aten.bernoulli_", [p.expand(self.shape)], [self], body, (), stream_scalars(generator, self))
    return self


def bernoulli(self: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    return bernoulli_tensor(torch.empty_like(self), self, generator=generator)


def bernoulli_p(self: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    return bernoulli_float(torch.empty_like(self), p, generator=generator)


def random_from_to(self: torch.Tensor, low: int, high: int | None = None, *, generator: Any = None) -> torch.Tensor:
    """Integers in [low, high); with no ``high`` up to and including the largest the type holds exactly."""
    end = largest_integer(self.dtype) + 1 if high is None else high
    if low >= end:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={end}")
    span = end - low
    if span <= 1 << 32:
        # A span of exactly 2**32 is every u32 there is: no remainder to take.
        def narrow(bits: Expr, p: list[Expr]) -> Expr:
            value = bits if span == 1 << 32 else ops.remainder(bits, p[1])
            return shifted(value, low)

        return draw(
            "aten.random_",
            self,
            "random_bits",
            narrow,
            [0, span & 0xFFFFFFFF],
            generator,
            "u32",
            (low, span == 1 << 32),
        )

    def wide(bits: Expr, p: list[Expr]) -> Expr:
        if span >= 1 << 64:
            return bits
        if span > 1 << 63:
            return ops.add(bits, p[0])
        positive = ops.bitwise_and(bits, ops.like(bits, (1 << 63) - 1))
        return ops.add(positive if span == 1 << 63 else ops.remainder(positive, p[1]), p[0])

    return draw(
        "aten.random_", self, "random_bits64", wide, [low, span & ((1 << 63) - 1)], generator, "i64", span >> 63
    )


def shifted(value: Expr, low: int) -> Expr:
    return ops.add(ops.to_dtype(value, "i64"), ops.constant(low, "i64"))


def largest_integer(dtype: torch.dtype) -> int:
    if dtype == torch.bool:
        return 1
    if dtype.is_floating_point:
        return 1 << {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}[dtype]
    return torch.iinfo(dtype).max


def random_to(self: torch.Tensor, to: int, *, generator: Any = None) -> torch.Tensor:
    return random_from_to(self, 0, to, generator=generator)


def random_default(self: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    return random_from_to(self, 0, None, generator=generator)


def randperm(
    n: int, *, generator: Any = None, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:  # fmt: skip
    """The order that sorts 63-bit random keys (ties, a chance of n²/2⁶⁴, keep their order)."""
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    keys = torch.empty(n, dtype=torch.int64, device=torch.device("webgpu", device_index(device)))
    random_from_to(keys, 0, (1 << 63) - 1, generator=generator)
    return keys.argsort(stable=True).to(dtype or torch.int64)


def randperm_out(n: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    if out.dtype in (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16) and n > largest_integer(
        out.dtype
    ):
        raise RuntimeError(f"n is too large for the output's type {out.dtype}")
    return out.resize_(n).copy_(randperm(n, generator=generator, device=out.device))


def native_dropout(self: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(self * mask / (1 - p), mask)``; p = 1 gives zeros."""
    out, mask = outputs_of(aten.native_dropout.default, self, p, train)
    if train is False:
        return out.copy_(self), mask.fill_(True)
    if out.numel() == 0:
        return out, mask
    dtype = opmath(self.dtype)

    def body(specs: tuple[Spec, ...]) -> Pointwise:
        keep = ops.lt(stream("random_uniform"), ops.param(STREAM_PARAMS, "f32"))
        x = ops.to_dtype(ops.load(0, specs[0].dtype), dtype)
        scaled = ops.mul(x, ops.to_dtype(ops.param(STREAM_PARAMS + 1, "f32"), dtype))
        kept = ops.where(keep, scaled, ops.like(x, 0))
        return Pointwise((ops.to_dtype(kept, specs[1].dtype), ops.to_dtype(keep, specs[2].dtype)))

    scale = 0.0 if p == 1 else 1 / (1 - p)
    scalars = [*stream_scalars(None, self), ("f", 1 - p), ("f", scale)]
    engine().record("aten.native_dropout", [self], [out, mask], body, dtype, scalars)
    return out, mask


def multinomial(
    self: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> torch.Tensor:
    """Draws row indices with probability proportional to ``self``.

    Without replacement: the largest of p / Exp(1) (the exponential race, as PyTorch's own fast path). With replacement:
    a uniform number looked up in the cumulative distribution.
    """
    (like,) = outputs_of(aten.multinomial.default, self, num_samples, replacement)
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if like.numel() == 0:
        return like
    weights = self.float()
    if not replacement or num_samples == 1:
        race = torch.empty_like(weights)
        exponential_(race, generator=generator)
        return torch.div(weights, race, out=race).topk(num_samples, dim=-1).indices
    totals = weights.cumsum(-1)
    draws = torch.empty(like.shape, dtype=torch.float32, device=self.device)
    uniform_(draws, generator=generator)
    return torch.searchsorted(totals, draws * totals[..., -1:], right=True).clamp_(max=self.shape[-1] - 1)


def require_floating(name: str, self: torch.Tensor, complex_too: bool = False) -> None:
    if not self.is_floating_point() and not (complex_too and self.is_complex()):
        short = {"i64": "Long", "i32": "Int", "u8": "Byte", "bool": "Bool"}.get(
            dtype_of(self.dtype).name, str(self.dtype)
        )
        raise NotImplementedError(f"\"{name}\" not implemented for '{short}'")


def register() -> None:
    for overload, kernel in (
        (aten.uniform_.default, uniform_),
        (aten.normal_.default, normal_),
        (aten.exponential_.default, exponential_),
        (aten.geometric_.default, geometric_),
        (aten.cauchy_.default, cauchy_),
        (aten.log_normal_.default, log_normal_),
        (aten.bernoulli_.float, bernoulli_float),
        (aten.bernoulli_.Tensor, bernoulli_tensor),
        (aten.bernoulli.default, bernoulli),
        (aten.bernoulli.p, bernoulli_p),
        (getattr(aten.random_, "from"), random_from_to),
        (aten.random_.to, random_to),
        (aten.random_.default, random_default),
        (aten.randperm.default, randperm),
        (aten.randperm.generator, randperm),
        (aten.randperm.out, randperm_out),
        (aten.randperm.generator_out, randperm_out),
        (aten.native_dropout.default, native_dropout),
        (aten.multinomial.default, multinomial),
    ):
        impl(overload, kernel)
