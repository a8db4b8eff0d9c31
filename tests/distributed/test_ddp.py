"""DistributedDataParallel on two ranks: every option trains as one process does on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

DEVICE = "webgpu"
STEPS = 3
LIMIT = 2e-5
"""Of the difference of a parameter after the steps, of SGD: rounding in another order."""


def network(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 20, generator=generator), torch.randn(16, 3, generator=generator)


def own(t: torch.Tensor) -> torch.Tensor:
    return t.chunk(dist.get_world_size())[dist.get_rank()].to(DEVICE)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, make: Callable[..., Any] = sgd) -> nn.Module:
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def reference() -> nn.Module:
    return train(network(), *batch())


def assert_same(ours: nn.Module, expected: nn.Module, limit: float = LIMIT) -> None:
    for (name, p), q in zip(ours.named_parameters(), expected.parameters(), strict=True):
        worst = (p.detach().cpu().float() - q.detach()).abs().max().item()
        assert worst < limit, f"{name}: {worst}"


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "device_ids": {"device_ids": [0]},
    "small buckets": {"bucket_cap_mb": 0.001},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
    "without buffers": {"broadcast_buffers": False},
    "without synchronisation at the start": {"init_sync": False},
    "static graph, bucket views": {"static_graph": True, "gradient_as_bucket_view": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@on_ranks
def test_options(name: str) -> None:
    model = DistributedDataParallel(network().to(DEVICE), **OPTIONS[name])
    train(model, *map(own, batch()))
    assert_same(model.module, reference())


@on_ranks
def test_parameters_that_some_ranks_do_not_use() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes, self.never = nn.Linear(20, 3), nn.Linear(20, 3), nn.Linear(20, 3)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.always(x) + (self.sometimes(x) if both else 0)

    torch.manual_seed(0)
    model = DistributedDataParallel(Branches().to(DEVICE), find_unused_parameters=True)
    expected, (x, y) = copy.deepcopy(model.module).cpu(), batch()
    for _ in range(2):
        model.zero_grad()
        mse_loss(model(own(x), dist.get_rank() == 0), own(y)).backward()
    (mse_loss(expected(x[:8], True), y[:8]) / 2 + mse_loss(expected(x[8:], False), y[8:]) / 2).backward()
    torch.testing.assert_close(model.module.sometimes.weight.grad.cpu(), expected.sometimes.weight.grad)
    torch.testing.assert_close(model.module.always.weight.grad.cpu(), expected.always.weight.grad)
    assert model.module.never.weight.grad is None


@on_ranks
def test_no_sync() -> None:
    x, y = batch()
    model = DistributedDataParallel(network().to(DEVICE))
    (first, second), (y1, y2) = own(x).chunk(2), own(y).chunk(2)
    with model.no_sync():
        (mse_loss(model(first), y1) / 2).backward()
    (mse_loss(model(second), y2) / 2).backward()
    expected = network()
    mse_loss(expected(x), y).backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


@on_ranks
def test_join_of_ranks_with_fewer_batches() -> None:
    model = DistributedDataParallel(network().to(DEVICE))
    steps = 0
    with model.join():
        for _ in range(3 if dist.get_rank() == 0 else 1):
            model(own(batch()[0])).sum().backward()
            steps += 1
    assert steps == (3 if dist.get_rank() == 0 else 1)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, [p.detach().cpu() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gathered, strict=True))


def with_then(state, bucket):  # type: ignore[no-untyped-def]
    """Without annotations: DDP compares them with classes, and here they would be strings."""
    mean = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda future: future.value()[0])


def power_sgd() -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)


HOOKS: dict[str, tuple[Any, Any, float]] = {
    "allreduce": (default_hooks.allreduce_hook, None, LIMIT),
    "of Python, with then": (with_then, None, LIMIT),
    "float16": (default_hooks.fp16_compress_hook, None, 5e-3),
    "bfloat16": (default_hooks.bf16_compress_hook, None, 3e-2),
    "float16 around another": (default_hooks.fp16_compress_wrapper(with_then), None, 5e-3),
    "bfloat16 around another": (default_hooks.bf16_compress_wrapper(with_then), None, 3e-2),
    "PowerSGD": (powerSGD_hook.powerSGD_hook, power_sgd, float("inf")),  # approximates: ranks must agree, no more
}


@pytest.mark.parametrize("name", HOOKS)
@on_ranks
def test_hooks(name: str) -> None:
    hook, state, limit = HOOKS[name]
    model = DistributedDataParallel(network().to(DEVICE))
    model.register_comm_hook(state() if state is not None else None, hook)
    train(model, *map(own, batch()))
    assert_same(model.module, reference(), limit)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, [p.detach().cpu() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gathered, strict=True))


@pytest.mark.parametrize(("kind", "limit"), [("ALLREDUCE", LIMIT), ("FP16_COMPRESS", 5e-3)])
@on_ranks
def test_builtin_hooks(kind: str, limit: float) -> None:
    model = DistributedDataParallel(network().to(DEVICE))
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    train(model, *map(own, batch()))
    assert_same(model.module, reference(), limit)


@on_ranks
def test_mixed_precision() -> None:
    half = torch.float16
    precision = _MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half)
    model = DistributedDataParallel(network().to(DEVICE), mixed_precision=precision)
    train(model, *map(own, batch()))
    assert_same(model.module, reference(), 1e-2)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@on_ranks
def test_autocast_and_scaler() -> None:
    model, scaler = DistributedDataParallel(network().to(DEVICE)), torch.amp.GradScaler(DEVICE)
    optimizer, (x, y) = sgd(model.parameters()), batch()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            loss = mse_loss(model(own(x)), own(y).half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_same(model.module, reference(), 1e-2)


@pytest.mark.parametrize("reentrant", [False, True])
@on_ranks
def test_checkpointed_blocks(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x.requires_grad_(), use_reentrant=reentrant)

    model = DistributedDataParallel(Checkpointed().to(DEVICE), static_graph=reentrant)
    train(model, *map(own, batch()))
    assert_same(model.module.inner, reference())


@pytest.mark.parametrize("dims", [2, 3, 4])
@on_ranks
def test_sync_batch_norm(dims: int) -> None:
    """Also with batches of different sizes, and what the running statistics become."""
    torch.manual_seed(0)
    norm: nn.Module = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[dims](6)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    expected = copy.deepcopy(norm)
    x = torch.randn(7, 6, *[5, 4][: dims - 2]) * 3 + 1
    weights = torch.randn_like(x)
    whole = x.clone().requires_grad_()
    (expected(whole) * weights).sum().backward()
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(norm).to(DEVICE)
    model = DistributedDataParallel(synced)
    part = slice(0, 3) if dist.get_rank() == 0 else slice(3, 7)
    mine = x[part].to(DEVICE).requires_grad_()
    (model(mine) * weights[part].to(DEVICE)).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), whole.grad[part], rtol=1e-4, atol=1e-4)
    for p, q in zip(synced.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(2 * p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-4)
    for p, q in zip(synced.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(p.cpu(), q)


@on_ranks
def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network().to(DEVICE))

    def sharded(parameters: Iterable[nn.Parameter]) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, momentum=0.9)

    train(model, *map(own, batch()), sharded)
    assert_same(model.module, reference())


@on_ranks
def test_zero_overlapping_with_the_backward_pass() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network().to(DEVICE), static_graph=True, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
    x, y = map(own, batch())
    losses = []
    for _ in range(6):
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@on_ranks
def test_averaging_parameters_now_and_then() -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = network().to(DEVICE)
    averager = PeriodicModelAverager(period=1, warmup_steps=0)
    (model(own(batch()[0])).sum() * (1 + dist.get_rank())).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(float(dist.get_rank()))
    averager.average_parameters(model.parameters())
    for p, q in zip(model.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach() + 0.5)


@pytest.mark.parametrize("order", ["compiled in DDP", "DDP compiled"])
@on_ranks
def test_compiled(order: str) -> None:
    model = network().to(DEVICE)
    if order == "DDP compiled":
        model = torch.compile(DistributedDataParallel(model))
    else:
        model = DistributedDataParallel(torch.compile(model))
    train(model, *map(own, batch()))
    assert_same(model, reference())
