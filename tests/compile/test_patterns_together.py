"""Independent dispatches of a plan run as one: what does, what must not, and that nothing changes but their number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from torch_webgpu.compiler.passes.horizontal_fusion import MAX_TEXT, fuse_horizontally
from torch_webgpu.compiler.passes.require import requirements
from torch_webgpu.engine.record import engine
from torch_webgpu.plan import Plan, Step, bind, trace, verify

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def projections(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    """Products of one input with several matrices, each with its bias."""
    return [F.linear(x, w, b) for w, b in zip(weights[::2], weights[1::2])]


def run(fn: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor) -> Plan:
    """Checks that a plan does what eager mode does; returns it."""
    given = [t.clone() for t in inputs]
    plan = trace(fn, *given)
    assert not verify(plan)
    got, want = bind(plan)(*given), fn(*inputs)
    for one, other in zip((*got, *given), (*want, *inputs), strict=True):
        torch.testing.assert_close(one, other)
    return plan


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("k", "sizes"), [(64, (48, 16, 16)), (37, (5, 1, 2)), (8, (3,)), (130, (7, 9))], ids=str)
def test_products_of_one_input(k: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    on_cpu = [torch.randn(1, k), *(t for n in sizes for t in (torch.randn(n, k) / k**0.5, torch.randn(n)))]
    inputs = [t.to("webgpu", dtype) for t in on_cpu]
    plan = run(projections, *inputs)
    kinds = {step.kernel for step in plan.steps if isinstance(step, Step)}
    at_once = (engine().device(0).target.max_buffers - 1) // 3
    if len(sizes) <= at_once:
        assert len(plan.steps) == len(kinds)  # what has equal kernels is one dispatch
    assert len(plan.steps) <= -(-len(sizes) // at_once) + (k == 37)  # a matrix of one row has a kernel of its own
    for got, want in zip(projections(*inputs), projections(*[t.cpu().double() for t in inputs])):
        torch.testing.assert_close(got.cpu().double(), want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_products_of_integers() -> None:
    x, *weights = (torch.randint(-9, 9, shape, device="webgpu") for shape in ((1, 12), (5, 12), (7, 12)))
    plan = run(lambda x, a, b: [x @ a.t(), x @ b.t()], x, *weights)
    assert len(plan.steps) == 1


def test_small_kernels_of_different_kinds() -> None:
    x, y = torch.randn(300, device="webgpu"), torch.randn(5, 7, device="webgpu")
    plan = run(lambda x, y: [x.sin() + 1, x.flip(0), y.exp(), torch.arange(11, device="webgpu")], x, y)
    assert len(plan.steps) == 1


def test_writes_through_an_index_into_several_tensors() -> None:
    caches = [torch.zeros(2, 6, 4, device="webgpu") for _ in range(2)]
    news = [torch.randn(2, 1, 4, device="webgpu") for _ in range(2)]
    place = torch.tensor([3], device="webgpu")

    def write(*t: torch.Tensor) -> list[torch.Tensor]:
        return [t[0].index_copy_(1, t[4], t[2]), t[1].index_copy_(1, t[4], t[3])]

    plan = run(write, *caches, *news, place)
    assert len(plan.steps) == 1
    with pytest.raises(IndexError, match="6"):
        bind(plan)(*caches, *news, place + 3)[0].cpu()


def test_long_kernels_stay_apart() -> None:
    """Compilers would take seconds for eight transforms in one kernel."""
    lines = [torch.randn(2, 1000, dtype=torch.complex64, device="webgpu") for _ in range(8)]
    plan = run(lambda *lines: [torch.fft.fft(line) for line in lines], *lines)
    assert 2 < len(plan.steps) <= 8
    assert all(len(kernel.body) < 2 * MAX_TEXT for kernel in plan.kernels)


def test_what_depends_on_another_stays_behind_it() -> None:
    x = torch.randn(64, 64, device="webgpu")
    plan = run(lambda x: [x.cumsum(0).cumsum(1).flip(0), x.add_(1).sum(0)], x)
    assert len(plan.steps) >= 3


@pytest.mark.parametrize("buffers", [4, 5, 8, 10])
def test_no_more_buffers_than_the_adapter_binds(buffers: int) -> None:
    """A plan for such an adapter has more steps, and still none of the products alone when two fit."""
    if buffers > engine().device(0).target.max_buffers:
        pytest.skip("the plan is bound, too, and this adapter binds fewer")
    x = torch.randn(1, 16, device="webgpu")
    weights = [
        t for n in (8, 16, 24, 32) for t in (torch.randn(n, 16, device="webgpu"), torch.randn(n, device="webgpu"))
    ]
    target = engine().device(0).target
    device = engine().device(0)
    whole = trace(projections, x, *weights)
    parts = whole.steps[0]
    assert isinstance(parts, Step)
    assert len(whole.steps) == -(-4 // ((device.target.max_buffers - 1) // 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_webgpu.compiler.compile.fuse_horizontally", lambda plan, target: plan)
        apart = trace(projections, x, *weights)
    small = fuse_horizontally(apart, replace(target, max_buffers=buffers))
    small = replace(small, requires=requirements(small, target))
    assert len(apart.steps) == 4
    assert len(small.steps) == -(-4 // ((buffers - 1) // 3))
    assert all(len(step.bindings) <= buffers for step in small.steps if isinstance(step, Step))
    assert not verify(small)
    for got, want in zip(bind(small)(x, *weights), projections(x, *weights), strict=True):
        assert torch.equal(got, want)


OPERATIONS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: a.add_(b.sum()),
    lambda a, b: a.copy_(b.flatten()[: a.numel()].view(a.shape)) if b.numel() >= a.numel() else a.neg_(),
    lambda a, b: a.mul(2),
    lambda a, b: a.flip(0),
    lambda a, b: a.flatten()[1:].mul_(0.5),
    lambda a, b: a.cumsum(0),
    lambda a, b: a.index_fill_(0, torch.zeros(1, dtype=torch.long, device=a.device), 3),
    lambda a, b: a.to(torch.float16).float(),
    lambda a, b: a @ b.t() if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1] else a.sin(),
]


@pytest.mark.parametrize("seed", range(12))
def test_any_program_does_what_it_did(seed: int) -> None:
    """Random programs over a few tensors of different sizes, with writes into them and into parts of them."""
    choose = random.Random(seed)
    shapes = [(4, 6), (6,), (3, 6), (1, 6), (17,), (2, 3, 5)]
    script = [(choose.choice(OPERATIONS), choose.random(), choose.random()) for _ in range(20)]

    def program(*tensors: torch.Tensor) -> list[torch.Tensor]:
        known = list(tensors)
        for operation, one, other in script:
            known.append(operation(known[int(one * len(known))], known[int(other * len(known))]))
        return known[len(tensors) :]

    torch.manual_seed(seed)
    run(program, *[torch.randn(shape, device="webgpu") for shape in shapes])
