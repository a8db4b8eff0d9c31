import json
import os
import tempfile

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).cuda()
inputs = torch.randn(8, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
activities = [ProfilerActivity.CPU]
if torch.cuda.is_available():
    activities.append(ProfilerActivity.CUDA)
path = os.path.join(tempfile.mkdtemp(), "trace.json")
losses = []
with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=2), record_shapes=True) as prof:
    for _ in range(4):
        with record_function("train_step"):
            loss = model(inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        prof.step()
print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=5))
assert any(event.key == "train_step" for event in prof.key_averages())
prof.export_chrome_trace(path)
assert os.path.getsize(path) > 100

with torch.autograd.profiler.profile(use_cuda=True) as old:
    model(inputs).sum().backward()
print(old.key_averages().table(sort_by="self_cpu_time_total", row_limit=3))
with torch.autograd.profiler.emit_nvtx(enabled=False):
    model(inputs)
torch.cuda.synchronize()
print(json.dumps({"losses": losses, "gpu": inputs.is_cuda}))
