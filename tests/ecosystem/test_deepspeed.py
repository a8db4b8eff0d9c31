"""DeepSpeed, which has no accelerator for webgpu: an error says what to use; on the CPU it goes on as it did.

``make ecosystem`` does not install it, since other libraries use it where it is: ``pip install deepspeed``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .compare import finds_the_device, used

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")
pytestmark = finds_the_device
LIBRARY = "deepspeed"


@pytest.mark.parametrize("function", ["initialize", "init_inference"])
def test_a_model_on_webgpu_is_refused(function: str) -> None:
    import deepspeed

    arguments: dict[str, Any] = {"config": {"train_batch_size": 1}} if function == "initialize" else {}
    with pytest.raises(RuntimeError, match=r"no accelerator for webgpu: it would train on the CPU\..* fully_shard"):
        getattr(deepspeed, function)(model=torch.nn.Linear(2, 2).to(DEVICE), **arguments)
    used.add(DEVICE.type)


def test_the_accelerator_of_that_name_is_refused() -> None:
    """At the import, as DeepSpeed refuses names that it does not know."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, deepspeed"], env=os.environ | {"DS_ACCELERATOR": "webgpu"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'Value "webgpu" is not supported. DeepSpeed has no accelerator for webgpu' in done.stderr
    used.add(DEVICE.type)


def test_it_takes_the_cpu() -> None:
    from deepspeed.accelerator import get_accelerator

    assert get_accelerator().device_name() == "cpu"
    used.add(DEVICE.type)
