"""*Did you mean* where PyTorch itself refuses a name, or hands it to us."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.device.processes import run_script

from torch_webgpu.api.hints import add_hint
from torch_webgpu.compile.backend import webgpu
from torch_webgpu.errors import meant_by


@pytest.mark.parametrize(
    ("name", "meant"),
    [("webpgu", "webgpu"), ("webpgu:0", "webgpu"), ("cdua", "cuda"), ("wgpu", "webgpu"), ("qqqq", "")],
)
def test_a_device_that_there_is_not_is_followed_by_the_one_that_was_meant(name: str, meant: str) -> None:
    done = run_script(f"torch.ones(1, device='webgpu'); torch.ones(1).to({name!r})")
    assert done.returncode == 1
    *_, error, last = done.stderr.splitlines()
    assert (error if meant else last).startswith("RuntimeError: Expected one of cpu, ")
    assert last == f"did you mean {meant!r}?" if meant else "did you mean" not in done.stderr


def test_in_threads_too_and_after_a_hook_of_the_programs() -> None:
    program = """
    torch.ones(1, device="webgpu")
    threading.Thread(target=lambda: torch.device("webpgu")).start()
    """
    assert "did you mean 'webgpu'?" in run_script(program).stderr
    hooked = "import sys; sys.excepthook = lambda *error: print('mine'); import torch; torch.device('webpgu')"
    done = subprocess.run([sys.executable, "-c", hooked], capture_output=True, text=True, timeout=100)
    assert done.stdout == "mine\n"


def test_an_error_that_is_handled_is_pytorchs() -> None:
    with pytest.raises(RuntimeError, match=r"device string: webpgu$") as caught:
        torch.ones(1).to("webpgu")
    assert not hasattr(caught.value, "__notes__")
    assert meant_by(str(caught.value)) == " (did you mean 'webgpu'?)"


def test_no_call_has_a_frame_for_it() -> None:
    """A canary: where PyTorch reads devices' names in a function that Python can see, the hint belongs there."""
    frames = []
    sys.setprofile(lambda frame, event, argument: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        torch.device("webgpu")
        with pytest.raises(RuntimeError):
            torch.device("webpgu")
    finally:
        sys.setprofile(None)
    assert not {name for name in frames if "hint" in name or "mean" in name}


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"options": {"freezng": True}}, "freezing"),
        ({"options": {"layout_optimisation": True}}, "layout_optimization"),
        ({"mode": "max-autotun"}, "max-autotune"),
        ({"mode": "quuux"}, ""),
    ],
)
def test_options_and_modes_of_torch_compile(asked: dict, meant: str) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Linear(1, 1).to("webgpu"))
    with pytest.raises(RuntimeError, match=r"known options are|should be one of") as caught:
        webgpu(graph, [torch.ones(1, device="webgpu")], **asked)
    assert str(caught.value).startswith(f"did you mean {meant!r}? " if meant else "Unrecognized")


SHAPES = {
    "torch.mm(torch.ones(2, 3, device=d), torch.ones(4, 3, device=d))": "mat1 @ mat2.t() fits: 2x3 and 3x4",
    "torch.mm(torch.ones(3, 2, device=d), torch.ones(3, 4, device=d))": "mat1.t() @ mat2 fits: 2x3 and 3x4",
    "torch.nn.Linear(5, 4, device=d)(torch.ones(2, 3, device=d))": (
        "the second size of mat1, 3, and the first of mat2, 5, have to be equal"
    ),
    "torch.einsum('ij,jk->ik', torch.ones(2, 3, device=d), torch.ones(4, 5, device=d))": "",  # PyTorch names it
    "torch.einsum('i->i', torch.ones(2, 3, device=d))": (
        "operand 0 has 2 dimensions: its part of the equation needs 2 subscripts, or ... for those without a name"
    ),
    "torch.einsum('ijk->i', torch.ones(2, 3, device=d))": (
        "operand 0 has 2 dimensions: its part of the equation needs 2 subscripts"
    ),
    "torch.ones(2, device=d) + torch.ones(3, device=d)": "",
}


@pytest.mark.parametrize("call", SHAPES)
def test_what_helps_against_shapes_that_do_not_fit(call: str) -> None:
    """As the hook prints it below PyTorch's error, which stays as it is."""
    with pytest.raises(RuntimeError) as caught:
        eval(call, {"torch": torch, "d": "webgpu"})
    assert not hasattr(caught.value, "__notes__")
    add_hint(caught.value)
    assert getattr(caught.value, "__notes__", []) == ([SHAPES[call]] if SHAPES[call] else [])


def test_a_program_that_ends_in_such_an_error_shows_it() -> None:
    done = run_script("torch.ones(2, 3, device='webgpu') @ torch.ones(4, 3, device='webgpu')")
    assert done.stderr.splitlines()[-1] == "mat1 @ mat2.t() fits: 2x3 and 3x4"
