"""Random tensors made from others: permutations, dropout, and samples of a distribution with given parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common.wrappers import _maybe_resize_out

from torch_webgpu.aten.dispatch.checked import checked
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.results import name_of, write
from torch_webgpu.aten.dispatch.torch_abi import aten, impl, outputs_of
from torch_webgpu.aten.tensors.factories import device_index
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .distributions import (
    STREAM_PARAMS,
    bernoulli_float,
    bernoulli_tensor,
    exponential_,
    largest_integer,
    normal_,
    random_from_to,
    require_floating,
    sampled,
    stream,
    stream_scalars,
    uniform_,
)


def bernoulli(self: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    return bernoulli_tensor(torch.empty_like(self), self, generator=generator)


def bernoulli_out(self: torch.Tensor, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    """Any dtype will do for ``out``."""
    _maybe_resize_out(out, self.shape)
    return bernoulli_tensor(out, self, generator=generator)


def bernoulli_p(self: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    return bernoulli_float(torch.empty_like(self), p, generator=generator)


def poisson(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return sampled("aten.poisson", torch.empty_like(self), [self], stream, ("random_poisson",), generator)


def binomial(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    out = count.new_empty(torch.broadcast_shapes(count.shape, prob.shape))
    return sampled("aten.binomial", out, [count, prob], stream, ("random_binomial",), generator)


def standard_gamma(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return sampled("aten._standard_gamma", torch.empty_like(self), [self], stream, ("random_gamma",), generator)


def standard_gamma_grad(self: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """PyTorch has no meta kernel that would tell the layout of this one's result."""
    out = torch.empty_like(self)
    dtype = opmath(out.dtype)
    record_pointwise("aten::_standard_gamma_grad", [self, output], [out], gamma_gradient, dtype=dtype)
    return out


def gamma_gradient(shape: Expr, sample: Expr) -> Expr:
    return ops.standard_gamma_grad(shape, sample)


def sample_dirichlet(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    """Gamma numbers over their sum along the last dimension, kept inside (0, 1)."""
    gamma = standard_gamma(self.float(), generator)
    info = torch.finfo(torch.float32)
    return (gamma / gamma.sum(-1, keepdim=True)).clamp_(info.tiny, 1 - info.eps).to(self.dtype)


def normal(mean: Any, std: Any = 1.0, *, generator: Any = None) -> torch.Tensor:
    """Normal numbers with means, standard deviations or both from tensors. Waits to check the deviations."""
    tensors = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
    if isinstance(std, torch.Tensor):
        if std.is_complex():
            raise RuntimeError("normal expects standard deviation to be non-complex")
        if std.numel() and not bool((std >= 0).all()):
            raise RuntimeError("normal expects all elements of std >= 0.0")
    elif std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    shape = torch.broadcast_tensors(*tensors)[0].shape
    dtype = mean.dtype if isinstance(mean, torch.Tensor) else std.dtype
    out = torch.empty(shape, dtype=dtype, device=tensors[0].device)
    return normal_(out, generator=generator).mul_(std).add_(mean)


def normal_out(mean: Any, std: Any = 1.0, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    require_floating("normal_", out, complex_too=True)
    return write(normal(mean, std, generator=generator), out)


# Permutations and choices ---------------------------------------------------------------------------------------------


def randperm(
    n: int,
    *,
    generator: Any = None,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:
    """The order that sorts 63-bit random keys (ties, a chance of n²/2⁶⁴, keep their order)."""
    dtype = dtype or torch.int64
    keys = torch.empty(n, dtype=torch.int64, device=torch.device("webgpu", device_index(device)))
    check_permutation(n, dtype)
    random_from_to(keys, 0, (1 << 63) - 1, generator=generator)
    return keys.argsort(stable=True).to(dtype)


def randperm_out(n: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    check_permutation(n, out.dtype)
    return out.resize_((n,)).copy_(randperm(n, generator=generator, device=out.device))


def check_permutation(n: int, dtype: torch.dtype) -> None:
    """Raises what PyTorch raises for fewer than no numbers, and for more than ``dtype`` can tell apart."""
    if n < 0 or (n > largest_integer(dtype) + 1 and dtype != torch.bfloat16):  # bfloat16's are rounded
        torch.randperm(n, out=torch.empty(0, dtype=dtype, device="cpu"))


def multinomial(
    self: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> torch.Tensor:
    """Draws row indices with probability proportional to ``self``.

    Without replacement: the largest of p / Exp(1) (the exponential race, as PyTorch's own fast path). With replacement:
    a uniform number looked up in the cumulative distribution. What are no probabilities is an error when the host
    next waits: nothing is read here.
    """
    if not self.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {name_of(self.dtype)}")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    (like,) = outputs_of(aten.multinomial.default, self, num_samples, replacement)
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if like.numel() == 0:
        return like
    weights = self.float()
    return checked("multinomial", drawn(weights, like.shape, num_samples, replacement, generator), code_of(weights))


def drawn(
    weights: torch.Tensor, shape: torch.Size, num_samples: int, replacement: bool, generator: Any
) -> torch.Tensor:
    if not replacement or num_samples == 1:
        race = weights / exponential_(torch.empty_like(weights), generator=generator)
        return race.argmax(-1, keepdim=True) if num_samples == 1 else race.topk(num_samples, dim=-1).indices
    totals = weights.cumsum(-1)
    draws = torch.empty(shape, dtype=torch.float32, device=weights.device)
    uniform_(draws, generator=generator)
    return torch.searchsorted(totals, draws * totals[..., -1:], right=True).clamp_(max=weights.shape[-1] - 1)


def code_of(weights: torch.Tensor) -> torch.Tensor:
    """0 for probabilities, -1 where one is none, 1 where a row has no positive one."""
    invalid = ((weights >= 0) & (weights < float("inf"))).logical_not_().any()  # NaN fails the comparison
    impossible = (weights.sum(-1) <= 0).any()
    return torch.where(invalid, -1, impossible.to(torch.int32))


# Dropout --------------------------------------------------------------------------------------------------------------


def native_dropout(self: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, ...]:
    """``(self * mask / (1 - p), mask)``; p = 1 gives zeros."""
    out, mask = outputs_of(aten.native_dropout.default, self, p, train)
    if train is False:
        return out.copy_(self), mask.fill_(True)
    keep(self, out, mask, 1 - p, None)
    return out, mask


def dropout_numbers(args: Sequence[Any]) -> tuple[int | float, ...]:
    """The parameters of what :func:`native_dropout` records for these arguments."""
    self, p, *_ = args
    return tuple([value for _, value in dropout_scalars(self, 1 - p, None)])


def fused_dropout(self: torch.Tensor, p: float, generator: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(self * mask / p, mask)`` with a uint8 mask; here ``p`` is the probability to keep."""
    out, mask = torch.empty_like(self), torch.empty_like(self, dtype=torch.uint8)
    keep(self, out, mask, p, generator)
    return out, mask


def keep(self: torch.Tensor, out: torch.Tensor, mask: torch.Tensor, probability: float, generator: Any) -> None:
    """Fills ``mask`` with whether each element stays, ``out`` with those that do, scaled."""
    if out.numel():
        scalars = dropout_scalars(self, probability, generator)
        record_pointwise("aten.native_dropout", [self], [out, mask], kept, (opmath(self.dtype),), scalars)


def kept(dtype: str, x: Expr) -> tuple[Expr, ...]:
    stays = stream("random_uniform") < ops.param(STREAM_PARAMS, "f32")
    x = ops.to_dtype(x, dtype)
    scaled = x * ops.to_dtype(ops.param(STREAM_PARAMS + 1, "f32"), dtype)
    return ops.where(stays, scaled, ops.like(x, 0)), stays


def dropout_scalars(self: torch.Tensor, probability: float, generator: Any) -> list[tuple[str, Any]]:
    """What the kernel takes: a stretch of the stream, how likely an element stays, what those that do are scaled by."""
    scale = 1 / probability if probability else 0.0
    return [*stream_scalars(generator, self), ("f", float(probability)), ("f", float(scale))]


FUNCTIONAL: tuple[tuple[OpOverload, Callable[..., Any]], ...] = (
    (aten.poisson.default, poisson),
    (aten.binomial.default, binomial),
    (aten._standard_gamma.default, standard_gamma),
    (aten._standard_gamma_grad.default, standard_gamma_grad),
    (aten._sample_dirichlet.default, sample_dirichlet),
    (aten.multinomial.default, multinomial),
)
KERNELS: tuple[tuple[OpOverload, Callable[..., Any]], ...] = (
    (aten.bernoulli.default, bernoulli),
    (aten.bernoulli.out, bernoulli_out),
    (aten.bernoulli.p, bernoulli_p),
    (aten.normal.Tensor_float, normal),
    (aten.normal.float_Tensor, normal),
    (aten.normal.Tensor_Tensor, normal),
    (aten.normal.Tensor_float_out, normal_out),
    (aten.normal.float_Tensor_out, normal_out),
    (aten.normal.Tensor_Tensor_out, normal_out),
    (aten.randperm.default, randperm),
    (aten.randperm.generator, randperm),
    (aten.randperm.out, randperm_out),
    (aten.randperm.generator_out, randperm_out),
    (aten._fused_dropout.default, fused_dropout),
)


def register() -> None:
    for overload, kernel in FUNCTIONAL:
        register_operator(overload, kernel)
    register_operator(aten.native_dropout.default, native_dropout, numbers=dropout_numbers)
    for overload, kernel in KERNELS:
        impl(overload, kernel)
