"""What runs when there is no kernel: a PyTorch decomposition into operators that have one, or the CPU, counted.

Every CPU fallback is counted per operator, warned about once with its reason, and an error under
``TORCH_WEBGPU_FALLBACK=error``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from torch_webgpu.config import config, print_stage
from torch_webgpu.engine.causes import on_cpu, reading
from torch_webgpu.engine.current import current_device
from torch_webgpu.errors import FallbackError, TraceError

from .decomps import decomposed
from .refusals import refusal
from .torch_abi import check_devices, is_webgpu, library

_counts: Counter[str] = Counter()
_warned: set[str] = set()
_decompositions: dict[OpOverload, Callable[..., Any]] = {}


def fallback_stats() -> dict[str, int]:
    """Operator name → how often it ran on the CPU since the process started."""
    return dict(_counts)


def decompose_with(table: dict[OpOverload, Callable[..., Any]]) -> None:
    """Adds decompositions that the fallback prefers to PyTorch's own and to the CPU."""
    _decompositions.update(table)


def fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator that has none: runs its decomposition, else the CPU's kernel."""
    chosen = _decompositions.get(op)
    try:
        result = chosen(*args, **kwargs) if chosen is not None else decomposed(op, args, kwargs)
    except (NotImplementedError, FallbackError, TraceError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError) as own:
        check_devices((*args, *kwargs.values()))  # a decomposition may trip over tensors of two devices anywhere
        raise (refusal(op, args, kwargs) or own) from None
    if result is not NotImplemented:
        return result
    return run_on_cpu(op, args, kwargs, "it has no kernel and no decomposition for webgpu")


def count(name: str, reason: str) -> None:
    mode = config().fallback
    if mode == "error":
        raise FallbackError(f"{name} would run on the CPU ({reason}) and TORCH_WEBGPU_FALLBACK=error forbids it")
    _counts[name] += 1
    print_stage("fallback", f"{name}: {reason}")
    if mode == "warn" and name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name} runs on the CPU: {reason}. Results are right, but the tensors travel to the host and back; "
            "torch.webgpu.fallback_stats() counts how often",
            stacklevel=4,
        )


def run_on_cpu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Runs ``op`` on copies on the CPU, writes back what it mutated, returns results on the device they belong to."""
    schema = op._schema
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        raise NotImplementedError(f"{op} returns a view and has no webgpu kernel; a copy would silently break aliasing")
    check_devices((*args, *kwargs.values()))
    count(str(op), reason)
    device = _device_of(args, kwargs)
    written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_cpu(value: Any) -> Any:
        if is_webgpu(value):
            return value.detach().cpu()
        if isinstance(value, torch.device) and value.type == "webgpu":
            return torch.device("cpu")
        if isinstance(value, torch.Generator) and value.device.type == "webgpu":
            return None
        return value

    def host(value: Any, mutated: bool) -> Any:
        if not mutated:
            return tree_map(to_cpu, value)
        items = value if isinstance(value, (list, tuple)) else [value]
        copies = [to_cpu(item) for item in items]
        written.extend((a, b) for a, b in zip(items, copies, strict=True) if is_webgpu(a))
        return copies if isinstance(value, (list, tuple)) else copies[0]

    mutated = {a.name: a.alias_info is not None and a.alias_info.is_write for a in schema.arguments}
    with reading(on_cpu(str(op))):
        host_args = [host(v, mutated[a.name]) for v, a in zip(args, schema.arguments, strict=False)]
        host_kwargs = {k: host(v, mutated.get(k, False)) for k, v in kwargs.items()}
    result = op(*host_args, **host_kwargs)
    for original, copy in written:
        if original.shape != copy.shape:
            original.resize_(copy.shape)
        original.copy_(copy)

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for original, copy in written:
            if value is copy:
                return original
        return value.to(device)

    return tree_map(back, result)


def _device_of(args: Any, kwargs: Any) -> torch.device:
    found: list[torch.device] = []

    def visit(value: Any) -> None:
        if is_webgpu(value):
            found.append(value.device)
        elif isinstance(value, torch.device) and value.type == "webgpu":
            found.append(value)

    tree_map(visit, (args, kwargs))
    return found[0] if found else torch.device("webgpu", current_device())


def install() -> None:
    """Makes :func:`fallback` the kernel of every operator without one."""
    library("PrivateUse1", "_").fallback(fallback, "PrivateUse1")
