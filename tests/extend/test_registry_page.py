"""docs/registry.md: what it shows runs, and the names it gives exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from torch.webgpu import registry  # isort: skip

PAGE = (Path(__file__).parents[2] / "docs" / "registry.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`.*`) \| (`.*`) \|$", PAGE[PAGE.index("| torch.js |") :], re.MULTILINE)
NAMES = sorted({name for _, ours in ROWS for name in re.findall(r"`([\w.]+)`", ours)})
SEED = (
    "coverage_report get_device_config get_device_context get_dtype_info get_op_info has_autograd has_device has_dtype "
    "has_kernel initialize_device list_custom_devices list_custom_dtypes list_devices list_dtypes list_functions "
    "list_kernels list_methods list_ops register_backward register_device register_dtype register_forward "
    "register_function register_method register_scalar_forward unregister_device"
).split()
"""The names that torch.js has in Python's spelling."""


def test_what_the_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), {})
    said = capsys.readouterr().out
    assert "there is no operator 'addd' (did you mean 'add'?)" in said
    assert "| `exp` | n | n | n |" in said


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_table_exists(name: str) -> None:
    first, *rest = name.split(".")
    value = torch if first == "torch" else getattr(registry, first)
    for part in rest:
        value = getattr(value, part)
    assert value is not None


def test_the_table_is_whole() -> None:
    assert len(ROWS) > 70
    theirs = {name for left, _ in ROWS for name in re.findall(r"`(\w+)`", left)}
    assert set(SEED) <= theirs
    for name in SEED:
        assert callable(getattr(registry, name))


def test_every_function_is_on_the_page() -> None:
    on_the_page = set(re.findall(r"`(\w+)", PAGE)) | set(re.findall(r"registry\.(\w+)", PAGE))
    functions = {name for name in registry.__all__ if re.match(r"(register|unregister|has|get|list|find)_", name)}
    assert functions <= on_the_page
