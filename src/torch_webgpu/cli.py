"""The ``torch-webgpu`` command."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from torch_webgpu.doctor import AdapterReport, Diagnosis, ImplementationReport, diagnose, for_issue
from torch_webgpu.export import command as exporting
from torch_webgpu.integrations.report import LibraryCheck
from torch_webgpu.runtime.runtime import devices
from torch_webgpu.serve import command as serving
from torch_webgpu.target import named, names
from torch_webgpu.translation import compat, launch, migrate

SHOWN_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-immediate-size",
)
CLOSED_PIPE = (errno.EPIPE, errno.EINVAL)
"""What writing raises when whoever read has seen enough: on Windows it is not known for what it is."""


class Style:
    """Colours on a terminal, plain text elsewhere (or with NO_COLOR set)."""

    def __init__(self) -> None:
        self.on = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.on else text

    def mark(self, ok: bool) -> str:
        return self("right", "32") if ok else self("WRONG", "31;1")


def print_list(title: str, entries: Sequence[str]) -> None:
    text = f"{title}: " + (", ".join(entries) or "none")
    print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    "))


def print_adapter(adapter: AdapterReport, style: Style) -> None:
    print(style(f"{adapter.device or 'unused'}  {adapter.name}", "1"))
    print(f"  {adapter.kind}, {adapter.backend}, {adapter.driver}")
    print(f"  served by {adapter.implementation}: {adapter.verdict}")
    for check in adapter.checks:
        print(f"  {style.mark(check.ok)}  {check.name:<22}{check.detail}")
    print_list("features", adapter.features)
    if adapter.matrices:
        print_list("subgroup matrices", adapter.matrices)
    print_list("limits", [f"{name} {adapter.limits[name]:,}" for name in SHOWN_LIMITS if name in adapter.limits])


def print_implementation(implementation: ImplementationReport, style: Style) -> None:
    told = implementation.wrong or f"{implementation.version}, compiles with {implementation.dialect}"
    print(style(f"{implementation.name:<4}  ", "1") + (style(told, "33") if implementation.wrong else told))
    if implementation.package == "registered":
        print("  registered by this program")
    elif implementation.package:
        print(f"  from {implementation.package}; TORCH_WEBGPU_IMPLEMENTATION={implementation.name} uses it")
    for text in implementation.said:
        print(textwrap.indent(text, "  "))


def print_libraries(libraries: Sequence[LibraryCheck], style: Style) -> None:
    print(style("libraries, and the device each chooses by itself", "1"))
    for found in libraries:
        line = f"  {found.name:<22}{found.version:<10}{found.device or 'none':<10}"
        print(line + style(found.advice, "33") if found.advice else style(line.rstrip(), "32"))


def print_report(report: Diagnosis) -> None:
    style = Style()
    print("  ".join(f"{name} {value}" for name, value in report.versions.items()))
    print()
    for implementation in report.implementations:
        print_implementation(implementation, style)
    unused = [adapter for implementation in report.implementations for adapter in implementation.others]
    for adapter in [*report.adapters, *unused]:
        print()
        print_adapter(adapter, style)
    if report.libraries:
        print()
        print_libraries(report.libraries, style)
    if report.advice:
        print()
        print(style(report.advice, "33"))


def doctor(options: argparse.Namespace) -> int:
    """Prints the diagnosis, or a target; 1 if something is wrong or there is no adapter."""
    if options.target is not None:
        return print_target(options.target)
    report = diagnose()
    if options.report is not None:
        path = Path(options.report)
        path.write_text(json.dumps(for_issue(report), indent=2) + "\n", "utf-8")
        print(f"{path} has what a bug report needs: versions, adapters, their limits, and settings. Read it first.")
    elif options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print_report(report)
    return 0 if report.ok else 1


def print_target(which: str) -> int:
    """Prints a target as JSON: of an adapter by its index, or of a description by its name."""
    if not which.isdigit():
        try:
            print(named(which).to_json(indent=2))
        except ValueError as error:
            print(f"torch-webgpu: {error}", file=sys.stderr)
            return 1
        return 0
    adapters = devices()
    if int(which) >= len(adapters):
        print(f"torch-webgpu: there is no webgpu:{which}: this machine has {len(adapters)} adapter(s)", file=sys.stderr)
        return 1
    print(adapters[int(which)].target.to_json(indent=2))
    return 0


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="torch-webgpu", description="PyTorch through WebGPU.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("doctor", help="show adapters, features, limits and versions, and try each adapter")
    command.add_argument("--json", action="store_true", help="print the whole report as JSON")
    command.add_argument(
        "--report",
        nargs="?",
        const="torch-webgpu-report.json",
        metavar="FILE",
        help="write the report and this package's settings to one file (torch-webgpu-report.json), for bug reports",
    )
    command.add_argument(
        "--target",
        nargs="?",
        const="0",
        metavar="WHICH",
        help="print only what plans are compiled for, as JSON: webgpu:WHICH's features and limits (0), or those of a "
        f"description, of {', '.join(names())}",
    )
    command.set_defaults(run=doctor)
    launch.add_arguments(commands.add_parser("run", help="run a program written for CUDA on the device that is here"))
    migrate.add_arguments(commands.add_parser("migrate", help="show a program written for CUDA as one for any GPU"))
    compat.add_arguments(commands.add_parser("compat", help="show how CUDA's names are answered on another device"))
    exporting.add_arguments(commands.add_parser("export", help="write a model as a folder that runs in a web page"))
    serving.add_arguments(commands.add_parser("serve", help="run a program on the GPU of a browser that opens a link"))
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.run not in (launch.run, serving.run) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of a file on Windows, whose encoding has few characters
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in CLOSED_PIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is written at the end
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
