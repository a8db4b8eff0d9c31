"""What runs when there is no kernel: a PyTorch decomposition into operators that have one, or the CPU, counted.

Every CPU fallback is counted per operator, warned about once for each function that the program calls, with its line
and the reason, summed up when the process ends, and an error under ``TORCH_WEBGPU_FALLBACK=error``.
"""

from __future__ import annotations

import atexit
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from torch_webgpu.config import config, print_stage
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.flush_reason import on_cpu, reading
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import AddressError, FallbackError, TraceError
from torch_webgpu.ir.names import operator_name
from torch_webgpu.runtime.observer import span

from .call_site import Called, called, public_name
from .decomps import decomposed
from .refusals import is_cpu_forbidden, refusal
from .torch_abi import check_devices, is_webgpu, library

_counts: Counter[str] = Counter()
_functions: dict[str, str] = {}  # what the program called when an operator first ran on the CPU


def fallback_stats() -> dict[str, int]:
    """Operator name → how often it ran on the CPU since the process started."""
    return dict(_counts)


def fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator that has none: runs its decomposition, else the CPU's kernel."""
    try:
        result = decomposed(op, args, kwargs)
    except (NotImplementedError, AddressError, FallbackError, TraceError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError) as own:
        check_devices((*args, *kwargs.values()))  # a decomposition may trip over tensors of two devices anywhere
        raise (refusal(op, args, kwargs) or own) from None
    if result is not NotImplemented:
        return result
    return run_on_cpu(op, args, kwargs, "it has no kernel and no decomposition for webgpu")


def check_allowed(operator: str, reason: str) -> None:
    """Raises FallbackError where nothing may run on the CPU."""
    if is_cpu_forbidden():
        raise FallbackError(f"{operator} would run on the CPU: {reason}")
    if config().fallback == "error":
        raise FallbackError(
            f"{called(operator).function} would run on the CPU ({operator}: {reason}) and TORCH_WEBGPU_FALLBACK=error "
            "forbids it"
        )


def count(operator: str, reason: str) -> None:
    """One more run of an operator on the CPU, for this reason."""
    check_allowed(operator, reason)
    _counts[operator] += 1
    print_stage("fallback", f"{operator}: {reason}")
    if operator in _functions:
        return
    call = called(operator)
    is_new = call.function not in _functions.values()
    if not _functions:
        atexit.register(summarize)
    _functions[operator] = call.function
    if is_new and config().fallback == "warn":
        warn(call, reason)


def warn(call: Called, reason: str) -> None:
    """Warns of a function that runs on the CPU, at the line of the program that calls it."""
    message = (
        f"{call.function} runs on the CPU: {reason}. Results are right, but the tensors travel to the host and back; "
        "torch.webgpu.fallback_stats() counts how often"
    )
    if call.frame is None:
        warnings.warn(message, stacklevel=2)
        return
    names, code = call.frame.f_globals, call.frame.f_code
    registry, module = names.setdefault("__warningregistry__", {}), str(names.get("__name__"))
    warnings.warn_explicit(message, UserWarning, code.co_filename, call.frame.f_lineno, module, registry)


def summary() -> str:
    """What ran on the CPU, in a line; empty where nothing did."""
    if not _counts:
        return ""
    calls: Counter[str] = Counter()
    for operator, n in _counts.items():
        name = public_name(operator)  # several functions may call it
        calls[name if name.startswith("torch.") else _functions[operator]] += n
    functions = ", ".join(f"{function} ({n})" for function, n in calls.most_common())
    return f"webgpu: ran on the CPU for want of a kernel: {functions}"


def summarize() -> None:
    """Says at the end of the process what ran on the CPU."""
    if config().fallback == "warn":
        sys.stderr.write(f"{summary()}\n")


def run_on_cpu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Runs ``op`` on copies on the CPU, writes back what it mutated, returns results on the device they belong to."""
    schema = op._schema
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        raise NotImplementedError(f"{op} returns a view and has no webgpu kernel; a copy would silently break aliasing")
    check_devices((*args, *kwargs.values()))
    check_allowed(str(op), reason)
    device = _device_of(args, kwargs)
    with span(engine().device(device.index or 0), "fallback", f"{operator_name(str(op))}: {reason}"):
        return _on_copies(op, args, kwargs, reason, device)


def _on_copies(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, device: torch.device) -> Any:
    """:func:`run_on_cpu` of what may run there."""
    schema = op._schema
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
    result = called_on_cpu(op, host_args, host_kwargs)
    count(str(op), reason)
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


def called_on_cpu(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What ``op`` gives for arguments on the CPU; that nobody has a kernel where the CPU has none."""
    try:
        return op(*args, **kwargs)
    except NotImplementedError as error:
        if not str(error).startswith("Could not run "):
            raise
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    kinds = dict.fromkeys([f"{t.dtype}, {t.layout}" for t in tensors])
    raise NotImplementedError(
        f"{called(str(op)).function}: neither webgpu nor the CPU has a kernel of {op} for tensors like its arguments "
        f"({'; '.join(kinds) or 'there are none'})"
    )


def _device_of(args: Any, kwargs: Any) -> torch.device:
    devices: list[torch.device] = []

    def visit(value: Any) -> None:
        if is_webgpu(value):
            devices.append(value.device)
        elif isinstance(value, torch.device) and value.type == "webgpu":
            devices.append(value)

    tree_map(visit, (args, kwargs))
    return devices[0] if devices else torch.device("webgpu", current_device())


def install() -> None:
    """Makes :func:`fallback` the kernel of every operator without one."""
    library("PrivateUse1", "_").fallback(fallback, "PrivateUse1")
