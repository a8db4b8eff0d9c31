import copy
import json
import os
import random
import tempfile

import numpy as np
import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
folder = tempfile.mkdtemp()
path = os.path.join(folder, "checkpoint.pth.tar")


def make():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.25), nn.ReLU(), nn.Linear(12, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    return model, optimizer, scheduler


data = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


def train(model, optimizer, scheduler, steps):
    losses = []
    for _ in range(steps):
        batch = data[torch.randint(0, 64, (16,))].to(device)
        loss = (model(batch).squeeze(1) - batch.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def save_checkpoint(state, is_best, filename):
    torch.save(state, filename)
    if is_best:
        torch.save(state["state_dict"], os.path.join(folder, "model_best.pth.tar"))


model, optimizer, scheduler = make()
first = train(model, optimizer, scheduler, 8)
save_checkpoint(
    {
        "epoch": 1,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None,
        "numpy_rng": np.random.get_state(),
        "python_rng": random.getstate(),
        "device": str(device),
    },
    True,
    path,
)
expected = train(model, optimizer, scheduler, 4)

model, optimizer, scheduler = make()
checkpoint = torch.load(path, map_location="cuda:0", weights_only=False)
assert all(v.is_cuda for v in checkpoint["state_dict"].values())
model.load_state_dict(checkpoint["state_dict"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
torch.set_rng_state(checkpoint["torch_rng"].cpu())
torch.cuda.set_rng_state_all([state.cpu() for state in checkpoint["cuda_rng"]])
resumed = train(model, optimizer, scheduler, 4)
assert resumed == expected, (resumed, expected)

best = os.path.join(folder, "model_best.pth.tar")
on_cpu = torch.load(best, map_location=torch.device("cpu"))
assert not any(v.is_cuda for v in on_cpu.values())
same = torch.load(best, map_location=lambda storage, loc: storage)
assert {v.device.type for v in same.values()} == {"cpu"}
moved = torch.load(best, map_location=lambda storage, loc: storage.cuda(0))
assert {v.device for v in moved.values()} == {torch.device("cuda:0")}
mapped = torch.load(best, map_location={"cuda:0": "cpu"})
assert next(iter(mapped.values())).device == torch.device("cpu")
back = torch.load(best, map_location={"cuda:1": "cuda:0"})
assert next(iter(back.values())).device.type == "cuda"
as_saved = torch.load(best)
assert next(iter(as_saved.values())).is_cuda

cpu_model = copy.deepcopy(model).cpu().eval()
cpu_model.load_state_dict(torch.load(best, map_location="cpu", weights_only=True))
model.load_state_dict(cpu_model.state_dict())
model.eval()
with torch.no_grad():
    difference = (model(data.cuda()).cpu() - cpu_model(data)).abs().max().item()
assert difference < 1e-4
print(json.dumps({"losses": first + resumed, "gpu": device.type == "cuda"}))
