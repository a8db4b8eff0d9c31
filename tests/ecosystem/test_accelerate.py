"""``accelerate``: a training loop, gradient accumulation and clipping, saved and loaded state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.target import DEVICE
from torch.utils.data import DataLoader, TensorDataset

from .compare import assert_on, finds_the_device, without_fallbacks
from .data import assert_learned, digits

accelerate = pytest.importorskip("accelerate")
pytestmark = finds_the_device
LIBRARY = "accelerate"


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps the device and the precision of its first Accelerator for the whole process."""
    reset()
    yield
    reset()


def reset() -> None:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def parts(accelerator: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    loader = DataLoader(TensorDataset(*digits(128)), batch_size=16)
    return tuple(accelerator.prepare(model, optimizer, schedule, loader))


def train(accelerator: Any, model: Any, optimizer: Any, schedule: Any, loader: Any) -> list[float]:
    losses = []
    for images, labels in loader:
        assert images.device.type == accelerator.device.type
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


def trained(cpu: bool, **options: Any) -> tuple[Any, tuple[Any, ...], list[float]]:
    reset()
    accelerator = accelerate.Accelerator(cpu=cpu, **options)
    assert accelerator.device.type == ("cpu" if cpu else DEVICE.type)
    prepared = parts(accelerator)
    losses = train(accelerator, *prepared)
    assert_on(accelerator.device, prepared[0].parameters(), "Accelerator")
    return accelerator, prepared, losses


@pytest.mark.parametrize("steps", [1, 4])
def test_loop(steps: int) -> None:
    _, (expected, *_), on_cpu = trained(True, gradient_accumulation_steps=steps)
    with without_fallbacks():
        _, (model, *_), on_device = trained(False, gradient_accumulation_steps=steps)
    if steps == 1:
        assert_learned(on_device)
    assert on_device == pytest.approx(on_cpu, rel=1e-4)
    for a, e in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(precision: str) -> None:
    _, _, on_cpu = trained(True)
    accelerator, (model, *_), on_device = trained(False, mixed_precision=precision)
    assert accelerator.mixed_precision == precision
    assert next(model.parameters()).dtype == torch.float32
    with accelerator.autocast():
        inner = accelerator.unwrap_model(model, keep_fp32_wrapper=False)[0](torch.zeros(1, 1, 8, 8, device=DEVICE))
    assert inner.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert_learned(on_device)
    assert on_device == pytest.approx(on_cpu, rel=5e-2)


def test_state_that_was_saved(tmp_path: Path) -> None:
    """What is loaded goes on as what was saved: the same losses, from the same parameters, moments and rates."""
    accelerator, prepared, _ = trained(False)
    accelerator.save_state(str(tmp_path))
    expected = train(accelerator, *prepared)

    reset()
    again = accelerate.Accelerator()
    loaded = parts(again)
    again.load_state(str(tmp_path))
    assert_on(DEVICE, loaded[0].parameters(), "load_state")
    assert loaded[2].get_last_lr() == pytest.approx([3e-2])
    assert train(again, *loaded) == pytest.approx(expected, rel=1e-6)


def test_random_numbers_that_were_saved(tmp_path: Path) -> None:
    accelerator, _, _ = trained(False)
    accelerator.save_state(str(tmp_path))
    expected = torch.randn(4, device=DEVICE)
    torch.randn(7, device=DEVICE)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.randn(4, device=DEVICE), expected)
