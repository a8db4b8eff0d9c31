"""The environment that the runner and its processes share."""

from __future__ import annotations

OUTCOMES_VARIABLE = "TORCH_WEBGPU_PYTORCH_TESTS_OUTCOMES"
"""Where outcomes are written."""
DISTRIBUTED_VARIABLE = "TORCH_WEBGPU_PYTORCH_TESTS_DISTRIBUTED"
"""Set where the tests are of several processes."""
COPIED = "TORCH_WEBGPU_PYTORCH_TESTS_COPY"
"""A copy of PyTorch's ``distributed_test.py``, which is translated as programs are."""
