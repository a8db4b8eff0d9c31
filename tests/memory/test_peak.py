"""The peak of a training step: what the adapter gives us against the tensors that PyTorch holds at one time."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

ALLOWED = 1.1


class Tally(TorchDispatchMode):
    """Sums up the bytes of a device's storages after every operator: the peak of a run op by op, each alone."""

    def __init__(self, device: torch.device, *held: torch.Tensor | None) -> None:
        super().__init__()
        self.device_type = device.type
        self.peak_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.add([t for t in held if t is not None])

    def add(self, tree: Any) -> None:
        for t in pytree.tree_leaves(tree):
            if isinstance(t, torch.Tensor) and t.device.type == self.device_type:
                storage = t.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: found for key, found in self._alive.items() if not found[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._alive.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add(result)
        return result


class ConvNet(nn.Module):
    """A small residual network."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """Two blocks of a GPT."""

    def __init__(self, width: int = 128, heads: int = 4, vocabulary: int = 512, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.places.weight[:length]
        for block in range(2):
            qkv = (
                self.qkv[block](self.norms[2 * block](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )
            y = F.scaled_dot_product_attention(*qkv, is_causal=True)
            x = x + self.out[block](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[block](F.gelu(self.up[block](self.norms[2 * block + 1](x))))
        return self.head(self.norms[4](x)).flatten(0, 1)


def conv_net(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    model = ConvNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.rand(16, 3, 32, 32).to(device), torch.randint(0, 10, (16,)).to(device)


def transformer(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.randint(0, 512, (4, 128)).to(device), torch.randint(0, 512, (512,)).to(device)


def held_by(model: nn.Module, optimizer: torch.optim.Optimizer, *others: torch.Tensor) -> list[torch.Tensor]:
    """Everything that outlives a step."""
    states = pytree.tree_leaves(optimizer.state_dict()["state"])
    return [*model.parameters(), *model.buffers(), *others, *(t for t in states if isinstance(t, torch.Tensor))]


@pytest.mark.parametrize("make", [conv_net, transformer])
def test_a_training_step_takes_little_more_than_its_tensors(device, make, record_property):
    """Buffers in use at one time, temporaries included, are at most 1.1 times the peak of PyTorch's live tensors."""
    model, optimizer, inputs, targets = make(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    for _ in range(2):
        step()
    optimizer.zero_grad()
    gc.collect()
    with Tally(device, *held_by(model, optimizer, inputs, targets)) as tally:
        step()
    optimizer.zero_grad()
    gc.collect()
    torch.webgpu.synchronize()
    torch.webgpu.reset_peak_memory_stats()
    # Buffers of other tests in this process, captured graphs' among them.
    in_use = torch.webgpu.memory_stats()["active_bytes.all.current"]
    elsewhere = in_use - sum(t.nbytes for t in held_by(model, optimizer, inputs, targets))
    step()
    torch.webgpu.synchronize()
    peak = torch.webgpu.memory_stats()["active_bytes.all.peak"] - elsewhere
    record_property("ratio", peak / tally.peak_bytes)
    assert peak <= ALLOWED * tally.peak_bytes
