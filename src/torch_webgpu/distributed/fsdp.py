"""FSDP: what it asks of NCCL, and works here another way."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE


def dividing_beside_sums(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``_get_gradient_divide_factors``: gloo cannot multiply what it sums, so a factor is a kernel of its own.

    FSDP itself divides where one rank has all.
    """
    parameters = signature(plain)

    @wraps(plain)
    def factors(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        asked = given.arguments
        group = asked.get("reduce_scatter_group")
        is_sum = group is not None and group.size() > 1 and asked.get("factor") is not None
        if is_sum and asked.get("device_type") == DEVICE_TYPE:
            asked["force_sum_reduction_for_comms"] = True
        return plain(*given.args, **given.kwargs)

    return factors
