"""``peft``: LoRA adapters are trained, saved, loaded and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE
from torch.utils.data import DataLoader

from .architectures import ARCHITECTURES
from .compare import assert_on, to, without_fallbacks
from .data import CountingSentences, assert_learned

peft = pytest.importorskip("peft")
LIBRARY = "peft"
KINDS = {
    "lora": {"target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]},
    "dora": {"target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"], "use_dora": True},
    "all-linear": {"target_modules": "all-linear", "use_rslora": True},
}


def adapted(device: torch.device | str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(ARCHITECTURES["llama"].model(), config).to(device)


def train(model: Any, device: torch.device | str) -> list[float]:
    trained = [p for p in model.parameters() if p.requires_grad]
    assert_on(device, model.parameters(), "peft")
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    losses = []
    for batch in DataLoader(CountingSentences(96), batch_size=8):
        loss = model(**to(batch, device)).loss
        loss.backward()
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_training(kind: str) -> None:
    on_cpu, on_device = adapted("cpu", **KINDS[kind]), adapted(DEVICE, **KINDS[kind])
    expected = train(on_cpu, "cpu")
    with without_fallbacks():
        losses = train(on_device, DEVICE)
    assert_learned(losses)
    assert losses == pytest.approx(expected, rel=1e-3)


def test_saved_loaded_and_merged(tmp_path: Path) -> None:
    model = adapted(DEVICE, **KINDS["lora"])
    train(model, DEVICE)
    inputs = to(ARCHITECTURES["llama"].batch(), DEVICE)
    with torch.no_grad():
        expected = model(**inputs).logits

        model.save_pretrained(tmp_path)
        loaded = peft.PeftModel.from_pretrained(ARCHITECTURES["llama"].model().to(DEVICE), tmp_path)
        assert_on(DEVICE, loaded.parameters(), "PeftModel.from_pretrained")
        torch.testing.assert_close(loaded(**inputs).logits, expected)

        with model.disable_adapter():
            without = model(**inputs).logits
        assert not torch.allclose(without, expected, atol=1e-2)

        merged = model.merge_and_unload()
        assert_on(DEVICE, merged.parameters(), "merge_and_unload")
        assert not any("lora" in name for name, _ in merged.named_parameters())
        torch.testing.assert_close(merged(**inputs).logits, expected, rtol=1e-4, atol=1e-4)
