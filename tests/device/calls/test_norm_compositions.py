"""Norms, which PyTorch composes of operators with three results, recorded as one: the same results, and the parts for
whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.calls.test_compositions import Names
from torch import nn

from torch_webgpu.aten.dispatch.recipes import statistics
from torch_webgpu.engine.record import engine

Norm = Callable[..., torch.Tensor]


def batch_norm(
    x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, *affine: torch.Tensor, training: bool = False
) -> torch.Tensor:
    return F.batch_norm(x, mean.detach(), var.detach().abs(), *affine, training=training)


# The function, and the shapes of its tensors.
NORMS: dict[str, tuple[Norm, tuple[tuple[int, ...], ...]]] = {
    "layer norm": (lambda x, *affine: F.layer_norm(x, (6,), *affine), ((4, 5, 6), (6,), (6,))),
    "layer norm of planes": (lambda x: F.layer_norm(x, (5, 6)), ((4, 5, 6),)),
    "layer norm with a weight": (lambda x, weight: F.layer_norm(x, (6,), weight, eps=1e-3), ((4, 6), (6,))),
    "layer norm of nothing": (lambda x: F.layer_norm(x, (6,)), ((0, 6),)),
    "group norm": (lambda x, *affine: F.group_norm(x, 2, *affine), ((3, 4, 5), (4,), (4,))),
    "group norm without weights": (lambda x: F.group_norm(x, 4), ((3, 4, 5, 6),)),
    "batch norm": (batch_norm, ((3, 4, 5, 6), (4,), (4,), (4,), (4,))),
    "batch norm without weights": (batch_norm, ((3, 4), (4,), (4,))),
    "batch norm of nothing": (batch_norm, ((0, 4, 5), (4,), (4,))),
    "instance norm": (lambda x, *affine: F.instance_norm(x, weight=affine[0], bias=affine[1]), ((3, 4, 5), (4,), (4,))),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_results(device, name, backward):
    fn, shapes = NORMS[name]
    tensors = [torch.randn(shape) for shape in shapes]
    for _ in range(3):
        check(device, fn, *tensors, backward=backward, tol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm without weights"])
def test_is_recognised(device, name, mode):
    """A call like one before asks for nothing, makes one tensor, and records one operation."""
    fn, shapes = NORMS[name]
    if "batch" in name:
        fn = F.batch_norm
    tensors = [torch.rand(shape) for shape in shapes]
    there = [t.to(device) for t in tensors]
    with mode():
        expected = fn(*tensors)
        fn(*there)
        torch.webgpu.flush_batch()
        by_key, made, operations = statistics.by_key, statistics.made, len(engine().lane(0).entries)
        result = fn(*there)
        assert (statistics.by_key, statistics.made) == (by_key, made)
        assert len(engine().lane(0).entries) == operations + 1
    assert result.is_inference() == expected.is_inference()
    torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm"])
def test_modes_see_the_parts(device, name):
    fn, shapes = NORMS[name]
    names = {}
    for where in (device, "cpu"):
        tensors = [torch.randn(shape).to(where) for shape in shapes]
        with torch.no_grad():
            for _ in range(2):
                fn(*tensors)
            with Names() as seen:
                fn(*tensors)
        names[where] = seen.names
    assert names[device] == names["cpu"]


@pytest.mark.parametrize("size", [(4, 3), (4, 3, 5), (4, 3, 5, 6)], ids=str)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_after_evaluation(device, size, momentum):
    """Statistics are kept by calls in training mode, with gradients or without, and used by those in evaluation."""
    module = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(size)](3, momentum=momentum)
    both = module, deepcopy(module).to(device)
    for is_training, with_grad in ((False, False), (True, False), (False, False), (True, True), (False, True)) * 2:
        x = torch.randn(size)
        with torch.set_grad_enabled(with_grad):
            want, got = (m.train(is_training)(x.to(m.weight.device)) for m in both)
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-5)
        assert got.requires_grad == want.requires_grad
        for one, other in zip(*(m.state_dict().values() for m in both), strict=True):
            torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-5)


def test_layouts_and_dtypes(device):
    x = torch.randn(3, 4, 5, 6)
    mean, var = torch.randn(4), torch.rand(4)
    for given in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(2, 3),
        x[:, :, ::2],
        x[:1].expand(3, 4, 5, 6),
    ):
        for _ in range(2):
            check(device, lambda x, m, v: F.batch_norm(x, m, v), given, mean, var, tol=1e-5)
            check(device, lambda x: F.group_norm(x, 2), given, tol=1e-5)
            check(device, lambda x: F.layer_norm(x, x.shape[-1:]), given, tol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        for _ in range(2):
            check(device, lambda x: F.layer_norm(x, (6,)), x.to(dtype), tol=2e-2)
            check(device, lambda x: F.group_norm(x, 2), x.to(dtype), tol=2e-2)
            check(device, lambda x, m, v: F.batch_norm(x, m, v), x.to(dtype), mean.to(dtype), var.to(dtype), tol=2e-2)


def test_derivatives_of_parts(device):
    """Second ones and forward ones, whatever was called before."""

    def second(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            F.layer_norm(x, (6,))
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((F.layer_norm(x, (6,)) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            F.group_norm(x, 2)
            return torch.func.jvp(lambda x: F.group_norm(x, 2), (x,), (x * 2 + 1,))[1]

    x = torch.randn(3, 4, 6)
    check(device, second, x, tol=1e-4)
    check(device, forward, x, tol=1e-4)
    check(device, lambda x: torch.vmap(lambda x: F.layer_norm(x, (6,)))(x), x, tol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.layer_norm(torch.ones(3, 6, device=d), (5,)),
        lambda d: F.layer_norm(torch.ones(3, 6, device=d), (6,), torch.ones(5, device=d)),
        lambda d: F.group_norm(torch.ones(3, 5, 2, device=d), 2),
        lambda d: F.batch_norm(torch.ones(3, 5, device=d), torch.ones(4, device=d), torch.ones(4, device=d)),
    ],
)
def test_errors(device, call):
    for _ in range(2):
        with torch.no_grad(), pytest.raises(Exception) as expected:  # noqa: PT011  whichever it is
            call("cpu")
        with torch.no_grad(), pytest.raises(type(expected.value)):
            call(device)


def test_other_tensors(device):
    """Subclasses and copies with a flag have parts of their own."""

    class Sub(torch.Tensor):
        pass

    x = torch.randn(3, 6)
    with torch.no_grad():
        for _ in range(2):
            assert type(F.layer_norm(x.to(device).as_subclass(Sub), (6,))) is Sub
            assert type(F.layer_norm(x.to(device), (6,))) is torch.Tensor
            check(device, lambda x: F.layer_norm(torch._neg_view(x), (6,)), x, tol=1e-5)
