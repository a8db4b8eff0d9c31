"""The examples of docs/integrations.md run, and the page names every patch."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest

from torch_webgpu.integrations import known

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
TEXT = PAGE.read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
EXAMPLES = [
    (heading, code)
    for heading, text in SECTIONS.items()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]
NEEDED = {"Transformers": ["accelerate"], "Stable-Baselines3": ["gymnasium"], "PEFT": ["transformers"]}


def package(heading: str) -> str:
    return heading.lower().replace("-", "_")


@pytest.mark.parametrize(("heading", "code"), EXAMPLES, ids=[heading for heading, _ in EXAMPLES])
def test_an_example(heading: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in (package(heading), *NEEDED.get(heading, [])):
        pytest.importorskip(needed, reason=f"an example of {heading}, for which {needed} is not installed")
    if package(heading) == "accelerate":
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{PAGE.name}: {heading}", "exec"), {"__name__": "__main__"})


CHANGES = [
    (heading, textwrap.dedent(diff))
    for heading, text in SECTIONS.items()
    for diff in re.findall(r"```diff\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(("heading", "diff"), CHANGES, ids=[heading for heading, _ in CHANGES])
def test_a_change_to_send_fits_the_version_installed(heading: str, diff: str) -> None:
    """When it does not any more, the library has changed: the page, and perhaps a patch, can."""
    found = importlib.util.find_spec(package(heading))
    if found is None:
        pytest.skip(f"a change to {heading}, which is not installed")
    [folder] = found.submodule_search_locations or []
    before = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))
    named = re.findall(r"`([\w/]+\.py)`", SECTIONS[heading])
    files = [Path(folder, name.removeprefix(f"{package(heading)}/")) for name in named]
    assert any(before in file.read_text("utf-8") for file in files if file.is_file()), before


def test_every_library_has_an_example() -> None:
    documented = {package(heading) for heading, _ in EXAMPLES}
    assert known.modules.keys() - documented == {"lightning_fabric", "pytorch_lightning"}


@pytest.mark.parametrize("heading", [heading for heading in SECTIONS if heading != "How"])
def test_the_page_says_what_every_patch_is_for(heading: str) -> None:
    patches = importlib.import_module(f"torch_webgpu.integrations.{package(heading)}").PATCHES
    for patch in patches:
        assert patch.reason, patch
        assert patch.upstream in SECTIONS[heading], patch
        if patch.target:
            names = [patch.target, patch.target.rpartition(".")[2]]
            assert any(f"`{name}`" in SECTIONS[heading] for name in names), patch
