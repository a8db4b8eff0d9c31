"""``torch-webgpu migrate``: a program written for CUDA as one for any accelerator, shown as a diff.

The knowledge is the same: what names a device is found by :mod:`.rewrite`, and becomes a name that is set once;
``torch.cuda``'s functions become those of ``torch.accelerator`` and PyTorch's functions for all devices. Formatting and
comments stay, through libcst. What has no counterpart stays, too, and is listed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .device_names import Names
from .rewrite import Rewriter

if TYPE_CHECKING:
    from .migration import Left

_LINE_END = re.compile(r"\r\n?|\n")
"""What Python's tokenizer takes for the end of a line, which is less than ``str.splitlines`` does."""


@dataclass(frozen=True)
class Migrated:
    """A program's new source; ``left``: what is as it was, since there is no function for all devices."""

    path: str
    before: str
    after: str
    left: tuple[Left, ...]

    def diff(self) -> str:
        """As ``diff -u`` shows it; "" if nothing changes."""
        before, after = ([*io.StringIO(text, newline=None)] for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))


class Locations(Rewriter):
    """Where the texts are that name a device: ``(line, column)`` → the text."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.found: dict[tuple[int, int], str] = {}

    def local(self, node: ast.AST | None) -> str | None:
        local = super().local(node)
        if local is not None and isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.found[node.lineno, node.col_offset] = node.value
        return local

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Before 3.12 the parts of an f-string have the place of the whole, afterwards their own."""
        first = node.values[0] if node.values else None
        text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        if text.endswith(":") and self.names.local(text) is not None:
            self.found[node.lineno, node.col_offset] = text
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value)
        return node


def locations(source: str, path: str) -> dict[tuple[int, int], str]:
    """The texts in ``source`` that name a device of CUDA's. SyntaxError if it is no Python."""
    visitor = Locations(Names("webgpu"))
    visitor.visit(ast.parse(source, path))
    lines = _LINE_END.split(source)
    # ast counts bytes, libcst characters.
    return {
        (line, len(lines[line - 1].encode()[:column].decode())): text
        for (line, column), text in visitor.found.items()
        if text.startswith("cuda")
    }


def migrate(source: str, path: str) -> Migrated:
    """The program at ``path``, for any accelerator. SyntaxError; ImportError without libcst."""
    try:
        from . import migration
    except ImportError as error:
        raise ImportError("migrate needs libcst: pip install 'torch-webgpu[migrate]'") from error
    after, left = migration.migrated(source, locations(source, path))
    return Migrated(path, source, after, left)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help="a script, or a folder of them")
    command.add_argument("--write", action="store_true", help="change the files")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Shows what would change, or changes it; 1 if a file could not be read."""
    status = 0
    for path in scripts(options.paths):
        try:
            source, encoding = read(path)
            done = migrate(source, str(path))
        except (SyntaxError, OSError, UnicodeDecodeError) as error:
            sys.stderr.write(f"{path}: {type(error).__name__}: {error}\n")
            status = 1
            continue
        if options.write and done.after != done.before:
            path.write_bytes(done.after.encode(encoding))
            sys.stdout.write(f"changed {path}\n")
        else:
            sys.stdout.write(done.diff())
        for left in done.left:
            sys.stdout.write(f"{path}:{left.line}: {left.name} stays: there is no function for all devices\n")
    return status


def read(path: Path) -> tuple[str, str]:
    """A Python file's text with its line ends as they are, and its encoding. SyntaxError if that is none."""
    with path.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    return path.read_bytes().decode(encoding), encoding


def scripts(paths: Sequence[str]) -> list[Path]:
    """The files named, and those in the folders named."""
    return [found for path in map(Path, paths) for found in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
