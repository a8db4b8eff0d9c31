import argparse
import json
import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_checkpoint(rank, world_size, port, path):
    print(f"Running DDP checkpoint example on rank {rank}.")
    setup(rank, world_size, port)
    torch.manual_seed(0)
    model = ToyModel().to(rank)
    ddp_model = DDP(model, device_ids=[rank], output_device=rank)
    CHECKPOINT_PATH = os.path.join(path, "model.checkpoint")
    if rank == 0:
        torch.save(ddp_model.state_dict(), CHECKPOINT_PATH)
    dist.barrier()
    map_location = {"cuda:%d" % 0: "cuda:%d" % rank}
    ddp_model.load_state_dict(torch.load(CHECKPOINT_PATH, map_location=map_location))

    dataset = TensorDataset(torch.randn(32, 10), torch.randn(32, 5))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, pin_memory=True)
    loss_fn = nn.MSELoss().to(rank)
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.1)
    losses = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.to(rank, non_blocking=True), labels.cuda(rank, non_blocking=True)
            optimizer.zero_grad()
            loss = loss_fn(ddp_model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    total = torch.tensor([losses[-1]], device=f"cuda:{rank}")
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    gathered = [torch.zeros_like(total) for _ in range(world_size)]
    dist.all_gather(gathered, total)
    if rank == 0:
        with open(os.path.join(path, "log.json"), "w") as f:
            json.dump({"losses": losses, "total": total.item() / world_size, "gpu": inputs.is_cuda}, f)
    dist.barrier()
    cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    args = parser.parse_args()
    assert torch.cuda.device_count() >= args.gpus, f"Requires at least {args.gpus} GPUs to run"
    folder = tempfile.mkdtemp()
    mp.spawn(demo_checkpoint, args=(args.gpus, free_port(), folder), nprocs=args.gpus, join=True)
    with open(os.path.join(folder, "log.json")) as f:
        print(f.read())
