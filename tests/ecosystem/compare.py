"""Runs a model on the CPU and on the device under test, says where, and compares."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.conformance.compare import Tolerance, assert_same
from tests.conformance.target import DEVICE, fallback_stats
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_map_only

used: set[str] = set()
"""The devices that the running test has asserted to use."""

TOLERANCES = {d: Tolerance(*default_tolerances(d)) for d in (torch.float16, torch.bfloat16, torch.float32)}


finds_the_device = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is CUDA, the library chooses that (see docs/integrations.md)"
)


def to(tree: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Any:
    """The structure with its tensors on ``device``, those of floating point in ``dtype``."""
    return tree_map_only(torch.Tensor, lambda t: t.to(device, dtype if t.is_floating_point() else None), tree)


def assert_on(device: torch.device | str, tensors: Iterable[torch.Tensor], what: str) -> None:
    """Asserts that there are tensors and that all lie on ``device``; prints which one that is."""
    kind = torch.device(device).type
    found = {t.device.type for t in tensors}
    assert found == {kind}, f"{what}: on {found}"
    name = torch.webgpu.get_device_name(device) if kind == "webgpu" else kind
    used.add(kind)
    print(f"{what}: on {device} ({name})")


@contextmanager
def without_fallbacks(allowed: frozenset[str] = frozenset()) -> Iterator[None]:
    """Asserts that no operator but the ``allowed`` ones runs on the CPU instead of the device."""
    before = fallback_stats()
    yield
    fallen = fallback_stats() - before
    assert set(fallen) <= allowed, f"ran on the CPU: {dict(fallen)}"


def step(
    model: torch.nn.Module, batch: Mapping[str, Any], device: torch.device | str, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Loss, outputs, gradients and buffers after a forward and a backward pass of a copy of ``model`` on ``device``."""
    model = copy.deepcopy(model).to(device, dtype)
    assert_on(device, model.parameters(), type(model).__name__)
    outputs = model(**to(dict(batch), device, dtype))
    outputs["loss"].backward()
    results = {k: v for k, v in outputs.items() if isinstance(v, torch.Tensor)}
    assert {v.device.type for v in results.values()} == {torch.device(device).type}
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert gradients
    return {**results, **gradients, **dict(model.named_buffers())}


def assert_same_step(model: torch.nn.Module, batch: Mapping[str, Any]) -> None:
    """One step on the device gives the outputs and the gradients that it gives on the CPU.

    Values outside the default tolerance of their dtype are put before a step in float64 on the CPU: they may be as far
    from it as the CPU's own rounding is, twice.
    """
    expected = step(model, batch, "cpu")
    with without_fallbacks():
        actual = step(model, batch, DEVICE)
    assert actual.keys() == expected.keys()
    truth: dict[str, torch.Tensor] = {}

    def exact(name: str) -> torch.Tensor:
        if not truth:
            truth.update(step(model, batch, "cpu", torch.float64))
        return truth[name]

    for name, value in expected.items():
        assert_same(actual[name], value, TOLERANCES, truth=lambda name=name: exact(name), strides=False)
