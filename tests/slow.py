"""Tests that only long runs take: those marked slow, and of tests that run kernels most combinations of parameters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

COVERED = ("tests/device/", "tests/compile/", "tests/conformance/")
"""The folders of these tests. Software adapters compile a kernel for most cases, which is nearly all of their time."""


def skip_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips those marked slow, unless ``--full`` was given."""
    if config.getoption("full"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: --full runs it"))


def slow_but(quick: Iterable[Any], all_of_them: Iterable[Any]) -> list[Any]:
    """The values of a parameter, of which all but a few are slow; tuples for several parameters at once."""
    kept = set(quick)
    values = [(value, value if isinstance(value, tuple) else (value,)) for value in all_of_them]
    return [one if one in kept else pytest.param(*each, marks=pytest.mark.slow) for one, each in values]


def leave_combinations(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves most combinations of parameters to ``--full``: every value of every parameter is taken, in few cases."""
    if config.getoption("full"):
        return
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(COVERED) and hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    left = {case for cases in tests.values() for case in set(cases) - set(cover(cases))}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def cover(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Few of a test's cases that together have every value of every parameter."""
    # By identity: a parameter's values need not be hashable, and all cases share them.
    values = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}  # type: ignore[attr-defined]
    missing = set().union(*values.values())
    seen: Counter[object] = Counter()
    chosen = []
    while missing:  # by what is seldom chosen where none has more of what is missing
        best = max(cases, key=lambda case: (len(values[case] & missing), -sum(seen[value] for value in values[case])))
        chosen.append(best)
        missing -= values[best]
        seen.update(values[best])
    return chosen
