"""Sharded models on two ranks: FSDP, DTensor, tensor and pipeline parallelism, and their checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_ddp import batch, network, own, reference, train
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn.functional import mse_loss

DEVICE = "webgpu"


def mesh() -> DeviceMesh:
    return init_device_mesh(DEVICE, (2,))


def whole(p: torch.Tensor) -> torch.Tensor:
    p = p.detach()
    return (p.full_tensor() if isinstance(p, DTensor) else p).cpu().float()


def assert_same(ours: nn.Module, expected: nn.Module, limit: float = 2e-5) -> None:
    for (name, p), q in zip(ours.named_parameters(), expected.parameters(), strict=True):
        worst = (whole(p) - q.detach()).abs().max().item()
        assert worst < limit, f"{name}: {worst}"


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """Each layer by itself, and the rest."""
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


FSDP_OPTIONS: dict[str, tuple[dict[str, Any], float]] = {
    "default": ({}, 2e-5),
    "kept after forward": ({"reshard_after_forward": False}, 2e-5),
    "float16": ({"mp_policy": MixedPrecisionPolicy(torch.float16, torch.float16)}, 1e-2),
    "bfloat16, sums in float32": ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, 5e-2),
    "on the CPU between": ({"offload_policy": CPUOffloadPolicy()}, 2e-5),
    "on the CPU, not pinned": ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 2e-5),
}


@pytest.mark.parametrize("name", FSDP_OPTIONS)
@on_ranks
def test_fully_shard(name: str) -> None:
    options, limit = FSDP_OPTIONS[name]
    model = sharded(network() if "CPU" in name else network().to(DEVICE), mesh=mesh(), **options)
    train(model, *map(own, batch()))
    assert_same(model, reference(), limit)


@on_ranks
def test_fully_shard_hybrid_meta_and_clipped() -> None:
    replicas = init_device_mesh(DEVICE, (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(network().to(DEVICE), mesh=replicas)
    train(model, *map(own, batch()))
    assert_same(model, reference())
    with torch.device("meta"):
        empty = network()
    empty = sharded(empty, mesh=mesh())
    empty.to_empty(device=DEVICE)
    for p, q in zip(empty.parameters(), network().parameters(), strict=True):
        with torch.no_grad():
            p.copy_(distribute_tensor(q.detach().to(DEVICE), mesh(), [Shard(0)]))
    x, y = batch()
    mse_loss(empty(own(x)), own(y)).backward()
    expected = network()
    mse_loss(expected(x), y).backward()
    norm = nn.utils.clip_grad_norm_(empty.parameters(), 0.01)
    ours = norm.full_tensor() if isinstance(norm, DTensor) else norm
    torch.testing.assert_close(ours.cpu(), nn.utils.clip_grad_norm_(expected.parameters(), 0.01))
    torch.testing.assert_close(whole(empty[0].weight.grad), expected[0].weight.grad)


@on_ranks
def test_fully_shard_accumulates_prefetches_and_compiles() -> None:
    model = sharded(network().to(DEVICE), mesh=mesh())
    (first, second), (y1, y2) = (own(t).chunk(2) for t in batch())
    model[0].set_modules_to_forward_prefetch([model[2]])
    model[2].set_modules_to_backward_prefetch([model[0]])
    model.set_requires_gradient_sync(False)
    (mse_loss(model(first), y1) / 2).backward()
    model.set_requires_gradient_sync(True)
    (mse_loss(model(second), y2) / 2).backward()
    x, y = batch()
    expected = network()
    mse_loss(expected(x), y).backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(p.grad), q.grad)
    handle = model[0].unshard(async_op=True)
    handle.wait()
    model[0].reshard()
    compiled = network().to(DEVICE)
    for n in (0, 2):
        compiled[n].compile()
    train(sharded(compiled, mesh=mesh()), *map(own, batch()))
    assert_same(compiled, reference())


@on_ranks
def test_fsdp_of_the_first_kind() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(
            network().to(DEVICE), device_id=torch.device(DEVICE, 0), sharding_strategy=strategy, use_orig_params=True
        )
        train(model, *map(own, batch()))
        with FullyShardedDataParallel.summon_full_params(model):
            assert_same(model, reference())


@on_ranks
def test_redistribution() -> None:
    x = torch.arange(35.0).reshape(7, 5)
    for placement in (Shard(0), Shard(1), Replicate()):
        ours = distribute_tensor(x.to(DEVICE), mesh(), [placement])
        for other in (Shard(0), Shard(1), Replicate()):
            assert torch.equal(ours.redistribute(mesh(), [other]).full_tensor().cpu(), x)
    part = DTensor.from_local(x.to(DEVICE), mesh(), [Partial()])
    assert torch.equal(part.full_tensor().cpu(), 2 * x)
    mean = DTensor.from_local(x.to(DEVICE), mesh(), [Partial("avg")])
    assert torch.equal(mean.redistribute(mesh(), [Shard(0)]).full_tensor().cpu(), x)
    product = distribute_tensor(x.to(DEVICE), mesh(), [Shard(1)]) @ distribute_tensor(
        x.t().to(DEVICE), mesh(), [Shard(0)]
    )
    torch.testing.assert_close(product.full_tensor().cpu(), x @ x.t())


@on_ranks
def test_tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(self.norm(x)).relu())

    x = torch.randn(2, 6, 8)
    model = parallelize_module(
        Block().to(DEVICE),
        mesh(),
        {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()},
    )
    expected = Block()
    out = model(x.chunk(2, dim=1)[dist.get_rank()].to(DEVICE))
    out.square().sum().backward()
    reference_out = expected(x)
    reference_out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), reference_out.detach())
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-4, atol=1e-4)
    logits = torch.randn(4, 10)
    sharded_logits = distribute_tensor(logits.to(DEVICE), mesh(), [Shard(1)]).requires_grad_()
    target = torch.tensor([1, 9, 4, 0])
    with loss_parallel():
        loss = nn.functional.cross_entropy(sharded_logits, target.to(DEVICE))
        loss.backward()
    plain = logits.clone().requires_grad_()
    nn.functional.cross_entropy(plain, target).backward()
    torch.testing.assert_close(whole(sharded_logits.grad), plain.grad)


@on_ranks
def test_attention_by_heads() -> None:
    from torch.nn.functional import scaled_dot_product_attention

    masks = (None, torch.randn(2, 4, 40, 40), torch.randn(1, 1, 40, 40))
    for length, mask in ((3, None), *((40, mask) for mask in masks)):  # few queries, and many: two algorithms
        q, k, v = (torch.randn(2, 4, length, 8) for _ in range(3))
        plain = [t.clone().requires_grad_() for t in (q, k, v)]
        expected = scaled_dot_product_attention(*plain, mask, is_causal=mask is None)
        expected.square().sum().backward()
        for dim in (0, 1):
            parts = [distribute_tensor(t.to(DEVICE), mesh(), [Shard(dim)]).requires_grad_() for t in (q, k, v)]
            bias = None if mask is None else distribute_tensor(mask.to(DEVICE), mesh(), [Replicate()])
            out = scaled_dot_product_attention(*parts, bias, is_causal=mask is None)
            assert out.placements == (Shard(dim),)
            out.square().sum().backward()
            torch.testing.assert_close(whole(out), expected.detach(), rtol=1e-4, atol=1e-5)
            for ours, theirs in zip(parts, plain, strict=True):
                torch.testing.assert_close(whole(ours.grad), theirs.grad, rtol=1e-4, atol=1e-4)


@on_ranks
def test_random_numbers_are_those_of_one_process() -> None:
    from torch.distributed.tensor import rand, randn

    torch.manual_seed(3)
    expected = [torch.rand(8, 16, device=DEVICE), torch.randn(4, 8, device=DEVICE), torch.rand(4, device=DEVICE)]
    torch.manual_seed(3)
    ours = [rand(8, 16, device_mesh=mesh(), placements=[Shard(0)]),
            randn(4, 8, device_mesh=mesh(), placements=[Shard(0)]), torch.rand(4, device=DEVICE)]  # fmt: skip
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.equal(whole(mine), theirs.cpu())
    torch.manual_seed(3)
    dropped = nn.functional.dropout(distribute_tensor(torch.ones(8, 16, device=DEVICE), mesh(), [Shard(0)]), 0.5)
    torch.manual_seed(3)
    assert torch.equal(whole(dropped), nn.functional.dropout(torch.ones(8, 16, device=DEVICE), 0.5).cpu())


@on_ranks
def test_distribute_module() -> None:
    model, expected, (x, y) = distribute_module(network().to(DEVICE), mesh()), network(), batch()
    data, target = (distribute_tensor(t.to(DEVICE), mesh(), [Shard(0)]) for t in (x, y))
    (model(data) - target).square().sum().backward()
    (expected(x) - y).square().sum().backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-4, atol=1e-4)


@on_ranks
def test_checkpoints() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = sharded(network().to(DEVICE), mesh=mesh())
    train(model, *map(own, batch()))
    dcp.save(get_model_state_dict(model), checkpoint_id=Path(folder[0]) / "first")
    dcp.async_save(get_model_state_dict(model), checkpoint_id=Path(folder[0]) / "second").result()
    for name in ("first", "second"):
        other = sharded(network(width=32).to(DEVICE), mesh=mesh())
        state = get_model_state_dict(other)
        dcp.load(state, checkpoint_id=Path(folder[0]) / name)
        set_model_state_dict(other, state)
        assert_same(other, reference())
    plain = network().to(DEVICE)  # another layout: nothing is sharded
    state = get_model_state_dict(plain)
    dcp.load(state, checkpoint_id=Path(folder[0]) / "first")
    assert_same(plain, reference())
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    third = sharded(network().to(DEVICE), mesh=mesh())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(third, full if dist.get_rank() == 0 else {}, options=options)
    assert_same(third, reference())


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@on_ranks
def test_pipelines(name: str) -> None:
    from torch.distributed import pipelining

    rank, layers = dist.get_rank(), network()
    half = nn.Sequential(*list(layers)[3 * rank : 3 * rank + 3]).to(DEVICE)
    stage = pipelining.PipelineStage(half, rank, 2, torch.device(DEVICE, 0))
    schedule = getattr(pipelining, name)(stage, n_microbatches=4, loss_fn=mse_loss)
    x, y = batch()
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(x.to(DEVICE))
    else:
        schedule.step(target=y.to(DEVICE), losses=losses)
    expected = network()
    mse_loss(expected(x), y).backward()
    for p, q in zip(
        half.parameters(), nn.Sequential(*list(expected)[3 * rank : 3 * rank + 3]).parameters(), strict=True
    ):
        torch.testing.assert_close(p.grad.cpu(), q.grad)
