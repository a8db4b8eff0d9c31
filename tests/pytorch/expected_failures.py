"""Tests of PyTorch's own files that are known to fail on the device while they pass on the CPU, and why.

Names are ``file::Class::function`` without the device, as regular expressions. One that passes fails the run.
"""

from __future__ import annotations

import re
from functools import cache

EXPECTED_FAILURES: tuple[tuple[str, str], ...] = ()


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), why) for pattern, why in EXPECTED_FAILURES)


def reason(name: str) -> str | None:
    """Why the test of this name is expected to fail; None if it is not."""
    return next((why for pattern, why in _patterns() if pattern.fullmatch(name)), None)
