"""``torch-webgpu run``: a program written for CUDA on the device that is here."""

from __future__ import annotations

import argparse
import builtins
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import programs, report, router, session

RUNNING = "TORCH_WEBGPU_TRANSLATE_PROCESS"
"""The process that :func:`run` runs in, which is not to be started again."""
COMMAND = ["-m", "torch_webgpu.cli"]
"""The ``torch-webgpu`` command as Python's arguments."""
ADD_FOLDER = "--add-program-folder"
"""Tells :func:`run`, under Python's ``-P``, that it was not the user who asked for that."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", default="auto", choices=("auto", *router.ORDER), help="default: the best there is")
    command.add_argument("--package", action="append", default=[], metavar="NAME", help="translate this library, too")
    command.add_argument("--report", action="store_true", help="print at the end what was translated, and how")
    command.add_argument(
        "--report-file", action="append", default=[], metavar="PATH", help="write it: .html, .json, .txt"
    )
    command.add_argument(ADD_FOLDER, dest="add_folder", action="store_true", help=argparse.SUPPRESS)
    command.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as with python -m")
    command.add_argument("program", metavar="PROGRAM", help="a script")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the program; the exit status, unless the program ends the process itself."""
    os.environ[RUNNING] = str(os.getpid())
    begun = enable(options.device, options.package)
    report.at_exit([*(["-"] if options.report else []), *options.report_file, *report.asked()])
    start = programs.run_module if options.module else programs.run_script
    has_safe_path = sys.flags.safe_path and not options.add_folder
    try:
        start(begun, options.program, options.arguments, has_safe_path)
    except programs.NoProgramError as error:
        sys.stderr.write(f"torch-webgpu: {error}\n")
        return 2
    return 0


def enable(device: str = "auto", packages: Sequence[str] = (), look: router.Look = router.probe) -> session.Session:
    """:func:`.session.enable_as_asked`. Where that cannot be, the program ends, with a line that says why: on a device
    that nobody asked for it would take long to be noticed."""
    try:
        return session.enable_as_asked(device, packages, look)
    except (ValueError, RuntimeError) as error:
        raise SystemExit(f"torch-webgpu: {error}") from None


def begin() -> None:
    """What the environment asks for, at the end of ``import torch``. SystemExit as :func:`enable`.

    A program that has begun is started again, since its main module is to be translated. Code without a file, a
    notebook's kernel, and processes of multiprocessing go on: what they import is translated, and cells to come.
    """
    if os.environ.get(RUNNING) == str(os.getpid()) or split_options(sys.orig_argv[1:])[1][:2] == COMMAND:
        return
    command = None if hasattr(builtins, "get_ipython") else start_again()
    if command is None:
        # Nothing can be computed before torch is complete: the engine's threads would wait for it.
        enable(look=router.available)
        report.at_exit(report.asked())
        return
    os.environ[RUNNING] = str(os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    become(command)


def become(command: Sequence[str]) -> NoReturn:
    """Replaces this process by that of a command line of Python's; SystemExit where it can only wait for it.

    On Windows ``exec`` starts a process with another id, which the shell does not wait for, and quotes no arguments.
    """
    program = command[0] if os.path.isabs(command[0]) else sys.executable
    if sys.platform == "win32":
        raise SystemExit(_status([program, *command[1:]]))
    else:  # noqa: RET506 on Windows mypy sees no statement after the other branch
        os.execv(program, list(command))


def _status(command: Sequence[str]) -> int:
    """What a process ends with."""
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # Ctrl-C is the program's, too, which decides what comes of it
            continue


def start_again(command: Sequence[str] = tuple(sys.orig_argv)) -> list[str] | None:
    """The command line that runs this process's program under translation, if it is a program.

    ``python [options] script.py …`` and ``python [options] -m module …``, but not ``-c``, a prompt, or a process that
    multiprocessing started. ``-P`` keeps the working folder's modules from taking the place of ours.
    """
    options, rest = split_options(command[1:])
    if not rest or rest[0] == "-" or (rest[0].startswith("-") and rest[0] != "-m"):
        return None
    own = [] if sys.flags.safe_path else [ADD_FOLDER]
    return [command[0], *options, "-P", *COMMAND, "run", *own, *rest]


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Python's own options, and from the program on."""
    n = 0
    while n < len(words) and words[n].startswith("-") and words[n] not in ("-", "-m", "-c"):
        if words[n].startswith(("-c", "-m")):  # -mmodule
            return list(words[:n]), [words[n][:2], words[n][2:], *words[n + 1 :]]
        n += 2 if words[n] in ("-W", "-X", "--check-hash-based-pycs") else 1
    return list(words[:n]), list(words[n:])
