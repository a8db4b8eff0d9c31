"""Tests of PyTorch's own files that are known to fail on the device while they pass on the CPU, and why.

Names are ``file::Class::function`` without the device, as regular expressions. One that passes fails the run.
"""

from __future__ import annotations

import re
from functools import cache

_COPY_ON_WRITE = "_lazy_clone copies at once: a Python backend cannot make PyTorch's copy-on-write storages"
_ON_HOST = "Tensor.map_ and map2_ are only implemented on CPU tensors, as on CUDA"

EXPECTED_FAILURES: tuple[tuple[str, str], ...] = (
    (r"test_torch\.py::.*::test_(parallel_cow|lazy_clone).*", _COPY_ON_WRITE),
    (r"test_torch\.py::.*::test_broadcast_fn_map2?", _ON_HOST),
)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), why) for pattern, why in EXPECTED_FAILURES)


def reason(name: str) -> str | None:
    """Why the test of this name is expected to fail; None if it is not."""
    return next((why for pattern, why in _patterns() if pattern.fullmatch(name)), None)
