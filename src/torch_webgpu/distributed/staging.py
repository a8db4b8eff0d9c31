"""Host memory through which tensors travel: kept, since writing fresh pages takes longer than the copy."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

import torch

from torch_webgpu.aten.dispatch.torch_abi import is_webgpu
from torch_webgpu.aten.tensors.copy import begin_download, copy_from
from torch_webgpu.engine.apart import upload_apart
from torch_webgpu.engine.sync import Download

KEPT_BYTES = 1 << 30
"""Of memory that is not in use. What comes back beyond it is given to the system."""
SMALLEST_BYTES = 256
CARRIED = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
)
"""The dtypes that gloo computes with. Others are moved as bytes."""
REDUCED_IN = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
"""The dtypes that are reduced in a wider one."""


def block_bytes(size_bytes: int) -> int:
    """How large a block is for so many bytes."""
    unit = max(SMALLEST_BYTES, (1 << max(size_bytes - 1, 1).bit_length()) // 8)
    return max(-(-size_bytes // unit), 1) * unit


class HostMemory:
    """Blocks of host memory by size: 4, 5, 6 or 7 times a power of two of bytes, so that little of them is unused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> torch.Tensor:
        """A block of at least so many bytes, uint8 in one dimension. It holds anything."""
        size = block_bytes(size_bytes)
        with self._lock:
            if self._kept[size]:
                self.kept_bytes -= size
                return self._kept[size].pop()
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def give(self, block: torch.Tensor) -> None:
        """Takes a block back that nobody reads or writes any more."""
        with self._lock:
            if self.kept_bytes + block.numel() <= KEPT_BYTES:
                self.kept_bytes += block.numel()
                self._kept[block.numel()].append(block)


MEMORY = HostMemory()


class Staged:
    """A tensor of a collective, and its host's side: ``carrier`` is what gloo gets.

    ``into`` and ``out_of``: whether the collective reads it, and writes it. ``reduces``: whether it computes with it.
    ``averages``: whether that is a mean of integers, which gloo cannot write into integers; here the fraction goes, as
    with NCCL. ``memory``: where it lies, as many bytes as it has; by default a block of its own.
    """

    def __init__(
        self,
        t: torch.Tensor,
        into: bool,
        out_of: bool,
        reduces: bool,
        averages: bool = False,
        memory: torch.Tensor | None = None,
    ) -> None:
        # The data alone: writing a parameter is allowed, and saved tensors do not notice, as on every device.
        self._tensor, self._out_of = t.data, out_of
        self._block = MEMORY.take(t.nbytes) if memory is None else None
        memory = self._block[: t.nbytes] if self._block is not None else memory
        assert memory is not None
        self._host = memory.view(t.dtype).view(t.shape)
        self._wider = self._truth = False
        self.carrier = self._mean(t) if averages else self._carrier(memory, t, reduces)
        self._download: Download | None = begin_download(self._tensor, self._host) if into else None

    def _mean(self, t: torch.Tensor) -> torch.Tensor:
        self._wider = True
        return torch.empty(t.shape, dtype=torch.float64, device="cpu")

    def _carrier(self, memory: torch.Tensor, t: torch.Tensor, reduces: bool) -> torch.Tensor:
        if t.dtype in CARRIED:
            return self._host
        if not reduces:
            return memory.view(*t.shape, t.itemsize)
        if t.dtype == torch.bool:
            self._truth = True
            return memory.view(t.shape)
        if t.dtype not in REDUCED_IN:
            real = "; torch.view_as_real() makes it a tensor that can be summed" if t.is_complex() else ""
            raise RuntimeError(f"tensors of {t.dtype} cannot be reduced over processes{real}")
        self._wider = True
        return torch.empty(t.shape, dtype=REDUCED_IN[t.dtype], device="cpu")

    def read(self) -> None:
        """Waits until the tensor is in the host's memory."""
        if self._download is not None:
            self._download.wait()
            self._download = None
            if self._wider:
                self.carrier.copy_(self._host)

    def write(self) -> None:
        """Uploads the result. The memory is free afterwards."""
        if self._out_of:
            if self._wider:
                self._host.copy_(self.carrier)
            if self._truth:
                self.carrier.ne_(0)
            if self._tensor.dtype not in CARRIED or not upload_apart(self._tensor, self._host):
                copy_from(self._host, self._tensor)
        if self._block is not None:
            MEMORY.give(self._block)
            self._block = None


def describe(t: torch.Tensor) -> str:
    """Its dtype and shape, as in ``float32[2, 3]``, and its device where that is another."""
    device = "" if is_webgpu(t) else f" on {t.device}"
    return f"{describe_as(t.dtype, t.shape)}{device}"


def describe_as(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """A dtype and a shape, as in ``float32[2, 3]``."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
