"""Programs for CUDA become programs for any accelerator: what they say then, and that they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("libcst", reason="migrate needs libcst")

from torch_webgpu.translation.migrate import migrate
from torch_webgpu.translation.migration import DEVICE

HEAD = 'DEVICE_TYPE = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"\n'
IMPORTS = """import torch
import torch as th
from torch.cuda.amp import GradScaler, autocast
import torch.distributed as dist
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('x.to("cuda")', "x.to(DEVICE_TYPE)"),
        ("x.to('cuda:1')", 'x.to(f"{DEVICE_TYPE}:1")'),
        ('f"cuda:{rank}"', 'f"{DEVICE_TYPE}:{rank}"'),
        ('"cuda:{}".format(rank)', 'f"{DEVICE_TYPE}:{{}}".format(rank)'),
        ('"cuda" if torch.cuda.is_available() else 1', "DEVICE_TYPE if torch.accelerator.is_available() else 1"),
        ("th.cuda.synchronize()", "torch.accelerator.synchronize()"),
        ("torch.cuda.set_device(1)", "torch.accelerator.set_device_index(1)"),
        ("torch.cuda.mem_get_info()", "torch.accelerator.get_memory_info()"),
        ("torch.cuda.Event(enable_timing=True)", "torch.Event(enable_timing=True)"),
        ("torch.cuda.stream(side)", "side"),
        ("torch.cuda.manual_seed_all(1)", "torch.manual_seed(1)"),
        ("x.cuda()", "x.to(DEVICE_TYPE)"),
        ("net.cuda(rank)", "net.to(torch.device(DEVICE_TYPE, rank))"),
        ("x.cuda(non_blocking=True)", "x.to(DEVICE_TYPE, non_blocking=True)"),
        ("x.cuda(device=rank)", "x.to(torch.device(DEVICE_TYPE, rank))"),
        ("x.is_cuda", "(x.device.type == DEVICE_TYPE)"),
        ('x.device.type == "cuda"', "x.device.type == DEVICE_TYPE"),
        ('str(x.device).startswith("cuda")', "str(x.device).startswith(DEVICE_TYPE)"),
        ("autocast(dtype=th.float16)", "torch.autocast(DEVICE_TYPE, dtype=th.float16)"),
        ("GradScaler()", "torch.amp.GradScaler(DEVICE_TYPE)"),
        ('torch.amp.autocast("cuda")', "torch.amp.autocast(DEVICE_TYPE)"),
        (
            'dist.init_process_group(backend="nccl", rank=0)',
            "dist.init_process_group("
            "backend=torch.distributed.get_default_backend_for_device(DEVICE_TYPE), rank=0)",
        ),
        ('config["cuda"]', 'config["cuda"]'),
        ('print("made for cuda")', 'print("made for cuda")'),
        ("torch.cuda.nvtx.range_pop()", "torch.cuda.nvtx.range_pop()"),
        ('print("ä", "cuda")', 'print("ä", DEVICE_TYPE)'),
    ],
)  # fmt: skip
def test_expressions(before: str, after: str) -> None:
    done = migrate(f"{IMPORTS}\n\ndef f():  # kept\n    return {before}   # this, too\n", "p.py")
    assert f"def f():  # kept\n    return {after}   # this, too\n" in done.after
    assert (HEAD in done.after) == ("DEVICE_TYPE" in after)


def test_what_stays_is_listed() -> None:
    done = migrate("import torch\n\ntorch.cuda.nvtx.range_push('a')\ntorch.cuda.nvtx.range_push('b')\n", "p.py")
    assert [(left.name, left.line) for left in done.left] == [("torch.cuda.nvtx.range_push", 3)]
    assert done.diff() == ""


def test_programs_without_devices_stay_as_they_are() -> None:
    source = "import torch\nx =  torch.ones( 3 )\n"
    assert migrate(source, "p.py").after == source


def test_the_name_comes_after_the_imports() -> None:
    done = migrate('"""Doc."""\nfrom __future__ import annotations\nimport os\n\nkind = "cuda"\nimport sys\n', "p.py")
    lines = [line for line in done.after.splitlines() if line]
    assert lines[:4] == ['"""Doc."""', "from __future__ import annotations", "import os", "import torch"]
    assert lines[4] == HEAD.strip()


TRAINING = '''"""Train."""
import json

import torch
from torch.cuda.amp import GradScaler, autocast

assert torch.cuda.is_available(), "needs a GPU"
torch.manual_seed(0)
device = torch.device("cuda:0")
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).cuda()
x = torch.linspace(-1, 1, 64).reshape(8, 8).cuda(non_blocking=True)
optimizer, scaler, losses = torch.optim.SGD(net.parameters(), lr=0.1), GradScaler(), []
for step in range(4):
    with autocast(enabled=step % 2 == 0):
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
torch.cuda.synchronize()
assert x.is_cuda and loss.device.type == "cuda"
print(json.dumps({"device": x.device.type, "losses": losses, "peak": torch.cuda.max_memory_allocated()}))
'''


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the accelerator, which is to be webgpu")
def test_a_migrated_program_runs(tmp_path: Path) -> None:
    """By the command, as a user would; translated and migrated it computes the same."""
    program = tmp_path / "train.py"
    program.write_text(TRAINING)

    def command(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    translated = json.loads(command("-m", "torch_webgpu.cli", "run", "train.py"))
    shown = command("-m", "torch_webgpu.cli", "migrate", "train.py")
    assert shown.startswith("--- a/train.py\n+++ b/train.py\n")
    assert program.read_text() == TRAINING
    assert command("-m", "torch_webgpu.cli", "migrate", "--write", ".") == "changed train.py\n"
    assert "cuda" not in program.read_text()
    assert DEVICE in program.read_text()
    migrated = json.loads(command("train.py"))
    assert migrated["device"] == "webgpu"
    assert migrated["losses"] == pytest.approx(translated["losses"], rel=1e-3)
    assert migrated["peak"] > 0
