"""A little network to train, and what it saw."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """Two layers, with a look at what arrives at the last one."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 16), nn.Dropout(dropout), nn.Linear(16, 4)
        self.seen: list[tuple[str, torch.dtype]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.drop(self.first(x).relu()))
        self.seen.append((y.device.type, y.dtype))
        return y

    @property
    def devices(self) -> set[str]:
        return {p.device.type for p in self.parameters()}


def net(dropout: float = 0.0) -> Net:
    """The same network every time."""
    torch.manual_seed(0)
    return Net(dropout)


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)) for _ in range(count)]


def data() -> torch.utils.data.TensorDataset:
    """The batches of :func:`batches`, one after the other."""
    return torch.utils.data.TensorDataset(*(torch.cat(column) for column in zip(*batches(), strict=True)))


def state_of(model: nn.Module) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}
