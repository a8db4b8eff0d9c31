"""``torch.cuda.comm`` and ``torch.cuda.nccl``: tensors between the devices that there are, by copies and sums.

Copies between two WebGPU adapters go through the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_webgpu.distributed import device_copies
from torch_webgpu.distributed.device_copies import filled

from .target import HERE, DeviceLike

Tensors = tuple[torch.Tensor, ...]
SUM, PRODUCT, MAXIMUM, MINIMUM = range(4)
"""NCCL's numbers for its reductions."""


def _either(devices: Any, out: Any) -> None:
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )


def local_devices(devices: Iterable[DeviceLike]) -> list[torch.device]:
    return list(map(HERE.device, devices))


def broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> Tensors:
    """Copies of ``tensor`` on ``devices``, or in ``out``. The tensor itself stands for the copy on its own device."""
    _either(devices, out)
    if out is not None:
        return tuple([filled(one, tensor) for one in out])
    return tuple(device_copies.broadcast(tensor, local_devices(devices)))


def broadcast_coalesced(
    tensors: Iterable[torch.Tensor], devices: Any, buffer_size: int = 10485760
) -> list[list[torch.Tensor]]:
    """For each device the copies of all ``tensors``."""
    return device_copies.broadcast_coalesced(list(tensors), local_devices(devices), buffer_size)


def reduce_add(inputs: Sequence[torch.Tensor], destination: DeviceLike = None) -> torch.Tensor:
    """The sum of tensors of one shape, on ``destination``, where one of them is."""
    if any(one.size() != inputs[0].size() for one in inputs):
        raise ValueError("reduce_add expects inputs of one size")
    device = HERE.device(destination)
    if all(one.device != device for one in inputs):
        raise RuntimeError("reduce_add expects destination to be on the same GPU with one of the tensors")
    return _reduced(inputs, SUM, device)


def reduce_add_coalesced(
    inputs: Sequence[Iterable[torch.Tensor]], destination: DeviceLike = None, buffer_size: int = 10485760
) -> Tensors:
    """:func:`reduce_add` of the first tensor of each device, of the second, …"""
    return tuple([reduce_add(group, destination) for group in zip(*inputs, strict=True)])


def scatter(
    tensor: torch.Tensor, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, *,
    out: Any = None,
) -> Tensors:  # fmt: skip
    """Parts of ``tensor`` along ``dim`` on ``devices``, equal or of ``chunk_sizes``, or in ``out``."""
    _either(devices, out)
    if out is not None:
        return tuple(device_copies.scattered_into(tensor, out, dim))
    return tuple(device_copies.scatter(tensor, local_devices(devices), chunk_sizes, dim))


def gather(
    tensors: Sequence[torch.Tensor], dim: int = 0, destination: DeviceLike = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The tensors one after another along ``dim``, on ``destination`` ("cpu" and -1 are the CPU), or in ``out``."""
    if out is not None:
        return filled(out, device_copies.gather(tensors, dim, out.device))
    on_cpu = destination == -1 or (
        isinstance(destination, (str, torch.device)) and torch.device(destination).type == "cpu"
    )
    device = torch.device("cpu") if on_cpu else HERE.device(destination)
    return device_copies.gather(tensors, dim, device)


def _reduced(inputs: Sequence[torch.Tensor], op: int, device: torch.device) -> torch.Tensor:
    combine: Any = {SUM: torch.add, PRODUCT: torch.mul, MAXIMUM: torch.maximum, MINIMUM: torch.minimum}[op]
    total = inputs[0].to(device)
    if len(inputs) == 1:
        return total
    for one in inputs[1:]:
        total = combine(total, one.to(device))
    return total


def nccl_is_available(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the functions below take the tensors: dense, on the target, each on a device of its own."""
    devices = {tensor.device for tensor in tensors}
    return len(devices) == len(tensors) and all(
        tensor.device.type == HERE.type and tensor.layout == torch.strided for tensor in tensors
    )


def all_reduce(
    inputs: Sequence[torch.Tensor], outputs: Any = None, op: int = SUM, streams: Any = None, comms: Any = None
) -> None:
    """The reduction of all inputs into every output, or into the inputs."""
    total = _reduced(inputs, op, inputs[0].device).clone()
    for one in inputs if outputs is None else outputs:
        filled(one, total)


def reduce(
    inputs: Sequence[torch.Tensor], output: Any = None, root: int = 0, op: int = SUM, streams: Any = None,
    comms: Any = None, *, outputs: Any = None,
) -> None:  # fmt: skip
    """The reduction of all inputs into ``output``, or into the input number ``root``."""
    target = inputs[root] if output is None and outputs is None else output if outputs is None else outputs[root]
    filled(target, _reduced(inputs, op, target.device))


def nccl_broadcast(inputs: Sequence[torch.Tensor], root: int = 0, streams: Any = None, comms: Any = None) -> None:
    """The input number ``root`` into the others."""
    for n, one in enumerate(inputs):
        if n != root:
            filled(one, inputs[root])


def all_gather(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], streams: Any = None, comms: Any = None
) -> None:
    """All inputs one after another, flat, into every output."""
    for one in outputs:
        filled(one.view(-1), torch.cat([part.to(one.device).flatten() for part in inputs]))


def reduce_scatter(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: int = SUM, streams: Any = None,
    comms: Any = None,
) -> None:  # fmt: skip
    """The reduction of all inputs, flat, in equal parts into the outputs."""
    total = _reduced(inputs, op, inputs[0].device).flatten()
    for one, part in zip(outputs, total.chunk(len(outputs)), strict=True):
        filled(one.view(-1), part)
