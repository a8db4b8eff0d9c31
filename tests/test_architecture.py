"""The layers are real: imports point down, raw WebGPU calls stay in three files, unstable PyTorch internals in a few.

The checkers are tried on sources that break the rules, so that they are known to be able to fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = "torch_webgpu"
ROOT = Path(__file__).resolve().parent.parent / "src" / PACKAGE

# A module may import its own layer's package and every lower layer. Order: the longest prefix decides.
LAYERS = {
    "errors": 0, "config": 0, "caches": 0, "collector": 0, "dtypes": 0, "layout": 0, "on_import": 0, "patching": 0,
    "version": 0, "target": 0,
    "ir": 1,
    "wgsl": 2,
    "kernels": 3,
    "plan": 4,
    "compiler": 5, "runtime": 5,
    "engine": 6,
    "aten": 7, "compile": 7,
    "api": 8, "extend": 8, "translate": 8, "translation": 8, "export": 8, "integrations": 8, "cli": 8, "doctor": 8,
    "distributed": 8, "serve": 8, "quantized_linear": 8,
    "patches": 8,
    "": 9, "__main__": 9,
}  # fmt: skip

# Packages of one layer that may not see each other.
STRANGERS = {frozenset({"compiler", "runtime"})}

WGPU = "runtime"
RAW_WEBGPU = ("runtime/webgpu_h.py", "runtime/wgpu_header.py", "runtime/wgpu_native.py", "runtime/dawn.py")
# Private modules of PyTorch's that are plain Python and what out-of-tree backends are told to use.
TORCH_PYTHON = frozenset({
    "torch._ops", "torch._decomp", "torch._prims_common", "torch._prims_common.wrappers",
    "torch._higher_order_ops.flex_attention", "torch.utils._pytree", "torch.utils._python_dispatch",
})  # fmt: skip
TORCH_INTERNALS = (
    "aten/dispatch/torch_abi.py", "aten/dispatch/torch_compositions.py", "aten/dispatch/torch_dispatcher.py",
    "aten/dispatch/torch_dispatch_table.py", "aten/dispatch/torch_guard.py", "aten/dispatch/torch_late_dynamo.py",
    "aten/dispatch/torch_patches.py", "compile/autograd_cache.py", "distributed/torch_c10d.py",
    "distributed/torch_dtensor.py", "engine/tensor.py",
)  # fmt: skip
# What changes PyTorch: what the rows of patches.py are made of.
TORCH_PATCHES = (
    "aten/dispatch/torch_abi.py", "aten/dispatch/torch_constructors.py", "aten/dispatch/torch_late_dynamo.py",
    "aten/dispatch/torch_patches.py", "aten/foreach/optimizer_lists.py", "compile/register.py", "patching.py",
    "translation/replacements.py",
)  # fmt: skip
MODULES_ARE_TORCHS = ("aten/", "compile/", "engine/", "api/")
"""Where a ``ModuleType`` that a function gets is a module of PyTorch's, and not of another library's, or a program."""
ENTRY_POINT_GROUPS = frozenset({"torch_webgpu.implementations"})
"""Names that look like a module's."""
MODULE_NAME = re.compile(PACKAGE + r"(\.[a-z_0-9]+)+")
MAX_LINES = 500
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def part_of(module: str) -> str:
    """The first name below the package: "engine" for engine/record.py and torch_webgpu.engine.record."""
    return module.removeprefix(PACKAGE).lstrip(".").split(".")[0]


def imports(path: str, text: str, with_types: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import that runs, or ``with_types`` also of those for type checkers.

    A string that is the name of a module of this package is an import, whoever imports it, but for what another
    process is to run (``-m``).
    """
    package = [PACKAGE, *path.split("/")[:-1]]
    tree = ast.parse(text)
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not with_types
        for statement in node.body
        for child in ast.walk(statement)
    }
    skipped |= {
        program
        for node in ast.walk(tree)
        if isinstance(node, (ast.List, ast.Tuple))
        for option, program in pairwise(node.elts)
        if isinstance(option, ast.Constant) and option.value == "-m"
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            folders = (PACKAGE, ".".join(package)) if node.level else (PACKAGE,)
            if module in folders:
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value):
            yield node.lineno, node.value


def is_module(text: str) -> bool:
    return MODULE_NAME.fullmatch(text) is not None and text not in ENTRY_POINT_GROUPS


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


def upward_assignments(path: str, text: str) -> list[str]:
    """Attributes of a lower layer's names that are set: it would call what it may not import. It should have a function
    that takes what it is to call. The package itself puts its public names where users look for them.
    """
    own = LAYERS.get(part_of(path.removesuffix(".py").replace("/", ".")), 9)
    if path == "__init__.py":
        return []
    tree, package = ast.parse(text), [PACKAGE, *path.split("/")[:-1]]
    lower: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                part = part_of(f"{module}.{alias.name}") if module.startswith(PACKAGE) else ""
                if part and LAYERS.get(part, 9) < own:
                    lower.add(alias.asname or alias.name)
    return [
        f"{path}:{node.lineno} sets {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name) and node.value.id in lower
    ]  # fmt: skip


def own_caches(path: str, text: str) -> list[str]:
    """Bounded caches that ``caches`` does not know: ``cache_stats()`` would not list them."""
    if path == "caches.py":
        return []
    return [
        f"{path}:{node.lineno} uses {name}"
        for node in ast.walk(ast.parse(text))
        for name in ("lru_cache", "popitem")
        if (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names})
    ]


def wgpu_imports(path: str, text: str) -> list[str]:
    if path.startswith(WGPU + "/"):
        return []
    return [f"{path}:{line}" for line, module in imports(path, text) if module.split(".")[0] in ("wgpu", "wgpudawn")]


def raw_wgpu(path: str, text: str) -> list[str]:
    if path in RAW_WEBGPU:
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


def torch_assignments(path: str, text: str) -> list[str]:
    """Attributes of PyTorch's modules and classes, and entries of its tables, that are set: it should be a row of
    patches.py. Where functions get modules of PyTorch's, these count, too.
    """
    if path in TORCH_PATCHES:
        return []
    tree = ast.parse(text)
    theirs = {
        alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0])
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if is_torch((node.module or "") if isinstance(node, ast.ImportFrom) and not node.level else alias.name)
    }
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {
        (node.lineno, ast.unparse(node))
        for scope in (tree, *scopes)
        for names in [theirs | names_of_torch(scope, theirs, path.startswith(MODULES_ARE_TORCHS))]
        for node in in_scope(scope)
        if is_torch_assignment(node, names)
    }
    return [f"{path}:{line} sets {text}" for line, text in sorted(found)]


def in_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, with those of functions in it; of a module those outside of functions."""
    for child in ast.iter_child_nodes(scope):
        if not (isinstance(scope, (ast.Module, ast.ClassDef)) and isinstance(child, ast.FunctionDef)):
            yield child
            yield from in_scope(child)


def names_of_torch(scope: ast.AST, theirs: set[str], has_modules_of_torch: bool) -> set[str]:
    """The variables of a function that are modules or classes of PyTorch's, beside those of its module."""
    nodes = list(in_scope(scope))
    names = {
        node.arg
        for node in nodes
        if has_modules_of_torch
        and isinstance(node, ast.arg)
        and node.annotation is not None
        and ast.unparse(node.annotation) == "ModuleType"
    }
    named = [
        (target.id, node.value)
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    while more := {name for name, value in named if is_theirs(value, theirs | names)} - names:
        names |= more
    return names


def is_torch_assignment(node: ast.AST, theirs: set[str]) -> bool:
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return not isinstance(node.ctx, ast.Load) and is_theirs(node.value, theirs)
    return isinstance(node, ast.Call) and called(node) in ("setattr", "delattr") and is_theirs(node.args[0], theirs)


def is_theirs(node: ast.AST | None, theirs: set[str]) -> bool:
    """Whether an expression is one of these names, an attribute of it, or a module of PyTorch's by its name."""
    if isinstance(node, ast.Attribute):
        return is_theirs(node.value, theirs)
    if isinstance(node, ast.Name):
        return node.id in theirs
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
        return isinstance(node.slice, ast.Constant) and is_torch(str(node.slice.value))
    if isinstance(node, ast.Call) and called(node) in ("vars", "getattr"):
        return is_theirs(node.args[0], theirs)
    if isinstance(node, ast.Call) and called(node) in ("import_module", "importlib.import_module"):
        return isinstance(node.args[0], ast.Constant) and is_torch(str(node.args[0].value))
    return False


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def is_torch(module: str) -> bool:
    return module.split(".")[0] == "torch"


def imported_modules(node: ast.AST) -> list[str]:
    """What an import statement names that may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [f"torch.{a.name}" for a in node.names] if node.module == "torch" else [node.module]
    return []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


NAMED_TUPLES = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Private by their spelling only."""


def own_private_names(text: str) -> set[str]:
    """The private names that a module defines: variables, functions, classes, and their attributes and slots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id == "__slots__":
                continue
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found.update(c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))
    return {name for name in found if is_private(name)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@cache
def all_private_names() -> frozenset[str]:
    return frozenset().union(*[own_private_names(text) for _, text in sources()])


def private_access(path: str, text: str) -> list[str]:
    """Private names of another module of this package, imported or as attributes. PyTorch's are its own business."""
    others = all_private_names() - own_private_names(text) - NAMED_TUPLES
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(PACKAGE)):
            found += [f"{path}:{node.lineno} imports {a.name}" for a in node.names if is_private(a.name)]
        elif isinstance(node, ast.Attribute) and node.attr in others and not is_self(node.value):
            base = ast.unparse(node.value)
            through = {a.attr for a in ast.walk(node.value) if isinstance(a, ast.Attribute) and is_private(a.attr)}
            if not base.startswith(("aten", "torch.", "super()")) and through <= all_private_names():
                found.append(f"{path}:{node.lineno} uses {base}.{node.attr}")
    return found


ENGINE_INSIDES = frozenset(
    "lanes mailbox dying live_bytes peak_bytes freed_bytes forgotten_bytes templates operations capture graphs "
    "plans "
    "readbacks backpressure clock trailing waited error flush_lane flush_for collect sweep".split()
)


def engine_insides(path: str, text: str) -> list[str]:
    """Lanes, mailbox, counters and the like, used above the engine: it has a settings value, ``flush(cause)``, …"""
    if path.startswith("engine/"):
        return []
    return [
        f"{path}:{node.lineno} uses {ast.unparse(node)}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in ENGINE_INSIDES
        and re.search(r"\b(eng|engine\(\)|engine)$", ast.unparse(node.value))
    ]


RECORDERS = (
    "aten/dispatch/operations.py", "aten/dispatch/register_pointwise.py", "aten/foreach/foreach_reductions.py"
)  # fmt: skip


def own_operations(path: str, text: str) -> list[str]:
    """Operations that an operator records by itself: there are pointwise ones, reductions and kernels, and functions
    for these (see docs/adding-an-operator.md).
    """
    if not path.startswith(("aten/", "compile/")) or path in RECORDERS:
        return []
    return [
        f"{path}:{node.lineno} uses {ast.unparse(node)}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in ("record", "push", "push_over")
        and re.search(r"\b(eng|engine\(\)|engine)$", ast.unparse(node.value))
    ]


def too_long(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    return [f"{path}: {lines} lines"] if lines > MAX_LINES else []


def unfinished(path: str, text: str) -> list[str]:
    return [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if UNFINISHED.search(line)]


CHECKERS = (
    upward_imports, upward_assignments, own_caches, wgpu_imports, raw_wgpu, torch_internals, torch_assignments,
    private_access, engine_insides, own_operations, too_long, unfinished
)  # fmt: skip


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.__name__)
def test_the_package_keeps_the_rules(checker: object) -> None:
    broken = [place for path, text in sources() for place in checker(path, text)]  # type: ignore[operator]
    assert not broken, "\n".join(broken)


def circles(texts: Mapping[str, str]) -> list[str]:
    """Modules (``folder.name``) that import each other in a circle, also for type checkers or inside functions."""
    modules = {path.removesuffix(".py").replace("/", "."): (path, text) for path, text in texts.items()}
    graph = {
        name: {
            other
            for _, module in imports(path, text, with_types=True)
            if (other := module.removeprefix(PACKAGE + ".")) in modules and other != name
        }
        for name, (path, text) in modules.items()
    }
    # What no import leads back to can be taken away, from either end.
    while loose := [n for n, to in graph.items() if not to or not any(n in others for others in graph.values())]:
        graph = {n: to.difference(loose) for n, to in graph.items() if n not in loose}
    return sorted(graph)


def test_no_imports_go_in_a_circle() -> None:
    assert not circles(dict(sources()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from .second import b", "from .first import a"),
        ("from . import second", "from .first import a"),
        ("import torch_webgpu.engine.second", "def f():\n    from .first import a"),
        ("from .second import b", "def f():\n    return import_module('torch_webgpu.engine.first')"),
        ("from .second import b", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .first import a"),
    ],
)
def test_a_circle_is_found(first: str, second: str) -> None:
    texts = {"engine/first.py": first, "engine/second.py": second, "engine/third.py": "from .first import a"}
    assert circles(texts) == ["engine.first", "engine.second"]
    assert not circles(texts | {"engine/second.py": "import torch"})


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path.removesuffix(".py").replace("/", ".")) for path, _ in sources()} - {"__init__"}
    assert parts <= LAYERS.keys()


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (upward_imports, "wgsl/link.py", "from torch_webgpu.engine import record"),
        (own_operations, "aten/nn/conv.py", 'engine().record("conv", [x], [y], body)'),
        (own_operations, "compile/rotary_pattern.py", "eng.push(op, [x, y])"),
        (upward_imports, "wgsl/link.py", "from ..engine.record import engine"),
        (upward_imports, "compiler/lower/lower.py", "from torch_webgpu.runtime import device"),
        (upward_imports, "ir/graph.py", "import torch_webgpu.aten"),
        (upward_imports, "engine/record.py", "from torch_webgpu import api"),
        (upward_imports, "wgsl/link.py", "import_module('torch_webgpu.engine.record').engine()"),
        (upward_imports, "engine/record.py", "MODULES = {'compile': 'torch_webgpu.compile.backend'}"),
        (upward_assignments, "api/profile.py", "from torch_webgpu.engine import observed\nobserved.observer = 1"),
        (upward_assignments, "aten/nn/conv.py", "from ...engine.store import Store\nStore.hook = staticmethod(print)"),
        (upward_assignments, "aten/nn/conv.py", "from ...engine.store import Store as S\n(S.a, b) = 1, 2"),
        (own_caches, "aten/nn/conv.py", "from functools import cache, lru_cache"),
        (own_caches, "aten/nn/conv.py", "def f(known):\n    known.popitem(last=False)"),
        (wgpu_imports, "engine/record.py", "import wgpu.backends"),
        (raw_wgpu, "runtime/device.py", "lib.wgpuQueueSubmit(1)"),
        (torch_internals, "aten/nn/conv.py", "torch._C._from_dlpack(x)"),
        (torch_internals, "api/streams.py", "from torch._C._autograd import DeviceType"),
        (torch_internals, "api/streams.py", "from torch import _C"),
        (torch_internals, "api/streams.py", "import torch._dynamo"),
        (torch_internals, "api/streams.py", "from torch.utils._sympy import functions"),
        (torch_assignments, "aten/nn/conv.py", "import torch\ntorch.Tensor.to = print"),
        (torch_assignments, "aten/nn/conv.py", "import torch.nn as nn\n(nn.Linear.forward, b) = 1, 2"),
        (torch_assignments, "aten/nn/conv.py", "from torch import nn as n\nn.Linear.forward: object = 1"),
        (torch_assignments, "aten/nn/conv.py", "from torch.nn import Linear\ndel Linear.forward"),
        (torch_assignments, "aten/nn/conv.py", "import torch\nsetattr(torch.nn, 'Linear', 1)"),
        (torch_assignments, "aten/nn/conv.py", "import torch\nvars(torch)['Event'] = 1"),
        (torch_assignments, "aten/nn/conv.py", "import torch\nnn = torch.nn\nlinear = nn.Linear\nlinear.forward = 1"),
        (torch_assignments, "aten/nn/conv.py", "def f():\n    sys.modules['torch.nn'].Linear = 1"),
        (torch_assignments, "aten/nn/conv.py", "table = import_module('torch._x').TABLE\ntable['key'] = 1"),
        (torch_assignments, "aten/nn/conv.py", "def patch(module: ModuleType):\n    module.function = print"),
        (private_access, "aten/nn/conv.py", "from torch_webgpu.engine.record import _engine"),
        (private_access, "engine/lists.py", "def f(mailbox):\n    return mailbox._end"),
        (engine_insides, "api/memory.py", "engine().mailbox.dead()"),
        (engine_insides, "api/memory.py", "def f(eng):\n    return eng.live_bytes[0]"),
        (too_long, "aten/nn/conv.py", "\n" * 501),
        (unfinished, "aten/nn/conv.py", "# TODO later"),
    ],
)
def test_a_broken_rule_is_found(checker: object, path: str, text: str) -> None:
    assert checker(path, text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (upward_imports, "engine/record.py", "from ..compiler.fuse.nodes import Limits"),
        (
            upward_imports,
            "engine/record.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..api import x",
        ),
        (upward_imports, "__init__.py", "from . import api, aten"),
        (upward_imports, "translation/router.py", "import_module('torch_webgpu').register()"),
        (upward_assignments, "aten/nn/conv.py", "from .store import Store\nStore.hook = staticmethod(print)"),
        (upward_imports, "engine/record.py", "run([sys.executable, '-m', 'torch_webgpu.cli'])"),
        (own_caches, "aten/nn/conv.py", "from functools import cache"),
        (private_access, "engine/tensor.py", "class A:\n    __slots__ = ('_end',)\n\ndef f(a):\n    return a._end"),
        (engine_insides, "api/memory.py", "engine().flush(causes.ASKED)"),
        (private_access, "aten/nn/conv.py", "def f(op, spec):\n    return op._schema, spec._replace(dtype='f32')"),
        (torch_internals, "aten/nn/conv.py", '"""About torch._C."""'),
        (torch_assignments, "aten/dispatch/torch_patches.py", "import torch\ntorch.Tensor.to = print"),
        (torch_assignments, "aten/nn/conv.py", "import torch\nx = torch.ones(3)\nx.data = x[0] = torch.nn"),
        (torch_assignments, "aten/nn/conv.py", "from .torch import nn\nnn.Linear = 1\nself.torch = torch.nn"),
        (torch_internals, "aten/dispatch/torch_abi.py", "torch._C._dispatch()"),
        (torch_internals, "aten/nn/conv.py", "from torch._ops import OpOverload"),
    ],
)
def test_a_kept_rule_passes(checker: object, path: str, text: str) -> None:
    assert not checker(path, text)  # type: ignore[operator]
