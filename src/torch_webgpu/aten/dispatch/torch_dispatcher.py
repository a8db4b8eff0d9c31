"""What PyTorch's dispatcher says of operators: names, schemas, and what is registered for which key."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

SEVERAL_KEYS = {
    "Autograd": ("AutogradPrivateUse1", "AutogradCPU"),
}
"""Aliases, and keys of which any shows that something is registered for them."""


def operator_names() -> list[str]:
    """The names of all operators that PyTorch knows, without overloads (``aten::add``), in order."""
    return sorted({name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()})


def overloads_of(name: str) -> dict[str, OpOverload]:
    """The overloads of ``namespace::name`` by their names ("default" for the one without); empty for no operator."""
    namespace, _, base = name.partition("::")
    packet: Any = getattr(getattr(torch.ops, namespace), base, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return {}
    found: dict[str, OpOverload] = {}
    for overload in packet.overloads():
        one = getattr(packet, overload, None)
        if one is not None and torch._C._dispatch_has_kernel(one.name()):
            found[overload] = one
    return found


def is_registered(overload: OpOverload, key: str) -> bool:
    """Whether something is registered for a dispatch key, by itself or by an alias of it."""
    name = overload.name()
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, one) for one in (key, *SEVERAL_KEYS.get(key, ())))


def key_of(device: str) -> str:
    """The dispatch key of a type of device. RuntimeError where PyTorch knows no such type."""
    return torch._C._dispatch_key_for_device(torch.device(device).type)


def parsed_schema(text: str) -> Any:
    """The ``torch.FunctionSchema`` that a text is; its errors are RuntimeErrors."""
    return torch._C.parse_schema(text)


def origin(kernel: Any) -> str:
    """Where a kernel was registered, in C++'s words."""
    text = repr(kernel)
    return text.partition("debug='")[2].rpartition("'")[0] or text


def differs_from_a_plain_call() -> bool:
    """Whether a call is traced or transformed at the moment, or hooks keep what it saves for its backward pass, as in
    checkpointed parts of models.
    """
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )
