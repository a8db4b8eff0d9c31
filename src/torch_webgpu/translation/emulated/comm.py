"""``torch.cuda.comm`` and ``torch.cuda.nccl``: tensors between the devices that there are, by copies and sums.

Copies between two WebGPU adapters go through the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .target import HERE, DeviceLike

Tensors = tuple[torch.Tensor, ...]
SUM, PRODUCT, MAXIMUM, MINIMUM = range(4)
"""NCCL's numbers for its reductions."""


def _either(devices: Any, out: Any) -> None:
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )


def _filled(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return out.copy_(value)


def broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> Tensors:
    """Copies of ``tensor`` on ``devices``, or in ``out``. The tensor itself stands for the copy on its own device."""
    _either(devices, out)
    if out is not None:
        return tuple([_filled(one, tensor) for one in out])
    return tuple([tensor.to(HERE.device(device)) for device in devices])


def broadcast_coalesced(tensors: Iterable[torch.Tensor], devices: Any, buffer_size: int = 10485760) -> list[Tensors]:
    """For each device the copies of all ``tensors``."""
    tensors = list(tensors)
    return [tuple([tensor.to(HERE.device(device)) for tensor in tensors]) for device in devices]


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
        parts = tensor.split([one.size(dim) for one in out], dim)
        return tuple([_filled(one, part) for one, part in zip(out, parts, strict=True)])
    devices = list(devices)
    parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return tuple([part.to(HERE.device(device)) for part, device in zip(parts, devices, strict=False)])


def gather(
    tensors: Sequence[torch.Tensor], dim: int = 0, destination: DeviceLike = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The tensors one after another along ``dim``, on ``destination`` ("cpu" and -1 are the CPU), or in ``out``."""
    if out is not None:
        return _filled(out, torch.cat([one.to(out.device) for one in tensors], dim))
    on_cpu = destination == -1 or (
        isinstance(destination, (str, torch.device)) and torch.device(destination).type == "cpu"
    )
    device = torch.device("cpu") if on_cpu else HERE.device(destination)
    return torch.cat([one.to(device) for one in tensors], dim)


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
        _filled(one, total)


def reduce(
    inputs: Sequence[torch.Tensor], output: Any = None, root: int = 0, op: int = SUM, streams: Any = None,
    comms: Any = None, *, outputs: Any = None,
) -> None:  # fmt: skip
    """The reduction of all inputs into ``output``, or into the input number ``root``."""
    target = inputs[root] if output is None and outputs is None else output if outputs is None else outputs[root]
    _filled(target, _reduced(inputs, op, target.device))


def nccl_broadcast(inputs: Sequence[torch.Tensor], root: int = 0, streams: Any = None, comms: Any = None) -> None:
    """The input number ``root`` into the others."""
    for n, one in enumerate(inputs):
        if n != root:
            _filled(one, inputs[root])


def all_gather(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], streams: Any = None, comms: Any = None
) -> None:
    """All inputs one after another, flat, into every output."""
    for one in outputs:
        _filled(one.view(-1), torch.cat([part.to(one.device).flatten() for part in inputs]))


def reduce_scatter(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: int = SUM, streams: Any = None,
    comms: Any = None,
) -> None:  # fmt: skip
    """The reduction of all inputs, flat, in equal parts into the outputs."""
    total = _reduced(inputs, op, inputs[0].device).flatten()
    for one, part in zip(outputs, total.chunk(len(outputs)), strict=True):
        _filled(one.view(-1), part)
