"""Plans of compiled graphs on disk: a second process makes none, and nothing that lies there can do harm."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from torch_webgpu.compile import cache, compiled_graph, private_folder
from torch_webgpu.errors import TraceError
from torch_webgpu.plan import Plan, trace

PROGRAM = """
import torch, torch_webgpu
from torch_webgpu.compile import compiled_graph as graph

made = 0
trace = graph.trace

def counting(*args, **kwargs):
    global made
    made += 1
    return trace(*args, **kwargs)

graph.trace = counting
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
model = model.to("webgpu")
compiled = torch.compile(model)
y = compiled(torch.linspace(-1, 1, 12, device="webgpu").view(2, 6))
y.square().sum().backward()
print(made, y.tolist(), [p.grad.sum().item() for p in model.parameters()])
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    cache._warn.cache_clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_program(folder: Path) -> tuple[int, str]:
    environment = {
        **os.environ,
        "TORCH_WEBGPU_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made, _, results = done.stdout.strip().splitlines()[-1].partition(" ")
    return int(made), results


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.plan"))


def compiled_results(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, int]:
    """What a small compiled function returns, and how many plans were made for it."""
    made = []
    trace = compiled_graph.trace
    with monkeypatch.context() as patch:
        patch.setattr(compiled_graph, "trace", lambda *args, **kwargs: made.append(args) or trace(*args, **kwargs))
        torch._dynamo.reset()
        return torch.compile(lambda t: (t * 2).sin().sum(0))(x), len(made)


def test_a_second_process_makes_no_plan(tmp_path: Path) -> None:
    made, results = run_program(tmp_path)
    assert made == 2  # forward and backward
    assert run_program(tmp_path) == (0, results)
    assert all(path.stat().st_mode & 0o077 == 0 for path in [tmp_path]) or os.name == "nt"


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "text"])
def test_what_is_damaged_is_made_again(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 3, device="webgpu")
    want, made = compiled_results(x, monkeypatch)
    assert made == 1
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    if harm == "changed":
        data[len(data) // 2] ^= 1
    path.write_bytes({"cut": bytes(data[:-9]), "changed": bytes(data), "empty": b"", "text": b"not a plan"}[harm])
    got, made = compiled_results(x, monkeypatch)
    assert made == 1
    assert torch.equal(got, want)
    assert compiled_results(x, monkeypatch)[1] == 0


def test_other_layouts_and_graphs_are_other_plans(tmp_path: Path) -> None:
    def apply(factor: float, *shape: int) -> None:
        torch._dynamo.reset()
        torch.compile(lambda t: t * factor + torch.ones(3, device="webgpu"))(torch.randn(*shape, device="webgpu"))

    for factor, *shape in ((2.0, 4, 3), (2.0, 5, 3), (3.0, 4, 3), (2.0, 4, 3)):
        apply(factor, *map(int, shape))
    assert len(files(tmp_path)) == 3


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.plan"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    os.utime(tmp_path / "0.plan", (9, 9))
    cache.trim(tmp_path, 250)
    assert [path.stem for path in files(tmp_path)] == ["0", "4"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setattr(cache, "folder", lambda: in_the_way / "below")
    x = torch.randn(4, 3, device="webgpu")
    assert compiled_results(x, monkeypatch)[1] == 1


def test_off_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "folder", lambda: None)
    x = torch.randn(4, 3, device="webgpu")
    assert [compiled_results(x, monkeypatch)[1] for _ in range(2)] == [1, 1]
    assert not files(tmp_path)


def test_what_makes_no_plan_keeps_none(tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise TraceError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_graph, "trace", refuse)
        x = torch.randn(4, 3, device="webgpu")
        assert torch.equal(torch.compile(lambda t: t + 1)(x), x + 1)
    assert not files(tmp_path)


def test_numbers_in_a_graph_are_told_apart(tmp_path: Path) -> None:
    """Tensors without dimensions, such as ``torch.masked.cumsum`` fills with."""
    x = torch.randn(4, 3, device="webgpu")
    two, three = lambda t: t + torch.tensor(2.5, device="webgpu"), lambda t: t + torch.tensor(3.5, device="webgpu")
    for add in (two, three, two):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(add)(x), add(x))
    # Dynamo of PyTorch 2.11 makes them on the CPU and copies: one plan, which is given what was copied.
    assert len(files(tmp_path)) == (1 if torch.__version__ < "2.12" else 2)
    mask = torch.tensor([True, False, True], device="webgpu")
    torch.testing.assert_close(
        torch.compile(torch.masked.cumsum)(x, 1, mask=mask).cpu(), torch.masked.cumsum(x.cpu(), 1, mask=mask.cpu())
    )


def kept(folder: Path) -> tuple[cache.PlanFile, Plan]:
    """A plan with a trusted kernel, and the file that it is in."""
    plan = trace(lambda t: t * 2 + 1, torch.ones(8, device="webgpu"))
    assert all(kernel.trusted for kernel in plan.kernels)
    file = cache.PlanFile((folder, "x"))
    file.write(plan, [None])
    return file, plan


posix = pytest.mark.skipif(not private_folder.HAS_OWNERS, reason="files have no owners here")


@posix
def test_a_plan_of_ones_own_is_as_it_was_made(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        file, plan = kept(tmp_path / "made")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "made" / "x.plan").stat().st_mode) == 0o600
    assert file.read() == (plan, [None])


HARM: dict[str, Callable[[Path], object]] = {
    "a folder that all may write to": lambda folder: folder.chmod(0o777),
    "a folder that a group may write to": lambda folder: folder.chmod(0o770),
    "a file that all may write to": lambda folder: (folder / "x.plan").chmod(0o666),
    "a file that is a link": lambda folder: (
        (folder / "x.plan").rename(folder / "y") and to_link(folder / "x.plan", "y")
    ),
    "a file that is a folder": lambda folder: [(folder / "x.plan").unlink(), (folder / "x.plan").mkdir()],
    "a file that is a pipe": lambda folder: [(folder / "x.plan").unlink(), os.mkfifo(folder / "x.plan")],
    "a folder that is a link": lambda folder: folder.rename(folder.parent / "y") and to_link(folder, "y"),
}


def to_link(path: Path, target: str) -> None:
    path.symlink_to(target)


@posix
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.filterwarnings("error")
def test_what_others_may_have_written_is_not_read(harm: str, tmp_path: Path) -> None:
    file, _ = kept(folder := tmp_path / "made")
    HARM[harm](folder)
    with pytest.warns(UserWarning, match="plans of compiled graphs are not kept.*TORCH_WEBGPU_CACHE_DIR"):
        assert file.read() is None
    assert file.read() is None  # which is said once


@posix
@pytest.mark.parametrize("whose", ["the folder's", "the file's"])
def test_nor_what_belongs_to_another_user(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns files cannot be changed without being root: this process seems to be somebody else's instead."""
    file, plan = kept(folder := tmp_path / "made")
    fstat = os.fstat

    def status(descriptor: int) -> os.stat_result:
        seen = fstat(descriptor)
        if stat.S_ISDIR(seen.st_mode) is (whose == "the folder's"):
            seen = os.stat_result([*seen[:4], seen.st_uid + 1, *seen[5:]])
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(private_folder.os, "fstat", status)
        with pytest.warns(UserWarning, match="belongs to another user"):
            assert file.read() is None
        before = (folder / "x.plan").stat().st_mtime_ns
        file.write(plan, [None])
        assert ((folder / "x.plan").stat().st_mtime_ns == before) is (whose == "the folder's")
    assert file.read() == (plan, [None])


def test_a_planted_plan_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody made the folder of the expected name first, and may exchange what is put into it."""
    folder = tmp_path / "planted"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(cache, "folder", lambda: folder)
    x = torch.randn(4, 3, device="webgpu")
    with pytest.warns(UserWarning, match="other users may write"):
        assert compiled_results(x, monkeypatch)[1] == 1
    assert not files(folder)
    assert compiled_results(x, monkeypatch)[1] == 1


def test_where_files_have_no_owners_what_is_read_is_compiled_with_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder, "HAS_OWNERS", False)  # as on Windows
    file, plan = kept(tmp_path / "made")
    read = file.read()
    assert read is not None
    assert plan.kernels
    assert not any(kernel.trusted for kernel in read[0].kernels)


def test_a_file_is_not_unpacked_beyond_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_PLAN_BYTES", 1 << 20)
    data = zlib.compress(b"[null]\n" + bytes(1 << 28))
    assert len(data) < 1 << 20
    with pytest.raises(ValueError, match="has more than 1048576 bytes"):
        cache.unpacked(data)
    assert cache.unpacked(zlib.compress(bytes(1 << 20))) == bytes(1 << 20)
    path = tmp_path / "x.plan"
    path.write_bytes(sha256(data).hexdigest().encode() + data)
    path.chmod(0o600)
    tracemalloc.start()
    try:
        assert cache.PlanFile((tmp_path, "x")).read() is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert not path.exists()  # as whatever is damaged
