"""Training steps and what belongs to them, compiled: as in eager mode, number for number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "webgpu"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Layer(nn.Module):
    """A transformer's layer with dropout, and a batch norm after it."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.after = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(attended), 0.2, self.training)
        x = x + F.dropout(self.mlp(self.norms[1](x)), 0.2, self.training)
        return self.after(x.transpose(1, 2)).transpose(1, 2)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(5, 7, 2, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (Layer, (2, 6, 32)),
    "convolutions": (convnet, (2, 3, 8, 8)),
    "lstm": (Recurrent, (2, 4, 5)),
}


def train(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """Losses of three steps, and what the model is afterwards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for seed in range(3):
        torch.manual_seed(seed)
        loss = run(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(t.detach() for t in model.state_dict().values())]


@pytest.mark.parametrize("name", MODELS)
def test_three_steps(name: str) -> None:
    make, shape = MODELS[name]
    model = make().to(DEVICE)
    twin = copy.deepcopy(model)
    x = torch.randn(shape, device=DEVICE)
    want, got = train(model, model, x), train(twin, torch.compile(twin), x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    twin.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(twin)(x), twin(x), rtol=1e-5, atol=1e-6)


def test_dropout_draws_what_eager_mode_draws() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.dropout(x, 0.5), x + torch.rand_like(x), torch.randn(3, device=DEVICE)

    x = torch.ones(40, device=DEVICE)
    compiled = torch.compile(f)
    for seed in range(3):
        torch.manual_seed(seed)
        want = f(x)
        torch.manual_seed(seed)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), want, strict=True))


def test_checkpointing() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).to(DEVICE)
    x = torch.randn(3, 4, device=DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, x, use_reentrant=False).sum()

    want = torch.autograd.grad(f(x), tuple(model.parameters()))
    got = torch.autograd.grad(torch.compile(f)(x), tuple(model.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    model = nn.Linear(16, 16).to(DEVICE)
    x = torch.randn(4, 16, device=DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=dtype):
            return model(x).relu()

    got, want = torch.compile(f)(x), f(x)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want)
    (a,), (b,) = (torch.autograd.grad(y.float().sum(), (model.weight,)) for y in (torch.compile(f)(x), f(x)))
    torch.testing.assert_close(a, b)


def test_transforms() -> None:
    x = torch.randn(3, 4, device=DEVICE)
    cubes = torch.compile(lambda x: torch.func.vmap(torch.func.grad(lambda t: (t**3).sum()))(x))
    torch.testing.assert_close(cubes(x), 3 * x * x)


def test_what_comes_out_may_be_written() -> None:
    model = nn.Linear(4, 4).to(DEVICE)
    x = torch.randn(2, 4, device=DEVICE)
    y = torch.compile(model)(x)
    y.relu_()
    (got,) = torch.autograd.grad(y.sum(), (model.weight,))
    (want,) = torch.autograd.grad(model(x).relu().sum(), (model.weight,))
    torch.testing.assert_close(got, want)


def test_an_index_out_of_range_is_an_error_and_the_session_goes_on() -> None:
    compiled = torch.compile(lambda x, i: x[i])
    x = torch.randn(4, device=DEVICE)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9], device=DEVICE)).cpu()
    assert torch.equal(compiled(x, torch.tensor([1], device=DEVICE)), x[1:2])


def test_compiled_in_place_of_the_module() -> None:
    model = nn.Linear(4, 3).to(DEVICE)
    x = torch.randn(2, 4, device=DEVICE)
    want = model(x)
    model.compile()
    torch.testing.assert_close(model(x), want)


def test_what_can_be_computed_again_is_not_kept() -> None:
    """A GELU written out keeps its input in 16 bits, and not the ``tanh`` in float32, whose gradient needs that."""
    torch._dynamo.reset()
    kept: list[torch.Tensor] = []
    results = []
    for device in ("webgpu", "cpu"):
        torch.manual_seed(0)
        x = torch.randn(64, 48).half().to(device).requires_grad_()

        def gelu(x: torch.Tensor) -> torch.Tensor:
            x = x * 1.5
            return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x.float().pow(3))))

        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            value = torch.compile(gelu)(x) if device == "webgpu" else gelu(x)
        if device == "webgpu":
            assert [(t.dtype, t.shape) for t in kept] == [(torch.float16, x.shape)]
        value.sum().backward()
        results.append((value.detach().cpu(), x.grad.cpu()))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
