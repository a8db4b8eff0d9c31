"""What docs/custom-operators.md shows runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_webgpu.aten.dispatch import definitions
from torch_webgpu.compile import cache
from torch_webgpu.compile.autograd_cache import circumstances
from torch_webgpu.extend.expression import FUNCTIONS
from torch_webgpu.extend.op import registered, unregister

PAGE = (Path(__file__).parents[2] / "docs" / "custom-operators.md").read_text("utf-8")


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 5
    before = set(registered())
    scope: dict[str, Any] = {}
    try:
        for block in blocks:
            exec(block, scope)
            printed = [line.split("  # ")[1] for line in block.splitlines() if line.startswith("print(")]
            assert capsys.readouterr().out.splitlines() == printed
        x = torch.tensor([-3.0, 0.5], requires_grad=True)
        scope["sign_ste"](x).sum().backward()
        assert x.grad.tolist() == [0.0, 1.0]
    finally:
        for name in set(registered()) - before:
            unregister(name)


def test_the_page_lists_every_function() -> None:
    listed = set(re.findall(r"\w+", PAGE[PAGE.index("- Functions: ") : PAGE.index("- Tensors broadcast")]))
    assert set(FUNCTIONS) <= listed


def test_what_is_kept_on_disk_knows_what_operators_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A graph names its operators: what was compiled for another definition of one must not be found."""
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)

    def keys() -> tuple[Any, str]:
        return cache.file_for("digest", [], 0).__dict__["_entry"], circumstances(0)

    nothing = keys()
    definitions.define("test::cached", "x + 1.0")
    try:
        first = keys()
        assert first == keys()
        definitions.define("test::cached", "x + 2.0")
        second = keys()
        assert not {*nothing} & {*first}
        assert not {*first} & {*second}
    finally:
        definitions.forget("test::cached")
    assert keys() == nothing
