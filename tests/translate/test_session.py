"""Translation on and off in one process: what PyTorch takes as an argument, who is told what, and what is put back."""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_webgpu.aten.dispatch import torch_guard
from torch_webgpu.integrations.choice import instead_of_cpu
from torch_webgpu.translation import launch, router, session, table
from torch_webgpu.translation.alias import Alias
from torch_webgpu.translation.callers import MARK, Packages, is_installed
from torch_webgpu.translation.emulated.target import HERE
from torch_webgpu.translation.importing import Imports
from torch_webgpu.translation.missing import Missing
from torch_webgpu.translation.replacements import Replacements
from torch_webgpu.translation.router import Candidate
from torch_webgpu.translation.runtime_support import Helper

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is translated where there is CUDA")

TARGETS = ("webgpu", "cpu")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    session.enable(request.param)
    yield request.param
    session.disable()


def as_user(source: str, **names: Any) -> dict[str, Any]:
    """Runs source as a module of the user's would run."""
    begun = session.active()
    assert begun is not None
    begun.translator.mark(names)
    exec(begun.translator.compile(source.encode(), "user.py"), names)
    return names


def as_library(source: str) -> dict[str, Any]:
    """Runs source as an installed module does."""
    names: dict[str, Any] = {"__name__": "some_library", "torch": torch}
    exec(compile(source, "library.py", "exec"), names)
    return names


# ---- devices as arguments


def test_no_accelerator_is_found_where_the_cpu_was_chosen(target: str) -> None:
    """Libraries and programs that take any there is use the one that was chosen, too."""
    found = None if target == "cpu" else torch.device(target)
    for run in (as_user, as_library):
        source = "import torch\nfound = torch.accelerator.current_accelerator()\nn = torch.accelerator.device_count()"
        names = run(source)
        assert (names["found"], names["n"] > 0) == (found, found is not None)
    assert instead_of_cpu(torch.device("cpu")).type == target


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "xpu", "mps"])
def test_libraries_may_name_the_device_too(target: str, name: str) -> None:
    x = torch.randn(3, 4)
    for made in (
        torch.empty(2, device=name),
        torch.tensor([1.0, 2.0], device=name),
        torch.arange(5, device=torch.device(name)),
        torch.randn(3, device=name),
        torch.randperm(4, device=name),
        torch.empty_strided((2, 3), (1, 2), device=name),
        torch.full_like(x, 2, device=name),
        torch.as_tensor([1, 2], device=name),
        torch.eye(3, device=name),
        x.new_zeros(3, device=name),
        x.to(name),
        x.to(device=name, dtype=torch.float16, non_blocking=True, copy=True),
        torch.nn.Linear(2, 2, device=name).weight,
        torch.nn.Linear(2, 2).to(name).weight,
        torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,), device=name),
    ):
        assert made.device.type == target
    torch.testing.assert_close(x.to(name).cpu(), x)
    with torch.device(name):
        assert torch.ones(2).device.type == target
    torch.set_default_device(name)
    try:
        assert (torch.ones(2) + 1).device.type == target
    finally:
        torch.set_default_device(None)


def test_gradients(target: str) -> None:
    def program(device: str) -> torch.Tensor:
        x = torch.linspace(0, 1, 12).reshape(3, 4).to(device).requires_grad_()
        (x @ torch.ones(4, 2, device=device)).tanh().sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    torch.testing.assert_close(program("cuda"), program("cpu"))


def test_files_that_were_saved_on_cuda(target: str) -> None:
    file = io.BytesIO()
    torch.save({"w": torch.arange(3.0)}, file)
    for where in ("cuda", "cuda:0", torch.device("cuda")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)["w"]
        assert loaded.device.type == target
        assert loaded.tolist() == [0.0, 1.0, 2.0]


# ---- who is told what


def test_users_have_cuda_and_libraries_the_truth(target: str) -> None:
    asked = "import torch\nresult = torch.cuda.is_available(), torch.cuda.device_count() > 0, torch.zeros(1).is_cuda"
    truth = as_library(asked)["result"]
    assert truth == (False, False, False)
    users = as_user(asked.replace("torch.zeros(1)", 'torch.zeros(1, device="cuda")'))["result"]
    assert users == (True, True, True)


def test_what_pytorch_asks_itself_is_not_counted(target: str) -> None:
    """An autocast asks for the state of the device's own autocast a dozen times."""
    block = 'import torch\nwith torch.autocast("cuda", dtype=torch.bfloat16):\n    found = '
    assert as_user(f"{block}torch.is_autocast_enabled()")["found"] is True
    assert as_library(f"{block}torch.get_autocast_dtype('cuda')")["found"] == torch.bfloat16
    begun = session.active()
    assert begun is not None
    assert {name: calls.count for name, calls in begun.monitor.calls.items()} == {
        "torch.autocast.__init__": 2,
        "torch.is_autocast_enabled": 1,
        "torch.get_autocast_dtype": 1,
    }


def test_a_number_is_the_device_too(target: str) -> None:
    source = (
        "import torch\nrank = 0\nmade = [torch.zeros(2, device=rank), torch.ones(1, device=0), torch.ones(1).to(0)]"
    )
    assert {made.device.type for made in as_user(source)["made"]} == {target}


def test_libraries_still_find_that_there_is_no_cuda(target: str) -> None:
    """Some find out by trying, and expect PyTorch's error."""
    torch.empty(0, device="cuda")
    with pytest.raises((AssertionError, RuntimeError)):
        as_library("torch.cuda._lazy_init()")


def test_whose_a_module_is(tmp_path: Path) -> None:
    assert is_installed(str(torch.__file__))
    assert is_installed(str(session.__file__))
    assert is_installed(os.__file__)
    assert not is_installed(str(tmp_path / "train.py"))
    assert not Packages().is_user("torch", torch.__file__)
    assert Packages(["whisper"]).is_user("whisper.model", str(Path(torch.__file__).parent.parent / "whisper/model.py"))


def test_imports_of_the_users_are_rewritten_and_not_kept(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_program"
    package.mkdir()
    (package / "__init__.py").write_text('from .places import DEVICE\nnames = [DEVICE, f"{DEVICE}"]\n')
    (package / "places.py").write_text('DEVICE = "cuda"\ndef here(x):\n    return x.device.type == "cuda"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    import some_program  # type: ignore[import-not-found]

    try:
        assert some_program.names == [target, target]
        assert some_program.places.here(torch.zeros(1).to(target))
        assert MARK in vars(some_program)
        assert not list(tmp_path.rglob("*.pyc"))
    finally:
        for name in [name for name in sys.modules if name.startswith("some_program")]:
            del sys.modules[name]


# ---- on and off


def state() -> dict[str, Any]:
    """What translation may touch, by identity: every attribute of whatever has a name in the matrix, and the hooks."""
    names = [name for name in table.table() if table.is_there(name)]
    owners = {id(owner): owner for name in names for owner in table.owners(name, table.look_up(name))}
    owners |= {id(owner): owner for owner in (torch.accelerator, HERE)}
    found = {
        f"{getattr(owner, '__name__', owner)}.{name}": id(value)
        for owner in owners.values()
        for name, value in vars(owner).items()
    }
    hooks = {"path": list(sys.meta_path), "guards": list(torch_guard._guards() or ()), "active": session.active()}
    return found | hooks | {"environment": dict(os.environ)}


@pytest.mark.parametrize("target", TARGETS)
def test_everything_is_put_back(target: str) -> None:
    session.enable(target)  # once before: modules that are imported for it stay
    torch.ones(2, device="cuda")
    session.disable()
    before = state()
    session.enable(target)
    assert state() != before
    torch.ones(2, device="cuda")
    session.disable()
    assert state() == before
    with pytest.raises((NotImplementedError, AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")
    with pytest.raises((NotImplementedError, AssertionError, RuntimeError)):
        torch.ones(2).to("cuda")
    session.disable()  # there is nothing to do


PARTS = (
    (Imports, "install", 1),
    (Alias, "install", 4),
    (torch.library.Library, "impl", 8),
    (torch_guard, "stand_in", 4),
    (Missing, "install", 1),
    (table, "install", 1),
    (Replacements, "set", 300),
    (session, "without_accelerator", 1),
)
"""What installs a part of a session, and how often at least it does."""


@pytest.mark.parametrize(
    ("owner", "name", "done_before", "after"),
    [
        (owner, name, n, after)
        for owner, name, times in PARTS
        for n in sorted({0, times // 2, times - 1})
        for after in (False, True)
        if not (after and owner is torch_guard)  # which alone gives what undoes it
    ],
)
def test_nothing_stays_of_a_session_that_could_not_begin(
    owner: Any, name: str, done_before: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part raises, at once or later, before or after it did its work."""
    session.enable("cpu")  # once before: modules that are imported for it stay
    session.disable()
    install, calls = getattr(owner, name), iter(range(done_before))

    def raising(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is not None:
            return install(*args, **kwargs)
        if after:
            install(*args, **kwargs)
        raise OSError(name)

    before = state()
    monkeypatch.setattr(owner, name, raising)
    with pytest.raises(OSError, match=name):
        session.enable("cpu")
    monkeypatch.undo()
    assert state() == before
    with pytest.raises((NotImplementedError, AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")


def test_enabling_twice() -> None:
    begun = session.enable("cpu")
    try:
        assert session.enable() is session.enable("cpu") is begun is session.active()
        with pytest.raises(RuntimeError, match="on for cpu already"):
            session.enable("webgpu")
    finally:
        session.disable()
    assert session.active() is None


# ---- the router


def test_the_best_device_that_works_is_chosen() -> None:
    def only(*devices: str) -> router.Look:
        return lambda device: Candidate(device, "" if device in devices else "not there")

    assert router.choose("auto", only("cuda", "mps", "webgpu", "cpu")) == "cuda"
    assert router.choose("auto", only("webgpu", "mps", "cpu")) == "mps"
    assert router.choose("auto", only("webgpu", "cpu")) == "webgpu"
    assert router.choose("auto", only("cpu")) == "cpu"
    assert router.choose("webgpu", only("mps", "webgpu", "cpu")) == "webgpu"
    with pytest.raises(RuntimeError, match=r"mps cannot be used here: not there\. These can: webgpu, cpu"):
        router.choose("mps", only("webgpu", "cpu"))
    with pytest.raises(ValueError, match="tpu"):
        router.choose("tpu")


def test_devices_are_tried() -> None:
    assert router.probe("cpu").wrong == ""
    assert router.probe("webgpu").wrong == ""
    assert "not available" in router.probe("xpu").wrong or router.probe("xpu").wrong == ""


def test_helpers_answer_for_their_target() -> None:
    helper = Helper("webgpu")
    assert helper.local("cuda:1") == "webgpu:1"
    assert helper.local(torch.device("cuda")) == torch.device("webgpu")
    assert helper.local(None) is None
    assert helper.lookup({"cuda": 1}, "webgpu") == helper.lookup({"webgpu": 1, "cuda": 2}, "webgpu") == 1
    with pytest.raises(KeyError):
        helper.lookup({"hpu": 1}, "webgpu")


def test_a_notebooks_kernel_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the environment variable `import torch` in a cell begins translation, and the kernel goes on."""
    prompt = SimpleNamespace(ast_transformers=[], user_ns={})
    monkeypatch.setattr(builtins, "get_ipython", lambda: prompt, raising=False)
    monkeypatch.setattr(os, "execv", lambda *command: pytest.fail("the process was replaced"))
    monkeypatch.setenv("TORCH_WEBGPU_TRANSLATE", "cpu")
    monkeypatch.delenv(launch.RUNNING, raising=False)
    try:
        launch.begin()
        (cells,) = prompt.ast_transformers
        code = compile(cells.visit(ast.parse('ok = torch.ones(1, device="cuda").device.type == "cuda"')), "", "exec")
        exec(code, prompt.user_ns | (names := {"torch": torch}) | prompt.user_ns, names)
        assert names["ok"] is True
    finally:
        session.disable()
    assert not prompt.ast_transformers
