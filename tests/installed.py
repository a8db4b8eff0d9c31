"""Tests of what ``import torch`` does by itself: PyTorch finds this package by the entry points of its installation."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

needs_installation = pytest.mark.skipif(
    not [entry for entry in entry_points(group="torch.backends") if entry.name == "torch_webgpu"],
    reason="torch-webgpu is on the path, but not installed: `import torch` does not load it",
)
