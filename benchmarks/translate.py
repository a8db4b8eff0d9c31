"""What translation costs: ``python benchmarks/translate.py``.

The same training programs twice, in processes that alternate: written for CUDA and translated, and written for the
device, which is the same text with the device's name (``torch.webgpu`` has torch.cuda's vocabulary). Compared are
steps per second, the time of the program's own thread, the memory of the device and of the process. Of the translation
itself: the time to enable it beyond that of ``import torch``, and the calls that it answered, by its own report.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = """
import json, resource, statistics, sys, time
import torch
from torch import nn

kind, steps, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm, self.norm2 = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


if kind == "gpt":
    x = torch.randint(0, 256, (4, 64))
    model = nn.Sequential(nn.Embedding(256, 64), *[Block(64, 4) for _ in range(2)], nn.Linear(64, 256))
    loss_of = lambda out: nn.functional.cross_entropy(out.flatten(0, 1), batch.flatten())
elif kind == "conv":
    x = torch.randn(8, 3, 16, 16)
    body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    loss_of = lambda out: out.square().mean()
else:
    x = torch.randn(64, 32)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    loss_of = lambda out: out.square().mean()

model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
scaler = torch.amp.GradScaler("cuda", enabled=False)
x = x.pin_memory()


def step():
    global batch
    batch = x.to(device, non_blocking=True) if x.device.type != "cuda" else x
    with torch.autocast("cuda", enabled=False):
        loss = loss_of(model(batch))
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if next(model.parameters()).is_cuda:
        torch.cuda.memory_allocated(device)
    return loss


for _ in range(20):
    step().item()
torch.cuda.reset_peak_memory_stats()
rates, host = [], []
for _ in range(repeats):
    torch.cuda.synchronize()
    start, began = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        loss = step()
    host.append(1e3 * (time.thread_time() - began) / steps)
    torch.cuda.synchronize()
    rates.append(steps / (time.perf_counter() - start))
print(json.dumps({
    "steps_s": statistics.median(rates), "host_ms": statistics.median(host),
    "device_bytes": torch.cuda.max_memory_allocated(),
    "process_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "loss": loss.item(),
}))
"""

ENABLE = """
import time, torch
torch.webgpu.is_available()  # programs written for the device find its adapters, too
start = time.process_time()
from torch_webgpu.translation import programs, report, router, session
imported = time.process_time()
session.enable("webgpu", look=router.available)
print(1e3 * (imported - start), 1e3 * (time.process_time() - imported))
"""

KINDS = ("mlp", "conv", "gpt")


def last_line(command: list[str], **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip().splitlines()[-1]


def once(folder: Path, kind: str, translated: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One process: its figures and, of a translated one, the report's."""
    path, report = folder / f"{'translated' if translated else 'native'}.py", folder / "report.json"
    path.write_text(PROGRAM if translated else PROGRAM.replace("is_cuda", "is_webgpu").replace("cuda", "webgpu"))
    arguments = [str(path), kind, str(options.steps), str(options.repeats)]
    run = ["-m", "torch_webgpu.cli", "run", "--device", "webgpu", "--report-file", str(report)] if translated else []
    found: dict[str, Any] = json.loads(last_line([sys.executable, *run, *arguments]))
    return found | {"report": json.loads(report.read_text())} if translated else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes of each sort")
    parser.add_argument("--steps", type=int, default=20, help="training steps that are timed together")
    parser.add_argument("--repeats", type=int, default=9, help="and how often, in each process")
    parser.add_argument("--kind", action="append", choices=KINDS)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_WEBGPU_CACHE_DIR", tempfile.mkdtemp())  # so that only first runs compile
    print(f"{'program':<8} {'':<10} {'steps/s':>9} {'host ms/step':>13} {'device KiB':>11} {'process MiB':>12}")
    with tempfile.TemporaryDirectory() as name:
        for kind in options.kind or KINDS:
            once(Path(name), kind, True, options)
            runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
            for n in range(2 * options.runs):
                which = n % 4 in (0, 3)  # each is as often first as second
                runs[which].append(once(Path(name), kind, which, options))
            show(kind, runs)
    imports, enables = (statistics.median(ms) for ms in zip(*enabling(options.runs)))
    print(f"\nto enable, beyond `import torch`: {imports:.0f} ms of CPU time to import, {enables:.0f} ms to install")


def enabling(runs: int) -> list[list[float]]:
    """Milliseconds to import the translation and to install it, where Python has compiled the modules before."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        lines = [last_line([sys.executable, "-c", ENABLE], **compiled) for _ in range(runs + 1)]
    return [[float(ms) for ms in line.split()] for line in lines[1:]]


def show(kind: str, runs: dict[bool, list[dict[str, Any]]]) -> None:
    """Two lines of medians, one of ratios, and what the translation reports."""

    def median(translated: bool, key: str) -> float:
        return statistics.median(float(run[key]) for run in runs[translated])

    keys = ("steps_s", "host_ms", "device_bytes", "process_kib")
    for translated, label in ((True, "translated"), (False, "native")):
        steps, host, device, process = (median(translated, key) for key in keys)
        print(f"{kind:<8} {label:<10} {steps:9.1f} {host:13.3f} {device / 1024:11.1f} {process / 1024:12.1f}")
    steps, host, device, process = (median(True, key) / median(False, key) for key in keys)
    print(f"{'':<8} {'ratio':<10} {steps:9.3f} {host:13.3f} {device:11.3f} {process:12.3f}")
    report = runs[True][-1]["report"]
    calls, seconds = (sum(call[key] for call in report["calls"]) for key in ("count", "seconds"))
    names = len(report["calls"])
    print(f"{'':<8} {calls} calls of {names} names were answered in {1e3 * seconds:.1f} ms, their work included")


if __name__ == "__main__":
    main()
