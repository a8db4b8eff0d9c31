"""A sample of the operators with fusion off and with a window of one kernel; everything else here runs with fusion.

``TORCH_WEBGPU_FUSION=0`` and ``TORCH_WEBGPU_FUSION_WINDOW=1`` do the same to ``python -m tests.conformance``.
"""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.config import config

from .target import DEVICE
from .trials import Effort, Trial, run

# Decomposed into several operations, or with several results, or in place: what fusion takes apart.
OPERATORS = (
    "add", "where", "masked_fill", "clamp", "pow", "nn.functional.gelu", "softmax", "log_softmax", "var_mean", "sum",
    "std", "nn.functional.layer_norm", "nn.functional.batch_norm", "nn.functional.cross_entropy", "cat", "cumsum",
    "index_select", "scatter_add", "addmm", "nn.functional.conv2d", "nn.functional.mse_loss",
)  # fmt: skip


@pytest.fixture(scope="module", params=["off", "window of 1"])
def mode(request):
    """Fusion off, or with nothing but the last kernel to join; batches that depend on the program alone."""
    if DEVICE.type != "webgpu":
        pytest.skip(f"{DEVICE} has no fusion to switch off")
    torch.webgpu.set_batch_delay(0)
    if request.param == "off":
        torch.webgpu.disable_fusion()
    else:
        torch.webgpu.set_fusion_window(1)
    yield request.param
    if config().fusion:
        torch.webgpu.enable_fusion()
    torch.webgpu.set_fusion_window(config().fusion_window)
    torch.webgpu.set_batch_delay(16)


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_without_most_of_fusion(mode, name, kind):
    result = run(Trial(name, kind, "float32"), Effort(3))
    assert result.samples > 0
    assert result.failures == []
