"""A whole program under translation: a script, a module, or the rest of one that has begun.

Processes that multiprocessing spawns import the parent's main module again. They are told that it is
:mod:`.spawned_main`, which translates it.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from . import placement
from .rewrite import Rewriter
from .session import Session

SCRIPT = "TORCH_WEBGPU_TRANSLATE_SCRIPT"
"""The path of the main module, for the processes that it spawns,"""
SCRIPT_PACKAGE = "TORCH_WEBGPU_TRANSLATE_SCRIPT_PACKAGE"
"""and its package, if it was run as a module."""


class NoProgramError(ImportError):
    """There is no such script or module."""


def run_script(session: Session, path: str, arguments: Sequence[str], has_safe_path: bool = False) -> None:
    """Runs ``python path arguments…``. NoProgramError if it cannot be read; whatever the program raises.

    ``has_safe_path``: as with Python's ``-P``, the program's folder is not searched for modules.
    """
    search_first(os.path.dirname(os.path.abspath(path)), has_safe_path)
    run_main(session, path, None, arguments)


def run_module(session: Session, name: str, arguments: Sequence[str], has_safe_path: bool = False) -> None:
    """Runs ``python -m name arguments…``. NoProgramError if there is none; whatever the program raises."""
    search_first(os.getcwd(), has_safe_path)
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.has_location:
        raise NoProgramError(f"no module {name} that can be run: -m takes the name of a module with a source file")
    run_main(session, spec.origin, spec.parent, arguments)


def search_first(folder: str, has_safe_path: bool) -> None:
    """Puts a folder first on ``sys.path``, in place of the entry that Python made for the command of ours."""
    own = [] if has_safe_path else [folder]
    sys.path[: 0 if sys.flags.safe_path else 1] = own


def run_main(session: Session, path: str, package: str | None, arguments: Sequence[str]) -> None:
    """Runs a file as the main module of this process. NoProgramError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise NoProgramError(f"can't open file '{os.path.abspath(path)}': {error.strerror}") from None
    main = ModuleType("__main__")
    vars(main).update(__file__=path, __package__=package, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [path, *local_arguments(session, arguments)]
    run_again_where_spawned(main, path)
    session.translator.mark(vars(main))
    execute(session, session.translator.compile(source, path), vars(main))


def execute(session: Session, code: CodeType, names: dict[str, Any]) -> None:
    """Runs a main module. What it raises is shown as Python shows it, without the frames of this package."""
    try:
        exec(code, names)
    except Exception as error:  # noqa: BLE001 it is shown, as an uncaught one is
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        if isinstance(error, torch.OutOfMemoryError):
            sys.stderr.write(f"{placement.hint(session.target)}\n")
        raise SystemExit(1) from None


def local_arguments(session: Session, arguments: Sequence[str]) -> list[str]:
    """A command line whose devices are called as they are here, as they are in the program."""
    return [session.translator.helper.names.local_argument(word) for word in arguments]


def run_again_where_spawned(main: ModuleType, path: str) -> None:
    """Makes processes that multiprocessing spawns begin with :mod:`.spawned_main`."""
    os.environ[SCRIPT] = os.path.abspath(path)
    os.environ[SCRIPT_PACKAGE] = vars(main).get("__package__") or ""
    main.__spec__ = ModuleSpec(f"{__package__}.spawned_main", None, origin=path)


def continue_main(session: Session) -> None:
    """Runs the rest of the main module translated, from the import that got here on, and ends the process.

    A first line ``import torch_webgpu.translate`` so translates the lines below it. Nothing happens without a main
    module that is a file, or where the import is within a function.
    """
    frame = main_frame()
    if frame is None:
        return
    names, path = frame.f_globals, str(frame.f_globals["__file__"])
    with open(path, "rb") as file:
        source = file.read()
    tree = ast.parse(source, path)
    here = next((n for n, s in enumerate(tree.body) if s.lineno <= frame.f_lineno <= (s.end_lineno or 0)), None)
    if here is None or not isinstance(tree.body[here], ast.Import | ast.ImportFrom | ast.Try | ast.If):
        warnings.warn(
            f"{path} imports torch_webgpu.translate at line {frame.f_lineno}, too late to translate the file itself: "
            "import it on the first line, or use `torch-webgpu run`",
            UserWarning,
            stacklevel=2,
        )
        return
    sys.argv[1:] = local_arguments(session, sys.argv[1:])
    if names.get("__spec__") is None:
        run_again_where_spawned(sys.modules["__main__"], path)
    session.translator.mark(names)
    session.translator.files.append(path)
    session.translator.helper.hear(source)
    rewriter = Rewriter(session.translator.helper.names)
    # Statements above are looked at, for the names that they give to torch, but they have run.
    tree.body = [rewriter.visit(statement) for statement in tree.body][here:]
    futures = frame.f_code.co_flags & ast_future_flags()
    code = compile(ast.fix_missing_locations(tree), path, "exec", flags=futures, dont_inherit=True)
    execute(session, code, names)
    raise SystemExit(0)


def main_frame() -> FrameType | None:
    """The main module's frame, if that is a file whose statements are running."""
    frame: FrameType | None = sys._getframe(1)
    main = vars(sys.modules["__main__"])
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame if frame is not None and os.path.isfile(str(main.get("__file__", ""))) else None


def ast_future_flags() -> int:
    """The bits of a code's flags that come from ``from __future__ import …``."""
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags
