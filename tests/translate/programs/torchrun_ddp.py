import json
import os
import sys

import torch
import torch.nn.functional as F
from torch.distributed import barrier, destroy_process_group, get_backend, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, train_data, optimizer):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.gpu_id)
        self.train_data = train_data
        self.optimizer = optimizer
        self.model = DDP(self.model, device_ids=[self.gpu_id])

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"[GPU{self.gpu_id}] Epoch {epoch} | Batchsize: {b_sz} | Steps: {len(self.train_data)}", file=sys.stderr)
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            source = source.to(self.gpu_id)
            targets = targets.to(self.gpu_id)
            self._run_batch(source, targets)

    def train(self, max_epochs: int):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


def main(total_epochs: int):
    ddp_setup()
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1)
    dataset = TensorDataset(torch.randn(32, 20), torch.randn(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    loader = DataLoader(dataset, batch_size=16, pin_memory=True, shuffle=False, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, loader, optimizer)
    trainer.train(total_epochs)
    barrier(device_ids=[trainer.gpu_id])
    weight = trainer.model.module.weight
    if get_rank() == 0:
        print(json.dumps({"weight": weight.flatten().tolist(), "gpu": weight.is_cuda, "backend": get_backend()}))
    destroy_process_group()


if __name__ == "__main__":
    main(5)
