"""docs/profiling.md: all of its code runs, in the order it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "profiling.md"


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert (tmp_path / "trace.json").stat().st_size > 0
    assert (tmp_path / "profile.png").stat().st_size > 0
