"""``transformers``: a forward and a backward pass of each architecture."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.target import DEVICE

from .architectures import ARCHITECTURES, parameters, tokens
from .compare import assert_same_step, step, without_fallbacks

transformers = pytest.importorskip("transformers")
LIBRARY = "transformers"


@pytest.mark.parametrize("name", parameters(ARCHITECTURES))
def test_forward_and_backward(name: str) -> None:
    architecture = ARCHITECTURES[name]
    assert_same_step(architecture.model(), architecture.batch())


@pytest.mark.slow
def test_transcription() -> None:
    """CTC adds logarithms of 19 steps, in float32 in every model, so that none in float64 can be the referee here."""
    torch.manual_seed(0)
    model = transformers.Wav2Vec2ForCTC(ARCHITECTURES["wav2vec2"].model().config).eval()
    batch = {"input_values": torch.randn(2, 400), "labels": tokens(5)}
    expected = step(model, batch, "cpu")
    with without_fallbacks():
        actual = step(model, batch, DEVICE)
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(actual[name].cpu(), value, rtol=1e-3, atol=1e-3 * max(scale, 1e-2), msg=name)
