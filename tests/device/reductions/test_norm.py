"""Normalisation layers on the device against the CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import HALF_TYPES, check, layouts

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(8,), (33,), (5, 6), (1024,)])
def test_layer_norm(device, dtype, shape):
    x, w, b = (torch.randn(s).to(dtype) for s in ((4, 3, *shape), shape, shape))
    check(device, lambda x, w, b: F.layer_norm(x, shape, w, b), x, w, b, backward=True, tol=tolerance(dtype))
    check(device, lambda x, w: F.layer_norm(x, shape, w), x, w, backward=True, tol=tolerance(dtype))
    check(device, lambda x: F.layer_norm(x, shape), x, backward=True, tol=tolerance(dtype))


@pytest.mark.parametrize("name", ["contiguous", "transposed", "sliced", "offset", "expanded"])
def test_layer_norm_layouts(device, name):
    x = layouts(lambda *shape: torch.randn(shape), 4, 6, 20)[name]
    # The expanded rows have no variance: 1 / deviation magnifies the last bit of their mean.
    check(device, lambda x, w: F.layer_norm(x, (20,), w), x, torch.randn(20), backward=True, tol=1e-3)


def test_layer_norm_edges(device):
    check(device, lambda x: F.layer_norm(x, (5,)), torch.empty(0, 5), backward=True)
    check(device, lambda x: F.layer_norm(x, (1,)), torch.randn(4, 1))
    check(device, lambda x: F.layer_norm(x, (4,)), torch.randn(70_000, 4), tol=1e-4)
    check(device, lambda x: F.layer_norm(x, (100_000,)), torch.randn(2, 100_000) + 100, backward=True, tol=1e-3)
    check(device, lambda x: F.layer_norm(x, (6,)), torch.full((3, 6), 7.0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_rms_norm(device, dtype, eps):
    x, w = torch.randn(4, 3, 40).to(dtype), torch.randn(40).to(dtype)
    check(device, lambda x, w: F.rms_norm(x, (40,), w, eps), x, w, backward=True, tol=tolerance(dtype))
    check(device, lambda x: F.rms_norm(x, (3, 40), None, eps), x, backward=True, tol=tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 9), (2, 6, 5, 7), (2, 6, 3, 4, 5)])
def test_group_norm(device, dtype, shape):
    x, w, b = torch.randn(shape).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    for groups in (1, 3):
        check(device, lambda x, w, b, g=groups: F.group_norm(x, g, w, b), x, w, b, backward=True, tol=tolerance(dtype))
    check(device, lambda x: F.group_norm(x, 2), x, backward=True, tol=tolerance(dtype))


def test_group_norm_channels_last(device):
    x = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)
    check(device, lambda x, w: F.group_norm(x, 3, w), x, torch.randn(6), backward=True, tol=1e-4)


def batch_norm(training, x, w=None, b=None):
    """Output and running statistics, which are updated in place when training."""
    mean = torch.linspace(-1, 1, x.shape[1], device=x.device)
    var = torch.linspace(0.5, 2, x.shape[1], device=x.device)
    return F.batch_norm(x, mean, var, w, b, training=training, momentum=0.3), mean, var


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(9, 6), (4, 6, 10), (3, 6, 5, 7), (2, 6, 3, 4, 5)])
def test_batch_norm(device, training, shape):
    x, w, b = torch.randn(shape) * 2 + 1, torch.randn(6), torch.randn(6)
    check(device, lambda x, w, b: batch_norm(training, x, w, b), x, w, b, backward=True, tol=1e-4)
    check(device, lambda x: batch_norm(training, x), x, backward=True, tol=1e-4)


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_batch_norm_half(device, dtype):
    x, w, b = torch.randn(3, 6, 5, 7).to(dtype), torch.randn(6), torch.randn(6)
    check(device, lambda x, w, b: batch_norm(True, x, w, b), x, w, b, backward=True, tol=tolerance(dtype))
    check(device, lambda x, w, b: batch_norm(False, x, w, b), x, w, b, backward=True, tol=tolerance(dtype))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_of_a_batch_that_is_split(device, memory_format):
    x = torch.randn(32, 6, 64, 64).to(memory_format=memory_format)
    check(device, lambda x, w: batch_norm(True, x, w), x, torch.randn(6), backward=True, tol=1e-3)


def test_batch_norm_without_statistics(device):
    x = torch.randn(4, 6, 5)
    check(device, lambda x: F.batch_norm(x, None, None, training=True), x, backward=True, tol=1e-4)


def test_batch_norm_layer_over_steps(device):
    steps = torch.randn(4, 8, 3, 5, 5)

    def train(steps):
        layer = torch.nn.BatchNorm2d(3).to(steps.device)
        for x in steps:
            layer(x)
        return layer.eval()(steps[0]), layer.running_mean, layer.running_var, layer.num_batches_tracked

    check(device, train, steps, tol=1e-5)


def test_instance_norm(device):
    x, w, b = torch.randn(3, 4, 6, 5), torch.randn(4), torch.randn(4)
    check(device, lambda x, w, b: F.instance_norm(x, None, None, w, b), x, w, b, backward=True, tol=1e-4)


def test_functional_batch_norm_returns_new_statistics(device):
    args = [torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.zeros(3), torch.ones(3)]
    fn = torch.ops.aten._native_batch_norm_legit_functional
    check(device, lambda *t: (*fn(*t, True, 0.1, 1e-5), t[3], t[4]), *args, tol=1e-5)


def test_the_gradient_of_a_layer_norm_is_contiguous_whatever_comes_in(device):
    gradient = torch.randn(3, 2, 4).transpose(0, 1)
    operands = torch.randn(2, 3, 4), torch.randn(2, 3, 1), torch.rand(2, 3, 1), torch.randn(4)
    results = []
    for d in ("cpu", device):
        x, mean, rstd, w = (t.to(d) for t in operands)
        results += torch.ops.aten.native_layer_norm_backward(gradient.to(d), x, [4], mean, rstd, w, w, [True] * 3)[:1]
    assert results[0].stride() == results[1].stride()
    torch.testing.assert_close(results[1].cpu(), results[0])
