"""Tensors between the devices of one process, by copies through the host, and sums.

``torch.nn.parallel.comm``, and so ``nn.DataParallel``, does this by functions that PyTorch has in builds for CUDA alone
(torch/csrc/cuda/comm.cpp). Here they are in Python. Results are in PyTorch's words and shapes: a part of a tensor that
stays on its device is a view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE

Devices = Sequence[torch.device]
Tensors = Sequence[torch.Tensor]
_CPU = torch.device("cpu")


def filled(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``out`` with the elements of ``value``. RuntimeError if their shapes differ."""
    if out.shape != value.shape:
        raise RuntimeError(f"Expected an output tensor of shape {list(value.shape)}, but got {list(out.shape)}")
    with torch.no_grad():
        return out.copy_(value)


def broadcast(tensor: torch.Tensor, devices: Devices) -> list[torch.Tensor]:
    """``tensor`` on each of ``devices``: itself on its own, and copies on the others. It is read once."""
    source = tensor if all(device in (tensor.device, _CPU) for device in devices) else tensor.cpu()
    return [tensor if device == tensor.device else source.to(device) for device in devices]


def broadcast_coalesced(tensors: Tensors, devices: Devices, buffer_size: int) -> list[list[torch.Tensor]]:
    """For each device all ``tensors``: themselves on the first, where they are, and copies on the others.

    Those of a dtype are copied together, up to ``buffer_size`` bytes at once; none of the copies shares a version
    counter with another. RuntimeError if a tensor is not on the first device.
    """
    if not all(tensor.device == devices[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0].index}")
    others = devices[1:]
    copies: list[list[Any]] = [[None] * len(tensors) for _ in others]
    with torch.no_grad():
        for numbers in _together(tensors, buffer_size):
            group = [tensors[n] for n in numbers]
            flat = torch.cat([tensor.reshape(-1) for tensor in group]) if group[0].layout == torch.strided else group[0]
            host = flat.cpu()
            for row, device in zip(copies, others, strict=True):
                for n, part in zip(numbers, _parted(host.to(device, copy=True), group), strict=True):
                    row[n] = part.data
    return [list(tensors), *copies]


def _together(tensors: Tensors, size_bytes: int) -> Iterable[list[int]]:
    """The numbers of the tensors that are copied at once: dense ones of a dtype; each sparse one by itself."""
    open_groups: dict[torch.dtype, tuple[list[int], int]] = {}
    for n, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            yield [n]
            continue
        numbers, held = open_groups.get(tensor.dtype, ([], 0))
        if numbers and held + tensor.nbytes > size_bytes:
            yield numbers
            numbers, held = [], 0
        open_groups[tensor.dtype] = [*numbers, n], held + tensor.nbytes
    yield from (numbers for numbers, _ in open_groups.values())


def _parted(flat: torch.Tensor, like: Tensors) -> Iterable[torch.Tensor]:
    if like[0].layout != torch.strided:
        return [flat]
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def scatter(tensor: torch.Tensor, devices: Devices, chunk_sizes: Any = None, dim: int = 0) -> list[torch.Tensor]:
    """Parts of ``tensor`` along ``dim`` on ``devices``: equal ones, perhaps fewer than devices, or of ``chunk_sizes``.

    RuntimeError for no devices, or another number of them than of sizes.
    """
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return [part.to(device) for part, device in zip(parts, devices, strict=False)]


def scattered_into(tensor: torch.Tensor, out: Tensors, dim: int) -> list[torch.Tensor]:
    """Parts of ``tensor`` along ``dim``, in ``out``."""
    parts = tensor.split([one.size(dim) for one in out], dim)
    return [filled(one, part) for one, part in zip(out, parts, strict=True)]


def gather(tensors: Tensors, dim: int, device: torch.device) -> torch.Tensor:
    """The tensors one after another along ``dim``, on ``device``. RuntimeError for none."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def call(name: str, first: Any, *rest: Any) -> Any:
    """The function of :data:`FUNCTIONS`; NotImplemented if what it is given is not webgpu's."""
    tensors = [first] if isinstance(first, torch.Tensor) else first
    return FUNCTIONS[name](first, *rest) if is_of_device(tensors) else NotImplemented


def is_of_device(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether tensors are copied to or from webgpu: some are on it, or all on the CPU where webgpu is what there is."""
    kinds = {tensor.device.type for tensor in tensors}
    if kinds != {"cpu"}:
        return DEVICE_TYPE in kinds
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == DEVICE_TYPE


def adapters(numbers: Iterable[int]) -> list[torch.device]:
    return [torch.device(DEVICE_TYPE, number) for number in numbers]


def _gathered(tensors: Tensors, dim: int, destination: int | None) -> torch.Tensor:
    if destination is None:
        destination = torch.accelerator.current_device_index()
    return gather(tensors, dim, _CPU if destination == -1 else torch.device(DEVICE_TYPE, destination))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_broadcast": lambda tensor, numbers: broadcast(tensor, adapters(numbers)),
    "_broadcast_out": lambda tensor, out: [filled(one, tensor) for one in out],
    "_broadcast_coalesced": lambda tensors, numbers, size: broadcast_coalesced(tensors, adapters(numbers), size),
    "_scatter": lambda tensor, numbers, sizes, dim, streams: scatter(tensor, adapters(numbers), sizes, dim),
    "_scatter_out": lambda tensor, out, dim, streams: scattered_into(tensor, out, dim),
    "_gather": _gathered,
    "_gather_out": lambda tensors, out, dim: filled(out, gather(tensors, dim, out.device)),
}
"""Those of ``torch._C``, by name. Devices are numbers of adapters there, and -1 is the CPU. There is one stream."""
