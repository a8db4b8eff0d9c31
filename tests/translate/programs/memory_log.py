import gc
import json
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "0")

import torch
from torch import nn


def gb(n):
    return f"{n / 1024**3:.6f} GB"


def log_memory(stage):
    print(f"[{stage}] allocated {gb(torch.cuda.memory_allocated())}, reserved {gb(torch.cuda.memory_reserved())}")
    print(f"[{stage}] peak {gb(torch.cuda.max_memory_allocated(0))} / {gb(torch.cuda.max_memory_reserved('cuda:0'))}")


device = "cuda" if torch.cuda.is_available() else "cpu"
print("Memory Usage:")
print("Allocated:", round(torch.cuda.memory_allocated(0) / 1024**3, 1), "GB")
print("Cached:   ", round(torch.cuda.memory_reserved(0) / 1024**3, 1), "GB")
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
total_memory = torch.cuda.get_device_properties(device).total_memory
torch.cuda.set_per_process_memory_fraction(0.9, 0)

torch.manual_seed(0)
before = torch.cuda.memory_allocated()
x = torch.zeros(1024, 256, device=device)
allocated = torch.cuda.memory_allocated() - before
assert allocated >= 1024 * 256 * 4
log_memory("one tensor")

torch.cuda.reset_peak_memory_stats()
peak_before = torch.cuda.max_memory_allocated()
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
losses = []
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 256)
for step in range(6):
    loss = model(inputs.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 3 == 0:
        log_memory(f"step {step}")
peak = torch.cuda.max_memory_allocated()
assert peak > peak_before

print(torch.cuda.memory_summary(device=device, abbreviated=True))
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.peak"] == peak, (stats["allocated_bytes.all.peak"], peak)
held = torch.cuda.memory_allocated()
del x, model, optimizer, loss
gc.collect()
torch.cuda.empty_cache()
torch.cuda.ipc_collect()
released = held - torch.cuda.memory_allocated()
assert released >= allocated
log_memory("end")
try:
    torch.empty(total_memory * 4, device=device)
except torch.cuda.OutOfMemoryError as e:
    print("caught:", str(e).splitlines()[0][:80])
except RuntimeError as e:
    if "out of memory" not in str(e).lower():
        raise
    torch.cuda.empty_cache()
print(json.dumps({"losses": losses, "gpu": device == "cuda"}))
