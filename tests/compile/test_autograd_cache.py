"""What AOTAutograd made of a graph is found again, by what decided it; and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.memory_limit import memory_limit
from torch import nn
from torch._dynamo.utils import counters

from torch_webgpu.compile import autograd_cache, cache
from torch_webgpu.errors import OutOfMemoryError

from .against_eager import assert_equal, counting


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for module in (cache, autograd_cache):
        monkeypatch.setattr(module, "folder", lambda: tmp_path / "plans")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def found_by(run: Callable[[], Any]) -> tuple[Any, int]:
    """What it returns when all is compiled anew, and how many graphs were found in the cache."""
    torch._dynamo.reset()
    before = counters["aot_autograd"]["autograd_cache_hit"]
    return run(), counters["aot_autograd"]["autograd_cache_hit"] - before


def training() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(5), nn.Linear(5, 3)).to("webgpu")
    y = torch.compile(model)(torch.linspace(-1, 1, 12, device="webgpu").view(2, 6))
    y.square().sum().backward()
    return [y.detach(), *[p.grad for p in model.parameters()]]


def attended(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache[1:3].add_(x.sum(0))
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True)


def weighted(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    return (attended(x, cache) * torch.tensor([2.0, 3.0, 4.0], device=x.device)).sum(-1)


def inference(fn: Callable[..., torch.Tensor] = weighted) -> list[torch.Tensor]:
    x, kept = torch.linspace(-1, 1, 12, device="webgpu").view(4, 3), torch.zeros(4, 3, device="webgpu")
    with torch.no_grad():
        return [torch.compile(fn)(x, kept), kept]


def without_a_constant() -> list[torch.Tensor]:
    return inference(attended)


@pytest.mark.parametrize("run", [training, inference])
def test_a_second_time_it_is_found(run: Callable[[], list[torch.Tensor]]) -> None:
    want, hits = found_by(run)
    assert hits == 0
    for _ in range(2):
        got, hits = found_by(run)
        assert hits == 1
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def test_backward_passes_may_run_twice() -> None:
    def run() -> list[torch.Tensor]:
        x = torch.ones(3, device="webgpu", requires_grad=True)
        y = torch.compile(lambda x: x.tanh().exp())(x).sum()
        return [torch.autograd.grad(y, x, retain_graph=keep)[0] for keep in (True, True, False)]

    want, _ = found_by(run)
    got, hits = found_by(run)
    assert hits == 1
    assert_equal(got, want)


def test_without_the_patch_the_second_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary for compile/private.py: donate_no_buffers."""
    monkeypatch.setattr(autograd_cache, "donate_no_buffers", lambda: None)

    def run() -> list[torch.Tensor]:
        x = torch.ones(3, device="webgpu", requires_grad=True)
        y = torch.compile(lambda x: x.softmax(0).exp())(x).sum()
        return [torch.autograd.grad(y, x, retain_graph=keep)[0] for keep in (True, False)]

    with pytest.raises(RuntimeError, match="donated buffers"):
        found_by(run)


def test_what_decides_over_it_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found_by(training)
    with torch.autocast("webgpu", torch.float16):
        assert found_by(training)[1] == 0
    planning = autograd_cache.planning
    monkeypatch.setattr(autograd_cache, "planning", lambda *args: (*planning(*args), "another adapter"))
    assert found_by(training)[1] == 0
    assert found_by(training)[1] == 1
    monkeypatch.setattr(autograd_cache, "sources", lambda: "another version")
    assert found_by(training)[1] == 0


def test_autocast_has_entries_of_its_own() -> None:
    """For each dtype; PyTorch's own key has it since 2.12."""

    def run() -> list[torch.dtype]:
        x, w = torch.ones(2, 3, device="webgpu"), torch.ones(4, 3, device="webgpu")
        found = []
        for dtype in (torch.float16, torch.bfloat16):
            torch._dynamo.reset()
            with torch.autocast("webgpu", dtype):
                found.append(torch.compile(F.linear)(x, w).dtype)
        return found

    assert found_by(run) == ([torch.float16, torch.bfloat16], 0)
    assert found_by(run) == ([torch.float16, torch.bfloat16], 2)


@pytest.mark.parametrize("harm", ["cut", "empty", "text"])
def test_what_is_damaged_is_made_again(harm: str, tmp_path: Path) -> None:
    want, _ = found_by(training)
    files = [path for path in (tmp_path / "torch" / "aotautograd").rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes({"cut": path.read_bytes()[:-100], "empty": b"", "text": b"not an entry"}[harm])
    got, hits = found_by(training)
    assert hits == 0
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_graphs_of_any_size_are_not_kept() -> None:
    def run() -> torch.Tensor:
        compiled = torch.compile(lambda x: (x * 2).softmax(0), dynamic=True)
        return torch.cat([compiled(torch.arange(float(n), device="webgpu")) for n in (3, 5)])

    want, _ = found_by(run)
    got, hits = found_by(run)
    assert hits == 0
    assert_equal(got, want)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="AOTAutograd of PyTorch 2.11 drops linear algebra's checks")
def test_graphs_with_effects_are_not_kept() -> None:
    def run() -> torch.Tensor:
        return torch.compile(lambda x: torch.linalg.cholesky(x) * 2)(torch.eye(3, device="webgpu") * 9)

    want, _ = found_by(run)
    got, hits = found_by(run)
    assert hits == 0
    assert_equal(got, want)


def test_inputs_in_one_storage_are_not_kept() -> None:
    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    def run(start: int) -> list[torch.Tensor]:
        x = torch.arange(8.0, device="webgpu")
        return [torch.compile(write)(x[:4], x[start : start + 4]), x]

    for start in (2, 0, 4, 3, 2):
        x = torch.arange(8.0)
        want = [write(x[:4], x[start : start + 4]), x]
        assert_equal(found_by(lambda start=start: run(start))[0], want)


def test_it_is_off_where_plans_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(autograd_cache, "folder", lambda: None)
    assert [found_by(training)[1] for _ in range(2)] == [0, 0]
    assert not (tmp_path / "torch" / "aotautograd").exists()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The graphs that were kept and are read from now on."""
    seen: list[bytes] = []
    read = autograd_cache.read
    monkeypatch.setattr(autograd_cache, "read", lambda kept: seen.append(kept) or read(kept))
    return seen


def test_constants_of_a_graph_are_on_its_device_since_torch_2_12(reads: list[bytes]) -> None:
    """A canary: before, they were moved there in each run, which is between plans, and so the graph was read."""
    is_moved = torch.__version__ < "2.12"
    with counting() as stats:
        found_by(inference)
    assert any("_to_copy" in name for name in stats.between) == is_moved
    assert found_by(inference)[1] == 1
    assert len(reads) == is_moved


@pytest.mark.parametrize("run", [training, without_a_constant])
def test_a_graph_is_read_where_its_plans_are_not_on_disk(
    run: Callable[[], list[torch.Tensor]], reads: list[bytes], tmp_path: Path
) -> None:
    want, _ = found_by(run)
    plans = list((tmp_path / "plans").glob("*.plan"))
    for there in (True, False, True):
        if not there:
            for path in plans:
                path.unlink()
        with counting() as stats:
            got, hits = found_by(run)
        assert hits == 1
        assert len(reads) == (0 if there else len(plans))
        assert stats.graphs == stats.plans == len(plans)
        reads.clear()
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def test_a_graph_that_is_read_is_prepared_for_inference_as_the_first_was(tmp_path: Path) -> None:
    """Its masks are looked at, its convolutions laid out: the plan is the same."""

    def masked(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4, device=x.device)
        mask = places[None, :] <= places[:, None]
        return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], mask)

    def run() -> Any:
        return inference(masked)

    found_by(run)
    (path,) = (tmp_path / "plans").glob("*.plan")
    first = path.read_bytes()
    path.unlink()
    assert found_by(run)[1] == 1
    assert path.read_bytes() == first


def test_graphs_in_parts_are_found() -> None:
    def run() -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 6, device="webgpu")
        return [torch.compile(lambda x: (x * 2).cpu().sin().to("webgpu") + x.sum())(x)]

    want, _ = found_by(run)
    with counting() as stats:
        got, hits = found_by(run)
    assert hits == 1
    assert stats.between
    assert torch.equal(got[0], want[0])


def large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    z = y.cumsum(0)
    return z.sum(0)


def test_errors_of_what_was_found_name_the_programs_lines(reads: list[bytes]) -> None:
    x, w = torch.ones(1 << 13, 4, device="webgpu"), torch.zeros(4, 1 << 8, device="webgpu")
    found_by(lambda: torch.compile(large)(x, w))
    torch.webgpu.synchronize()

    def fail() -> str:
        with memory_limit(14 << 20), pytest.raises(OutOfMemoryError) as error:
            torch.compile(large)(x, w)
        return str(error.value)

    message, hits = found_by(fail)
    assert hits == 1
    assert len(reads) == 1
    assert "While executing %" in message
    assert "z = y.cumsum(0)" in message
    assert torch.compile(large)(x[:64], w).tolist() == [0] * (1 << 8)
