"""Quantized tensors and fake quantization, against the CPU's."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.ao.quantization import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
)

TYPES = [torch.quint8, torch.qint8, torch.qint32]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """PyTorch announces the end of its quantized tensors at the first use of one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantize.*deprecated.*")
        torch.manual_seed(0)
        yield


def both(device: torch.device, dtype: torch.dtype = torch.quint8) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 5)
    return torch.quantize_per_tensor(x.to(device), 0.1, 10, dtype), torch.quantize_per_tensor(x, 0.1, 10, dtype)


def saved(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("scale", "zero_point"), [(0.25, 3), (0.1, 0), (0.7, 100), (1e-3, 7)])
def test_values(dtype: torch.dtype, scale: float, zero_point: int, device: torch.device) -> None:
    ties = torch.arange(-100, 100) * 0.125
    x = torch.cat([torch.randn(5000) * 30, ties, torch.tensor([0.0, 1e9, -1e9, float("inf"), -float("inf")])])
    got = torch.quantize_per_tensor(x.to(device), scale, zero_point, dtype)
    want = torch.quantize_per_tensor(x, scale, zero_point, dtype)
    off = (got.int_repr().cpu().long() - want.int_repr().long()).abs()
    agreed = off == 0
    # How ties round depends on PyTorch's version and the CPU (some add the zero point first, some round the product).
    assert (off <= (want.int_repr().double().abs() * 2**-23).clamp(min=1)).all()
    exact = x[~agreed].double() / scale
    assert ((exact - exact.floor() - 0.5).abs() < 1e-6 * (1 + exact.abs())).all()
    assert torch.equal(got.dequantize().cpu()[agreed], want.dequantize()[agreed])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_attributes(dtype: torch.dtype, device: torch.device) -> None:
    q, want = both(device, dtype)
    assert q.is_quantized
    assert q.dtype == dtype
    assert q.device.type == device.type
    assert q.int_repr().dtype == want.int_repr().dtype
    assert (q.q_scale(), q.q_zero_point(), q.qscheme()) == (0.1, 10, torch.per_tensor_affine)
    assert torch.q_scale(q) == 0.1
    assert (q.shape, q.stride(), q.element_size()) == (want.shape, want.stride(), want.element_size())
    assert repr(q).replace(f", device='{device.type}:0'", "").split() == repr(want).split()
    assert q[1, 2].item() == want[1, 2].item()


def test_moving_and_copying(device: torch.device) -> None:
    q, want = both(device)
    assert torch.equal(q.cpu(), want)
    assert torch.equal(want.to(device).cpu(), want)
    assert torch.equal(q, q.clone())
    assert q.clone().int_repr().data_ptr() != q.int_repr().data_ptr()
    assert torch.equal(copy.deepcopy(q), q)
    target = torch._empty_affine_quantized((4, 5), scale=0.3, zero_point=1, dtype=torch.quint8, device=device)
    assert torch.equal(target.copy_(q).cpu(), want)
    assert torch.equal(target.copy_(want).cpu(), want)
    assert torch.equal(torch.zeros(4, 5, device=device).copy_(q).cpu(), want.dequantize())
    assert torch.equal(
        torch._empty_affine_quantized((4, 5), scale=1.0, zero_point=0, dtype=torch.quint8).copy_(q), want
    )
    x = torch.randn(4, 5)
    target = torch._empty_affine_quantized((4, 5), scale=0.3, zero_point=1, dtype=torch.quint8, device=device)
    assert torch.equal(target.copy_(x.to(device)).cpu(), torch.quantize_per_tensor(x, 0.3, 1, torch.quint8))


def test_files(device: torch.device) -> None:
    q, want = both(device)
    assert torch.equal(torch.load(saved(q)).cpu(), want)
    assert torch.load(saved(q)).device.type == device.type
    assert torch.equal(torch.load(saved(q), map_location="cpu"), want)
    assert torch.equal(torch.load(saved(want), map_location=device).cpu(), want)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(5, 4),
        lambda t: t.t()[1:],
        lambda t: t[0],
        lambda t: t.reshape(-1)[::2],
        lambda t: t.unsqueeze(0).expand(2, 4, 5),
        lambda t: t.permute(1, 0).contiguous(),
        lambda t: t.unbind(1)[2],
        lambda t: t.flatten(),
    ],
)
def test_views(view: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> None:
    q, want = both(device)
    got = view(q)
    assert got.is_quantized
    assert torch.equal(got.int_repr().cpu(), view(want).int_repr())
    assert torch.equal(torch.dequantize(got).cpu(), view(want).dequantize())


def test_per_channel(device: torch.device) -> None:
    x = torch.randn(3, 4, 2)
    scales, zero_points = torch.tensor([0.1, 0.2, 0.05, 0.4]), torch.tensor([0, 5, -3, 10])
    want = torch.quantize_per_channel(x, scales, zero_points, 1, torch.qint8)
    got = torch.quantize_per_channel(x.to(device), scales.to(device), zero_points.to(device), 1, torch.qint8)
    assert torch.equal(got.cpu(), want)
    assert torch.equal(got.int_repr().cpu(), want.int_repr())
    torch.testing.assert_close(got.dequantize().cpu(), want.dequantize())
    assert got.q_per_channel_axis() == 1
    assert got.qscheme() == torch.per_channel_affine
    torch.testing.assert_close(got.q_per_channel_scales().cpu(), scales)
    assert torch.equal(torch.load(saved(got), map_location="cpu"), want)
    assert torch.equal(want.to(device).cpu(), want)
    with pytest.raises(RuntimeError):
        got.q_scale()


def test_other_ways_to_quantize(device: torch.device) -> None:
    x = torch.randn(50)
    for dtype in (torch.quint8, torch.qint8):
        for reduce_range in (False, True):
            want = torch.quantize_per_tensor_dynamic(x, dtype, reduce_range)
            assert torch.equal(torch.quantize_per_tensor_dynamic(x.to(device), dtype, reduce_range).cpu(), want)
    by_tensors = torch.quantize_per_tensor(x.to(device), torch.tensor(0.1), torch.tensor(3), torch.quint8)
    assert torch.equal(by_tensors.cpu(), torch.quantize_per_tensor(x, torch.tensor(0.1), torch.tensor(3), torch.quint8))
    a, b = torch.quantize_per_tensor([x.to(device)] * 2, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), torch.quint8)
    assert torch.equal(b.cpu(), torch.quantize_per_tensor(x, torch.tensor(0.2).item(), 1, torch.quint8))
    assert all(t.dtype == torch.float32 for t in torch.dequantize([a, b]))
    made = torch._make_per_tensor_quantized_tensor(a.int_repr(), 0.1, 0)
    assert made.dtype == torch.quint8


def test_errors(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="zero_point 300 is out of range"):
        torch.quantize_per_tensor(x, 0.1, 300, torch.quint8)
    with pytest.raises(RuntimeError):
        torch.quantize_per_tensor(x.long(), 0.1, 3, torch.quint8)
    if device.type == "webgpu":
        with pytest.raises(RuntimeError, match=r"not to torch\.quint4x2"):
            torch.quantize_per_tensor(x, 0.1, 3, torch.quint4x2)
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        with pytest.raises(NotImplementedError, match=r"dequantize\(\)"):
            _ = q + q


# Fake quantization ----------------------------------------------------------------------------------------------------

FAKE: dict[str, Callable[..., torch.Tensor]] = {
    "tensor": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "narrow": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -8, 7),
    "qparams": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[0].detach(), z[0].int(), 0, 255),
    "channels": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.detach(), z.int(), 0, 0, 255),
    "last channels": lambda x, s, z: torch.fake_quantize_per_channel_affine(x.t(), s.detach(), z.int(), 1, -128, 127),
    "learnable": lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s[:1], z[:1], 0, 255, 0.5),
    "learnable channels": lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 0, 0, 20, 0.5),
}


@pytest.mark.parametrize("name", FAKE)
def test_fake_quantization(name: str, device: torch.device) -> None:
    def run(place: torch.device) -> list[torch.Tensor | None]:
        torch.manual_seed(1)
        inputs = [torch.randn(6, 40) * 3, torch.rand(6) * 0.2 + 0.01, torch.tensor([0.0, 3, 10, 5, 1, 2])]
        x, scale, zero_point = (t.to(place).requires_grad_() for t in inputs)
        y = FAKE[name](x, scale, zero_point)
        (y * torch.linspace(0, 1, y.numel(), device=place).view(y.shape)).sum().backward()
        return [y.detach(), *(t.grad for t in (x, scale, zero_point))]

    for got, want in zip(run(device), run(torch.device("cpu")), strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        HistogramObserver,
        PerChannelMinMaxObserver,
        FakeQuantize,
        lambda: FakeQuantize(MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8),
        FusedMovingAvgObsFakeQuantize,
        lambda: FusedMovingAvgObsFakeQuantize(
            quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_tensor_symmetric
        ),
        lambda: FusedMovingAvgObsFakeQuantize(
            observer=torch.ao.quantization.MovingAveragePerChannelMinMaxObserver,
            quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric,
        ),
    ],
)  # fmt: skip
def test_observers(make: Callable[[], torch.nn.Module], device: torch.device) -> None:
    def run(place: torch.device) -> list[torch.Tensor]:
        torch.manual_seed(2)
        batches = [torch.randn(4, 50) * k for k in (1, 2, 3)]
        module = make().to(place)
        outputs = [module(batch.to(place)) for batch in batches]
        return [*outputs, *module.calculate_qparams()]  # type: ignore[operator]

    for got, want in zip(run(device), run(torch.device("cpu")), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
