"""What a program's texts become: each case is an expression that is true of a program on CUDA, and stays so."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_webgpu.translation.callers import MARK
from torch_webgpu.translation.device_names import Names
from torch_webgpu.translation.helper import Helper
from torch_webgpu.translation.rewrite import Rewriter, mentions_devices, rewritten

TARGETS = ("webgpu", "mps", "cpu")


def run(source: str, target: str = "webgpu", **names: Any) -> dict[str, Any]:
    """The names that a translated module defines."""
    found = {MARK: Helper(target), "torch": torch, **names}
    exec(compile(rewritten(source, "program.py", Names(target)), "program.py", "exec"), found)
    return found


def on(target: str) -> SimpleNamespace:
    """Something that says it is on the first device of that type."""
    device = torch.device(target) if target == "cpu" else torch.device(target, 0)
    return SimpleNamespace(device=device, is_cuda=False, is_xpu=False, get_device=lambda: 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "true",
    [
        'x.device.type == "cuda"',
        '"cuda" == x.device.type',
        'not x.device.type != "cuda"',
        'str(x.device).startswith("cuda")',
        'str(x.device).startswith(("cuda", "hpu"))',
        '"cuda" in str(x.device)',
        'not ("cuda" not in str(x.device))',
        'x.device.type in ("cuda", "xpu")',
        'x.device.type in ["cuda"]',
        'not x.device.type not in {"cuda"}',
        "x.is_cuda",
        "isinstance(x.device, torch.device)",
        'x.device.type == torch.device("cuda").type',
        '{"cuda": 1, "cpu": 2}.get("cuda") == 1',
        '{"cuda": 1}[x.device.type] == 1',
        '("cuda" if "cuda" in str(x.device) else "cpu") == "cuda"',
        'given == "cuda"',
        '"cuda" in given',
        'given.startswith("cuda")',
        'given in ("cuda", "cpu")',
        "torch.device(given).type == x.device.type",
        'config["cuda"] == 5',
        'config.get("cuda") == 5',
        'getattr(torch, "cuda") is torch.cuda',
        'hasattr(torch, "cuda")',
        '"cudnn" == "cudnn"',
        '"with cuda" in "made with cuda"',
        'any(kind == "cuda" for kind in [x.device.type])',
        '(lambda device="cuda": device == "cuda")()',
    ],
)
def test_what_is_true_on_cuda_is_true(true: str, target: str) -> None:
    source = f"assert {true}\nresult = bool({true})"
    assert eval(f"bool({true})", {"x": cuda(), **GIVEN})  # the case itself: so it is on CUDA
    assert run(source, target, x=on(target), **GIVEN)["result"]


GIVEN: dict[str, Any] = {"torch": torch, "given": "cuda", "config": {"cuda": 5}}
"""What comes from files and command lines, and stays as it is."""


def cuda() -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cuda", 0), is_cuda=True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('"cuda"', "webgpu"),
        ('"cuda:1"', "webgpu:1"),
        ('f"cuda:{1 + 1}"', "webgpu:2"),
        ('"cuda:" + str(3)', "webgpu:3"),
        ('"cuda:%d" % 3', "webgpu:3"),
        ('"cuda:{}".format(3)', "webgpu:3"),
        ('"cuda:{rank}".format(rank=3)', "webgpu:3"),
        ('"torch.cuda.FloatTensor"', "torch.webgpu.FloatTensor"),
        ('"mps"', "webgpu"),
        ('dict(device="cuda")["device"]', "webgpu"),
        ('f"on {1}: cuda"', "on 1: cuda"),
        ('"made for cuda"', "made for cuda"),
        ('"cuda.h"', "cuda.h"),
        ('b"cuda"', b"cuda"),
        ('[*{"cuda": 1}]', ["cuda"]),
    ],
)
def test_texts_that_name_devices(expression: str, value: object) -> None:
    assert run(f"result = {expression}")["result"] == value


def test_on_the_cpu_there_are_no_numbers() -> None:
    assert run('result = "cuda:1"', "cpu")["result"] == "cpu"
    assert run("result = [torch.ones(1).to(n).device.type for n in (0, 1)]", "cpu")["result"] == ["cpu", "cpu"]


def test_statements_keep_their_places_and_docstrings() -> None:
    source = '"""cuda"""\ndef f(kind="cuda"):\n    "cuda"\n    return (\n        kind ==\n        "cuda" and 1 / 0)\n'
    found = run(source)
    assert found["__doc__"] == found["f"].__doc__ == "cuda"
    with pytest.raises(ZeroDivisionError) as raised:
        found["f"]()
    assert raised.traceback[-1].lineno + 1 == 6


def test_match() -> None:
    source = 'match kind:\n    case "cuda":\n        result = 1\n    case _:\n        result = 2\n'
    assert [run(source, kind=kind)["result"] for kind in ("webgpu", "cuda", "cpu")] == [1, 1, 2]


def test_command_lines() -> None:
    source = (
        "import argparse\np = argparse.ArgumentParser()\n"
        'p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])\n'
        'p.add_argument("--cuda", action="store_true")\n'
        "result = [p.parse_args(words) for words in lines]\n"
    )
    for target in TARGETS:
        local = Names(target).local_argument
        lines = [[], ["--device", local("cuda")], [local("--device=cuda"), "--cuda"], ["--device", "cuda"]]
        found = run(source, target, lines=lines)["result"]
        assert [options.device for options in found] == [target, target, target, "cuda"]
        assert [options.cuda for options in found] == [False, False, True, False]
    assert Names("webgpu").local_argument("train/cuda") == "train/cuda"
    assert Names("webgpu").local_argument("trainer.device=cuda:1") == "trainer.device=webgpu:1"


@pytest.mark.parametrize("spelling", ["import torch as th", "from torch import device as dev", "import torch"])
def test_devices_made_of_texts_from_elsewhere(spelling: str) -> None:
    call = {"import torch as th": "th.device", "import torch": "torch.device"}.get(spelling, "dev")
    assert run(f"{spelling}\nresult = {call}(given)", given="cuda:1")["result"] == torch.device("webgpu:1")


def test_types_of_the_users_own_are_left_alone() -> None:
    thing = SimpleNamespace(is_cuda="yes", device="desk")
    assert run("result = thing.is_cuda", thing=thing)["result"] == "yes"
    source = "class Box:\n    is_cuda = False\nbox = Box()\nbox.is_cuda = True\nresult = box.is_cuda"
    assert run(source)["result"] is True


def test_arrays_are_compared_by_themselves() -> None:
    """pandas and numpy answer for each element."""

    class Column(list):  # type: ignore[type-arg]
        def __eq__(self, other: object) -> Any:
            return [value == other for value in self]

    assert run('result = column == "cuda"', column=Column(["cuda", "cpu"]))["result"] == [True, False]


def test_a_target_that_is_written_for() -> None:
    assert run('result = ["cuda", "mps", "xpu"]', "mps")["result"] == ["mps", "mps", "mps"]


def test_sources_without_devices_are_not_parsed() -> None:
    assert not mentions_devices(b"import torch")
    assert mentions_devices(b"x.is_cuda")


def test_what_is_rewritten_can_be_read() -> None:
    """The tree is a program again, so that tools can print it."""
    tree = rewritten('if x.is_cuda and "cuda" in str(x.device): y = x.to("cuda")', "p.py", Names("webgpu"))
    assert "x.to('webgpu')" in ast.unparse(tree)
    compile(ast.unparse(tree), "p.py", "exec")


def test_cells_of_a_notebook() -> None:
    """One rewriter sees them all: a name for torch from an earlier cell counts."""
    rewriter = Rewriter(Names("webgpu"))
    names = {MARK: Helper("webgpu"), "given": "cuda:0"}
    for cell in ("import torch as th", "made = th.device(given)"):
        exec(compile(rewriter.visit(ast.parse(cell)), "cell", "exec"), names)
    assert names["made"] == torch.device("webgpu:0")
