"""The device under test, and how tensors get there: with the strides, offsets and sharing they have on the CPU."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


def _device(name: str) -> torch.device:
    """The device by name. From a source tree that is not installed, nothing has loaded the webgpu backend yet."""
    if name.startswith("webgpu"):
        importlib.import_module("torch_webgpu").register()
    return torch.device(name)


CPU = torch.device("cpu")
DEVICE = _device(os.environ.get("TORCH_WEBGPU_TEST_DEVICE", "webgpu"))


# Its batch sizes stay on the CPU, whatever the device of its data.
pytree.register_pytree_node(
    PackedSequence,
    lambda packed: ([packed.data, packed.sorted_indices, packed.unsorted_indices], tuple(packed.batch_sizes.tolist())),
    lambda leaves, sizes: PackedSequence(leaves[0], torch.tensor(sizes), *leaves[1:]),
)


def fallback_stats() -> Counter[str]:
    """CPU fallbacks since the start, by operator; empty for a device that has no such count."""
    return Counter(getattr(getattr(torch, DEVICE.type, None), "fallback_stats", dict)())


def synchronize() -> None:
    """Wait for the device; an error that was still on its way surfaces here."""
    if DEVICE.type != "cpu":
        getattr(torch, DEVICE.type).synchronize()


WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


class Replica:
    """Copies a structure of CPU tensors to ``device``; with ``widen``, also to double precision.

    ``Tensor.to`` keeps neither gaps, offsets nor sharing. Here each storage is copied whole, once, and every tensor
    becomes the same ``as_strided`` view of the copy. ``storages`` lists those copies as flat tensors, in order of
    appearance, so that a test can compare every element an operator could have written.
    """

    def __init__(self, device: torch.device, *, widen: bool = False) -> None:
        self.device = device
        self._wide = WIDE if widen else {}
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    @property
    def storages(self) -> list[torch.Tensor]:
        return list(self._storages.values())

    def tree(self, tree: Any) -> Any:
        """The structure with its tensors copied and every mention of the CPU device turned into this one."""
        return pytree.tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.tensor(leaf)
        if isinstance(leaf, torch.dtype):
            return self._wide.get(leaf, leaf)
        if isinstance(leaf, (str, torch.device)) and str(leaf) == "cpu":
            return self.device
        return leaf

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """One tensor; a leaf that requires a gradient where ``tensor`` does."""
        return self._copy(tensor.detach()).requires_grad_(tensor.requires_grad)

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Which of ``storages`` the tensor lies in; None for one of its own."""
        if tensor.layout != torch.strided:
            return None
        owners = [storage.untyped_storage()._cdata for storage in self._storages.values()]
        own = tensor.untyped_storage()._cdata
        return owners.index(own) if own in owners else None

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._wide.get(tensor.dtype, tensor.dtype)
        if tensor.layout != torch.strided:
            return tensor.to(self.device, dtype)
        if tensor.is_conj():
            return self._copy(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._copy(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype
        if key not in self._storages:
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
            self._storages[key] = flat.to(self.device, dtype, copy=True)
        return self._storages[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
