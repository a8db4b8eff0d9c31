"""Plans of whole functions: traced without running, the same in every process, run again as the function runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.device.processes import assert_ends_well, skip_in_a_browser
from torch import nn

import torch_webgpu
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import TraceError, WebGPUError
from torch_webgpu.plan import Plan, bind, trace, verify


class Block(nn.Module):
    """A language model's block with its embedding: every kind of kernel that a forward pass of one needs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + torch.arange(tokens.shape[1], device=tokens.device)[:, None] / 10
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return (x + self.mlp(x)) @ self.embedding.weight.t()


def in_place(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    y[1:].mul_(x[:-1])
    return x[2:], y.t(), (x * y).sum(), x


def nested(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {"a": [x.softmax(-1), y.argmax(-1)], "b": (x.sort(-1).indices, y)}


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.half() @ y.half().t()).bfloat16().cumsum(0)


@pytest.mark.parametrize("fn", [in_place, nested, halves])
def test_a_plan_does_what_its_function_does(fn: Callable[..., Any], device: torch.device) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 12), torch.randn(6, 12)
    plan = trace(fn, x.to(device), y.to(device))
    assert not verify(plan)
    assert plan == trace(fn, torch.empty(6, 12, device="meta"), torch.empty(6, 12, device="meta"))
    assert Plan.from_json(plan.to_json(), trusted=True) == plan
    bound = bind(plan)
    ours, theirs = (x.to(device), y.to(device)), (x.clone(), y.clone())
    for _ in range(3):
        torch.testing.assert_close(bound(*ours), fn(*theirs), check_device=False, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(ours, theirs, check_device=False)


def test_nothing_runs_while_it_is_traced(device: torch.device) -> None:
    x = torch.ones(8, device=device)
    submissions = engine().device(0).submissions
    plan = trace(in_place, x, torch.empty(8, device="meta"))
    assert engine().device(0).submissions <= submissions + 1  # what was recorded before
    assert torch.equal(x.cpu(), torch.ones(8))
    assert [b.role for b in plan.buffers].count("state") == 2


def test_inputs_may_lie_in_the_middle_of_a_storage(device: torch.device) -> None:
    plan = trace(halves, torch.empty(4, 8, device="meta"), torch.empty(4, 8, device="meta"))
    storage = torch.randn(12, 8, device=device)
    expected = halves(storage[4:8].cpu(), storage[8:].cpu())
    torch.testing.assert_close(bind(plan)(storage[4:8], storage[8:]).cpu(), expected, rtol=1e-2, atol=1e-2)
    slices = [storage.untyped_storage()[begin * 32 : (begin + 4) * 32] for begin in (4, 8)]
    parts = [torch.empty(0, device=device).set_(part).view(4, 8) for part in slices]
    torch.testing.assert_close(bind(plan)(*parts).cpu(), expected, rtol=1e-2, atol=1e-2)


def test_an_input_may_lie_elsewhere_in_its_storage_each_time(device: torch.device) -> None:
    """Also when the submission of the run before is encoded again."""
    base = torch.arange(64.0, device=device)
    bound = bind(trace(lambda t: t * 2 + 1, base[:8]))
    for first in (0, 8, 16, 24, 8, 0, 56):
        part = base[first : first + 8]
        assert torch.equal(bound(part).cpu(), part.cpu() * 2 + 1)


def test_an_input_may_lie_in_another_buffer_each_time(device: torch.device) -> None:
    x = torch.arange(8.0, device=device)
    bound = bind(trace(lambda t: t * 2 + 1, x))
    address, in_the_way = x.data_ptr(), []
    for values in (torch.arange(8.0), torch.arange(8.0) - 5, torch.arange(8.0) * 3):
        x.copy_(values)
        for _ in range(2):
            torch.testing.assert_close(bound(x).cpu(), values * 2 + 1)
        before = engine().allocation(x).buffer
        x.untyped_storage().resize_(0)
        in_the_way.append(torch.zeros(8, device=device))
        torch.webgpu.synchronize()
        x.untyped_storage().resize_(32)
        assert x.data_ptr() == address
        x.zero_()
        torch.webgpu.synchronize()
        assert engine().allocation(x).buffer is not before


def test_what_is_no_input_is_constant(device: torch.device) -> None:
    weight = torch.randn(8, 8, device=device)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ weight + torch.tensor([1.0] * 8, device=device)

    x = torch.randn(3, 8, device=device)
    plan = trace(fn, x)
    expected = fn(x).cpu()
    assert len(plan.constants) == 2
    weight.zero_()
    torch.testing.assert_close(bind(plan)(x).cpu(), expected)
    without = Plan.from_json(plan.to_json())
    with pytest.raises(WebGPUError, match="2 constants and 2 are not at hand"):
        bind(without)
    torch.testing.assert_close(bind(without, contents=plan.contents)(x).cpu(), expected)


def test_random_numbers_go_on_as_in_eager_mode(device: torch.device) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.dropout(x, 0.5), torch.randn(5, device=device)

    x = torch.ones(64, device=device)
    bound = bind(trace(fn, x))
    torch.manual_seed(3)
    ours = [bound(x), bound(x)]
    torch.manual_seed(3)
    theirs = [fn(x), fn(x)]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_another_process_runs_a_saved_plan(device: torch.device, tmp_path: Path) -> None:
    skip_in_a_browser()
    torch.manual_seed(0)
    model = Block().to(device)
    tokens = torch.randint(0, 50, (2, 10), device=device)
    with torch.no_grad():
        plan = trace(model, tokens)
        expected = model(tokens).cpu()
    path = tmp_path / "block.npz"
    plan.save(path)
    torch.save((tokens.cpu(), expected, plan.to_json()), tmp_path / "expected.pt")
    ours = bind(plan)(tokens).cpu()
    torch.testing.assert_close(ours, expected)
    torch.save(ours, tmp_path / "ours.pt")
    assert_ends_well(
        f"""
        from torch_webgpu.plan import Plan, bind
        folder = {str(tmp_path)!r}
        plan = Plan.load(folder + "/block.npz")
        tokens, expected, text = torch.load(folder + "/expected.pt")
        assert plan.to_json() == Plan.from_json(text).to_json()
        result = bind(plan)(tokens.to("webgpu")).cpu()
        assert torch.equal(result, torch.load(folder + "/ours.pt"))
        """
    )


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x * x.sum().item(), "a tensor's values cannot be read"),
        (lambda x: x[x > 0], "cannot be read"),
        (lambda x: x.sum().cpu(), "cannot be read"),
        (lambda x: [torch.webgpu.synchronize(), x][1], "cannot be waited for"),
        (lambda x: x + torch.rand(4, device="webgpu", generator=torch.Generator("webgpu")), "generator of its own"),
        (lambda x: [x + 1, "text"], "must return tensors"),
        (lambda x: OUTSIDE[0].add_(x), "none of its inputs"),
    ],
)
def test_what_cannot_be_a_plan_is_said(fn: Callable[..., Any], why: str, device: torch.device) -> None:
    OUTSIDE[:] = [torch.zeros(4, device=device)]
    x = torch.ones(4, device=device)
    pending = x + 1
    with pytest.raises(TraceError, match=why):
        trace(fn, x)
    # The session goes on.
    assert torch.equal((pending * 2).cpu(), torch.full((4,), 4.0))
    assert torch.equal(OUTSIDE[0].cpu(), torch.zeros(4))
    assert not verify(trace(lambda x: x + 1, x))


OUTSIDE: list[torch.Tensor] = []


def test_what_was_traced_was_never_computed(device: torch.device) -> None:
    kept = []
    trace(lambda x: [kept.append(x * 2), x + 1][1], torch.ones(4, device=device))
    with pytest.raises(TraceError, match="never computed"):
        kept[0].cpu()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x, x),
        lambda x: (x.half(),),
        lambda x: (x.t(),),
        lambda x: (x[:2],),
        lambda x: (x.cpu(),),
        lambda x: (torch.zeros(33, device=x.device)[1:].view(4, 8),),
    ],
)
def test_other_tensors_than_the_traced_ones_are_refused(wrong: Callable[..., Any], device: torch.device) -> None:
    x = torch.ones(4, 8, device=device)
    bound = bind(trace(lambda x: x + 1, x))
    with pytest.raises(ValueError, match="plan"):
        bound(*wrong(x))


def test_a_damaged_file_is_refused(device: torch.device, tmp_path: Path) -> None:
    weight = torch.ones(64, device=device)
    plan = trace(lambda x: x + weight, torch.ones(64, device=device))
    path = tmp_path / "plan.npz"
    plan.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(WebGPUError, match="holds no plan"):
        Plan.load(path)
    (tmp_path / "text").write_text("no plan at all")
    with pytest.raises(WebGPUError, match="holds no plan"):
        Plan.load(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "absent")
    assert torch_webgpu.plan.trace is trace


def test_plans_are_the_same_in_every_process(device: torch.device) -> None:
    """Nothing in one counts what its process did before."""
    script = """
        from torch_webgpu.plan import trace
        for _ in range({before}):
            (torch.rand(3, 5, device="webgpu") + torch.ones(5, device="webgpu")).sum().item()
        table = torch.empty(10, 4, device="meta")
        tokens = torch.empty(3, dtype=torch.int64, device="meta")
        print(trace(lambda w, t: torch.nn.functional.gelu(w[t].cumsum(0)), table, tokens).to_json())
    """
    first, second = (assert_ends_well(script.format(before=before)) for before in (0, 2))
    assert first == second
