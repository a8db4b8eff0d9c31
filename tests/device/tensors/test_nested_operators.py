"""Operators of nested tensors, of the strided layout and of the jagged one: as on the CPU, or refused in words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nested import as_nested_tensor, nested_tensor

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = (3, 5, 2)


def of(lengths: tuple[int, ...], *rest: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *rest, generator=generator) for n in lengths]


def make(device: Any, parts: list[torch.Tensor] | None = None) -> torch.Tensor:
    return nested_tensor([x.to(device) for x in (of(LENGTHS, 4) if parts is None else parts)])


def other(device: Any) -> torch.Tensor:
    return make(device, of(LENGTHS, 4, seed=1))


def positive(device: Any) -> torch.Tensor:
    return make(device, [x > 0 for x in of(LENGTHS, 4)])


def weights(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(kind: type[nn.Module], *args: Any, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return kind(*args, **options).eval()


def moved(model: nn.Module, device: Any) -> nn.Module:
    return copy.deepcopy(model).to(device)


def in_place(name: str, *args: Any) -> Callable[[Any], torch.Tensor]:
    def call(device: Any) -> torch.Tensor:
        made = make(device)
        getattr(made, name)(*[a(device) if callable(a) else a for a in args])
        return made

    return call


def heads(device: Any) -> torch.Tensor:
    return make(device, of(LENGTHS, 2, 8)).transpose(1, 2).contiguous()


def masked(device: Any) -> torch.Tensor:
    kept = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return torch._nested_tensor_from_mask(torch.arange(60.0).view(3, 5, 4).to(device), kept.to(device))


LINEAR, NORM = layer(nn.Linear, 4, 6), layer(nn.LayerNorm, 4)
ENCODER = layer(nn.TransformerEncoderLayer, 4, 2, 8, batch_first=True)
NORM_FIRST = layer(nn.TransformerEncoderLayer, 4, 2, 8, batch_first=True, norm_first=True, activation="gelu")
ATTENTION = layer(nn.MultiheadAttention, 4, 2, batch_first=True)

CALLS: dict[str, Callable[[Any], Any]] = {
    "padded": lambda d: make(d).to_padded_tensor(-1.0),
    "padded, larger": lambda d: make(d).to_padded_tensor(-1.0, (3, 7, 6)),
    "padded, 4-D": lambda d: make(d, of(LENGTHS, 2, 8)).to_padded_tensor(0.0),
    "padded, two ragged dimensions": lambda d: make(d, [torch.ones(2, 3), torch.ones(4, 1)]).to_padded_tensor(0.0),
    "padded, 1-D": lambda d: make(d, of(LENGTHS)).to_padded_tensor(0.0),
    "padded, empty part": lambda d: make(d, of((0, 4), 3)).to_padded_tensor(7.0),
    "padded, int64": lambda d: make(d, [torch.ones(n, 3).long() for n in (2, 4)]).to_padded_tensor(7),
    "padded, int8": lambda d: make(d, [torch.ones(n, 3).to(torch.int8) for n in (1, 2)]).to_padded_tensor(3),
    "unbind": lambda d: make(d).unbind(),
    "unbind, transposed": lambda d: make(d).transpose(1, 2).unbind(),
    "index": lambda d: make(d)[1],
    "add": lambda d: make(d) + other(d),
    "add a number": lambda d: make(d) + 1,
    "sub": lambda d: make(d) - other(d),
    "mul": lambda d: make(d) * other(d),
    "mul by a 0-dim tensor": lambda d: make(d) * torch.tensor(2.0, device=d),
    "div": lambda d: make(d) / 3,
    "masked": masked,
    "masked + nested": lambda d: masked(d) + make(d),
    "cpu": lambda d: make(d).cpu(),
    "there and back": lambda d: make("cpu").to(d).cpu(),
    "half": lambda d: make(d).half(),
    "repr": lambda d: repr(make(d)).replace(", device='webgpu:0'", ""),
    "linear": lambda d: moved(LINEAR, d)(make(d)),
    "linear of masked": lambda d: moved(LINEAR, d)(masked(d)),
    "layer_norm": lambda d: moved(NORM, d)(make(d)),
    "embedding": lambda d: F.embedding(make(d, [torch.tensor([1, 3]), torch.tensor([0])]), weights(5, 4).to(d)),
    "bmm": lambda d: torch.bmm(make(d), other(d).transpose(1, 2)),
    "matmul": lambda d: make(d) @ other(d).transpose(1, 2),
    "softmax": lambda d: make(d).softmax(-1),
    "relu": lambda d: make(d).relu(),
    "gelu": lambda d: F.gelu(make(d)),
    "isnan": lambda d: make(d).isnan(),
    "ge a number": lambda d: make(d) >= 0,
    "eq a number": lambda d: make(d, [torch.tensor([1, 2]), torch.tensor([2])]) == 2,
    "sum": lambda d: make(d).sum(-1, keepdim=True),
    "transpose, contiguous": lambda d: make(d).transpose(1, 2).contiguous(),
    "reshape": lambda d: make(d).reshape(3, -1, 2, 2).transpose(1, 2),
    "select": lambda d: make(d).select(2, 1),
    "chunk": lambda d: make(d).chunk(2, -1),
    "cat": lambda d: torch.cat([make(d), other(d)], 0),
    "clone": lambda d: make(d).clone(),
    "zeros_like": lambda d: torch.zeros_like(make(d)),
    "masked_fill": lambda d: make(d).masked_fill(positive(d), 0.0),
    "where": lambda d: torch.where(positive(d), torch.zeros((), device=d), make(d)),
    "values": lambda d: make(d).values(),
    "fill_": in_place("fill_", 3.0),
    "add_": in_place("add_", other),
    "mul_": in_place("mul_", 2.0),
    "copy_": in_place("copy_", other),
    "copy_ from the host": in_place("copy_", lambda d: other("cpu")),
    "of a batch": lambda d: as_nested_tensor(torch.arange(24.0).view(2, 3, 4).to(d)) + 1,
    "encoder": lambda d: moved(ENCODER, d)(make(d)),
    "encoder, norm first": lambda d: moved(NORM_FIRST, d)(make(d)),
    "attention": lambda d: moved(ATTENTION, d)(*[make(d)] * 3, need_weights=False)[0],
    "attention's weights": lambda d: (lambda q: moved(ATTENTION, d)(q, q, q))(make(d)),
    "scaled_dot_product_attention": lambda d: F.scaled_dot_product_attention(heads(d), heads(d), heads(d)),
    "projection": lambda d: torch._transform_bias_rescale_qkv(make(d, of(LENGTHS, 12)), weights(12).to(d), 2),
    "from padded": lambda d: torch._nested_from_padded(
        torch.arange(120.0).view(3, 2, 5, 4).to(d), torch.tensor([[n, 8] for n in LENGTHS]), True
    ),
}
"""Each on a device."""

REFUSED: dict[str, Callable[[Any], Any]] = {
    "padded, transposed": lambda d: make(d).transpose(1, 2).to_padded_tensor(0.0),
    "padded, too small": lambda d: make(d).to_padded_tensor(0.0, (3, 2, 4)),
    "padded, too few dimensions": lambda d: make(d).to_padded_tensor(0.0, (3, 5)),
    "add other sizes": lambda d: make(d) + make(d, of((1, 2, 3), 4)),
    "copy_ other sizes": in_place("copy_", lambda d: make(d, of((1, 2, 3), 4))),
    "eq": lambda d: make(d) == other(d),
    "attention, transposed": lambda d: F.scaled_dot_product_attention(
        *[make(d, of(LENGTHS, 2, 8)).transpose(1, 2)] * 3
    ),
    "unbind(1)": lambda d: make(d).unbind(1),
    "linear of other features": lambda d: F.linear(make(d), torch.ones(5, 7, device=d)),
    "layer_norm without weight": lambda d: F.layer_norm(make(d), [4]),
    "layer_norm of other features": lambda d: F.layer_norm(make(d), [3], *torch.ones(2, 3, device=d)),
    "sum over a ragged dimension": lambda d: make(d).sum(1, keepdim=True),
    "sum without keepdim": lambda d: make(d).sum(-1),
}


def leaves(result: Any) -> list[Any]:
    """What a call returns, on the host, nested tensors as their parts."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in leaves(item)]
    if not isinstance(result, torch.Tensor):
        return [result]
    parts = result.detach().unbind() if result.is_nested else [result.detach()]
    return [result.layout, result.is_nested, *[t.cpu() for t in parts]]


def check(device: Any, call: Callable[[Any], Any]) -> None:
    expected, actual = leaves(call("cpu")), leaves(call(device))
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)
        else:
            assert a == e


@pytest.mark.parametrize("name", CALLS)
def test_operators(device, name):
    with torch.no_grad():
        check(device, CALLS[name])


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_refusals(device, name):
    words = []
    for where in ("cpu", device):
        with pytest.raises((RuntimeError, ValueError)) as refusal:
            REFUSED[name](where)
        words.append(str(refusal.value).splitlines()[0])
    assert words[0] == words[1]


@pytest.mark.parametrize("name", ["exp", "sigmoid", "cumsum"])
def test_what_pytorch_has_no_kernel_for(device, name):
    with pytest.raises(NotImplementedError, match=rf"Could not run 'aten::{name}' with .*NestedTensorwebgpu"):
        getattr(make(device), name)(*([-1] if name == "cumsum" else []))


DIFFERENTIABLE: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "padded": lambda t, d: t,
    "linear": lambda t, d: moved(LINEAR, d)(t),
    "relu": lambda t, d: t.relu(),
    "gelu": lambda t, d: F.gelu(t),
    "softmax": lambda t, d: t.softmax(-1),
    "layer_norm": lambda t, d: moved(NORM, d)(t),
    "add": lambda t, d: t + t * t,
    "unbind": lambda t, d: t.unbind()[1],
    "sum": lambda t, d: t.sum(-1, keepdim=True),
    "bmm": lambda t, d: t @ t.transpose(1, 2),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(device, name):
    def gradients(d: Any) -> list[torch.Tensor]:
        parts = [x.clone().to(d).requires_grad_() for x in of(LENGTHS, 4)]
        result = DIFFERENTIABLE[name](as_nested_tensor(parts), d)
        result = result.to_padded_tensor(0.0) if result.is_nested else result
        seeds = torch.arange(float(result.numel())).view(result.shape).to(d)
        return [result, *torch.autograd.grad(result, parts, seeds)]

    check(device, gradients)


@pytest.mark.parametrize("name", ["encoder layer", "linear"])
def test_nothing_of_a_layer_runs_on_the_host(device, name):
    before = torch.webgpu.fallback_stats()
    with torch.no_grad():
        leaves(moved({"encoder layer": ENCODER, "linear": LINEAR}[name], device)(make(device)))
    assert torch.webgpu.fallback_stats() == before


@pytest.mark.parametrize("backward", [False, True])
def test_attention_of_transposed_jagged_tensors(device, backward):
    def call(d: Any) -> Any:
        parts = [x.to(d) for x in of(LENGTHS, 16)]
        made = nested_tensor(parts, layout=torch.jagged, requires_grad=backward)
        q = made.unflatten(-1, (2, 8)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q)
        if backward:
            out.values().sum().backward()
            return list(made.grad.unbind())
        return list(out.unbind())

    check(device, call)
