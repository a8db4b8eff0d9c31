"""``transformers.Trainer``: training in three precisions, evaluation, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .architectures import ARCHITECTURES
from .compare import assert_on, finds_the_device, without_fallbacks
from .data import CountingSentences, assert_learned

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = finds_the_device
LIBRARY = "transformers"

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"bf16": True}, "fp16": {"fp16": True}}
EACH = ["fp32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bf16", "fp16"))]
# What rounding leaves of the loss of a dozen steps: the CPU trains in float32.
CLOSE = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 3e-2}


def trainer(folder: Path, use_cpu: bool = False, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=use_cpu,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        seed=3,
        disable_tqdm=True,
        **options,
    )
    architecture = ARCHITECTURES["llama"]
    return transformers.Trainer(
        model=architecture.model(),
        args=arguments,
        train_dataset=CountingSentences(64),
        eval_dataset=CountingSentences(16),
    )


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def assert_trained_on(trained: Any, device: torch.device | str) -> None:
    assert trained.args.device.type == torch.device(device).type
    assert_on(device, trained.model.parameters(), "Trainer")
    states = [v for s in trained.optimizer.state.values() for v in s.values() if torch.is_tensor(v) and v.dim()]
    assert_on(device, states, "Trainer's optimizer")


@pytest.mark.parametrize("precision", EACH)
def test_training(tmp_path: Path, precision: str) -> None:
    on_cpu = trainer(tmp_path / "cpu", use_cpu=True, max_steps=12, save_strategy="no")
    on_cpu.train()
    on_device = trainer(tmp_path / "device", max_steps=12, save_strategy="no", **PRECISIONS[precision])
    with without_fallbacks():
        on_device.train()
        evaluated = on_device.evaluate()
    assert_trained_on(on_device, DEVICE)
    assert_learned(losses(on_device))
    close = CLOSE[precision]
    assert losses(on_device) == pytest.approx(losses(on_cpu), rel=close)
    assert evaluated["eval_loss"] == pytest.approx(on_cpu.evaluate()["eval_loss"], rel=close)


@pytest.mark.parametrize("precision", EACH)
def test_what_is_computed_in_the_precision(tmp_path: Path, precision: str) -> None:
    outputs = []
    training = trainer(tmp_path, max_steps=1, save_strategy="no", **PRECISIONS[precision])
    layer = training.model.model.layers[0].mlp.gate_proj
    layer.register_forward_hook(lambda module, args, out: outputs.append(out))
    training.train()
    assert_on(DEVICE, outputs, f"a layer in {precision}")
    assert {out.dtype for out in outputs} == {
        {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    }


@pytest.mark.parametrize("precision", EACH)
def test_resuming(tmp_path: Path, precision: str) -> None:
    """Eight steps in one go, and four resumed from a checkpoint after four, give the same losses and weights."""
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, **PRECISIONS[precision]}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    resumed = trainer(tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_trained_on(resumed, DEVICE)
    assert resumed.state.global_step == 8
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-5)
    for name, parameter in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name].cpu(), parameter.cpu(), msg=name)
