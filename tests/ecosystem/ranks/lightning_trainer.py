"""Lightning's Trainer with two devices: ``lightning_trainer.py FOLDER ACCELERATOR STRATEGY PRECISION``.

Lightning starts the other rank, unless torchrun has. Rank 0 prints what it saw.
"""

import json
import sys

import lightning
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard

folder, accelerator, name, precision = sys.argv[1:]
hooked = []


def hook(group, bucket):
    hooked.append(bucket.index())
    return fp16_compress_hook(group, bucket)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.losses, self.dtypes = [], set()

    def configure_model(self):
        if name == "fsdp2" and not hasattr(self.net, "unshard"):
            for module in (self.net[0], self.net[2], self.net):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        x, y = batch
        assert x.device == self.device
        out = self.net(x)
        self.dtypes.add(str(out.dtype))
        loss = nn.functional.cross_entropy(out, y)
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


def loader():
    generator = torch.Generator().manual_seed(1)
    columns = torch.randn(48, 8, generator=generator), torch.randint(4, (48,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*columns), batch_size=6)


def fitted(epochs, **options):
    strategy = name
    if name == "fsdp2":
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    if name == "hook":
        strategy = DDPStrategy(ddp_comm_hook=hook)
    trainer = Trainer(
        accelerator=accelerator, devices=2, strategy=strategy, precision=precision, max_epochs=epochs, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader(), loader(), **options)
    return trainer, module


trainer, module = fitted(2)
trainer.save_checkpoint(f"{folder}/whole.ckpt")
_, resumed = fitted(3, ckpt_path=f"{folder}/whole.ckpt", weights_only=False)
if trainer.global_rank == 0:
    result = {
        "device": trainer.strategy.root_device.type,
        "ranks": trainer.world_size,
        "strategy": type(trainer.strategy).__name__,
        "dtypes": sorted(module.dtypes),
        "losses": module.losses,
        "resumed": resumed.losses,
        "hooked": len(hooked),
        "val": trainer.callback_metrics["val"].item(),
    }
    print(json.dumps(result))
