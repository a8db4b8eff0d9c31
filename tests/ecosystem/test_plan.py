"""``torch_webgpu.plan``: models of ``transformers`` traced, saved, and run by a process that knows nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.conformance.target import DEVICE
from tests.device.processes import assert_ends_well

from torch_webgpu.plan import Plan, trace, verify

from .architectures import ARCHITECTURES
from .compare import assert_on, without_fallbacks

transformers = pytest.importorskip("transformers")
LIBRARY = "transformers"

RUN = """
import sys, torch_webgpu
plan = torch_webgpu.plan.Plan.load({folder!r} + "/model.npz")
ids = torch.load({folder!r} + "/ids.pt")
result = torch_webgpu.plan.bind(plan)(ids.to("webgpu"))
torch.save(result.cpu(), {folder!r} + "/result.pt")
assert "transformers" not in sys.modules
"""


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_forward_pass_in_another_process(name: str, tmp_path: Path) -> None:
    model = ARCHITECTURES[name].model()
    ids = ARCHITECTURES[name].batch()["input_ids"]

    def forward(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, use_cache=False).logits

    with torch.no_grad():
        expected = forward(ids)
        model.to(DEVICE)
        assert_on(DEVICE, model.parameters(), "model")
        with without_fallbacks():
            plan = trace(forward, ids.to(DEVICE))
            here = forward(ids.to(DEVICE)).cpu()
    assert not verify(plan)
    assert Plan.from_json(plan.to_json(), trusted=True) == plan
    plan.save(tmp_path / "model.npz")
    torch.save(ids, tmp_path / "ids.pt")
    assert_ends_well(RUN.format(folder=str(tmp_path)))
    there = torch.load(tmp_path / "result.pt")
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
    torch.testing.assert_close(there, expected, rtol=1e-4, atol=1e-4)
