"""``lightning``: its Trainer, in float32 and in two mixed precisions; its Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.target import DEVICE
from torch.utils.data import DataLoader, TensorDataset

from .compare import assert_on
from .data import assert_learned, digits

lightning = pytest.importorskip("lightning")
LIBRARY = "lightning"

PRECISIONS = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
# What rounding leaves of the loss of sixteen steps.
CLOSE = {"32-true": 1e-3, "bf16-mixed": 5e-2, "16-mixed": 5e-2}


def classifier() -> Any:
    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.convolution = torch.nn.Conv2d(1, 8, 3)
            self.head = torch.nn.Linear(288, 10)
            self.losses: list[float] = []
            self.outputs: list[torch.Tensor] = []

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(F.relu(self.convolution(images)).flatten(1))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            images, labels = batch
            logits = self(images)
            self.outputs += [images, logits.detach()]
            loss = F.cross_entropy(logits, labels)
            self.log("loss", loss)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            images, labels = batch
            self.log("accuracy", (self(images).argmax(-1) == labels).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Classifier()


def loader() -> Any:
    return DataLoader(TensorDataset(*digits(128)), batch_size=16)


def fitted(folder: Path, accelerator: str, precision: str = "32-true", **options: Any) -> tuple[Any, Any]:
    trainer = lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        max_epochs=2,
        gradient_clip_val=1.0,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    model = classifier()
    trainer.fit(model, loader(), loader())
    return trainer, model


@pytest.mark.parametrize("precision", PRECISIONS)
def test_training(tmp_path: Path, precision: str) -> None:
    _, on_cpu = fitted(tmp_path / "cpu", "cpu")
    trainer, model = fitted(tmp_path / "device", DEVICE.type, precision)
    assert_on(DEVICE, model.outputs, "lightning.Trainer")
    assert {logits.dtype for logits in model.outputs[1::2]} == {PRECISIONS[precision]}
    assert_learned(model.losses)
    assert model.losses == pytest.approx(on_cpu.losses, rel=CLOSE[precision], abs=CLOSE[precision])
    assert trainer.callback_metrics["accuracy"] > 0.5


def test_checkpoint(tmp_path: Path) -> None:
    trainer, model = fitted(tmp_path, DEVICE.type)
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    again = lightning.Trainer(
        accelerator=DEVICE.type,
        devices=1,
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    resumed = classifier()
    again.fit(resumed, loader(), ckpt_path=tmp_path / "kept.ckpt")
    assert_on(DEVICE, resumed.outputs, "lightning.Trainer")
    assert len(resumed.losses) == 8, "one epoch more"
    assert resumed.losses[0] < 0.7 * model.losses[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fabric(precision: str) -> None:
    fabric = lightning.Fabric(accelerator=DEVICE.type, devices=1, precision=precision)
    fabric.launch()
    assert fabric.device.type == DEVICE.type
    inner = classifier()
    model, optimizer = fabric.setup(inner, torch.optim.AdamW(inner.parameters(), lr=1e-2))
    assert_on(DEVICE, model.parameters(), "Fabric")
    losses = []
    for images, labels in fabric.setup_dataloaders(loader()):
        assert images.device.type == DEVICE.type
        loss = F.cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert_learned(losses)
