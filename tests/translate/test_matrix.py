"""The compatibility matrix: it is complete, what it names exists, and installing it leaves nothing behind."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from torch_webgpu.translation import table
from torch_webgpu.translation.emulated.target import HERE
from torch_webgpu.translation.monitor import Answer, Monitor
from torch_webgpu.translation.replacements import Replacements
from torch_webgpu.translation.rows import TARGETS, Row

TABLE = table.table()


@contextmanager
def installed(target: str) -> Iterator[Monitor]:
    """The matrix's answers for ``target``, inside the block."""
    replacements, monitor = Replacements(), Monitor()
    try:
        table.install(target, replacements, monitor)
        yield monitor
    finally:
        replacements.restore()


NEWER_THAN_2_11 = {
    "xpu": "torch.xpu.clock_rate torch.xpu.device_memory_used torch.xpu.memory_usage torch.xpu.power_draw "
    "torch.xpu.temperature torch.xpu.utilization"
}
"""Names of targets' own that came with PyTorch 2.12: with older ones the error says that there is no such name."""


@pytest.mark.parametrize("target", TARGETS)
def test_every_reply_names_something_that_is_there(target: str) -> None:
    absent = {
        reply.by
        for row in TABLE.values()
        if (reply := row.replies[target]).by and not table.is_known(reply.by)
    }  # fmt: skip
    newer = NEWER_THAN_2_11.get(target, "").split() if torch.__version__ < (2, 12) else []
    assert absent == set(newer)


@pytest.mark.parametrize("target", TARGETS)
def test_every_error_and_no_op_says_why(target: str) -> None:
    silent = [
        row.name
        for row in TABLE.values()
        if row.replies[target].answer in (Answer.ERROR, Answer.NOTHING) and not row.replies[target].note
    ]
    assert not silent


@pytest.mark.parametrize("target", TARGETS)
def test_uninstalling_restores_every_attribute(target: str) -> None:
    changing = "torch.backends.cudnn."  # what is looked up there is made anew each time

    def now() -> dict[str, object]:
        return {name: table.look_up(name) for name in TABLE if not name.startswith(changing)}

    before = now()
    with installed(target):
        inside = now()
    assert [name for name, value in now().items() if value is not before[name]] == []
    assert HERE.type == ""
    for name in before:
        row = TABLE[name]
        if not callable(before[name]):
            continue  # an empty tuple is the same one everywhere
        replaced = inside[name] is not before[name]
        expected = row.replies[target].answer is not Answer.SAME and table.is_there(name) and not row.removed
        assert replaced == expected, name


MODULES = (
    "torch.cuda torch.cuda.amp torch.cuda.nvtx torch.cuda.comm torch.cuda.nccl torch.cuda.profiler torch.cuda.tunable "
    "torch.cuda.gds torch.cuda.sparse torch.cuda.memory torch.cuda.random torch.cuda.graphs torch.backends.cuda "
    "torch.backends.cusparselt torch.backends.mps torch.xpu torch.mps torch.mps.profiler torch.mtia"
).split()


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_the_modules_has_a_row(module: str) -> None:
    owner = table.look_up(module)
    names = getattr(owner, "__all__", None) or [n for n in vars(owner) if not n.startswith("_")]
    answered = {id(table.look_up(name)) for name in TABLE}
    missing = [
        name
        for name in names
        if f"{module}.{name}" not in TABLE
        and not isinstance(getattr(owner, name, None), types.ModuleType)
        and id(getattr(owner, name, None)) not in answered  # the same function under another module's name
    ]
    assert not missing


def test_libraries_hear_the_truth_and_are_remembered() -> None:
    library: dict[str, object] = {"__name__": "somelibrary.utils", "torch": torch}
    user: dict[str, object] = {"__name__": "__main__", "torch": torch}
    question = "answer = torch.cuda.is_available(), torch.cuda.device_count()"
    truth = torch.cuda.is_available(), torch.cuda.device_count()
    with installed("webgpu") as monitor:
        exec(question, library)
        exec(question, user)
    assert library["answer"] == truth
    assert user["answer"] == (True, torch.webgpu.device_count())
    assert monitor.libraries == {"somelibrary": 2}


def test_a_no_op_says_so_once() -> None:
    with installed("webgpu"):
        with pytest.warns(UserWarning, match=r"torch\.cuda\.ipc_collect does nothing here: .*shared"):
            torch.cuda.ipc_collect()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.cuda.ipc_collect()


def test_an_error_says_what_to_do_instead() -> None:
    with installed("webgpu"), pytest.raises(NotImplementedError, match=r"cannot be had on webgpu: .*nvidia-smi"):
        torch.cuda.temperature()


def test_a_name_is_replaced_wherever_it_is_found() -> None:
    with installed("webgpu"):
        assert torch.cuda.memory.memory_allocated is torch.cuda.memory_allocated
        assert torch.cuda.streams.Stream is torch.cuda.Stream
        assert torch.serialization.load is torch.load


def test_a_row_is_data() -> None:
    row = TABLE["torch.cuda.memory_allocated"]
    assert isinstance(row, Row)
    assert row.replies["webgpu"].by == "torch.webgpu.memory_allocated"
    assert row.replies["webgpu"].answer is Answer.TRANSLATED


def test_every_name_that_was_asked_for_has_a_row() -> None:
    """The 369 names of an inventory of PyTorch's device functions, made by somebody else."""
    asked = (Path(__file__).parent / "asked_names.txt").read_text("utf-8").split()
    assert len(set(asked)) == 369
    assert set(asked) <= TABLE.keys()
