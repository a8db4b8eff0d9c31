"""Small programs, and what they are compiled to for adapters that need not be there: plans and WGSL as text.

A plan is traced without running, and a device that never runs anything is never opened: an adapter's features and
limits are all there has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from torch_webgpu.plan import Plan, trace
from torch_webgpu.runtime import runtime
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.target import MatrixConfig
from torch_webgpu.wgsl.link import link

EXPECTED = Path(__file__).with_name("expected")
LIMITS = {
    "max-buffer-size": 1 << 30,
    "max-compute-workgroup-storage-size": 32768,
    "max-compute-workgroups-per-dimension": 65535,
    "max-immediate-size": 128,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-storage-buffers-per-shader-stage": 16,
    "min-uniform-buffer-offset-alignment": 256,
}
FEATURES = frozenset({"shader-int64", "shader-f16", "immediates", "subgroup", "shader-float32-atomic"})
GPU = {"device": "a GPU", "adapter_type": "DiscreteGPU", "backend_type": "Vulkan", "vendor_id": 1, "device_id": 1}
DEVICES = ("rich", "plain", "matrices")
"""An adapter with the usual features, one that has none of them, and Dawn's where there are tensor cores."""


@dataclass(frozen=True)
class NoImplementation:
    """Whose adapters cannot be opened."""

    dialect: str
    name: str = "none"


def adapters() -> tuple[Device, ...]:
    naga, tint = NoImplementation("naga"), NoImplementation("tint")
    features = frozenset({"shader-f16", "immediates", "subgroup", "subgroup-size-control"})
    found = (
        Adapter(naga, None, GPU, FEATURES, LIMITS),  # type: ignore[arg-type]
        Adapter(naga, None, GPU, frozenset(), LIMITS),  # type: ignore[arg-type]
        Adapter(tint, None, GPU, features, LIMITS, (MatrixConfig("f16", "f32", 16, 16, 16, 32),)),  # type: ignore[arg-type]
    )
    return tuple([Device(k, adapter) for k, adapter in enumerate(found)])


@dataclass(frozen=True)
class Program:
    """A function, the tensors it is traced with, and the adapters that it is compiled for."""

    run: Callable[..., object]
    inputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    devices: tuple[str, ...] = ("rich",)


def f32(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.float32, shape


def f16(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.float16, shape


def i64(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.int64, shape


def write_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:].mul_(y[:-1])
    return x + 1


def sgd(weight: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weight = weight.detach().requires_grad_()
    loss = F.cross_entropy(x @ weight, labels)
    (gradient,) = torch.autograd.grad(loss, weight)
    return weight.detach() - 0.1 * gradient


PROGRAMS = {
    "chain": Program(lambda x, y: (x * 2 + 1).relu() * y, (f32(64, 48), f32(48)), ("rich", "plain")),
    "halves": Program(lambda x: (x.half() * 3).bfloat16().exp(), (f32(7, 5),), ("rich", "plain")),
    "integers": Program(lambda x, y: (x * y) // 3, (i64(9), i64(9)), ("rich", "plain")),
    "softmax": Program(partial(torch.softmax, dim=-1), (f32(16, 40),)),
    "layer_norm": Program(lambda x, w, b: F.layer_norm(x, (40,), w, b), (f32(16, 40), f32(40), f32(40))),
    "sums": Program(lambda x: (x.sum(0), (x * x).mean()), (f32(300, 20),)),
    "cumsum": Program(lambda x: x.cumsum(1), (f32(4, 100),)),
    "transposed": Program(lambda x, y: x.t() + y, (f32(33, 17), f32(17, 33))),
    "write_through_a_view": Program(write_through_a_view, (f32(6, 4), f32(6, 4))),
    "linear_gelu": Program(lambda x, w, b: F.gelu(F.linear(x, w, b)), (f32(32, 64), f32(48, 64), f32(48))),
    "linear_relu": Program(
        lambda x, w, b: F.relu(F.linear(x, w, b)), (f16(32, 64), f16(48, 64), f16(48)), ("matrices",)
    ),
    "embedding": Program(lambda i, w: F.embedding(i, w) + 1, (i64(2, 5), f32(11, 8))),
    "dropout": Program(lambda x: F.dropout(x, 0.5), (f32(64),)),
    "training_step": Program(sgd, (f32(8, 3), f32(5, 8), i64(5))),
}


def text(plan: Plan, device: Device) -> str:
    """A plan and its kernels' sources."""
    sources = [f"// {k.name}\n{link(k, device.target).source.strip()}\n" for k in plan.kernels]
    return f"{plan}\n\n" + "\n".join(sources)


def compiled() -> dict[str, str]:
    """What each program is compiled to on each of its adapters. It is the first use of the device in its process."""
    found = adapters()
    runtime._runtime = lambda: found
    results = {}
    for name, program in PROGRAMS.items():
        for device in program.devices:
            index = DEVICES.index(device)
            with torch.webgpu.device(index):
                meta = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in program.inputs]
                results[f"{name}.{device}"] = text(trace(program.run, *meta), found[index])
    assert not any(device.is_open for device in found)
    return results
