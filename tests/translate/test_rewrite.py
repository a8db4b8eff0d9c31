"""What a program's texts become: each case is an expression that is true of a program on CUDA, and stays so."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_webgpu.translation.callers import MARK
from torch_webgpu.translation.device_names import Names
from torch_webgpu.translation.emulated.target import HERE
from torch_webgpu.translation.importing import Cells
from torch_webgpu.translation.rewrite import mentions_devices, rewritten
from torch_webgpu.translation.runtime_support import Helper

TARGETS = ("webgpu", "mps", "cpu")


def run(source: str, target: str = "webgpu", **names: Any) -> dict[str, Any]:
    """The names that a translated module defines."""
    helper = names.pop("helper", None) or Helper(target)
    helper.hear(source)
    found = {MARK: helper, "torch": torch, **names}
    exec(compile(rewritten(source, "program.py", helper.names), "program.py", "exec"), found)
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
        'getattr(x, "is_cuda") and getattr(x, "is_cuda", False)',
        'getattr(7, "is_cuda", None) is None',
        'eval("x.is_cuda") and eval(" given == \'cuda\'", {"given": x.device.type})',
        'eval(b"kind", None, {"kind": 3}) == 3',
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
        '{"cuda": 1}.get(x.device.type, 2) == 1',
        '{"cuda": 1}.get(given) == 1 and {"cuda": 1}.get("cpu", 2) == 2',
        "by_device[x.device.type] == by_device[given_device] == by_device.get(str(x.device.type)) == 7",
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


GIVEN: dict[str, Any] = {
    "torch": torch,
    "given": "cuda",
    "config": {"cuda": 5},
    "by_device": {"cuda": 7},
    "given_device": "cuda",
}
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
    assert run('result = "cuda:%d" % 1, "cuda:{}".format(1), f"cuda:{1}"', "cpu")["result"] == ("cpu",) * 3
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
    assert run('result = ["cuda", "mps"]', "mps")["result"] == ["mps", "mps"]


def test_one_device_has_one_name() -> None:
    """Once a module has mentioned CUDA, other devices are meant by other names; a program may be written for them."""
    assert run('result = ["cuda", "mps"]')["result"] == ["webgpu", "mps"]
    source = 'result = x.device.type not in ["cpu", "mps"] and x.device.type != "mps" and x.device.type == "cuda"'
    assert run(source, x=on("webgpu"))["result"]
    helper, is_mps = Helper("webgpu"), 'result = kind == "mps"'
    assert run(is_mps, kind="webgpu", helper=helper)["result"] is True
    run("import torch  # or cuda", helper=helper)
    assert run(is_mps, kind="webgpu", helper=helper)["result"] is False


def test_names_from_other_modules() -> None:
    """A module that mentions no device looks its own up in another's table."""
    source = "def f(x):\n    return table[x.device.type]\nresult = f(x)"
    assert mentions_devices(source.encode())
    assert run(source, x=on("webgpu"), table={"cuda": 1, "cpu": 2})["result"] == 1
    assert run(source, x=on("webgpu"), table={"cuda": 1, "webgpu": 3})["result"] == 3
    assert run(source, x=on("cpu"), table={"cuda": 1, "cpu": 2})["result"] == 2
    assert run("result = table[device]", device="webgpu:1", table={"cuda:1": 1})["result"] == 1
    assert run("result = table[device]", device=-1, table=[1, 2])["result"] == 2
    with pytest.raises(KeyError, match="webgpu"):
        run(source, x=on("webgpu"), table={})


@pytest.mark.parametrize("spelling", ["import torch as th", "from torch import Tensor", "import torch"])
def test_tensors_have_the_default_type(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``set_default_tensor_type`` also says what ``torch.Tensor(…)`` makes, and nothing about other things."""
    monkeypatch.setattr(HERE, "tensors", torch.DoubleTensor)
    call = {"import torch as th": "th.Tensor", "import torch": "torch.Tensor"}.get(spelling, "Tensor")
    found = run(f"{spelling}\nresult = {call}([1]), isinstance({call}(2, 3), {call})\nx = torch.FloatTensor([1])")
    assert (found["result"][0].dtype, found["result"][1], found["x"].dtype) == (torch.float64, True, torch.float32)
    again = "from torch import Tensor\nTensor = torch.IntTensor\nresult = Tensor([1])"
    assert run(again)["result"].dtype == torch.int32


def test_pinned_tensors_are_made_and_then_pinned() -> None:
    pinned = []

    class Tensor(torch.Tensor):
        def pin_memory(self, device: object = None) -> Any:
            pinned.append(tuple(self.shape))
            return self

    def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype).as_subclass(Tensor)

    for pin, expected in ((True, [(2, 3)]), (False, [(2, 3)])):
        made = run(f"result = empty(2, 3, dtype=torch.int32, pin_memory={pin})", empty=empty)["result"]
        assert (made.dtype, pinned) == (torch.int32, expected)


def test_sources_without_devices_are_not_parsed() -> None:
    assert not mentions_devices(b"import torch")
    assert mentions_devices(b"x.is_cuda")


def test_what_is_rewritten_can_be_read() -> None:
    """The tree is a program again, so that tools can print it."""
    tree = rewritten('if x.is_cuda and "cuda" in str(x.device): y = x.to("cuda")', "p.py", Names("webgpu"))
    assert "x.to('webgpu')" in ast.unparse(tree)
    compile(ast.unparse(tree), "p.py", "exec")


def test_cells_of_a_notebook() -> None:
    """One rewriter sees them all: a name for torch, or a mention of CUDA, in an earlier cell counts."""
    helper = Helper("webgpu")
    cells = Cells(helper)
    names = {MARK: helper, "given": "cuda:0", "kind": "webgpu"}
    for cell in ("import torch as th", 'a = kind == "mps"', "made = th.device(given)  #\nth.cuda", 'b = kind == "mps"'):
        exec(compile(cells.visit(ast.parse(cell)), "cell", "exec"), names)
    assert (names["made"], names["a"], names["b"]) == (torch.device("webgpu:0"), True, False)


def test_source_that_the_program_executes() -> None:
    """As the settings of many trainers: exec(open("settings.py").read()), into the module or into a dict."""
    settings = 'device = "cuda:1"\nright = kind == "cuda"\n'
    found = run("exec(settings)\nown = {'kind': kind}\nexec(settings, own)", settings=settings, kind="webgpu")
    assert (found["device"], found["right"]) == (found["own"]["device"], found["own"]["right"]) == ("webgpu:1", True)
    assert run("exec(made)", made=compile("kept = 'cuda'", "made", "exec"))["kept"] == "cuda"
    run("exec(settings, {'kind': 'webgpu'})\nexec(settings, dict(kind=kind), {})", settings=settings, kind="cuda")
    with pytest.raises(SyntaxError):
        run("exec('device = = cuda')")
