"""Plans as cache artifacts: ``torch.compiler.save_cache_artifacts()`` and ``load_cache_artifacts()`` carry them.

PyTorch's own artifacts, among them what AOTAutograd made of a graph, hold no plans of ours. Every plan that is written
to or read from the disk is recorded, as Inductor records its kernels. Loading writes plan files into the cache folder;
they are not this user's work, so that their kernels are compiled with bounds checks (see :mod:`.cache`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch_webgpu.on_import import when_imported

TYPE = "webgpu_plan"
MAX_BYTES = 1 << 24
"""Larger plans, which hold large constants, are not recorded: PyTorch keeps artifacts in memory."""


def register(load: Callable[[str, bytes], None]) -> None:
    """Makes PyTorch know the artifact once it loads its own list of them. ``load(name, data)`` keeps a plan file."""
    when_imported("torch.compiler._cache", partial(_define, load=load))


def record(name: str, data: bytes) -> None:
    """Adds a plan file to what ``save_cache_artifacts()`` returns."""
    if len(data) <= MAX_BYTES:
        import_module("torch.compiler._cache").CacheArtifactManager.record_artifact(TYPE, name, data)


def _define(module: Any, load: Callable[[str, bytes], None]) -> None:
    class PlanArtifact(module.CacheArtifact):
        """A plan file: its name without the suffix, and its bytes."""

        def populate_cache(self) -> None:
            load(self.key, self.content)

        @staticmethod
        def type() -> str:
            return TYPE

    module.CacheArtifactFactory.register(PlanArtifact)
