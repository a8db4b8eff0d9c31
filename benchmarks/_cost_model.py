"""How long the gradients of a model take on N ranks: fitted to what was measured on this machine, then computed.

An all_reduce in a ring of S bytes on N ranks takes 2 (N-1)/N S/B + 2 (N-1) α. What webgpu adds to gloo is S/D + δ,
whatever N. Ranks on one host take S/Bₛ + αₛ through shared memory. In a hierarchy the ranks of a host first reduce
among themselves, then hosts exchange in a ring, and share their network. Exchange hides behind the backward pass, but
for the last bucket's, and but for what the GPU itself does of it: it has one queue, and S/Bₛ is in that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BUCKET_BYTES = 25 << 20
"""Of DistributedDataParallel."""
BACKWARD = 2 / 3
"""Of a step without exchange: twice the work of the forward pass."""
RANKS_OF_A_HOST = 8
HOOKS = ("none", "fp16", "bf16", "PowerSGD")
POWER_SGD_RANK = 4


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """(seconds at 0 bytes, seconds a byte) of a line that misses each time by the same share."""
    slope, start = np.polyfit(sizes, times, 1, w=1 / np.maximum(times, 1e-6))
    return max(float(start), 1e-6), max(float(slope), 1e-12)


@dataclass(frozen=True)
class Ring:
    """``alpha_s``: of a message; ``bytes_s``: bandwidth of a link, in bytes a second."""

    alpha_s: float
    bytes_s: float

    @classmethod
    def fitted(cls, ranks: int, sizes: Sequence[float], times: Sequence[float]) -> Ring:
        """That of an all_reduce's times, in seconds."""
        start, slope = line(sizes, times)
        return cls(start / (2 * (ranks - 1)), 2 * (ranks - 1) / ranks / slope)

    def all_reduce_s(self, ranks: int, size: float) -> float:
        """Seconds."""
        return 2 * (ranks - 1) / ranks * size / self.bytes_s + 2 * (ranks - 1) * self.alpha_s


@dataclass(frozen=True)
class Line:
    """``start_s`` and ``bytes_s``: what an exchange takes beside the bytes, and bytes a second."""

    start_s: float
    bytes_s: float

    @classmethod
    def fitted(cls, sizes: Sequence[float], times: Sequence[float]) -> Line:
        """That of times, in seconds."""
        start, slope = line(sizes, times)
        return cls(start, 1 / slope)

    def seconds(self, size: float) -> float:
        return self.start_s + size / self.bytes_s


@dataclass(frozen=True)
class Machine:
    """What was fitted. ``network``: between hosts. ``shared``: None where ranks have no shared memory."""

    gloo: Ring
    staging: Line
    shared: Line | None
    network: Ring

    def flat_s(self, ranks: int, size: float) -> float:
        """Seconds of an all_reduce in one ring of all ranks. Those of one host share its network."""
        if ranks <= RANKS_OF_A_HOST:
            return self.gloo.all_reduce_s(ranks, size) + self.staging.seconds(size)
        return self.network.all_reduce_s(ranks, size) + self.staging.seconds(size)

    def hierarchical_s(self, ranks: int, size: float) -> float:
        """Seconds of one that goes through shared memory in each host, or gloo, and in a ring of hosts."""
        local = min(ranks, RANKS_OF_A_HOST)
        inside = self.shared.seconds(size) if self.shared else self.gloo.all_reduce_s(local, size)
        hosts = ranks // RANKS_OF_A_HOST
        if hosts <= 1:
            return inside if self.shared else inside + self.staging.seconds(size)
        return inside + self.network.all_reduce_s(hosts, size) + self.staging.seconds(size)

    def on_the_gpu_s(self, size: float, is_flat: bool) -> float:
        """Seconds of an all_reduce in which the GPU does nothing else."""
        return 0.0 if is_flat or self.shared is None else size / self.shared.bytes_s


@dataclass(frozen=True)
class Model:
    """A model's gradients. ``matrices``: (rows, columns, how many); ``others``: elements of what has one dimension."""

    name: str
    matrices: Sequence[tuple[int, int, int]]
    others: int

    @property
    def elements(self) -> int:
        return self.others + sum(rows * columns * count for rows, columns, count in self.matrices)

    def exchanged_bytes(self, hook: str) -> float:
        """Of all gradients in float32, or as a hook compresses them."""
        if hook == "PowerSGD":
            low_rank = sum(
                min(POWER_SGD_RANK * (rows + columns), rows * columns) * n for rows, columns, n in self.matrices
            )
            return 4.0 * (low_rank + self.others)
        return self.elements * (4.0 if hook == "none" else 2.0)

    def messages(self, hook: str) -> int:
        """How many all_reduces: one of each bucket; PowerSGD exchanges two factors, and what it leaves as it is."""
        buckets = -(-4 * self.elements // BUCKET_BYTES)
        return buckets * (3 if hook == "PowerSGD" else 1)


GPT2 = Model(
    "GPT-2 124M",
    [(50257, 768, 1), (1024, 768, 1), (768, 2304, 12), (768, 768, 12), (768, 3072, 24)],
    12 * (2304 + 768 + 3072 + 768 + 4 * 768) + 2 * 768,
)
LLAMA_7B = Model("7B", [(32000, 4096, 2), (4096, 4096, 128), (4096, 11008, 96)], 65 * 4096)


@dataclass(frozen=True)
class Prediction:
    """Of one step. ``efficiency``: of each rank, against one that exchanges nothing."""

    exchange_s: float
    step_s: float
    efficiency: float


def predict(machine: Machine, model: Model, hook: str, ranks: int, alone_s: float, is_flat: bool) -> Prediction:
    """A step that takes one rank ``alone_s``. What hooks compute is not counted."""
    messages, size = model.messages(hook), model.exchanged_bytes(hook)
    of_one = (machine.flat_s if is_flat else machine.hierarchical_s)(ranks, size / messages)
    exchange_s = messages * of_one
    on_the_gpu_s = machine.on_the_gpu_s(size, is_flat)
    may_hide_s = exchange_s - on_the_gpu_s - (of_one - on_the_gpu_s / messages)
    hidden_s = min(may_hide_s, BACKWARD * alone_s)
    step_s = alone_s + exchange_s - max(hidden_s, 0.0)
    return Prediction(exchange_s, step_s, alone_s / step_s)


def fitted(rows: Mapping[str, Sequence[tuple[float, float]]], ranks: int, network: Ring | None) -> Machine:
    """What was measured: (bytes, seconds) of "CPU", "gloo" and perhaps "shared memory"."""
    sizes, of_cpu = zip(*rows["CPU"])
    gloo = Ring.fitted(ranks, sizes, of_cpu)
    (start, slope), (of_gloo_start, of_gloo_slope) = line(*zip(*rows["gloo"])), line(sizes, of_cpu)
    staging = Line(max(start - of_gloo_start, 1e-6), 1 / max(slope - of_gloo_slope, 1e-12))
    shared = Line.fitted(*zip(*rows["shared memory"])) if rows.get("shared memory") else None
    return Machine(gloo, staging, shared, network or gloo)
