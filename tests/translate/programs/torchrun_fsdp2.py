import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def main():
    rank = int(os.environ["LOCAL_RANK"])
    if torch.accelerator.is_available():
        device_type = torch.accelerator.current_accelerator()
        device = torch.device(f"{device_type}:{rank}")
        torch.accelerator.set_device_index(rank)
    else:
        device = torch.device("cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1)
    data, targets = torch.randn(32, 20).cuda(), torch.randn(32, 1).cuda()
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    optim = torch.optim.SGD(model.parameters(), lr=1e-1)
    half = slice(16 * rank, 16 * rank + 16)
    for _ in range(5):
        loss = F.mse_loss(model(data[half]), targets[half])
        loss.backward()
        optim.step()
        optim.zero_grad()
    weight = model.weight.full_tensor()
    if dist.get_rank() == 0:
        print(json.dumps({"weight": weight.flatten().tolist(), "gpu": weight.is_cuda, "backend": dist.get_backend()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
