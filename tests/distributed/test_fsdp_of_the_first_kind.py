"""FSDP of the first kind: its options train as one process does, and its states go into another model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_ddp import STEPS, batch, network, reference, sgd
from tests.distributed.test_fsdp_beside_cpu import of_rank
from tests.distributed.test_sharding import assert_same
from tests.slow import slow_but
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.nn.functional import mse_loss

DEVICE = "webgpu"
half, brain, single = torch.float16, torch.bfloat16, torch.float32


@contextmanager
def with_type(model: nn.Module, kind: StateDictType | None) -> Iterator[None]:
    if kind is None:
        yield
    else:
        with FullyShardedDataParallel.state_dict_type(model, kind):
            yield


def first_kind(device: str, **options: Any) -> FullyShardedDataParallel:
    where = torch.device(DEVICE, torch.webgpu.current_device()) if device == DEVICE else None
    model = network().to(device)
    for n in (0, 2, 4):
        model[n] = FullyShardedDataParallel(model[n], device_id=where, **options)
    return FullyShardedDataParallel(model, device_id=where, **options)


def train_first_kind(model: FullyShardedDataParallel, device: str, clip: bool = False) -> float:
    optimizer, (x, y) = sgd(model.parameters()), of_rank(device)
    norm = 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        if clip:
            norm = model.clip_grad_norm_(0.05).item()
        optimizer.step()
    return norm


FIRST_KIND: dict[str, tuple[dict[str, Any], float]] = {
    **{f"{s.name}, {o}": ({"sharding_strategy": s, "use_orig_params": o}, 2e-5)
       for s in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD)
       for o in (False, True)},
    "offloaded": ({"cpu_offload": CPUOffload(offload_params=True)}, 2e-5),
    "float16": ({"mixed_precision": MixedPrecision(half, single, half)}, 5e-3),
    "bfloat16, sums too": ({"mixed_precision": MixedPrecision(brain, brain, brain)}, 1e-2),
    "sums in float16": ({"mixed_precision": MixedPrecision(None, half), "use_orig_params": True}, 5e-3),
    "before": ({"backward_prefetch": BackwardPrefetch.BACKWARD_PRE, "forward_prefetch": True}, 2e-5),
    "after": ({"backward_prefetch": BackwardPrefetch.BACKWARD_POST, "limit_all_gathers": False}, 2e-5),
    "without prefetch": ({"backward_prefetch": None, "sync_module_states": True}, 2e-5),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", slow_but(["float16", "offloaded"], FIRST_KIND))
@on_ranks
def test_first_kind(name: str) -> None:
    options, limit = FIRST_KIND[name]
    model = first_kind(DEVICE, **options)
    train_first_kind(model, DEVICE)
    with FullyShardedDataParallel.summon_full_params(model):
        assert_same(model, reference(), limit)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2])
@on_ranks
def test_hybrid(strategy: Any) -> None:
    """Two ranks shard: in a mesh of (2, 1), FSDP would take one rank for the world, and shard and reduce nothing."""
    mesh = init_device_mesh(DEVICE, (1, 2), mesh_dim_names=("replicate", "shard"))
    model = first_kind(DEVICE, sharding_strategy=strategy, device_mesh=mesh)
    train_first_kind(model, DEVICE)
    with FullyShardedDataParallel.summon_full_params(model):
        assert_same(model, reference())


@pytest.mark.slow
@on_ranks
def test_clipped_and_summoned() -> None:
    expected, (x, y) = network(), batch()
    optimizer = sgd(expected.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(expected(x), y).backward()
        total = nn.utils.clip_grad_norm_(expected.parameters(), 0.05)
        optimizer.step()
    ours = first_kind(DEVICE)
    assert train_first_kind(ours, DEVICE, clip=True) == pytest.approx(total.item(), rel=1e-4)
    for options in ({}, {"offload_to_cpu": True, "writeback": False}, {"rank0_only": True, "writeback": False}):
        with FullyShardedDataParallel.summon_full_params(ours, **options):
            if not options.get("rank0_only") or dist.get_rank() == 0:
                assert_same(ours, expected)
    with FullyShardedDataParallel.summon_full_params(ours), torch.no_grad():
        for p in ours.parameters():
            p.fill_(1.0)
    with FullyShardedDataParallel.summon_full_params(ours):
        assert all((p == 1).all() for p in ours.parameters())


@pytest.mark.slow
@on_ranks
def test_accumulates_and_ignores() -> None:
    model = network().to(DEVICE)
    model = FullyShardedDataParallel(model, ignored_states=[model[4].bias], use_orig_params=True)
    x, y = of_rank(DEVICE)
    with model.no_sync():
        (mse_loss(model(x[:4]), y[:4]) / 2).backward()
    (mse_loss(model(x[4:]), y[4:]) / 2).backward()
    expected = network()
    mse_loss(expected(batch()[0]), batch()[1]).backward()
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        of_name = dict(expected.named_parameters())
        for name, p in model.named_parameters():
            if name == "4.bias":
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            torch.testing.assert_close(p.grad.cpu(), of_name[name].grad, rtol=1e-4, atol=1e-5)


KINDS = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", slow_but([StateDictType.SHARDED_STATE_DICT], [None, *KINDS]))
@on_ranks
def test_of_states(kind: StateDictType | None) -> None:
    """The state of a model and of its optimizer goes into another, which then trains the same."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), 0.01)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x, y = of_rank(DEVICE)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()

    first, second = first_kind(DEVICE, use_orig_params=True), first_kind(DEVICE, use_orig_params=True)
    optimizer, other = optimizer_of(first), optimizer_of(second)
    step(first, optimizer)
    step(second, other)
    step(second, other)
    with with_type(first, kind), with_type(second, kind):
        state, of_optimizer = first.state_dict(), FullyShardedDataParallel.optim_state_dict(first, optimizer)
        second.load_state_dict(state)
        other.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(second, other, of_optimizer))
    step(first, optimizer)
    step(second, other)
    with FullyShardedDataParallel.summon_full_params(first), FullyShardedDataParallel.summon_full_params(second):
        for p, q in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(p, q)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@on_ranks
def test_of_local_states() -> None:
    first, second = first_kind(DEVICE), first_kind(DEVICE)
    train_first_kind(first, DEVICE)
    with (
        with_type(first, StateDictType.LOCAL_STATE_DICT),
        with_type(second, StateDictType.LOCAL_STATE_DICT),
    ):
        second.load_state_dict(first.state_dict())
    with FullyShardedDataParallel.summon_full_params(second):
        assert_same(second, reference())


@pytest.mark.slow
@on_ranks
def test_compiled() -> None:
    model = first_kind(DEVICE, use_orig_params=True)
    compiled = torch.compile(model)
    optimizer, (x, y) = sgd(model.parameters()), of_rank(DEVICE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(compiled(x), y).backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        assert_same(model, reference())
