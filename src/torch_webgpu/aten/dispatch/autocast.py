"""``torch.autocast("webgpu")``: which operators run in the half type, which in float32, as on CUDA.

PyTorch implements autocast in C++ per device and leaves a Python backend's key empty; the policies are those of
``aten/src/ATen/autocast_mode.h``. There is no cache of cast weights: a cast is one recorded operation, which the engine
fuses with its consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import get_autocast_dtype
from torch._ops import OpOverload

from .torch_abi import DEVICE_TYPE, exclude_autocast, is_out, library, overloads

KEY = "AutocastPrivateUse1"

LOWER_PRECISION = (
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu "
    "addmm addmv addr matmul mm mv linear addbmm baddbmm bmm chain_matmul linalg_vecdot linalg_matmul linalg_multi_dot "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "_scaled_dot_product_flash_attention scaled_dot_product_attention"
).split()

FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __rpow__ softplus layer_norm "
    "native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss "
    "nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
).split()

FLOAT32_BY_DTYPE = "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum".split()

WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add vdot".split()

FORBIDDEN = ("binary_cross_entropy",)


def eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device.type == DEVICE_TYPE
    )


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Every eligible tensor in ``value`` (also in lists) as ``dtype``, differentiably."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is not dtype and eligible(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    return value


def widest(values: Any) -> torch.dtype:
    """The autocast dtype, or float32 if any eligible tensor has it."""
    flat = [t for value in values for t in (value if isinstance(value, (list, tuple)) else [value])]
    if any(eligible(t) and t.dtype == torch.float32 for t in flat):
        return torch.float32
    return get_autocast_dtype(DEVICE_TYPE)


def caster(op: OpOverload, dtype_of: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    """``op`` with its tensors brought to ``dtype_of(args)`` first."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with exclude_autocast():
            dtype = dtype_of(args)
            values = [cast(a, dtype) for a in args]
            return op(*values, **{k: cast(v, dtype) for k, v in kwargs.items()}) if kwargs else op(*values)

    return kernel


def by_dtype(op: OpOverload) -> Callable[..., Any]:
    """``op`` asked for a float32 result unless the caller asked for some dtype."""
    position = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with exclude_autocast():
            asked = args[position] if position < len(args) else kwargs.get("dtype")
            if asked is None and args and eligible(args[0]):
                args = args[:position]
                kwargs = {**kwargs, "dtype": torch.float32}
                if not op._schema.arguments[position].kwarg_only:
                    defaults = [a.default_value for a in op._schema.arguments[len(args) : position]]
                    args, kwargs = (*args, *defaults, torch.float32), {k: v for k, v in kwargs.items() if k != "dtype"}
            return op(*args, **kwargs)

    return kernel


def forbidden(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Combine the sigmoid and the loss in binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, "
            "which are safe to autocast."
        )

    return kernel


def float32(args: Any) -> torch.dtype:
    return torch.float32


def half(args: Any) -> torch.dtype:
    return get_autocast_dtype(DEVICE_TYPE)


def register() -> None:
    library(KEY, "_").fallback(torch.library.fallthrough_kernel, KEY)
    policies: list[tuple[tuple[str, ...] | list[str], Callable[[OpOverload], Callable[..., Any]]]] = [
        (LOWER_PRECISION, lambda op: caster(op, half)),
        (FLOAT32, lambda op: caster(op, float32)),
        (WIDEST, lambda op: caster(op, widest)),
        (
            FLOAT32_BY_DTYPE,
            lambda op: by_dtype(op) if "dtype" in {a.name for a in op._schema.arguments} else caster(op, float32),
        ),
        (FORBIDDEN, forbidden),
    ]
    for names, policy in policies:
        for name in names:
            for op in overloads(name).values():
                types = [str(a.type) for a in op._schema.arguments]
                if not is_out(op) and any("Tensor" in t for t in types) and not any("Dimname" in t for t in types):
                    library(KEY).impl(op, policy(op), KEY)
