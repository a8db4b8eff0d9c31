"""Plans of compiled graphs on disk: a second process makes none, and nothing that lies there can do harm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_webgpu.compile import cache, graph
from torch_webgpu.errors import TraceError

PROGRAM = """
import torch, torch_webgpu
from torch_webgpu.compile import graph

made = 0
trace = graph.trace

def counting(*args):
    global made
    made += 1
    return trace(*args)

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
    trace = graph.trace
    with monkeypatch.context() as patch:
        patch.setattr(graph, "trace", lambda *args: made.append(args) or trace(*args))
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
    def refuse(*args: object) -> None:
        raise TraceError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "trace", refuse)
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
    assert len(files(tmp_path)) == 2
    mask = torch.tensor([True, False, True], device="webgpu")
    torch.testing.assert_close(
        torch.compile(torch.masked.cumsum)(x, 1, mask=mask).cpu(), torch.masked.cumsum(x.cpu(), 1, mask=mask.cpu())
    )
