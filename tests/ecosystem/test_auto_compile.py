"""``torch.webgpu.auto_compile`` on the architectures of ``transformers``: equal steps, and what is compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .architectures import ARCHITECTURES, parameters
from .compare import assert_on, to

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
LIBRARY = "transformers"
STEPS = 6
IN_PARTS = {
    "gpt2": "Unsupported: logging.Logger",
    "deberta-v2": "UserError: ",
}
"""What is no graph as a whole, and how the reason begins: its parts are compiled instead."""
if torch.__version__ < "2.12":  # Dynamo of PyTorch 2.11 cannot trace the copies of a model's configuration
    IN_PARTS |= dict.fromkeys(["t5", "whisper"], "Unsupported: copy.deepcopy()")


def train(model: torch.nn.Module, batch: dict[str, Any]) -> list[torch.Tensor]:
    """Losses, and the gradients of the last step."""
    losses = []
    for _ in range(STEPS):
        model.zero_grad(set_to_none=True)
        loss = model(**batch)["loss"]
        loss.backward()
        losses.append(loss.detach())
    return [*losses, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", parameters(ARCHITECTURES))
def test_training_steps_are_equal(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.model().to(DEVICE)
    assert_on(DEVICE, model.parameters(), name)
    twin, batch = copy.deepcopy(model), to(dict(architecture.batch()), DEVICE)
    torch._dynamo.reset()
    expected = train(model, batch)
    with torch.webgpu.auto_compile(after=2):
        found = train(twin, batch)
        stats = torch.webgpu.auto_compile_stats()
    whole = stats.modules[0]
    assert sum(row.recompilations for row in stats.modules) == 0
    assert stats.compiled >= 1
    if name in IN_PARTS:
        assert whole.left.startswith(IN_PARTS[name])
    else:
        assert (whole.left, whole.compiled_calls, stats.compiled) == (None, STEPS - 2, 1)
    # Gradients that are zero but for rounding, such as those of a key's bias, have the rounding of what was added up.
    largest = max(float(b.abs().max()) for b in expected[STEPS:])
    for a, b in zip(found, expected, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=0, atol=max(1e-5 * scale, 1e-7 * largest))


def test_generation_compiles_the_decoding_step_alone() -> None:
    """A static cache is decoded through one graph; one that grows compiles nothing. The tokens are the same."""
    model = ARCHITECTURES["qwen2"].model().to(DEVICE)
    assert_on(DEVICE, model.parameters(), "qwen2")
    ids = torch.randint(4, 99, (1, 6)).to(DEVICE)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for ways, most in (({}, 0), ({"cache_implementation": "static", "disable_compile": True}, 1)):
        torch._dynamo.reset()
        expected = model.generate(ids, **options, **ways)
        with torch.webgpu.auto_compile(after=2):
            found = model.generate(ids, **options, **ways)
            stats = torch.webgpu.auto_compile_stats()
        assert torch.equal(found.cpu(), expected.cpu())
        assert sum(row.recompilations for row in stats.modules) == 0
        assert sum(row.signatures for row in stats.modules) == most, [dict(row) for row in stats.modules]
