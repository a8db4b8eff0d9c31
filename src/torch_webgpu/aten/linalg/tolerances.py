"""Pseudo-inverses, ranks and renormalisation on adapters without 64-bit floats.

PyTorch computes their tolerances, and the norms of renorm's derivative, in float64 on every device but MPS. An adapter
that lacks float64 gets tolerances in the matrix's own (real) dtype, as MPS does, and norms in float32. On an adapter
that has it, PyTorch's own kernels run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.torch_abi import (
    AUTOGRAD_KEY,
    aten,
    below_autograd,
    impl,
    in_transform,
    is_out,
    overloads,
)
from torch_webgpu.aten.dispatch.torch_compositions import autograd_kernel, composite, recompose
from torch_webgpu.engine.record import engine

EPSILON = 1e-7
"""What PyTorch's renorm adds to a norm before it divides by it."""
HALVES = (torch.float16, torch.bfloat16)


def has_float64(tensor: torch.Tensor) -> bool:
    return engine().device(tensor.device.index or 0).target.float64


def with_own_tolerances(overload: OpOverload) -> Callable[..., torch.Tensor]:
    """The composition of an overload of ``linalg.pinv`` or ``linalg.matrix_rank``, whatever it calls its tolerances."""
    name = "atol_rtol_tensor_out" if is_out(overload) else "atol_rtol_tensor"
    with_tensors = overloads(overload._schema.name.split("::")[1])[name]
    theirs = composite(overload)
    # By the dispatcher: PyTorch has a formula for pinv's derivative.
    target = theirs if overload is with_tensors else with_tensors
    positional = [a.name for a in overload._schema.arguments if not a.kwarg_only][1:]

    def composition(matrix: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if has_float64(matrix):
            return theirs(matrix, *args, **kwargs)
        kwargs |= dict(zip(positional, args, strict=False))
        if not is_matrix(matrix):
            return run_on_cpu(overload, (matrix,), kwargs, "it is not a matrix that it is computed for")  # raises
        if "rcond" in kwargs:
            atol, rtol = 0.0, kwargs.pop("rcond")
        elif "tol" in kwargs:
            atol, rtol = kwargs.pop("tol"), 0.0
        else:
            atol, rtol = kwargs.pop("atol", None), kwargs.pop("rtol", None)
        return target(matrix, **tolerances(matrix, atol, rtol), **kwargs)

    return composition


def is_matrix(a: torch.Tensor) -> bool:
    """Whether PyTorch takes it for one: of float32, float64 or their complex numbers."""
    return a.dim() >= 2 and (a.is_floating_point() or a.is_complex()) and a.dtype not in HALVES


def tolerances(matrix: torch.Tensor, atol: Any, rtol: Any) -> dict[str, torch.Tensor]:
    """Both as tensors. What is not said is as PyTorch chooses it: relative to the longer side, unless there is an
    absolute one.
    """
    if rtol is None:
        rtol = torch.finfo(matrix.dtype).eps * max(matrix.shape[-2:])
        if isinstance(atol, torch.Tensor) and not atol.is_complex():  # a complex one is refused later
            rtol = torch.where(atol > 0, 0.0, rtol)
        elif isinstance(atol, float) and atol > 0:
            rtol = 0.0

    def tensor(value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return torch.full((), value, dtype=matrix.dtype.to_real(), device=matrix.device)

    return {"atol": tensor(0.0 if atol is None else atol), "rtol": tensor(rtol)}


renorm_with_float64 = autograd_kernel(aten.renorm.default)
renorm_in_place_with_float64 = autograd_kernel(aten.renorm_.default)


def renorm(self: torch.Tensor, p: Any, dim: int, maxnorm: Any) -> torch.Tensor:
    """Above autograd. Derivatives are those of the parts that it is computed from then."""
    if has_float64(self):
        return renorm_with_float64(self, p, dim, maxnorm)
    if not needs_derivatives(self):
        with below_autograd():
            return aten.renorm.default(self, p, dim, maxnorm)
    aten.renorm.default(torch.empty((1,) * self.dim(), dtype=self.dtype, device="cpu"), p, dim, maxnorm)  # checks them
    dims = [d for d in range(self.dim()) if d != dim % self.dim()]
    norm = torch.linalg.vector_norm(self, p, dims, keepdim=True, dtype=torch.float32 if self.dtype in HALVES else None)
    scale = torch.where(norm > maxnorm, maxnorm / (norm + EPSILON), 1.0)
    return self * scale.to(self.dtype)


def renorm_in_place(self: torch.Tensor, p: Any, dim: int, maxnorm: Any) -> torch.Tensor:
    """Above autograd."""
    if has_float64(self):
        return renorm_in_place_with_float64(self, p, dim, maxnorm)
    if needs_derivatives(self):
        return self.copy_(renorm(self.clone(), p, dim, maxnorm))  # the derivative needs what was there
    with below_autograd():
        return aten.renorm_.default(self, p, dim, maxnorm)


def needs_derivatives(self: torch.Tensor) -> bool:
    return in_transform() or (self.requires_grad and torch.is_grad_enabled())


def register() -> None:
    for name in ("linalg_pinv", "linalg_matrix_rank"):
        for overload in overloads(name).values():
            recompose(overload, with_own_tolerances(overload))
    impl(aten.renorm.default, renorm, AUTOGRAD_KEY)
    impl(aten.renorm_.default, renorm_in_place, AUTOGRAD_KEY)
