"""``timm``: families of vision models, a step of training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .compare import assert_same_step

timm = pytest.importorskip("timm")
LIBRARY = "timm"

# Family → a model of it: those that timm keeps for tests, or made small by their arguments.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("test_resnet", {}),
    "efficientnet": ("test_efficientnet", {}),
    "mobilenetv3": ("mobilenetv3_small_050", {}),
    "vit": ("test_vit", {"img_size": 64}),
    "convnext": ("test_convnext", {}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "drop_path_rate": 0},
    ),
}


class Classified(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("family", FAMILIES)
def test_training_step(family: str) -> None:
    """Normalisation layers use the batch's own statistics; nothing is dropped."""
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options).train()
    batch = {"images": torch.randn(4, 3, 64, 64), "labels": torch.tensor([0, 3, 6, 9])}
    assert_same_step(Classified(model), batch)
