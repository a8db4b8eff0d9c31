import json
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
device = accelerator.device
accelerator.print(f"{accelerator.distributed_type}, {accelerator.num_processes} processes on {device}")
if device.type == "cuda":
    torch.backends.cuda.matmul.allow_tf32 = True

x = torch.randn(64, 8)
y = (x[:, :1] * x[:, 1:2]).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []
for epoch in range(6):
    model.train()
    for inputs, targets in loader:
        assert inputs.device.type == "cuda" and inputs.is_cuda
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
folder = tempfile.mkdtemp()
accelerator.save_state(folder)
accelerator.load_state(folder)
accelerator.wait_for_everyone()
unwrapped = accelerator.unwrap_model(model)
print(json.dumps({"losses": losses, "gpu": next(unwrapped.parameters()).is_cuda}))
