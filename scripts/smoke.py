"""A few minutes of what may differ between systems, on the adapter that is here: ``python scripts/smoke.py``.

Training, exceptions and Ctrl-C in hooks of a backward pass, lists of tensors, torch.compile, a program for CUDA in a
folder whose name has a blank and an umlaut. Each part prints a line; the first that is wrong raises.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torch_webgpu  # where PyTorch has an accelerator of its own, this asks for webgpu

PROGRAM = """
import sys, torch
x = torch.ones(3, device="cuda", requires_grad=True)
(x * 2).sum().backward()
print(torch.cuda.is_available(), x.grad.tolist(), sys.argv[1:])
"""


def training() -> None:
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "webgpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        x, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
        model, x, labels = model.to(device), x.to(device), labels.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            losses.setdefault(device, []).append(loss.item())
    torch.testing.assert_close(losses["webgpu"], losses["cpu"], rtol=1e-3, atol=1e-3)


def hooks() -> None:
    def interrupt(gradient: torch.Tensor) -> None:
        signal.raise_signal(signal.SIGINT)

    def divide(gradient: torch.Tensor) -> None:
        raise ZeroDivisionError

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background shells ignore Ctrl-C
    for hook, expected in ((divide, ZeroDivisionError), (interrupt, KeyboardInterrupt)):
        x = torch.ones(3, device="webgpu", requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        try:
            y.sum().backward()
        except expected:
            pass
        else:
            raise AssertionError(f"{expected.__name__} did not come out of the backward pass")
        (x * 3).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3.0, 3.0, 3.0]


def lists() -> None:
    tensors = [torch.full((k % 5 + 1,), float(k)) for k in range(40)]
    ours = [t.to("webgpu") for t in tensors]
    for actual, expected in zip(torch._foreach_add(ours, ours, alpha=2), tensors, strict=True):
        assert torch.equal(actual.cpu(), expected * 3)


def compiled() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).softmax(-1).sum(0)

    x = torch.linspace(-1, 1, 40).reshape(5, 8)
    torch.testing.assert_close(torch.compile(fn)(x.to("webgpu")).cpu(), fn(x))


def translated() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "my prögrams" / "train.py"
        program.parent.mkdir()
        program.write_text(PROGRAM, "utf-8")
        command = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", "webgpu", str(program), "two words"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.split("\n")[0] == "True [2.0, 2.0, 2.0] ['two words']", done.stdout + done.stderr


def main() -> int:
    print(f"torch {torch.__version__}, {torch_webgpu.__name__} on {torch.webgpu.get_device_name(0)}", flush=True)
    parts: tuple[Callable[[], None], ...] = (training, hooks, lists, compiled, translated)
    for part in parts:
        part()
        print(f"right: {part.__name__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
