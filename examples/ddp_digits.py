"""Train a network on handwritten digits in several processes, with DistributedDataParallel on webgpu.

    torchrun --nproc-per-node webgpu examples/ddp_digits.py    # one process for each adapter
    torchrun --nproc-per-node 2 examples/ddp_digits.py         # two, which may share one

The data are scikit-learn's 1,797 digits of 8×8 pixels (no download); a fifth is held out. Each process trains on its
part of every batch, and all have the same weights at each step.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DEVICE = "webgpu"
EPOCHS = 15
BATCH = 64  # of each process
REQUIRED_ACCURACY = 0.95


def main() -> int:
    """The status: 0 if what was learned suffices."""
    dist.init_process_group()
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    train, held_out, labels, held_out_labels = train_test_split(images, torch.tensor(data.target), random_state=0)
    digits = TensorDataset(train, labels)
    sampler = DistributedSampler(digits)
    loader = DataLoader(digits, BATCH, sampler=sampler)

    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(network).to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    begin = time.perf_counter()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)).backward()
            optimizer.step()

    network = model.module.eval()
    with torch.no_grad():
        right = (network(held_out.to(DEVICE)).argmax(1) == held_out_labels.to(DEVICE)).float().mean()
    dist.all_reduce(right, dist.ReduceOp.AVG)
    accuracy = right.item()
    if dist.get_rank() == 0:
        seconds = time.perf_counter() - begin
        print(
            f"{dist.get_world_size()} processes, {EPOCHS} epochs in {seconds:.1f} s: {accuracy:.1%} of held-out digits"
        )
    dist.destroy_process_group()
    return int(accuracy < REQUIRED_ACCURACY)


if __name__ == "__main__":
    sys.exit(main())
