"""Options and hooks of DistributedDataParallel that train as the same two ranks do on the CPU, through gloo."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_ddp import STEPS, batch, network, sgd
from tests.slow import slow_but
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

DEVICE = "webgpu"
Trained = list[torch.Tensor]
Wrap = Callable[[nn.Module, str], nn.Module]


def normalized() -> nn.Module:
    """With buffers that differ between ranks, and parameters, too, until they are synchronised."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))


def trained(make: Callable[[], nn.Module], wrap: Wrap, device: str, steps: int = STEPS) -> Trained:
    """What the parameters and buffers of a wrapped model become, on the CPU."""
    model = wrap(make().to(device), device)
    optimizer = sgd(model.parameters())
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()].to(device) for t in batch())
    for _ in range(steps):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return [t.detach().cpu() for t in model.state_dict().values()]


def assert_as_on_the_cpu(make: Callable[[], nn.Module], wrap: Wrap, limit: float = 2e-5) -> Trained:
    expected, ours = (trained(make, wrap, device) for device in ("cpu", DEVICE))
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=limit, atol=limit)
    return ours


def ddp(**options: Any) -> Wrap:
    """Options that this release of PyTorch does not have skip the test."""
    known = inspect.signature(DistributedDataParallel).parameters
    if not set(options) <= set(known):
        pytest.skip(f"no option {sorted(set(options) - set(known))} in PyTorch {torch.__version__}")
    return lambda model, device: DistributedDataParallel(model, **options)


def delayed(model: nn.Module, device: str) -> nn.Module:
    """The last layer's gradients are reduced when that of the first weight is ready."""
    assert isinstance(model, nn.Sequential)
    last = [(f"3.{name}", p) for name, p in model[3].named_parameters()]
    ids = None if device == "cpu" else [torch.webgpu.current_device()]  # says where the delayed gradients are, too
    return DistributedDataParallel(
        model, ids, delay_all_reduce_named_params=last, param_to_hook_all_reduce=model[0].weight
    )


OPTIONS: dict[str, Callable[[], Wrap]] = {
    "buffers of rank 0": lambda: ddp(),
    "own buffers": lambda: ddp(broadcast_buffers=False),
    "own buffers in forward": lambda: ddp(forward_sync_buffers=False),
    "own parameters": lambda: ddp(init_sync=False, broadcast_buffers=False),
    "sizes of buckets": lambda: ddp(bucket_cap_mb_list=[0.001, 0.002]),  # type: ignore[list-item]
    "gradients copied together": lambda: ddp(gradient_as_bucket_view=False, batched_grad_copy=True),
    "delayed": lambda: delayed,
    "unused not reduced": lambda: ddp(find_unused_parameters=True, skip_all_reduce_unused_params=True),
}


@pytest.mark.parametrize("name", slow_but(["delayed"], OPTIONS))
@on_ranks
def test_options(name: str) -> None:
    wrap = OPTIONS[name]()
    expected = trained(normalized, ddp() if wrap is delayed else wrap, "cpu")  # whose delayed gradients nobody awaits
    for mine, theirs in zip(trained(normalized, wrap, DEVICE), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@on_ranks
def test_a_group_and_a_mesh() -> None:
    group = dist.new_group([0, 1])
    assert_as_on_the_cpu(normalized, ddp(process_group=group))
    expected = trained(normalized, ddp(), "cpu")
    on_mesh = lambda model, device: DistributedDataParallel(model, device_mesh=init_device_mesh(device, (2,)))
    for mine, theirs in zip(trained(normalized, on_mesh, DEVICE), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
    alone = [dist.new_group([rank]) for rank in range(2)]
    assert_as_on_the_cpu(normalized, ddp(process_group=alone[dist.get_rank()]))


class Branches(nn.Module):
    """One layer is used by rank 0 alone, one by none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes, self.never = nn.Linear(20, 3), nn.Linear(20, 3), nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.always(x) + (self.sometimes(x) if dist.get_rank() == 0 else 0)


@on_ranks
def test_unused_parameters_that_are_not_reduced() -> None:
    assert_as_on_the_cpu(Branches, ddp(find_unused_parameters=True, skip_all_reduce_unused_params=True))


@pytest.mark.slow
@on_ranks
def test_hierarchical_averaging() -> None:
    from collections import OrderedDict

    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

    averager = HierarchicalModelAverager(OrderedDict([(2, 2)]), warmup_steps=0)
    p = nn.Parameter(torch.full((3,), float(dist.get_rank()), device=DEVICE))
    for expected in (0.5, 0.5):
        p.grad = torch.zeros_like(p)
        averager.average_parameters([p])
        assert p.tolist() == [expected] * 3


@pytest.mark.slow
@on_ranks
def test_zero_states_and_groups_of_parameters() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(device: str) -> tuple[Trained, Any]:
        model = DistributedDataParallel(network().to(device))
        first, *rest = model.parameters()
        optimizer = ZeroRedundancyOptimizer([first], torch.optim.Adam, parameters_as_bucket_view=True, lr=0.01)
        optimizer.add_param_group({"params": rest, "lr": 0.02})
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        for _ in range(2):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        optimizer.consolidate_state_dict(to=0)
        state = copy.deepcopy(optimizer.state_dict()) if dist.get_rank() == 0 else None
        shared = [state]
        dist.broadcast_object_list(shared, 0)
        optimizer.load_state_dict(shared[0])
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        return [p.detach().cpu() for p in model.parameters()], shared[0]

    (theirs, state), (ours, our_state) = run("cpu"), run(DEVICE)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    assert our_state["state"].keys() == state["state"].keys()
    assert [g["lr"] for g in our_state["param_groups"]] == [0.01, 0.02]


@pytest.mark.slow
@pytest.mark.parametrize("divide_by_initial", [False, True])
@on_ranks
def test_uneven_inputs(divide_by_initial: bool) -> None:
    """``Join``: DDP, and DDP with ZeRO, train as on the CPU while a rank has fewer batches."""
    from torch.distributed.algorithms import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(device: str, sharded: bool) -> Trained:
        model = DistributedDataParallel(network().to(device))
        joinables: list[Any] = [model]
        if sharded:
            optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
            joinables.append(optimizer)
        else:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x, y = (t.chunk(2)[dist.get_rank()].to(device) for t in batch())
        with Join(joinables, divide_by_initial_world_size=divide_by_initial):
            for _ in range(4 - 2 * dist.get_rank()):
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
                optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for sharded in (False, True):
        for theirs, mine in zip(run("cpu", sharded), run(DEVICE, sharded), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@on_ranks
def test_uneven_inputs_that_are_an_error() -> None:
    model = DistributedDataParallel(network().to(DEVICE))

    def train() -> None:
        with model.join(throw_on_early_termination=True):
            for _ in range(3 - dist.get_rank()):
                model(batch()[0].to(DEVICE)).sum().backward()

    with pytest.raises(RuntimeError, match="exhausted"):
        train()


@pytest.mark.slow
@on_ranks
def test_mixed_precision_keeps_gradients_whole() -> None:
    from torch.nn.parallel.distributed import _MixedPrecision

    for dtype in (torch.float16, torch.bfloat16):
        precision = _MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
        model = DistributedDataParallel(normalized().to(DEVICE), mixed_precision=precision)
        out = model(batch()[0].to(DEVICE))
        assert out.dtype == dtype
        out.sum().backward()
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.slow
@on_ranks
def test_compiled_autograd() -> None:
    """The Python reducer of ``optimize_ddp``, whose collectives are of the compiled backward pass."""
    from torch._dynamo import config

    with config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        torch._dynamo.reset()

        def wrap(model: nn.Module, device: str) -> nn.Module:
            return torch.compile(DistributedDataParallel(model))  # type: ignore[return-value]

        ours = trained(network, wrap, DEVICE)
    torch._dynamo.reset()
    for mine, theirs in zip(ours, trained(network, ddp(), "cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@on_ranks
def test_replicate() -> None:
    """``torch.distributed._composable.replicate``: DDP as hooks of the model."""
    from torch.distributed._composable import replicate

    assert_as_on_the_cpu(network, lambda model, device: replicate(model))
