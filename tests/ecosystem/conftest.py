"""What the tests of libraries share.

Those that are not marked slow are in every run, where their library is installed (``test`` in pyproject.toml has some);
``make ecosystem`` installs all and runs all, and prints what was run.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it

from . import compare, report

os.environ["HF_HUB_OFFLINE"] = "1"  # models are made of configurations; nothing is to be downloaded


def import_torchvision() -> None:
    """Imports torchvision where there is no CUDA, so that the libraries that look for it can.

    Its wheels are built for CUDA. Without CUDA's libraries its operators are not loaded, and its import ends at the
    fake kernels of two of them. Declared, but not implemented, the two are not in the way of what needs neither.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


import_torchvision()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """A test that passes has asserted that it used the device."""
    torch.manual_seed(0)
    compare.used.clear()
    result = yield
    assert DEVICE.type in compare.used, f"the test does not say that it used {DEVICE.type}"
    name = torch.webgpu.get_device_name(DEVICE) if DEVICE.type == "webgpu" else DEVICE.type
    pyfuncitem.user_properties += [("library", pyfuncitem.module.LIBRARY), ("device", name)]
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = report.table(terminalreporter.stats.get("passed", []))
    if rows:
        terminalreporter.section("what was run")
        terminalreporter.write_line("\n".join([*report.HEADER, *rows]))
