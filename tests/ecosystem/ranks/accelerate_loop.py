"""A loop of Accelerate's, started by its launcher: ``accelerate_loop.py FOLDER [cpu]``. Rank 0 prints what it saw."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu="cpu" in sys.argv)
x = torch.randn(64, 8)
y = (x[:, :1] * x[:, 1:2]).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def train(epochs: int) -> list[float]:
    losses = []
    for _ in range(epochs):
        for inputs, targets in loader:
            assert inputs.device.type == accelerator.device.type
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


losses = train(2)
accelerator.save_state(sys.argv[1])
before = accelerator.get_state_dict(model)
train(1)
accelerator.load_state(sys.argv[1])
accelerator.wait_for_everyone()
after = accelerator.get_state_dict(model)
counted = accelerator.gather(torch.arange(2, device=accelerator.device) + 10 * accelerator.process_index)
if accelerator.is_main_process:
    result = {
        "device": accelerator.device.type,
        "ranks": accelerator.num_processes,
        "model": type(model).__name__,
        "losses": losses,
        "weights": {name: value.flatten().tolist() for name, value in before.items()},
        "restored": {name: value.flatten().tolist() for name, value in after.items()},
        "gathered": counted.tolist(),
        "saved": len([file for file in Path(sys.argv[1]).rglob("*") if file.name.startswith("random_states_webgpu")]),
    }
    print(json.dumps(result))
accelerator.end_training()
