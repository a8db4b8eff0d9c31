"""Train a convolutional network on handwritten digits, on any GPU, and check it against the CPU.

The data are scikit-learn's 1,797 digits of 8×8 pixels (no download); a fifth of them is held out. The same seed gives
both devices the same initial weights and the same batches. Dropout draws from each device's own generator, so the two
runs agree in their result, not digit for digit.

    python examples/digits.py                 # device="webgpu", compared with the CPU
    python examples/digits.py --device cuda   # any other PyTorch device
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BATCH = 96
PEAK_LEARNING_RATE = 1e-2
REQUIRED_ACCURACY = 0.97
REQUIRED_AGREEMENT = 0.01
SPLIT_SEED = 0  # the held-out fifth is the same whatever --seed says


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, 8, 8] in float32 from 0 to 1, labels [n] in int64, on one device."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def to(self, device: str) -> Digits:
        return Digits(*(t.to(device) for t in vars(self).values()))


@dataclass
class Run:
    """What training on one device gave: one number an epoch, and the last held-out predictions [n] (on CPU)."""

    device: str
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    predictions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


def load() -> Digits:
    """The digits on the CPU, stratified: every class is a fifth held out."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    train, test = train_test_split(
        torch.arange(len(labels)).numpy(), test_size=0.2, stratify=labels.numpy(), random_state=SPLIT_SEED
    )
    return Digits(images[train], labels[train], images[test], labels[test])


def network() -> nn.Module:
    """Two convolution blocks and a linear classifier: [n, 1, 8, 8] → [n, 10], 10 k parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def batches(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index batches of one epoch in a random order drawn on the CPU, hence equal on every device."""
    return iter(torch.randperm(count, generator=generator).split(BATCH))


def synchronize(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """The most likely class of each image: [n, 1, 8, 8] → [n] int64."""
    model.eval()
    return model(images).argmax(dim=1)


def train(data: Digits, device: str, epochs: int, seed: int, progress: Progress) -> Run:
    """Train on ``device`` from scratch; the loss is read once an epoch, so that the device never waits for Python."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    model = network().to(device)
    data = data.to(device)
    count = len(data.train_labels)
    steps = -(-count // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=PEAK_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps)
    run = Run(device)
    task = progress.add_task(device, total=epochs * steps, loss="", accuracy="")
    for _ in range(epochs):
        model.train()
        total = torch.zeros((), device=device)
        synchronize(device)
        start = time.perf_counter()
        for indices in batches(count, order):
            picked = indices.to(device)
            loss = F.cross_entropy(model(data.train_images[picked]), data.train_labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(indices)
            progress.advance(task)
        run.loss.append(total.item() / count)
        run.seconds.append(time.perf_counter() - start)
        predictions = predict(model, data.test_images)
        run.accuracy.append((predictions == data.test_labels).float().mean().item())
        progress.update(task, loss=f"loss {run.loss[-1]:.4f}", accuracy=f"held-out {run.accuracy[-1]:.1%}")
    run.predictions = predictions.cpu()
    return run


def picture(runs: list[Run], data: Digits, title: str, path: Path) -> None:
    """Loss and accuracy of every run, and the digits that the first one got wrong."""
    wrong = (runs[0].predictions != data.test_labels).nonzero().flatten().tolist()
    columns = 10
    rows = min(3, max(1, -(-len(wrong) // columns)))
    figure = plt.figure(figsize=(10, 4.6 + 1.3 * rows), layout="constrained")
    figure.suptitle(title, fontsize=12)
    curves, digits = figure.subfigures(2, 1, height_ratios=[3.4, 0.45 + 1.15 * rows])
    loss, accuracy = curves.subplots(1, 2)
    for run, colour, style in zip(runs, ("#d1495b", "#30638e"), ("-", "--"), strict=False):
        epochs = range(1, len(run.loss) + 1)
        loss.semilogy(epochs, run.loss, style, color=colour, label=run.device, linewidth=2)
        accuracy.plot(epochs, [100 * a for a in run.accuracy], style, color=colour, label=run.device, linewidth=2)
    loss.set(title="training loss (cross-entropy)", xlabel="epoch")
    accuracy.axhline(100 * REQUIRED_ACCURACY, color="grey", linewidth=1, linestyle=":", label="required")
    accuracy.set(title="held-out accuracy, %", xlabel="epoch", ylim=(max(0, 100 * min(runs[0].accuracy) - 5), 101))
    for axes in (loss, accuracy):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    accuracy.legend(frameon=False, loc="lower right")

    digits.suptitle(f"{len(wrong)} of {len(data.test_labels)} held-out digits misread on {runs[0].device}", fontsize=11)
    for axes, index in zip(digits.subplots(rows, columns, squeeze=False).flat, [*wrong, *[None] * 30], strict=False):
        axes.axis("off")
        if index is not None:
            axes.imshow(data.test_images[index, 0], cmap="gray_r", vmin=0, vmax=1)
            axes.set_title(f"read {runs[0].predictions[index]}, is {data.test_labels[index]}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def device_name(device: str) -> str:
    module = getattr(torch, torch.device(device).type, None)
    return module.get_device_name(device) if hasattr(module, "get_device_name") else device


def fallbacks(device: str) -> dict[str, int]:
    """Operators that ran on the CPU although ``device`` was asked for, with their counts so far."""
    return dict(torch.webgpu.fallback_stats()) if torch.device(device).type == "webgpu" else {}


def complaints(run: Run, reference: Run, fell_back: dict[str, int]) -> list[str]:
    """Why the result is not good enough; empty when it is."""
    found = []
    if run.accuracy[-1] < REQUIRED_ACCURACY:
        found.append(f"accuracy {run.accuracy[-1]:.1%} is below {REQUIRED_ACCURACY:.0%}")
    if abs(run.accuracy[-1] - reference.accuracy[-1]) > REQUIRED_AGREEMENT:
        found.append(f"{run.device} and cpu differ by more than {REQUIRED_AGREEMENT:.0%}")
    if fell_back:
        found.append("operators ran on the CPU: " + ", ".join(f"{op} ({n}×)" for op, n in fell_back.items()))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="webgpu", help="any PyTorch device (default: webgpu)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training data (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the batches and dropout (default: 0)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/digits.png"), help="the picture (default: out/digits.png)"
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console(highlight=False)
    if options.device.startswith("webgpu"):
        # Where PyTorch has an accelerator of its own, such as CUDA, `import torch` alone does not load this one.
        import torch_webgpu  # noqa: F401
    if torch.device(options.device).type == "webgpu" and not torch.webgpu.is_available():
        console.print("digits: no WebGPU adapter is usable here; `torch-webgpu doctor` says what to install")
        return 1
    name = device_name(options.device)
    console.print(f"adapter: {name}")
    data = load()
    before = fallbacks(options.device)
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[loss]}  {task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console) as progress:
        run = train(data, options.device, options.epochs, options.seed, progress)
        fell_back = {op: n - before.get(op, 0) for op, n in fallbacks(options.device).items() if n > before.get(op, 0)}
        reference = train(data, "cpu", options.epochs, options.seed, progress)
    for each in (run, reference):
        console.print(
            f"{each.device}: {statistics.median(each.seconds):.2f} s per epoch (the first {each.seconds[0]:.2f} s)"
        )
    ours, theirs = run.accuracy[-1], reference.accuracy[-1]
    picture([run, reference], data, f"{name}: {ours:.1%} (cpu {theirs:.1%})", options.out)
    console.print(f"picture: {options.out}")
    for complaint in (found := complaints(run, reference, fell_back)):
        console.print(f"digits: {complaint}")
    console.print(f"accuracy {100 * ours:.1f} % (cpu {100 * theirs:.1f} %), fallbacks {sum(fell_back.values())}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
