"""Random fills: each distribution is an expression over the uniform, normal or integer stream of a generator.

Element ``i`` (row-major) of a fill takes the ``i``-th draw of the next stretch of the stream, whatever its strides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import frexp
from typing import Any

import torch

from torch_webgpu.aten.dispatch.memory_overlap import check_writable
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.refusals import check_parameters
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.dtypes import BY_NAME, BY_TORCH
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.generators import state_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

DIGITS = {dtype: 2 - frexp(torch.finfo(dtype).eps)[1] for dtype in BY_TORCH if dtype.is_floating_point}
"""Mantissa bits. Uniform numbers keep as many as their type holds: rounding never reaches the excluded bound."""
STREAM_PARAMS = 4
DRAWS_PER_BLOCK = {"random_bits64": 2}
"""How many draws of a kind share one block of the stream, if not four."""
PI = 3.141592653589793
LOWEST = -(1 << 63)
SURELY_FITS = 127
"""A bound that every dtype takes."""

DrawExpression = Callable[..., Expr]
"""``(*arguments, draw, *parameters)``: from a draw and the distribution's parameters to a value."""


def stream(kind: str, *operands: Expr, number: Expr | None = None) -> Expr:
    """This point's draw, or draw ``number``. ``kind`` is a ``random_…`` row of the op table; samplers also take
    operands.
    """
    result = {"random_bits": "u32", "random_bits64": "i64"}.get(kind, "f32")
    position = [*(ops.param(k, "u32") for k in range(STREAM_PARAMS)), ops.linear() if number is None else number]
    return Expr(kind, (*position, *operands), result)


def draw(
    name: str,
    self: torch.Tensor,
    kind: str,
    expression: DrawExpression,
    parameters: list[float | int],
    generator: torch.Generator | None,
    dtype: str = "f32",
    arguments: tuple[Hashable, ...] = (),
) -> torch.Tensor:
    """Fills ``self`` with ``expression(*arguments, draw, *parameters)``; the parameters are scalars of ``dtype``."""
    check_writable(self.shape, self.stride())
    if self.numel():
        scalars = stream_scalars(generator, self, DRAWS_PER_BLOCK.get(kind, 4))
        scalars += [(BY_NAME[dtype].kind, value) for value in parameters]
        values = (expression, arguments, kind, dtype, len(parameters))
        record_pointwise(name, [], [self], value_of_draw, values, scalars)
    return self


def value_of_draw(
    expression: DrawExpression, arguments: tuple[Hashable, ...], kind: str, dtype: str, count: int
) -> Expr:
    parameters = (ops.param(STREAM_PARAMS + k, dtype) for k in range(count))
    return expression(*arguments, stream(kind), *parameters)


def stream_scalars(generator: torch.Generator | None, like: torch.Tensor, per_block: int = 4) -> list[tuple[str, Any]]:
    """Reserves a draw per element of ``like``; the stream's four parameters."""
    return reserved(generator, -(-like.numel() // per_block), like.device.index or 0)


def reserved(generator: torch.Generator | None, blocks: int, device: int) -> list[tuple[str, Any]]:
    """The parameters of a stretch of so many blocks."""
    return [("u", word) for word in engine().stream_words(state_of(generator, device), blocks, device)]


def draw_key(like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two int64 tensors without dimensions, of random bits, on the device of ``like``: a key, of which kernels make the
    same numbers again.
    """
    words = tuple([torch.empty((), dtype=torch.int64, device=like.device) for _ in range(2)])
    record_pointwise("aten.draw_key", [], words, two_words, (), key_scalars(like))
    return words


def two_words() -> tuple[Expr, ...]:
    return tuple([stream("random_bits64", number=ops.constant(n, "u32")) for n in range(2)])


def key_scalars(like: torch.Tensor) -> list[tuple[str, Any]]:
    """The stretch of the stream from which :func:`draw_key` takes its two draws: one block."""
    return reserved(None, 1, like.get_device())


def random_at(key: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    """A uniform number in [0, 1) for a place of a matrix, by the words of :func:`draw_key`."""
    halves = [(number, ops.bitwise_right_shift(number, 32)) for number in key]
    return Expr("random_at", (*(ops.to_dtype(half, "u32") for pair in halves for half in pair), row, column), "f32")


def truncated(u: Expr, digits: int) -> Expr:
    """A uniform number with only its first ``digits`` bits."""
    if digits >= 24:
        return u
    scale = float(1 << digits)
    return ops.floor(u * scale) * (1 / scale)


def uniform_(self: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if not -SURELY_FITS <= low <= high <= SURELY_FITS or not self.is_floating_point():
        check_parameters("uniform_", self.dtype, low, high)
    if self.is_complex():
        uniform_(torch.view_as_real(self), low, high, generator=generator)
        return self
    double = self.dtype == torch.float64
    kind, compute = ("random_bits64", "f64") if double else ("random_uniform", "f32")
    arguments = (DIGITS[self.dtype], dtype_of(self.dtype).name)
    return draw("aten.uniform_", self, kind, uniform, [low, high, high - low], generator, compute, arguments)


def uniform(digits: int, stored: str, u: Expr, low: Expr, high: Expr, span: Expr) -> Expr:
    """A number in [low, high) from 64 random bits for a float64, else from a uniform one."""
    unit = double_uniform(u) if stored == "f64" else truncated(u, digits)
    value = ops.to_dtype(ops.to_dtype(unit * span + low, stored), low.dtype)
    # Scaling and rounding may reach the excluded end.
    return ops.where(value < high, value, low)


def double_uniform(bits: Expr) -> Expr:
    """A float64 in [0, 1) from the low 53 of 64 random bits."""
    return ops.to_dtype(bits & ((1 << 53) - 1), "f64") * 2.0**-53


def normal_(self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    """Float64 tensors get numbers of float32's resolution (and their own ``mean`` and ``std``)."""
    if not std >= 0:
        check_parameters("normal_", self.dtype, mean, std)
    require_floating("normal_", self, complex_too=True)
    if self.is_complex():
        normal_(torch.view_as_real(self), mean, std / 2**0.5, generator=generator)
        return self
    compute = opmath(self.dtype)
    return draw("aten.normal_", self, "random_normal", normal, [mean, std], generator, compute)


def normal(z: Expr, mean: Expr, std: Expr) -> Expr:
    return ops.to_dtype(z, mean.dtype) * std + mean


def standard_exponential(u: Expr) -> Expr:
    """From an open uniform number; never 0, so that it may divide."""
    return ops.maximum(-ops.log(u), 2.0**-25)


def exponential_(self: torch.Tensor, lambd: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("exponential_", self)
    if not lambd > 0:
        check_parameters("exponential_", self.dtype, lambd)
    return draw("aten.exponential_", self, "random_open_uniform", exponential, [lambd], generator)


def exponential(u: Expr, rate: Expr) -> Expr:
    return standard_exponential(u) / rate


def geometric_(self: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    if not 0 < p < 1:
        check_parameters("geometric_", self.dtype, p)
    return draw("aten.geometric_", self, "random_open_uniform", geometric, [p], generator)


def geometric(u: Expr, p: Expr) -> Expr:
    return ops.maximum(ops.ceil(ops.log(u) / ops.log1p(-p)), 1.0)


def cauchy_(self: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("cauchy_", self)
    if not sigma > 0:
        check_parameters("cauchy_", self.dtype, median, sigma)
    return draw("aten.cauchy_", self, "random_uniform", cauchy, [median, sigma], generator)


def cauchy(u: Expr, median: Expr, sigma: Expr) -> Expr:
    return ops.tan((u - 0.5) * PI) * sigma + median


def log_normal_(self: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> torch.Tensor:
    require_floating("log_normal_", self)
    if not std > 0:
        check_parameters("log_normal_", self.dtype, mean, std)
    return draw("aten.log_normal_", self, "random_normal", log_normal, [mean, std], generator)


def log_normal(z: Expr, mean: Expr, std: Expr) -> Expr:
    return ops.exp(z * std + mean)


def bernoulli_float(self: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    if not 0 <= p <= 1:
        check_parameters("bernoulli_", self.dtype, p)
    return draw("aten.bernoulli_", self, "random_uniform", is_below, [p], generator)


def is_below(u: Expr, p: Expr) -> Expr:
    return u < p


def bernoulli_tensor(self: torch.Tensor, p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    if not p.is_floating_point():
        raise RuntimeError("expected probabilities tensor to have floating type, got " + name_of(p.dtype))
    return sampled("aten.bernoulli_", self, [p.to(self.device)], is_drawn, (), generator, 4)


def is_drawn(probability: Expr) -> Expr:
    return stream("random_uniform") < probability


def sampled(
    name: str,
    self: torch.Tensor,
    inputs: list[torch.Tensor],
    sample: Callable[..., Expr],
    arguments: tuple[Hashable, ...],
    generator: Any,
    per_block: int = 1,
) -> torch.Tensor:
    """Fills ``self`` with ``sample(*arguments, *elements)`` of the inputs' elements as f32."""
    check_writable(self.shape, self.stride())
    if self.numel():
        inputs = [t.expand(self.shape) for t in inputs]
        # The stream's parameters come first, as `stream` numbers them.
        scalars = stream_scalars(generator, self, per_block)
        record_pointwise(name, inputs, [self], sample, arguments, scalars, "f32")
    return self


# Integers -------------------------------------------------------------------------------------------------------------


def random_from_to(self: torch.Tensor, low: int, high: int | None = None, *, generator: Any = None) -> torch.Tensor:
    """Integers in [low, high); with no ``high`` up to and including the last that the type holds without gaps."""
    if high is None:
        check_parameters("random_", self.dtype, low, None)
        return integers(self, low, largest_integer(self.dtype) + 1, generator)
    if not (0 <= low < high <= SURELY_FITS) or self.is_complex() or self.dtype == torch.bool:
        check_parameters("random_", self.dtype, low, high)
    if self.is_floating_point():
        high = rounded_end(self.dtype, low, high)
    return integers(self, low, high, generator)


def random_to(self: torch.Tensor, to: int, *, generator: Any = None) -> torch.Tensor:
    return random_from_to(self, 0, to, generator=generator)


def random_default(self: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    """Integers from 0 up to and including the last that the type holds without gaps."""
    if self.is_complex():
        check_parameters("random_", self.dtype)
    return integers(self, 0, largest_integer(self.dtype) + 1, generator)


def integers(self: torch.Tensor, low: int, end: int, generator: Any) -> torch.Tensor:
    """Fills ``self`` with integers in [low, end).

    A remainder of 32 bits favours some numbers by up to span / 2³²; from 2²⁸ on 64 bits are drawn, as PyTorch does.
    """
    span = end - low
    if span < 1 << 28:
        return draw("aten.random_", self, "random_bits", narrow, [low, span], generator, "i64")
    # Unsigned numbers compare as signed ones 2⁶³ below them do.
    parameter = 0 if span >= 1 << 64 else span if span < 1 << 63 else span + LOWEST
    arguments = (min(span >> 63, 2),)
    return draw("aten.random_", self, "random_bits64", wide, [low, parameter], generator, "i64", arguments)


def narrow(bits: Expr, low: Expr, span: Expr) -> Expr:
    return low + ops.to_dtype(ops.remainder(bits, ops.to_dtype(span, "u32")), "i64")


def wide(highest: int, bits: Expr, low: Expr, parameter: Expr) -> Expr:
    """64 bits, as int64, modulo the span; ``highest``: the span's bits from number 63 on, 2 for all 64-bit numbers."""
    if highest == 2:
        return low + bits
    if highest == 0:
        return low + ops.remainder(bits & ((1 << 63) - 1), parameter)
    # A remainder takes off the span at most once.
    return low + ops.where(bits + LOWEST >= parameter, bits + LOWEST - parameter, bits)


def largest_integer(dtype: torch.dtype) -> int:
    """The last of the integers that ``dtype`` holds without gaps."""
    if dtype == torch.bool:
        return 1
    return 1 << DIGITS[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max


def rounded_end(dtype: torch.dtype, low: int, end: int) -> int:
    """``end``, or less, so that integers below it that are rounded to a floating type stay below ``end``."""
    last = float(torch.tensor(float(end - 1), dtype=dtype, device="cpu"))
    if last > end - 1:
        below = torch.tensor(float("-inf"), dtype=dtype, device="cpu")
        last = float(torch.nextafter(torch.tensor(last, dtype=dtype, device="cpu"), below))
    return max(int(last), low) + 1


def require_floating(name: str, self: torch.Tensor, complex_too: bool = False) -> None:
    if not self.is_floating_point() and not (complex_too and self.is_complex()):
        raise NotImplementedError(f"\"{name}\" not implemented for '{name_of(self.dtype)}'")


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
        (getattr(aten.random_, "from"), random_from_to),
        (aten.random_.to, random_to),
        (aten.random_.default, random_default),
    ):
        impl(overload, kernel)
