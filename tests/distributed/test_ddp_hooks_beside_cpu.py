"""Hooks of DistributedDataParallel that train as the same two ranks do on the CPU, through gloo."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_ddp import STEPS, batch, network, sgd
from tests.distributed.test_ddp_beside_cpu import Trained, assert_as_on_the_cpu, ddp, trained
from tests.slow import slow_but
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, default_hooks, register_ddp_comm_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from torch_webgpu.distributed.ddp import in_order

DEVICE = "webgpu"


@pytest.mark.parametrize("kind", slow_but(["QUANTIZE_PER_TENSOR"], DDPCommHookType.__members__))
@on_ranks
def test_registered_hooks(kind: str) -> None:
    def wrap(model: nn.Module, device: str) -> nn.Module:
        torch.manual_seed(0)
        model = DistributedDataParallel(model)
        if kind not in NOT_ON_GLOO or device == DEVICE:
            register_ddp_comm_hook(DDPCommHookType[kind], model, dist.group.WORLD if "QUANTIZE" in kind else None)
        return model

    assert_as_on_the_cpu(network, wrap, {"FP16_COMPRESS": 2e-3, **NOT_ON_GLOO}.get(kind, 2e-5))


NOT_ON_GLOO = {"BF16_COMPRESS": 2e-2, "QUANTIZE_PER_TENSOR": 1e-2, "QUANTIZE_PER_CHANNEL": 1e-2}
"""What only NCCL's groups take, and how far it is from training without a hook."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ALLREDUCE", "FP16_COMPRESS"])
@on_ranks
def test_builtin_hooks(kind: str) -> None:
    def wrap(model: nn.Module, device: str) -> nn.Module:
        model = DistributedDataParallel(model)
        model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
        return model

    assert_as_on_the_cpu(network, wrap, 2e-3)


@pytest.mark.parametrize("error_feedback", slow_but([True], [False, True]))
@on_ranks
def test_power_sgd(error_feedback: bool) -> None:
    """With several buckets, whose callbacks call collectives."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def wrap(model: nn.Module, device: str) -> nn.Module:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, use_error_feedback=error_feedback,
            warm_start=error_feedback, min_compression_rate=1, orthogonalization_epsilon=1e-6,
        )  # fmt: skip
        model = DistributedDataParallel(model, bucket_cap_mb=0.002)
        hook = powerSGD_hook.powerSGD_hook
        model.register_comm_hook(state, in_order(hook) if device == "cpu" else hook)  # gloo's callbacks have no order
        return model

    assert_as_on_the_cpu(network, wrap, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("local", [False, True])
@on_ranks
def test_post_local_sgd(local: bool) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]

    def run(device: str) -> Trained:
        model = DistributedDataParallel(network().to(device))
        state = post_localSGD_hook.PostLocalSGDState(None, alone, 1, post_local_gradient_allreduce=not local)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(sgd(model.parameters()), PeriodicModelAverager(period=2, warmup_steps=1))
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        for _ in range(5):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for theirs, mine in zip(run("cpu"), run(DEVICE), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bucket_view", slow_but([True], [False, True]))
@on_ranks
def test_optimizers_in_the_backward_pass(bucket_view: bool) -> None:
    """``_apply_optimizer_in_backward``: each bucket's parameters change when it is reduced."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    def run(device: str) -> Trained:
        model = network().to(device)
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1, "momentum": 0.9})
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        for _ in range(STEPS):
            mse_loss(wrapped(x), y).backward()
        return [p.detach().cpu() for p in model.parameters()]

    ours = run(DEVICE)
    for mine, theirs in zip(ours, trained(network, ddp(), "cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["allreduce", "float16"])
@on_ranks
def test_optimizers_after_hooks(hook: str) -> None:
    """``_hook_then_optimizer``: a callback changes a bucket's parameters."""
    from torch.distributed.algorithms.ddp_comm_hooks import optimizer_overlap_hooks
    from torch.distributed.optim import functional_sgd

    def run(device: str) -> Trained:
        model = DistributedDataParallel(network().to(device))
        optimizer = functional_sgd._FunctionalSGD([], lr=0.1, momentum=0.9, _allow_empty_param_list=True)
        plain = default_hooks.fp16_compress_hook if hook == "float16" else default_hooks.allreduce_hook
        state = optimizer_overlap_hooks._OptimizerHookState(optimizer)
        model.register_comm_hook(None, optimizer_overlap_hooks._hook_then_optimizer(plain, state))
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        for _ in range(STEPS):
            model.zero_grad()
            mse_loss(model(x), y).backward()
        return [p.detach().cpu() for p in model.parameters()]

    for theirs, mine in zip(run("cpu"), run(DEVICE), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("interleaved", "shard_buckets"), slow_but([(True, True)], itertools.product((False, True), repeat=2))
)
@on_ranks
def test_zero_overlapping_with_the_backward_pass(interleaved: bool, shard_buckets: bool) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    make = ddp_zero_hook.hook_with_zero_step_interleaved if interleaved else ddp_zero_hook.hook_with_zero_step

    def run(device: str) -> Trained:
        options = {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.002}
        model = DistributedDataParallel(network().to(device), **options)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1, momentum=0.9
        )
        hook = make(default_hooks.allreduce_hook, model, optimizer, shard_buckets=shard_buckets)
        model.register_comm_hook(None, hook)
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        for _ in range(6):
            model.zero_grad()
            mse_loss(model(x), y).backward()
        return [p.detach().cpu() for p in model.parameters()]

    ours = run(DEVICE)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, ours)
    assert all(torch.equal(a, b) for a, b in zip(*gathered, strict=True))
    steps_after_first = [trained(network, ddp(), "cpu", steps) for steps in (3, 4)]  # the first learn of the buckets
    distances = [max((a - b).abs().max() for a, b in zip(ours, theirs, strict=True)) for theirs in steps_after_first]
    assert min(distances) < 2e-5, distances
