"""``transformers``: what ``generate`` gives, token by token: greedy and with beams, from caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .architectures import ARCHITECTURES, VOCABULARY, parameters
from .compare import assert_on, to, without_fallbacks

pytest.importorskip("transformers")
LIBRARY = "transformers"

GENERATING = [name for name, a in ARCHITECTURES.items() if a.generates]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "repetition_penalty": 2.0},
    "beams": {"do_sample": False, "num_beams": 3, "repetition_penalty": 2.0, "num_return_sequences": 2},
}


def generated(name: str, device: torch.device | str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the scores that they were chosen by."""
    architecture = ARCHITECTURES[name]
    model = architecture.model().to(device)
    inputs = {k: v for k, v in to(architecture.batch(), device).items() if torch.is_tensor(v) and k != "labels"}
    assert_on(device, model.parameters(), f"{name}.generate")
    out = model.generate(**inputs, max_new_tokens=8, output_scores=True, return_dict_in_generate=True, **options)
    assert out.sequences.device.type == torch.device(device).type
    return out.sequences.cpu(), torch.stack(out.scores).cpu()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", parameters(GENERATING, quick=("gpt2", "t5")))
def test_tokens(name: str, way: str) -> None:
    expected, scores = generated(name, "cpu", **WAYS[way])
    with without_fallbacks():
        actual, actual_scores = generated(name, DEVICE, **WAYS[way])
    assert len(set(expected.flatten().tolist())) > 4, "the model repeats itself: equal tokens would say nothing"
    assert int(expected.max()) < VOCABULARY
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    torch.testing.assert_close(actual_scores, scores, rtol=1e-3, atol=1e-3)
