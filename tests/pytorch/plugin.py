"""A pytest plugin for PyTorch's own test files: one device's tests of them, and their outcomes as JSON.

``instantiate_device_type_tests`` makes a class for each device that ``PYTORCH_TESTING_DEVICE_ONLY_FOR`` admits, named
after the device: ``TestIndexingCPU``, and for a registered backend ``TestIndexingPRIVATEUSE1`` or, once one of its
classes has been set up, ``TestIndexingWEBGPU``. Test functions end in the device and the dtype.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from .expected_failures import reason
from .names import DISTRIBUTED_VARIABLE, OUTCOMES_VARIABLE

ON_CPU = os.environ.get("PYTORCH_TESTING_DEVICE_ONLY_FOR") == "cpu"
DISTRIBUTED = DISTRIBUTED_VARIABLE in os.environ
if not (ON_CPU and DISTRIBUTED):  # whose ranks have no other device than the CPU then
    import torch_webgpu

    torch_webgpu.register()  # beside CUDA, importing torch does not
if DISTRIBUTED and not ON_CPU and "PYTEST_XDIST_WORKER" in os.environ:  # what hands tests out runs none
    from . import harness

    harness.translate_if_asked()
CLASS_SUFFIX = re.compile(r"(CPU|PRIVATEUSE1|WEBGPU)$")
FUNCTION_SUFFIX = re.compile(r"_(cpu|privateuse1|webgpu)(?=_|$)")
# Dtypes in which nothing on the device computes: PyTorch asks a device for a list of them only in tests of operators.
NOT_A_DTYPE_HERE = re.compile(r"_(complex128|complex32|uint16|uint32|uint64|qint8|quint8|qint32)(?=_|$)")


def neutral(node_id: str) -> str:
    """A test's name without its device: ``test_indexing.py::TestIndexing::test_index_float32``."""
    path, _, rest = node_id.partition("::")
    owner, _, function = rest.rpartition("::")
    return f"{path}::{CLASS_SUFFIX.sub('', owner)}::{FUNCTION_SUFFIX.sub('', function)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests that PyTorch made for the device, in dtypes that it has; marks the expected failures."""
    chosen = {line for line in os.environ.get("TORCH_WEBGPU_PYTORCH_TESTS_ONLY", "").split("\n") if line}
    kept, dropped = [], []
    for item in items:
        made = DISTRIBUTED or (item.cls is not None and CLASS_SUFFIX.search(item.cls.__name__) is not None)
        name = neutral(item.nodeid)
        stored = DISTRIBUTED or not NOT_A_DTYPE_HERE.search(item.name)
        wanted = made and stored and (not chosen or name in chosen)
        (kept if wanted else dropped).append(item)
        why = reason(name) if wanted and not ON_CPU else None
        if why is not None:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))
    items[:] = kept
    if dropped:
        config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What kernels flag of a test's bad arguments is raised in that test, and in none that follows."""
    if DISTRIBUTED or ON_CPU:  # the former's kernels run in other processes
        yield
        return
    try:
        yield
    except BaseException:
        with suppress(Exception):
            torch.webgpu.synchronize()
        raise
    torch.webgpu.synchronize()


class Outcomes:
    """Outcome and message of every test, on the controller of pytest-xdist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        self.found[neutral(report.nodeid)] = {"outcome": _outcome(report), "message": _message(report)}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found[report.nodeid] = {"outcome": "not imported", "message": _last_line(str(report.longrepr))}

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.found))


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(OUTCOMES_VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)), "pytorch-tests-outcomes")


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "expected failure"
    if report.failed and "[XPASS(strict)]" in str(report.longrepr):
        return "unexpected pass"
    return report.outcome


def _message(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _last_line(str(report.longrepr or ""))
    return _of_ranks(str(crash.message))


def _of_ranks(message: str) -> str:
    """The error in the traceback of a rank, if the message is the harness's report of it."""
    if not re.match(r"RuntimeError: (Process \d+ exited|Exception in worker)", message):
        return message
    errors = [line for line in message.splitlines()[1:] if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return errors[0] if errors else message


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
