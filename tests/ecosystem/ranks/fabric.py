"""Fabric with two devices: ``fabric.py FOLDER ACCELERATOR STRATEGY PRECISION``. Rank 0 prints what it saw."""

import json
import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

folder, accelerator, name, precision = sys.argv[1:]


def shard(model, mesh):
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh["data_parallel"])
    return model


strategy = name
if name == "fsdp2":
    strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1)
fabric = Fabric(accelerator=accelerator, devices=2, strategy=strategy, precision=precision)
fabric.launch()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
columns = torch.randn(48, 8, generator=generator), torch.randint(4, (48,), generator=generator)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*columns), batch_size=6))
model = fabric.setup_module(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), 1e-2))


def train():
    losses = []
    for x, y in loader:
        assert x.device == fabric.device
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
    return losses


losses = train()
fabric.save(f"{folder}/half.ckpt", {"model": model, "optimizer": optimizer})
more = train()
fabric.load(f"{folder}/half.ckpt", {"model": model, "optimizer": optimizer})
again = train()
if fabric.global_rank == 0:
    result = {
        "device": fabric.device.type,
        "ranks": fabric.world_size,
        "strategy": type(fabric.strategy).__name__,
        "losses": losses,
        "more": more,
        "resumed": again,
    }
    print(json.dumps(result))
