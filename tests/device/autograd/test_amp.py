"""Autocast and gradient scaling."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.processes import assert_ends_well
from torch import nn

from torch_webgpu.engine.record import engine

HALF = [torch.float16, torch.bfloat16]
half_types = pytest.mark.parametrize("dtype", HALF, ids=str)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def casts(dtype: torch.dtype, device: torch.device) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """For operators of each of autocast's classes, the dtype of the result and the one expected."""
    x, h = torch.rand(4, 4, device=device) / 2, torch.rand(4, 4, device=device, dtype=dtype) / 2
    image, kernel = torch.rand(1, 1, 4, 4, device=device), torch.rand(1, 1, 3, 3, device=device)
    with torch.autocast(device.type, dtype=dtype):
        results = {
            "mm": (x @ x, dtype),
            "linear": (F.linear(x, x), dtype),
            "conv2d": (F.conv2d(image, kernel), dtype),
            "bmm": (torch.bmm(x[None], x[None]), dtype),
            "addmm": (torch.addmm(x, x, h), dtype),
            "einsum": (torch.einsum("ij,jk", x, x), dtype),
            "attention": (F.scaled_dot_product_attention(x[None], x[None], x[None]), dtype),
            "exp": (h.exp(), torch.float32),
            "pow": (h.pow(2), torch.float32),
            "sum": (h.sum(), torch.float32),
            "sum keeps what is asked": (h.sum(dtype=dtype), dtype),
            "softmax": (h.softmax(0), torch.float32),
            "layer_norm": (F.layer_norm(h, (4,)), torch.float32),
            "cross_entropy": (F.cross_entropy(h, torch.zeros(4, dtype=torch.long, device=device)), torch.float32),
            "mse_loss": (F.mse_loss(h, h), torch.float32),
            "norm": (h.norm(), torch.float32),
            "addcmul": (torch.addcmul(x, h, h), torch.float32),
            "relu": (h.relu(), dtype),
            "add": (x + h, torch.float32),
            "mul": (h * h, dtype),
            "integers": ((x > 0).long().sum(), torch.int64),
        }
    return {name: (result.dtype, expected) for name, (result, expected) in results.items()}


@half_types
def test_each_operator_runs_in_the_dtype_of_its_class(device, dtype):
    assert {name: a for name, (a, _) in casts(dtype, device).items()} == {
        name: e for name, (_, e) in casts(dtype, device).items()
    }


@half_types
@pytest.mark.parametrize("name", ["convolutional", "lstm", "gru", "attention"])
def test_training_in_half_precision_is_near_full_precision(device, dtype, name):
    class Recurrent(nn.Module):
        def __init__(self, cls: type[nn.RNNBase]) -> None:
            super().__init__()
            self.rnn = cls(16, 4, batch_first=True, bidirectional=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x.flatten(2))[0].mean(1)

    torch.manual_seed(0)
    model: nn.Module = {
        "convolutional": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                                               nn.Linear(16, 8)),
        "lstm": lambda: Recurrent(nn.LSTM),
        "gru": lambda: Recurrent(nn.GRU),
        "attention": lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 16, 0.0), nn.Flatten(1)),
    }[name]()  # fmt: skip
    x, y = seeded(6, 3, 4, 4), torch.tensor([0, 1, 2, 3, 4, 5])
    full, half = copy.deepcopy(model), model.to(device)
    loss = F.cross_entropy(full(x), y)
    loss.backward()
    with torch.autocast(device.type, dtype=dtype):
        out = half(x.to(device))
        half_loss = F.cross_entropy(out, y.to(device))
    half_loss.backward()
    assert half_loss.dtype == torch.float32
    torch.testing.assert_close(half_loss.cpu(), loss, atol=0.05, rtol=0.02)
    for p, q in zip(half.parameters(), full.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad.cpu(), q.grad, atol=0.05, rtol=0.1)


def test_regions_nest_and_end(device):
    x = torch.ones(2, 2, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(device.type)
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast(device.type, dtype=torch.float16):
            assert torch.get_autocast_dtype(device.type) == torch.float16
            assert (x @ x).dtype == torch.float16
            with torch.autocast(device.type, enabled=False):
                assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):
            assert (x @ x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled(device.type)
    assert (x @ x).dtype == torch.float32


def test_autocast_by_another_devices_region_and_defaults(device):
    x = torch.ones(2, 2, device=device)
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32
    with torch.autocast(device.type):
        assert (x @ x).dtype == torch.get_autocast_dtype(device.type)
        assert (x.double() @ x.double()).dtype == torch.float64 if _has_float64() else True
    assert torch.amp.is_autocast_available(device.type)


def _has_float64() -> bool:
    return engine().device(0).target.float64


def test_as_a_decorator_and_in_custom_functions(device):
    kind = device.type

    @torch.autocast(kind, dtype=torch.float16)
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(("forward", torch.is_autocast_enabled(kind)))
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append(("backward", torch.is_autocast_enabled(kind)))
            return grad @ x.t() + x.t() @ grad

    class Full(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind, cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append(("cast", torch.is_autocast_enabled(kind)))
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx, grad):
            return grad

    seen: list[tuple[str, bool]] = []
    x = torch.ones(2, 2, device=device, requires_grad=True)
    assert product(x).dtype == torch.float16
    with torch.autocast(kind, dtype=torch.float16):
        y = Product.apply(x)
        assert Full.apply(x.half()).dtype == torch.float32
    y.float().sum().backward()
    assert y.dtype == torch.float16
    assert seen == [("forward", True), ("cast", False), ("backward", True)]
    assert x.grad.tolist() == [[4.0, 4.0]] * 2


def test_binary_cross_entropy_is_refused(device):
    x = torch.rand(3, device=device)
    with torch.autocast(device.type), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adam foreach", "AdamW for loop"])
def test_scaled_steps_are_skipped_after_an_overflow(device, kind):
    """The same run as in full precision on the CPU, where the scale is a power of two and changes nothing."""

    def run(where: torch.device) -> tuple[list[list[float]], list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        x = seeded(4, 3)
        model, x = model.to(where), x.to(where)
        name, *how = kind.split(" ")
        options = {"foreach": how == ["foreach"]} if how else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
        scaler = torch.amp.GradScaler(where.type, init_scale=4.0, growth_interval=2)
        weights, scales = [], []
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            if step == 2:
                model.bias.grad[0] = float("inf")
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            weights.append(model.weight.detach().cpu().flatten().tolist())
            scales.append(scaler.get_scale())
        return weights, scales

    weights, scales = run(device)
    assert weights[1] == weights[2] != weights[3]
    assert scales == [4, 8, 4, 4, 8, 8]
    expected, _ = run(torch.device("cpu"))
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_the_scaler_saves_its_state_and_half_gradients_are_unscaled(device):
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    p = nn.Parameter(torch.ones(3, device=device, dtype=torch.float16))
    scaler.scale((p * 2).sum()).backward()
    optimizer = torch.optim.SGD([p], lr=1.0)
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(optimizer)
    state = scaler.state_dict()
    other = torch.amp.GradScaler(device.type)
    other.load_state_dict(state)
    assert other.get_scale() == 8.0
    assert not torch.amp.GradScaler(device.type, enabled=False).is_enabled()


def test_unscaling_without_float64():
    """Most adapters have none, and PyTorch's scaler asks for it."""
    script = """
        p = torch.nn.Parameter(torch.ones(3, device="webgpu"))
        optimizer, scaler = torch.optim.SGD([p], lr=1.0), torch.amp.GradScaler("webgpu", init_scale=8.0)
        scaler.scale(p.sum() * 2).backward()
        scaler.unscale_(optimizer)
        assert p.grad.tolist() == [2, 2, 2]
        scaler.step(optimizer), scaler.update()
        assert p.tolist() == [-1, -1, -1] and scaler.get_scale() == 8.0
    """
    assert_ends_well(script, TORCH_WEBGPU_FLOAT64="off")


@pytest.mark.parametrize("is_used", [True, False])
def test_states_of_scalers_are_loaded(device: torch.device, is_used: bool) -> None:
    """PyTorch's test_grad_scaling_state_dict, without the legacy class of the scale, and the steps that follow."""

    def states(d: Any) -> list[Any]:
        kind = torch.device(d).type
        saved = torch.amp.GradScaler(kind, init_scale=3.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2)
        scaler = torch.amp.GradScaler(kind, init_scale=6.0, growth_factor=7.0, backoff_factor=0.8, growth_interval=1)
        scaler._init_growth_tracker = 7
        if is_used:
            scaler.scale(torch.full((1,), 4.0, device=d))
        scaler.load_state_dict(saved.state_dict())
        found: list[Any] = [scaler.state_dict()]
        p = torch.ones(3, device=d, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=1.0)
        for factor in (1.0, 1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((p * p).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append((scaler.get_scale(), scaler.state_dict(), p.tolist()))
        return found

    assert states(device) == states("cpu")


def test_unscaling_still_asks_for_float64():
    """A canary for aten/dispatch/torch_patches.py: unscale_in_float32."""
    source = inspect.getsource(torch.amp.GradScaler.unscale_.__wrapped__)
    assert "self._scale.double().reciprocal().float()" in source
