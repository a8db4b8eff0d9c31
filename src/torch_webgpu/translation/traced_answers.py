"""What ``torch.compile`` sees in the place of an answer, whose counts and clock cannot be part of a graph.

What CUDA programs compile is compiled here, too: what PyTorch's compiler takes for constants is constant, and a copy
to the device or a wait for it is an operation of the graph. Other answers break the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_webgpu.compile.private import know_originals
from torch_webgpu.on_import import when_imported
from torch_webgpu.translation.emulated.target import HERE

Function = Callable[..., Any]


def constant(function: Function) -> Function:
    """``function``, called while a graph is traced, for a constant of it."""

    def value(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    value._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does
    return value


def of_constant(plain: Function, answer: Function) -> Function:
    """An answer that is a constant of the graph."""
    return constant(answer)


def itself(plain: Function, answer: Function) -> Function:
    """What the compiler knows."""
    return plain


def to_device(plain: Function, answer: Function) -> Function:
    """``Tensor.cuda``"""
    local = constant(HERE.device)

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:  # fmt: skip
        return self.to(local(device), non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def synchronize(plain: Function, answer: Function) -> Function:
    """``torch.cuda.synchronize``: an operation of the graph, if there is something to wait for."""

    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    return constant(answer) if HERE.type == "cpu" else synchronize


def current_device(plain: Function, answer: Function) -> Function:
    """``torch.cuda.current_device``: graphs are traced again where it changes."""

    def current_device() -> int:
        return torch.accelerator.current_device_index()

    return current_device if HERE.type in ("webgpu", "xpu") else constant(answer)


SEEN: dict[str, Callable[[Function, Function], Function]] = {
    "torch.Tensor.cuda": to_device,
    "torch.Tensor.mtia": to_device,
    "torch.Tensor.xpu": to_device,
    "torch.accelerator.synchronize": itself,
    "torch.amp.is_autocast_available": of_constant,
    "torch.cuda.current_device": current_device,
    "torch.cuda.get_device_name": of_constant,
    "torch.cuda.is_tf32_supported": of_constant,
    "torch.cuda.synchronize": synchronize,
    "torch.get_autocast_dtype": of_constant,
    "torch.get_autocast_gpu_dtype": of_constant,
    "torch.is_autocast_enabled": of_constant,
    "torch.mps.synchronize": synchronize,
    "torch.xpu.current_device": current_device,
    "torch.xpu.synchronize": synchronize,
}
"""Name → what makes that which is seen of PyTorch's own and of what answers. Questions are constants, too."""


def seen(name: str, plain: Function, answer: Function, counted: Any) -> None:
    """Says what is seen where ``counted`` is called, which counts the calls of ``answer``.

    By an attribute that Dynamo looks for, as in the functions that ``torch.compile`` returns.
    """
    if name in SEEN:
        counted._torchdynamo_inline = SEEN[name](plain, answer)


def originals(answers: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """What is installed, and what is seen in its place → what is replaced by it, of pairs of the first and the last."""
    replaced: dict[Any, Any] = {}
    for answer, plain in answers:
        if callable(answer):
            replaced |= {answer: plain, getattr(answer, "_torchdynamo_inline", answer): plain}
    return replaced


when_imported("torch._dynamo", lambda dynamo: know_originals(dynamo, HERE.originals))
