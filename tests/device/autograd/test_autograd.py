"""Autograd on the device: hooks, higher orders, forward mode, checkpoints, custom functions, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
import torch.nn.functional as F
from tests.device.against_cpu import check
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's other kernel cannot be differentiated twice
        return F.scaled_dot_product_attention(q, k, v)


# ---- orders of differentiation

TWICE: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "pow": (lambda x: x**4, ((5,),)),
    "mul": (lambda x, y: x * y.exp(), ((3, 4), (4,))),
    "mm": (lambda x, y: (x @ y).tanh(), ((3, 4), (4, 2))),
    "layer_norm": (lambda x, w: F.layer_norm(x, (5,), w).pow(3), ((4, 5), (5,))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True).pow(3), ((6, 3),)),
    "softmax": (lambda x: x.softmax(-1).square(), ((3, 5),)),
    "logsumexp": (lambda x: x.logsumexp(1), ((3, 5),)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1).tanh(), ((2, 2, 4, 4), (3, 2, 3, 3))),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2).square(), ((1, 2, 4, 4),)),
    "gelu": (F.gelu, ((7,),)),
    "silu": (F.silu, ((7,),)),
    "softplus": (F.softplus, ((7,),)),
    "norm": (lambda x: x.norm(dim=1), ((3, 4),)),
    "prod": (lambda x: x.prod(1), ((3, 4),)),
    "cumsum": (lambda x: x.cumsum(0).square(), ((6,),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[2, 0]], device=x.device)).pow(3), ((1, 4),)),
    "attention": (
        attention,
        ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
    ),
    "mse_loss": (lambda x, y: F.mse_loss(x.tanh(), y), ((5,), (5,))),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3], device=x.device)), ((3, 4),)),
}


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients(device, name):
    fn, shapes = TWICE[name]

    def twice(*inputs: torch.Tensor) -> Any:
        inputs = tuple(t.detach().requires_grad_() for t in inputs)
        once = torch.autograd.grad(fn(*inputs).sum(), inputs, create_graph=True)
        penalty = sum(g.square().sum() for g in once)
        return *once, *torch.autograd.grad(penalty, inputs, allow_unused=True)

    check(device, twice, *(seeded(*shape, seed=k) for k, shape in enumerate(shapes)), tol=2e-4)


def test_four_orders(device):
    x = torch.linspace(-1, 1, 5, device=device, requires_grad=True)
    y = x.sin() * x
    for _ in range(4):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    expected = x.detach().cpu()
    torch.testing.assert_close(y.detach().cpu(), expected * expected.sin() - 4 * expected.cos())


@pytest.mark.float64
def test_gradcheck(device):
    x = torch.randn(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (x * x.t().mm(x).sum()).tanh(), x)


@pytest.mark.parametrize("name", ["mul", "mm", "layer_norm", "softmax", "conv2d", "gelu", "cumsum", "mse_loss"])
def test_forward_mode(device, name):
    fn, shapes = TWICE[name]

    def tangent(*inputs: torch.Tensor) -> Any:
        with fwad.dual_level():
            duals = [fwad.make_dual(t, t.cos()) for t in inputs]
            return tuple(fwad.unpack_dual(fn(*duals)))

    check(device, tangent, *(seeded(*shape, seed=k) for k, shape in enumerate(shapes)), tol=1e-4)


def test_forward_over_reverse(device):
    def hvp(x: torch.Tensor) -> torch.Tensor:
        with fwad.dual_level():
            dual = fwad.make_dual(x.detach().requires_grad_(), torch.ones_like(x))
            (grad,) = torch.autograd.grad((dual.sin() * dual).sum(), dual, create_graph=True)
            return fwad.unpack_dual(grad).tangent

    check(device, hvp, seeded(6))


# ---- accumulating, retaining, detaching


def test_gradients_accumulate_and_graphs_are_freed(device):
    x = torch.ones(3, device=device, requires_grad=True)
    y = (x * 2).square().sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [16.0] * 3
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    x.grad.zero_()
    with torch.no_grad():
        x += 1
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_in_place_changes_of_saved_tensors_are_noticed(device):
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_views_and_in_place_operations(device):
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[1].mul_(3)
        y.t()[0] += x[:, 1]
        y.view(-1)[2:5].square_()
        return y.unfold(0, 2, 1).sum(-1) * torch.stack(y.unbind(1), 1)[1:]

    check(device, fn, seeded(3, 3), backward=True)


def test_anomaly_mode_names_the_function(device):
    x = torch.zeros(3, device=device, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection|Error detected"),
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"),
    ):
        (x.sqrt() * 0).sum().backward()


# ---- hooks


def test_hooks_of_tensors_and_modules(device):
    x = torch.ones(2, 3, device=device, requires_grad=True)
    seen: list[str] = []
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda t: seen.append(f"accumulated {t.grad.device.type}"))
    layer = nn.Linear(3, 1, bias=False).to(device)
    nn.init.ones_(layer.weight)
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.register_forward_hook(lambda module, args, output: output * 2)
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(f"out {grad_out[0].shape[0]}"))
    out = layer(y)
    assert out.tolist() == [[18.0], [18.0]]
    out.sum().backward()
    assert y.grad.tolist() == [[20.0] * 3] * 2
    assert x.grad.tolist() == [[40.0] * 3] * 2
    assert seen == ["out 2", f"accumulated {device.type}"]


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_on_the_host(device, pinned):
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pinned, device_type=x.device.type if pinned and x.is_webgpu else "cuda"):
            return (x.exp() * x).sin()

    check(device, fn, seeded(7), backward=True)


def test_saved_tensors_packed_by_hooks(device):
    packed: list[torch.dtype] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.dtype)
        return t.to(torch.float16)

    x = torch.ones(4, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        y = x.square() * x
    y.sum().backward()
    assert x.grad.tolist() == [3.0] * 4
    assert packed


# ---- checkpoints


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 8), nn.Dropout(0.2))


def gradients(model: nn.Module, x: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    x.grad = None
    model.zero_grad()
    run(x).square().sum().backward()
    return [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters()), torch.rand(2, device=x.device).cpu()]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_checkpoints_repeat_the_forward_pass(device, reentrant, autocast):
    """Dropout drops the same elements when a segment is computed again, and the stream goes on where it was."""
    model = network().to(device)
    x = seeded(4, 8).to(device).requires_grad_()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        expected = gradients(model, x, model)
        actual = gradients(model, x, lambda x: checkpoint(model, x, use_reentrant=reentrant))
        parts = gradients(model, x, lambda x: checkpoint_sequential(model, 2, x, use_reentrant=reentrant))
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(parts, expected)


# ---- custom functions


class Scaled(torch.autograd.Function):
    """``x * y * factor``, differentiable twice, forward too, and under vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        return x * y * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.factor = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y * ctx.factor, grad * x * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, x_t: torch.Tensor, y_t: torch.Tensor, _: None) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return (x_t * y + x * y_t) * ctx.factor


def test_custom_functions(device):
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return Scaled.apply(x, y, 3.0), torch.vmap(lambda a, b: Scaled.apply(a, b, 2.0))(x, y)

    def second(x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(Scaled.apply(x, y, 3.0).exp().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), x)

    def tangent(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.func.jvp(lambda a, b: Scaled.apply(a, b, 2.0), (x, y), (y, x))

    inputs = seeded(3, 4), seeded(3, 4, seed=1)
    check(device, fn, *inputs, backward=True)
    check(device, second, *inputs, tol=1e-4)
    check(device, tangent, *inputs)


def test_functions_that_mark_their_outputs(device):
    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            big = x > 0
            ctx.mark_non_differentiable(big)
            ctx.set_materialize_grads(False)
            return x / 2, big

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad, _):
            return grad / 2

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    half, big = Halves.apply(x)
    assert big.tolist() == [False, True]
    assert not big.requires_grad
    y = x * 1
    (Doubled.apply(y) + half + y).sum().backward()
    assert x.grad.tolist() == [4.5, 4.5]


def test_nothing_has_a_gradient(device):
    """Its memory is used by no step of the batch that the gradient is in."""
    x = torch.empty(2, 3, 0, 4, device=device, requires_grad=True)
    total = x.sum()
    total.backward()
    gradient = x.grad
    del x, total
    assert not torch.zeros(5, device=device).any().item()
    assert not gradient.any().item()
    assert gradient.shape == (2, 3, 0, 4)
