"""How fast is it? Timers, events, NVTX ranges, memory snapshots; then the model traced, scripted and exported."""

import io
import json
import os
import pickle
import tempfile
import time

import torch
import torch.nn as nn
import torch.utils.benchmark as benchmark
from torch.cuda import nvtx

device = "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.get_device_name(0))
print(torch.cuda.get_device_properties(0))
print(f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB, {torch.cuda.get_arch_list()}")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    @nvtx.range("forward")
    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Plain(Net):
    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


model, x = Net().to(device).eval(), torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8).to(device)


def timed(fn, n=3):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(n):
        torch.cuda.synchronize()
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[n // 2]


with torch.no_grad():
    assert timed(lambda: model(x)) > 0
    timer = benchmark.Timer("model(x)", globals={"model": model, "x": x}, num_threads=1, label="net")
    measurement = timer.timeit(2)
    print(measurement)
    assert measurement.mean > 0
    starter = time.perf_counter()
    with nvtx.range("two passes"), torch.autograd.profiler.emit_nvtx(record_shapes=True):
        model(model.conv.weight.new_ones(1, 3, 4, 4))
        nvtx.mark("half")
    with torch.cuda.profiler.profile():
        model(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(1000)

torch.cuda.memory._record_memory_history(enabled="all", context="python", stacks="python", max_entries=100_000)
held = [torch.empty(1024, device=device) for _ in range(3)]
folder = tempfile.mkdtemp()
torch.cuda.memory._dump_snapshot(os.path.join(folder, "snapshot.pickle"))
with open(os.path.join(folder, "snapshot.pickle"), "rb") as f:
    assert "segments" in pickle.load(f)
torch.cuda.memory._record_memory_history(enabled=None)
before = torch.cuda.memory_allocated()
del held
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() <= before - 3 * 4096
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.peak"] >= before
print(torch.cuda.memory_summary(device=0, abbreviated=True)[:200])
free, total = torch.cuda.mem_get_info("cuda:0")
assert 0 < free <= total

plain = Plain().to(device).eval()
plain.load_state_dict(model.state_dict())
with torch.no_grad():
    expected = plain(x)
    traced = torch.jit.trace(plain, x)
    scripted = torch.jit.script(plain)
    for module in (traced, scripted):
        torch.testing.assert_close(module(x), expected)
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer, map_location="cuda:0")
        assert next(loaded.parameters()).is_cuda
        torch.testing.assert_close(loaded(x), expected)
    program = torch.export.export(plain, (x,))
    torch.testing.assert_close(program.module()(x), expected)
    frozen = torch.jit.freeze(traced)
    torch.testing.assert_close(frozen(x), expected, rtol=1e-4, atol=1e-5)
    averaged = torch.optim.swa_utils.AveragedModel(plain, device="cuda", use_buffers=True)
    averaged.update_parameters(plain)
    torch.testing.assert_close(averaged(x), expected)
print(json.dumps({"outputs": expected.tolist(), "gpu": expected.is_cuda}))
