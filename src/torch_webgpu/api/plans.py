"""``torch_webgpu.plan.trace`` and ``bind``: functions as plans, and plans as functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.aten.dispatch.torch_abi import compiling
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.plan_function import PlanFunction
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tracing import trace as trace_on
from torch_webgpu.plan import Plan
from torch_webgpu.target import Target, named

from .device import use_other_adapters


def trace(fn: Callable[..., Any], *inputs: Any, target: str | Target | None = None) -> Plan:
    """What ``fn(*inputs)`` does, as one plan, without running it.

    The plan's inputs are the tensors in ``inputs``, which may be nested in tuples, lists and dictionaries: webgpu
    tensors, of which only the layout matters, or meta tensors, which stand for tensors of the current adapter.
    Parameters of modules among them (for ``torch.func.functional_call``) are its weights. Everything else is constant:
    other arguments, and the tensors that ``fn`` uses besides. ``fn`` returns a tensor, or tuples, lists and
    dictionaries of tensors; it may write into its inputs. ``torch.compiler.is_compiling()`` is true meanwhile.

    ``target``: what to compile for in place of an adapter, which need not be there: a
    :class:`torch_webgpu.target.Target` or the name of one, as ``torch_webgpu.target.names()`` lists them. The inputs
    may then be tensors of any device, fake ones too, and what ``fn`` uses besides is made in it.

    Raises TraceError for what cannot be a plan: reading a value, drawing from a generator of one's own, writing into a
    tensor that is no input. ValueError for a target that is not known.
    """
    names = parameter_names(fn, len(inputs))
    if target is not None:
        index = engine().describe(named(target) if isinstance(target, str) else target)
        use_other_adapters()
    else:
        index = adapter_of(inputs)
    with compiling():
        return trace_on(engine(), index, fn, inputs, names)


def adapter_of(inputs: Any) -> int:
    """The index of the adapter that inputs are on, the current one where they are on none. ValueError for several."""
    leaves = pytree.tree_leaves(inputs)
    indices = {a.device.index for a in leaves if isinstance(a, torch.Tensor) and a.device.type == "webgpu"}
    if len(indices) > 1:
        raise ValueError(f"the inputs are on several adapters: {sorted(indices)}")
    return indices.pop() if indices else current_device()


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """What a function calls its first positional arguments, as far as it says."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional][:count]


def bind(
    plan: Plan, device: torch.device | str | int | None = None, contents: Mapping[str, bytes] | None = None
) -> PlanFunction:
    """A function that runs ``plan`` on an adapter (the current one). Kernels are compiled at its first call.

    ``contents``: the bytes of constants by their SHA-256 digests, where the plan does not have them itself.
    """
    if isinstance(device, int):
        index = device
    else:
        chosen = None if device is None else torch.device(device)
        index = current_device() if chosen is None or chosen.index is None else chosen.index
    return PlanFunction(engine(), plan, index, {**plan.contents, **(contents or {})})
