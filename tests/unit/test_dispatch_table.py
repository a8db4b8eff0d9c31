"""The dispatcher's table is written only where it is what it is taken for."""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.aten.dispatch import torch_dispatch_table
from torch_webgpu.aten.dispatch.torch_dispatch_table import share_kernel, shares_kernel

UNFOLD = torch.ops.aten.unfold.default


@pytest.mark.parametrize(
    ("name", "value"),
    [("_ENTRY_WORDS", 4), ("_ENTRY_WORDS", 6), ("_NODE_WORDS", 3), ("_OBJECT_WORDS", 3), ("_WORDS_BEFORE", 8)],
)
def test_of_another_layout_nothing_is_written(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = torch_dispatch_table._entry(UNFOLD, "PrivateUse1")
    assert entry is not None
    before = list(torch_dispatch_table._words(entry, 5))
    monkeypatch.setattr(torch_dispatch_table, name, value)
    assert not share_kernel(UNFOLD)
    assert not shares_kernel(UNFOLD)
    assert list(torch_dispatch_table._words(entry, 5)) == before


def test_views_come_from_the_cpus_kernels() -> None:
    assert share_kernel(UNFOLD)
    assert shares_kernel(UNFOLD)
    assert not shares_kernel(torch.ops.aten.add.Tensor)
