import argparse
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

device = torch.device(args.device)
if device.type == "cuda":
    torch.cuda.set_device(device)
    assert torch.cuda.current_device() == device.index
amp_dtype = getattr(torch, args.dtype)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, fused=device.type == "cuda")
scaler = torch.amp.GradScaler("cuda", enabled=amp_dtype == torch.float16)
x = torch.randn(16, 3, 8, 8)
y = x.mean(dim=(1, 2, 3)).gt(0).long()
losses = []
for step in range(20):
    images = x.to(device, memory_format=torch.channels_last, non_blocking=True)
    labels = y.to(device, non_blocking=True)
    with torch.autocast(device_type="cuda", dtype=amp_dtype):
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels) / args.accumulate
    assert logits.dtype == amp_dtype and loss.dtype == torch.float32
    scaler.scale(loss).backward()
    if (step + 1) % args.accumulate == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * args.accumulate)
assert torch.is_autocast_enabled("cuda") is False
with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.get_autocast_dtype("cuda") is torch.bfloat16
    accuracy = (model(x.to(device)).argmax(1).cpu() == y).float().mean().item()
print(json.dumps({"losses": losses, "gpu": device.type == "cuda", "accuracy": accuracy}))
