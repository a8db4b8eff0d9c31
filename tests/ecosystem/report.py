"""What was run, as a table in Markdown: the libraries, their versions, the tests that passed, the device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

HEADER = ["| library | version | what ran | on |", "|---|---|---|---|"]


def table(reports: Iterable[Any]) -> list[str]:
    """A row a library from pytest's reports of tests that passed and that say which library and device they used."""
    tests: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    devices: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        properties = dict(report.user_properties)
        if "library" not in properties:
            continue
        name, parameters = re.fullmatch(r".*::test_(\w+?)(?:\[(.*)\])?", report.nodeid, re.S).groups()
        tests[properties["library"]][name.replace("_", " ")].append(parameters)
        devices[properties["library"]].add(properties["device"])
    return [_row(library, tests[library], devices[library]) for library in sorted(tests)]


def _row(library: str, tests: dict[str, list[str]], devices: set[str]) -> str:
    what = "; ".join(f"{name} ({', '.join(sorted(ids))})" if all(ids) else name for name, ids in sorted(tests.items()))
    return f"| {library} | {version(library)} | {what} | {', '.join(sorted(devices))} |"
