"""The user's modules pass through :mod:`.rewrite` on their way in: imports, scripts, and the cells of a notebook.

Nothing is kept in ``__pycache__``: that holds the modules as they are.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from time import perf_counter
from types import CodeType, ModuleType
from typing import Any

from torch_webgpu.on_import import find_after

from .callers import MARK, Packages, is_installed
from .rewrite import Rewriter, mentions_devices, rewritten
from .runtime_support import Helper


class Translator:
    """Compiles the user's sources for ``helper.target``."""

    def __init__(self, helper: Helper, packages: Packages) -> None:
        self.helper, self.packages = helper, packages
        self.files: list[str] = []
        """The files that were translated,"""
        self.seconds = 0.0
        """and how long that took."""

    def compile(self, source: bytes, file: str) -> CodeType:
        """A module's code. SyntaxError as :func:`compile`."""
        start = perf_counter()
        self.files.append(file)
        if not is_installed(file):
            self.helper.hear(source)
        tree: Any = rewritten(source, file, self.helper.names) if mentions_devices(source) else source
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
        self.seconds += perf_counter() - start
        return code

    def mark(self, names: dict[str, Any]) -> None:
        """Before code runs in them: what rewritten expressions call, which also tells whose these globals are."""
        names[MARK] = self.helper


class Loader(SourceFileLoader):
    """Loads one of the user's modules."""

    def __init__(self, name: str, path: str, translator: Translator) -> None:
        super().__init__(name, path)
        self.translator = translator

    def get_code(self, fullname: str) -> CodeType:
        return self.translator.compile(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        self.translator.mark(vars(module))
        super().exec_module(module)


class TranslatingFinder(MetaPathFinder):
    """Finds modules as the others do, and gives the user's another loader."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = find_after(self, name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if self.translator.packages.is_user(name, spec.origin):
            spec.loader = Loader(spec.loader.name, str(spec.loader.path), self.translator)
            spec.cached = None
        return spec


class Cells(Rewriter):
    """One of IPython's ``ast_transformers``: a notebook is heard cell by cell."""

    def __init__(self, helper: Helper) -> None:
        super().__init__(helper.names)
        self.heard_by = helper

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Module):
            self.heard_by.hear(ast.dump(node))
            self.names = self.heard_by.names
        return super().visit(node)


class Imports:
    """The hooks of one session, from :meth:`install` to :meth:`undo`."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.finder = TranslatingFinder(translator)
        self.cells = Cells(translator.helper)
        self.prompt: Any = getattr(builtins, "get_ipython", lambda: None)()  # a notebook's

    def install(self) -> None:
        """Translates what is imported from now on, and cells to come."""
        sys.meta_path.insert(0, self.finder)
        if self.prompt is not None:
            self.prompt.ast_transformers.append(self.cells)
            self.translator.mark(self.prompt.user_ns)

    def undo(self) -> None:
        """Nothing is translated any more."""
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        if self.prompt is not None and self.cells in self.prompt.ast_transformers:
            self.prompt.ast_transformers.remove(self.cells)
