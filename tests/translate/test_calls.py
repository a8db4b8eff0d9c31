"""Every name of the compatibility matrix is called, on webgpu and on the CPU, and does what its row says."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.translate.examples import TOGETHER, example
from tests.translate.test_matrix import TABLE, installed

from torch_webgpu.translation import table
from torch_webgpu.translation.monitor import Answer

TARGETS = ("webgpu", "cpu")
ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 200


def process(target: str, folder: Path, *together: str) -> subprocess.Popen[str]:
    """One that writes its outcomes to ``folder``, and what it says otherwise into a file there: pipes could fill up."""
    kind = "-".join(["out", *together[:1]])
    with (folder / f"{kind}.txt").open("w", encoding="utf-8") as said:
        command = [sys.executable, "-m", "tests.translate.calling", target, str(folder / f"{kind}.json"), *together]
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=said, stderr=subprocess.STDOUT)


@cache
def outcomes(target: str) -> dict[str, Any]:
    """Name → what came of calling it: one process for most names, two more for those that talk to each other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        meetings = [(), *((str(rank), str(folder / "meeting")) for rank in range(2))]
        processes = [process(target, folder, *meeting) for meeting in meetings]
        try:
            codes = [one.wait(timeout=SECONDS) for one in processes]
        finally:
            for one in processes:
                one.kill()
                one.wait()
        assert not any(codes), "\n".join(said.read_text("utf-8") for said in folder.glob("*.txt"))
        alone, first, second = (
            json.loads((folder / f"{kind}.json").read_text("utf-8")) for kind in ("out", "out-0", "out-1")
        )
    assert first.keys() == second.keys()
    return {**alone, **first}


NAMES = [name for name, row in TABLE.items() if table.is_there(name) and not row.removed]
ABSENT = [name for name, row in TABLE.items() if row.removed and not table.is_there(name)]


NEWER = {"torch.distributed.all_to_all": ((2, 12), "Backend gloo does not support alltoall")}
"""Name → the version from which gloo has it for tensors of the CPU, and its words before."""


def test_every_name_has_an_example() -> None:
    assert [name for name in NAMES if not example(name)] == []


def wrong(name: str, target: str, outcome: dict[str, Any]) -> str:
    """What is not as the row says; "" if all is."""
    reply = TABLE[name].replies[target]
    if name in NEWER and reply.answer is Answer.SAME:
        version, words = NEWER[name]
        if torch.__version__ < version:
            return "" if outcome["raised"] == words else f"should be refused by PyTorch, but {outcome['raised']!r}"
    raised = f"{outcome['kind']}: {outcome['raised']}" if outcome["raised"] else ""
    if reply.answer is Answer.ERROR:
        told = raised.startswith("NotImplementedError: ") and raised.endswith(
            f"cannot be had on {target}: {reply.note}"
        )
        return "" if told else f"should be refused, but {raised or 'was not'}"
    if raised:
        return raised
    once = [f"{name} does nothing here: {reply.note}"] if reply.answer is Answer.NOTHING else []
    if outcome["said"] != [once, []]:
        return f"said {outcome['said']}"
    counts = reply.answer is not Answer.SAME and callable(table.look_up(name))
    if counts and not (outcome["count"] >= 2 and outcome["place"]):
        return f"counted {outcome['count']} calls, the first at {outcome['place']!r}"
    return ""


@pytest.mark.parametrize("target", TARGETS)
def test_every_answer_is_what_happens(target: str) -> None:
    found = outcomes(target)
    assert found.keys() == set(NAMES)
    assert {name: text for name in NAMES if (text := wrong(name, target, found[name]))} == {}


def test_what_is_the_same_gives_the_cpus_numbers() -> None:
    here, there = outcomes("webgpu"), outcomes("cpu")
    compared = 0
    for name in NAMES:
        if TABLE[name].replies["webgpu"].answer is not Answer.SAME or there[name]["value"] is None:
            continue
        (dtype, _, got), (expected_dtype, _, expected) = here[name]["value"], there[name]["value"]
        assert dtype == expected_dtype, name
        close = torch.allclose(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5, equal_nan=True)
        assert close, (name, got, expected)
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("name", ABSENT)
def test_a_name_that_pytorch_removed_is_an_error(name: str) -> None:
    assert {reply.answer for reply in TABLE[name].replies.values()} == {Answer.ERROR}
    with installed("webgpu"):
        assert not table.is_there(name)


def test_what_is_translated_is_the_devices_own() -> None:
    replies = {row.name: row.replies["webgpu"] for row in TABLE.values() if table.is_there(row.name)}
    rows = [TABLE[name] for name, reply in replies.items() if reply.answer is Answer.TRANSLATED and ":" not in reply.by]
    counterparts = {row.name: table.answering(row.replies["webgpu"].by) for row in rows}
    truths = {row.name: table.look_up(row.name) for row in rows}
    with installed("webgpu"):
        for row in rows:
            now, expected = table.look_up(row.name), counterparts[row.name]
            if row.asks:
                assert unwrap(now) is unwrap(truths[row.name])
            elif isinstance(expected, type):
                assert issubclass(now, expected), row.name
            else:
                assert unwrap(now) is unwrap(expected), row.name


def test_names_that_processes_call_together_are_all_of_torch_distributed() -> None:
    assert {name for name in TABLE if name.startswith("torch.distributed.")} == TOGETHER
