"""What a program allows for products of float32: "highest", "high" or "medium".

:mod:`torch_webgpu.kernels.matmul.halves` has what they mean. It may change between two calls, and
nothing tells that it has, so each call of a large product asks.

``torch.set_float32_matmul_precision``, ``torch.backends.cuda.matmul.allow_tf32`` and the newer ``fp32_precision`` set
the same thing, but the functions that return it raise where the last one was used. What is asked here is what CUDA's
products go by, and never raises. PyTorch notes what only "medium" allows as bfloat16 for the CPU's.
"""

from __future__ import annotations

from .guards import Guard
from .torch_abi import fp32_precision


def float32_matmul_precision() -> str:
    """What is allowed now."""
    if fp32_precision("cuda", "matmul") != "tf32":
        return "highest"
    return "medium" if fp32_precision("mkldnn", "matmul") == "bf16" else "high"


def where_precision_is(precision: str, guard: Guard) -> Guard:
    """``guard``, while that is allowed."""
    return lambda args, kwargs: guard(args, kwargs) if float32_matmul_precision() == precision else None
