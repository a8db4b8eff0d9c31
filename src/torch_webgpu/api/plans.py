"""``torch_webgpu.plan.trace`` and ``bind``: functions as plans, and plans as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_webgpu.aten.torch_abi import compiling
from torch_webgpu.engine.bound import BoundPlan
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tracing import trace as trace_on
from torch_webgpu.plan import Plan


def trace(fn: Callable[..., Any], *inputs: Any) -> Plan:
    """What ``fn(*inputs)`` does, as one plan, without running it.

    The plan's inputs are the tensors among ``inputs``: webgpu tensors, of which only the layout matters, or meta
    tensors, which stand for tensors of the current adapter. Everything else is constant: other arguments, and the
    tensors that ``fn`` uses besides. ``fn`` returns a tensor, or tuples, lists and dictionaries of tensors; it may
    write into its inputs. ``torch.compiler.is_compiling()`` is true meanwhile. Raises TraceError for what cannot be a
    plan: reading a value, drawing from a generator of one's own, writing into a tensor that is no input.
    """
    found = {a.device.index for a in inputs if isinstance(a, torch.Tensor) and a.device.type == "webgpu"}
    if len(found) > 1:
        raise ValueError(f"the inputs are on several adapters: {sorted(found)}")
    with compiling():
        return trace_on(engine(), found.pop() if found else current_device(), fn, inputs)


def bind(
    plan: Plan, device: torch.device | str | int | None = None, contents: Mapping[str, bytes] | None = None
) -> BoundPlan:
    """A function that runs ``plan`` on an adapter (the current one). Kernels are compiled at its first call.

    ``contents``: the bytes of constants by their SHA-256 digests, where the plan does not have them itself.
    """
    if isinstance(device, int):
        index = device
    else:
        chosen = None if device is None else torch.device(device)
        index = current_device() if chosen is None or chosen.index is None else chosen.index
    return BoundPlan(engine(), plan, index, {**plan.contents, **(contents or {})})
