import json
import time

import torch

device = torch.device("cuda")
assert torch.cuda.is_available(), "this benchmark needs a GPU"
print(f"Running on {torch.cuda.get_device_name(device)}, {torch.cuda.get_device_properties(0)}")
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")


class CudaTimer:
    def __enter__(self):
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.start.record()
        return self

    def __exit__(self, *exc):
        self.end.record()
        torch.cuda.synchronize()
        self.ms = self.start.elapsed_time(self.end)


torch.manual_seed(0)
a, b = torch.randn(64, 64), torch.randn(64, 64)
with CudaTimer() as timer:
    x = a.to(device)
    for _ in range(8):
        x = torch.tanh(x @ b.cuda())
assert timer.ms > 0
print(f"8 products: {timer.ms:.3f} ms")


class Prefetcher:
    """Copies the next batch on a stream of its own."""

    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        self.next = next(self.loader, None)
        if self.next is None:
            return
        with torch.cuda.stream(self.stream):
            self.next = self.next.cuda(non_blocking=True).float().div_(255)

    def __iter__(self):
        while (batch := self.next) is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


batches = [torch.randint(0, 256, (16,), dtype=torch.uint8).pin_memory() for _ in range(5)]
means = [batch.mean().item() for batch in Prefetcher(batches)]

side = torch.cuda.Stream(device=device, priority=-1)
ready = torch.cuda.Event(enable_timing=False, blocking=True)
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side
    y = x * 2
    ready.record(side)
torch.cuda.current_stream(device).wait_event(ready)
z = y + 1
ready.synchronize()
assert ready.query()
while not side.query():
    time.sleep(0.001)
torch.cuda.default_stream().synchronize()
torch.cuda.synchronize(device)

torch.cuda.nvtx.range_push("copy back")
host = torch.empty(z.shape, pin_memory=True)
host.copy_(z, non_blocking=True)
torch.cuda.current_stream().synchronize()
torch.cuda.nvtx.range_pop()
with torch.cuda.nvtx.range("nothing"), torch.cuda.device(0), torch.cuda.device_of(z):
    assert torch.cuda.current_device() == 0
assert host.is_pinned() and not a.is_cuda and z.is_cuda and z.get_device() == 0
print(json.dumps({"sum": host.abs().mean().item(), "means": means, "gpu": z.is_cuda}))
