"""The layers are real: imports point down, raw wgpu stays in one file, unstable PyTorch internals in a few.

The checkers are tried on sources that break the rules, so that they are known to be able to fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "torch_webgpu"
ROOT = Path(__file__).resolve().parent.parent / "src" / PACKAGE

# A module may import its own layer's package and every lower layer. Order: the longest prefix decides.
LAYERS = {
    "errors": 0, "config": 0, "dtypes": 0, "layout": 0, "on_import": 0,
    "ir": 1,
    "wgsl": 2,
    "kernels": 3,
    "plan": 4,
    "lower": 5, "runtime": 5,
    "engine": 6,
    "aten": 7, "compile": 7,
    "api": 8, "extend": 8, "translate": 8, "export": 8, "integrations": 8, "cli": 8, "doctor": 8,
    "": 9,
}  # fmt: skip

# Packages of one layer that may not see each other.
STRANGERS = {frozenset({"lower", "runtime"})}

WGPU = "runtime"
RAW_WGPU = "runtime/ffi.py"
# Private modules of PyTorch's that are plain Python and what out-of-tree backends are told to use.
TORCH_PYTHON = frozenset({
    "torch._ops", "torch._decomp", "torch._prims_common", "torch._prims_common.wrappers",
    "torch._higher_order_ops.flex_attention", "torch.utils._pytree", "torch.utils._python_dispatch",
})  # fmt: skip
TORCH_INTERNALS = ("aten/torch_abi.py", "aten/torch_guard.py", "aten/torch_patches.py", "engine/tensor.py")
MAX_LINES = 500
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def part_of(module: str) -> str:
    """The first name below the package: "engine" for engine/record.py and torch_webgpu.engine.record."""
    return module.removeprefix(PACKAGE).lstrip(".").split(".")[0]


def imports(path: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import that runs, those for type checkers left out."""
    package = [PACKAGE, *path.split("/")[:-1]]
    tree = ast.parse(text)
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == PACKAGE:
                yield from ((node.lineno, f"{PACKAGE}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def upward_imports(path: str, text: str) -> list[str]:
    own = part_of(path.removesuffix(".py").replace("/", "."))
    own = "" if own == "__init__" else own
    found = []
    for line, module in imports(path, text):
        if not (module == PACKAGE or module.startswith(PACKAGE + ".")):
            continue
        other = part_of(module)
        if other == own:
            continue
        if LAYERS.get(other, 9) > LAYERS[own] or frozenset({own, other}) in STRANGERS:
            found.append(f"{path}:{line} imports {module}")
    return found


def wgpu_imports(path: str, text: str) -> list[str]:
    if path.startswith(WGPU + "/") or path == "doctor.py":  # the doctor asks wgpu for its version
        return []
    return [f"{path}:{line}" for line, module in imports(path, text) if module.split(".")[0] == "wgpu"]


def raw_wgpu(path: str, text: str) -> list[str]:
    if path == RAW_WGPU:
        return []
    return [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if re.search(r"\blib\.wgpu[A-Z]", line)]


def torch_internals(path: str, text: str) -> list[str]:
    """Uses of torch._C, and imports of it and of other private modules, in code (prose may name them)."""
    if path.startswith(TORCH_INTERNALS):
        return []
    tree = ast.parse(text)
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n).startswith("torch._C")]
    imported = [
        (node.lineno, module)
        for node in ast.walk(tree)
        for module in imported_modules(node)
        if re.match(r"torch(\.\w+)*\._", module) and module not in TORCH_PYTHON
    ]
    return [f"{path}:{node.lineno}" for node in used] + [f"{path}:{line} imports {module}" for line, module in imported]


def imported_modules(node: ast.AST) -> list[str]:
    """What an import statement names that may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [f"torch.{a.name}" for a in node.names] if node.module == "torch" else [node.module]
    return []


def too_long(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    return [f"{path}: {lines} lines"] if lines > MAX_LINES else []


def unfinished(path: str, text: str) -> list[str]:
    return [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if UNFINISHED.search(line)]


CHECKERS = (upward_imports, wgpu_imports, raw_wgpu, torch_internals, too_long, unfinished)


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.__name__)
def test_the_package_keeps_the_rules(checker: object) -> None:
    broken = [place for path, text in sources() for place in checker(path, text)]  # type: ignore[operator]
    assert not broken, "\n".join(broken)


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path.removesuffix(".py").replace("/", ".")) for path, _ in sources()} - {"__init__"}
    assert parts <= LAYERS.keys()


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (upward_imports, "wgsl/link.py", "from torch_webgpu.engine import record"),
        (upward_imports, "wgsl/link.py", "from ..engine.record import engine"),
        (upward_imports, "lower/lower.py", "from ..runtime import device"),
        (upward_imports, "ir/graph.py", "import torch_webgpu.aten"),
        (upward_imports, "engine/record.py", "from torch_webgpu import api"),
        (wgpu_imports, "engine/record.py", "import wgpu.backends"),
        (raw_wgpu, "runtime/device.py", "lib.wgpuQueueSubmit(1)"),
        (torch_internals, "aten/conv.py", "torch._C._from_dlpack(x)"),
        (torch_internals, "api/streams.py", "from torch._C._autograd import DeviceType"),
        (torch_internals, "api/streams.py", "from torch import _C"),
        (torch_internals, "api/streams.py", "import torch._dynamo"),
        (torch_internals, "api/streams.py", "from torch.utils._sympy import functions"),
        (too_long, "aten/conv.py", "\n" * 501),
        (unfinished, "aten/conv.py", "# TODO later"),
    ],
)
def test_a_broken_rule_is_found(checker: object, path: str, text: str) -> None:
    assert checker(path, text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (upward_imports, "engine/record.py", "from ..lower.fuse import Limits"),
        (
            upward_imports,
            "engine/record.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..api import x",
        ),
        (upward_imports, "__init__.py", "from . import api, aten"),
        (torch_internals, "aten/conv.py", '"""About torch._C."""'),
        (torch_internals, "aten/torch_abi.py", "torch._C._dispatch()"),
        (torch_internals, "aten/conv.py", "from torch._ops import OpOverload"),
    ],
)
def test_a_kept_rule_passes(checker: object, path: str, text: str) -> None:
    assert not checker(path, text)  # type: ignore[operator]
