"""Convolutions whose groups have few channels: gradients of weights, which threads share, and weights laid out for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.choices import forget
from torch import nn

from torch_webgpu.aten.nn import conv as layers
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.conv import conv_weight_direct

# Channels, results, groups, window and the other arguments.
GEOMETRIES: dict[str, tuple[int, int, int, tuple[int, ...], dict[str, Any]]] = {
    "depthwise": (40, 40, 40, (7, 7), {"padding": 3}),
    "two results a channel": (40, 80, 40, (3, 3), {"padding": 1, "stride": 2}),
    "pairs of channels": (6, 4, 2, (3, 5), {"padding": (1, 2), "stride": (2, 1), "dilation": (2, 1)}),
    "1d": (64, 64, 64, (5,), {"padding": 2}),
    "a window of three parts": (3, 2, 1, (19,), {"padding": 3}),
    "3d": (4, 4, 4, (3, 3, 3), {"padding": 1}),
}
SIZES = {1: (101,), 2: (17, 14), 3: (7, 8, 9)}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2, torch.complex64: 2e-6}
WIDE = {torch.complex64: torch.complex128}


def last(t: torch.Tensor) -> torch.Tensor:
    """Channels last."""
    return t.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.fixture
def split(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are shared by several workgroups, as on a GPU."""
    monkeypatch.setattr(engine().device(0), "target", replace(engine().device(0).target, software=False))
    monkeypatch.setattr(conv_weight_direct, "LEAST_POSITIONS", 1)
    forget(monkeypatch)


def weight_gradients(
    device: Any, name: str, dtype: torch.dtype, x_last: bool, y_last: bool
) -> tuple[torch.Tensor, torch.Tensor, Sequence[str]]:
    """On the device, in double precision, and the convolutions' kernels of the former."""
    channels, results, groups, window, options = GEOMETRIES[name]
    conv = getattr(F, f"conv{len(window)}d")
    x = torch.randn(8, channels, *SIZES[len(window)], dtype=dtype)
    w = torch.randn(results, channels // groups, *window, dtype=dtype)
    wide = WIDE.get(dtype, torch.float64)
    exact = w.to(wide).requires_grad_()
    y = conv(x.to(wide), exact, groups=groups, **options)
    grad = torch.randn(y.shape, dtype=dtype)
    (want,) = torch.autograd.grad(y, exact, grad.to(wide))
    there = w.to(device).requires_grad_()
    grad, x = (last(t.to(device)) if is_last else t.to(device) for t, is_last in ((grad, y_last), (x, x_last)))
    y = conv(x, there, groups=groups, **options)
    explained = torch.webgpu.explain(lambda: torch.autograd.grad(y, there, grad, retain_graph=True))
    (got,) = torch.autograd.grad(y, there, grad)
    kernels = [k for kernel in explained.kernels for k in kernel.dispatches]
    return got.cpu().to(wide), want, [k for k in kernels if k.startswith("conv")]


@pytest.mark.parametrize("lasts", [(False, False), (True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_weight_gradients(device, name, lasts):
    got, want, kernels = weight_gradients(device, name, torch.float32, *lasts)
    assert (got - want).abs().max() <= TOLERANCE[torch.float32] * want.abs().max()
    assert kernels == ["conv_weight"]


@pytest.mark.parametrize("lasts", [(False, False), (True, True)], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_split_weight_gradients(device, split, name, lasts):
    got, want, kernels = weight_gradients(device, name, torch.float32, *lasts)
    assert (got - want).abs().max() <= TOLERANCE[torch.float32] * want.abs().max()
    assert kernels == ["conv_weight", "conv_weight_split_sum"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("is_last", [False, True])
def test_dtypes(device, split, dtype, is_last):
    got, want, _ = weight_gradients(device, "depthwise", dtype, is_last, is_last)
    assert (got - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers(device, split, dtype):
    """Sums wrap around, as the CPU's do."""
    x, w, grad = (torch.randint(0, 9, size).to(dtype) for size in ((4, 8, 9, 9), (8, 1, 3, 3), (4, 8, 9, 9)))
    rest = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 8, [False, True, False])
    exact = torch.ops.aten.convolution_backward(*(t.double() for t in (grad, x, w)), *rest)[1].long().to(dtype)
    got = torch.ops.aten.convolution_backward(*(t.to(device) for t in (grad, x, w)), *rest)[1]
    assert torch.equal(got.cpu(), exact)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_weights_laid_out_by_channel(device, monkeypatch, name, is_transposed):
    """Where channels are neighbours in memory: results, and the gradient of the input."""
    monkeypatch.setattr(layers, "COPIED_WORK", 1)
    channels, results, groups, window, options = GEOMETRIES[name]
    conv = getattr(F, f"conv{'_transpose' if is_transposed else ''}{len(window)}d")
    x = torch.randn(3, channels, *SIZES[len(window)])
    w = torch.randn(*((channels, results // groups) if is_transposed else (results, channels // groups)), *window)
    exact, there = x.double().requires_grad_(), last(x.to(device)).requires_grad_()
    want, got = (conv(x, w.to(x.device, x.dtype), groups=groups, **options) for x in (exact, there))
    grad = torch.randn(want.shape)
    (want_grad,) = torch.autograd.grad(want, exact, grad.double())
    (got_grad,) = torch.autograd.grad(got, there, last(grad.to(device)))
    for a, b in ((got, want), (got_grad, want_grad)):
        assert (a.detach().cpu().double() - b).abs().max() <= 2e-6 * b.abs().max()


def test_only_large_work_copies_weights(device, monkeypatch):
    layer = nn.Conv2d(32, 32, 3, padding=1, groups=32).to(device).requires_grad_(False)
    x = torch.randn(2, 32, 8, 8, device=device)

    def kernels(x: torch.Tensor) -> list[str]:
        return [k for kernel in torch.webgpu.explain(lambda: layer(x)).kernels for k in kernel.dispatches]

    assert kernels(last(x)) == ["conv_forward"]
    monkeypatch.setattr(layers, "COPIED_WORK", x.numel() * 9)
    forget(monkeypatch)
    assert kernels(last(x)) == ["copy", "conv_forward"]
    assert kernels(x) == ["conv_forward"]
