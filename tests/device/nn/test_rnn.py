"""Layers of LSTM, GRU and RNN against the CPU in float64; what they record, and what goes by PyTorch's composition."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torch_webgpu.aten.dispatch import recipes
from torch_webgpu.aten.dispatch.fallback import fallback_stats
from torch_webgpu.aten.dispatch.recipes import statistics
from torch_webgpu.aten.nn import rnn_layers, rnn_steps
from torch_webgpu.engine.record import engine

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
kinds = pytest.mark.parametrize("kind", KINDS)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""After several roundings of states, from which ``1 - y * y`` of an RNN follows with few digits."""
FLAGS = [dict(zip(("bidirectional", "batch_first", "bias"), flags)) for flags in product([False, True], repeat=3)]
OPTIONS = [{"num_layers": layers, **flags} for layers in (1, 2) for flags in FLAGS]
INPUTS, UNITS, ROWS, STEPS = 5, 6, 3, 7


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    before = fallback_stats()
    yield
    assert fallback_stats() == before


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of layers went by PyTorch's composition."""
    counts: Counter[str] = Counter()

    def counted(kind: str, composition: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[kind] += 1
            return composition(*args)

        return call

    for kind in KINDS:
        monkeypatch.setitem(rnn_layers.COMPOSITIONS, kind, counted(kind, rnn_layers.COMPOSITIONS[kind]))
    return counts


def states_for(model: nn.RNNBase, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    count = model.num_layers * (2 if model.bidirectional else 1)
    return tuple([torch.randn(count, rows, model.hidden_size) for _ in range(2 if isinstance(model, nn.LSTM) else 1)])


def input_for(model: nn.RNNBase, steps: int = STEPS, rows: int = ROWS) -> torch.Tensor:
    shape = (rows, steps) if model.batch_first else (steps, rows)
    return torch.randn(*shape, model.input_size)


def call(model: nn.RNNBase, x: torch.Tensor, *states: torch.Tensor) -> list[torch.Tensor]:
    """The result, the last states, and cells."""
    out, last = model(x, *([states] if len(states) == 2 else states))
    return [out, *(last if isinstance(last, tuple) else (last,))]


def close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    """Relative to the largest number of each tensor; what is smaller than its terms were is rounded as they were."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert a.shape == e.shape
        size = max(e.abs().max().item(), 0.25)
        torch.testing.assert_close(a.detach().cpu().double() / size, e.detach() / size, rtol=0, atol=tolerance)


def with_gradients(
    model: nn.RNNBase, tensors: tuple[torch.Tensor, ...], weigh: Callable[[list[torch.Tensor]], torch.Tensor]
) -> list[torch.Tensor]:
    """What a model returns, and the gradients of its inputs, states and parameters."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    outputs = call(model, *leaves)
    weigh(outputs).backward()
    return [t.detach() for t in outputs] + [t.grad for t in (*leaves, *model.parameters())]


def squares(outputs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([t.float().square().sum() for t in outputs]).sum()


def agrees(
    device: torch.device,
    model: nn.RNNBase,
    *tensors: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    weigh: Callable[[list[torch.Tensor]], torch.Tensor] = squares,
) -> None:
    """Results and gradients, for inputs and states on the CPU, rounded to ``dtype`` first."""
    rounded = copy.deepcopy(model).to(dtype)
    tensors = tuple([t.to(dtype) for t in tensors])
    actual = with_gradients(copy.deepcopy(rounded).to(device), tuple([t.to(device) for t in tensors]), weigh)
    expected = with_gradients(rounded.double(), tuple([t.double() for t in tensors]), weigh)
    assert {t.dtype for t in actual} == {dtype}
    close(actual, expected, TOLERANCES[dtype])


@kinds
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(k for k, v in options.items() if v))
def test_results_and_gradients(device, composed, kind, options, dtype):
    model = KINDS[kind](INPUTS, UNITS, **options)
    agrees(device, model, input_for(model), *states_for(model), dtype=dtype)
    assert not composed


@kinds
def test_results_lie_as_pytorch_s_do(device, kind):
    for options in ({}, {"num_layers": 2, "batch_first": True, "bidirectional": True}):
        model = KINDS[kind](INPUTS, UNITS, **options)
        x, expected = input_for(model), []
        expected = [(t.shape, t.stride(), t.is_contiguous()) for t in call(model, x)]
        assert [(t.shape, t.stride(), t.is_contiguous()) for t in call(model.to(device), x.to(device))] == expected


@kinds
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 1, 1), (1, 3, 1, 4), (40, 33, 5, 2)], ids=str)
def test_sizes(device, kind, sizes, dtype):
    """Steps that begin anywhere in a word, and products that are split."""
    inputs, units, rows, steps = sizes
    model = KINDS[kind](inputs, units, bidirectional=True)
    agrees(device, model, input_for(model, steps, rows), *states_for(model, rows), dtype=dtype)


@kinds
@pytest.mark.parametrize("steps", [8, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_long_sequences_are_recorded_in_parts(device, monkeypatch, kind, steps, dtype):
    monkeypatch.setattr(rnn_steps, "PART", 4)
    model = KINDS[kind](INPUTS, 8, num_layers=2, bidirectional=True)
    for _ in range(2):
        agrees(device, model, input_for(model, steps), *states_for(model), dtype=dtype)


@kinds
def test_layouts(device, composed, kind):
    """Inputs and states that are expanded, parts or transposed, and parameters that are not contiguous."""
    model = KINDS[kind](INPUTS, UNITS)
    x, wide = torch.randn(ROWS, INPUTS, STEPS).permute(2, 0, 1), torch.randn(STEPS, ROWS, 2 * INPUTS)[..., ::2]
    row, part = torch.randn(1, 1, UNITS).expand(1, ROWS, UNITS), torch.randn(1, UNITS, ROWS + 2).mT[:, 1:-1]
    states = (row, part) if kind == "lstm" else (part,)
    agrees(device, model, x, *states)
    agrees(device, model, wide, *states[::-1])
    agrees(device, model, torch.randn(1, 1, INPUTS).expand(STEPS, ROWS, INPUTS), *[row] * len(states))
    for name in ("weight_ih_l0", "weight_hh_l0"):
        turned = getattr(model, name).detach().t().contiguous().t()
        setattr(model, name, nn.Parameter(turned))
    agrees(device, model, wide, *states)
    assert not composed


@kinds
def test_only_some_results_count(device, kind):
    model = KINDS[kind](INPUTS, UNITS, num_layers=2, bidirectional=True)
    x, states = input_for(model), states_for(model)
    for k in range(1 + len(states)):
        agrees(device, model, x, *states, weigh=lambda outputs, k=k: outputs[k].float().square().sum())
    agrees(device, model, x, *states, weigh=lambda outputs: outputs[0][-1].float().sum())


@kinds
def test_only_some_gradients_are_wanted(device, kind):
    model = KINDS[kind](INPUTS, UNITS)
    x = input_for(model)
    tensors = dict(model.named_parameters())
    for name in tensors:
        results = []
        for where, dtype in ((device, torch.float32), (torch.device("cpu"), torch.float64)):
            twin = copy.deepcopy(model).to(where, dtype)
            for other, p in twin.named_parameters():
                p.requires_grad_(other == name)
            call(twin, x.to(where, dtype))[0].square().sum().backward()
            assert [other for other, p in twin.named_parameters() if p.grad is not None] == [name]
            results.append([twin.get_parameter(name).grad])
        close(*results, 1e-5)


@kinds
def test_without_gradients_results_are_the_same(device, kind):
    model = KINDS[kind](INPUTS, UNITS, num_layers=2).to(device)
    x = input_for(model).to(device)
    expected = call(model, x)
    with torch.no_grad():
        torch.testing.assert_close(call(model, x), expected, rtol=0, atol=0)
    with torch.inference_mode():
        torch.testing.assert_close(call(model, x), expected, rtol=0, atol=0)


def test_dropout_keeps_the_mean(device):
    """A second layer that is linear in the first one's results."""
    model = nn.RNN(4, 8, num_layers=2, nonlinearity="relu", bias=False, dropout=0.25)
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
        model.weight_hh_l1.zero_()
    model, x = model.to(device), torch.rand(2, 1, 4, device=device).expand(2, 4096, 4)
    dropped, kept = model(x)[0], model.eval()(x)[0]
    assert dropped.std(1).min() > 0
    assert kept.std(1).max() < 1e-6
    torch.testing.assert_close(dropped.mean(1), kept.mean(1), rtol=0.05, atol=0)


@kinds
@pytest.mark.parametrize("related", [False, True])
def test_gradients_have_gradients(device, kind, related):
    """``related``: states are functions of the input."""
    model = KINDS[kind](UNITS, UNITS, bidirectional=not related)
    x, states, results = input_for(model), states_for(model), []
    for where, dtype in ((device, torch.float32), (torch.device("cpu"), torch.float64)):
        twin = copy.deepcopy(model).to(where, dtype)
        leaves = [t.to(where, dtype).requires_grad_() for t in (x, *states)]
        given = [leaves[0][:1].sin() * t for t in leaves[1:]] if related else leaves[1:]
        inputs = [*leaves, *twin.parameters()]
        out = torch.stack([t.square().sum() for t in call(twin, leaves[0], *given)]).sum()
        first = torch.autograd.grad(out, inputs, create_graph=True)
        second = torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs)
        results.append([*first, *second])
    close(*results, 1e-4)


@kinds
def test_transforms(device, kind, composed):
    model = KINDS[kind](INPUTS, UNITS)
    x, results = input_for(model), []
    for where, dtype in ((device, torch.float32), (torch.device("cpu"), torch.float64)):
        twin = copy.deepcopy(model).to(where, dtype)

        def loss(params: dict[str, torch.Tensor], x: torch.Tensor, twin: nn.Module = twin) -> torch.Tensor:
            return functional_call(twin, params, (x,))[0].square().sum()

        params = {name: p.detach() for name, p in twin.named_parameters()}
        results.append(list(grad(loss)(params, x.to(where, dtype)).values()))
    close(*results, 1e-5)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_modes_see_the_composition(device):
    model = nn.LSTM(INPUTS, UNITS).to(device)
    x = input_for(model).to(device)
    with Seen() as seen:
        actual = model(x)[0]
    assert seen.names["aten::_thnn_fused_lstm_cell"] == STEPS
    torch.testing.assert_close(actual, model(x)[0])


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(device, composed, kind, dtype):
    model = KINDS[kind](INPUTS, UNITS, num_layers=2, bidirectional=True)
    x, states = input_for(model), states_for(model)
    expected = with_gradients(copy.deepcopy(model).double(), (x.double(), *[t.double() for t in states]), squares)
    with torch.autocast(device.type, dtype=dtype):
        actual = with_gradients(model.to(device), tuple([t.to(device) for t in (x, *states)]), squares)
    count = 1 + len(states)
    assert [t.dtype for t in actual] == [dtype] * count + [torch.float32] * (len(actual) - count)
    close(actual, expected, TOLERANCES[dtype])
    assert not composed


def test_what_is_wrong_is_said_in_pytorch_s_words(device):
    """Not an LSTM, of which oneDNN on the CPU checks nothing."""

    def gru(where: Any, x: tuple[int, ...], h: tuple[int, ...], w: tuple[int, ...], biases: int) -> torch.Tensor:
        params = [torch.zeros(s, device=where) for s in (w, (6, 2), *[(6,)] * biases)]
        x, h = (torch.zeros(s, device=where) for s in (x, h))
        return torch.gru(x, h, params, True, 1, 0.0, False, False, False)[0]

    right = (3, 1, 4), (1, 1, 2), (6, 4), 2
    assert gru(device, *right).shape == (3, 1, 2)
    for k, wrong in enumerate([(3, 1, 5), (1, 1, 3), (6, 5), 1]):
        given = [*right[:k], wrong, *right[k + 1 :]]
        messages = []
        for where in (device, "cpu"):
            with pytest.raises(RuntimeError) as raised:
                gru(where, *given)
            messages.append(re.sub(r"\d+x(?=\d+ and)", "", str(raised.value)))  # the CPU multiplies all steps' rows
        assert messages[0] == messages[1]


def test_results_that_were_written_over_have_no_gradients(device):
    model = nn.GRU(INPUTS, UNITS).to(device)
    out, last = model(input_for(model).to(device))
    last.zero_()
    out.sum().backward()
    out, _ = model(input_for(model).to(device))
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_checkpoints(device):
    model = nn.LSTM(INPUTS, UNITS).to(device)
    x = input_for(model).to(device).requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[0].sum(), x)
    (actual,) = torch.autograd.grad(checkpoint(lambda t: model(t)[0], x, use_reentrant=False).sum(), x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_projections_and_other_dtypes_are_composed(device, composed):
    model = nn.LSTM(INPUTS, UNITS, proj_size=2)
    agrees(device, model, input_for(model))
    assert composed["lstm"]


@kinds
def test_a_step_is_a_product_and_a_cell(device, kind):
    """In steady state, in either direction of gradients; everything is found that was made."""
    recipes.clear()  # of an operator and a shape there are so many guards: other tests' may have been the first
    steps, layers = 32, 2
    model = KINDS[kind](8, 8, num_layers=layers).to(device)
    x = input_for(model, steps).to(device)

    def train() -> None:
        model.zero_grad()
        model(x)[0].sum().backward()
        torch.webgpu.flush_batch()

    for _ in range(5):
        train()
    made, missed = statistics.made, engine().plans.misses
    explained = torch.webgpu.explain(train)
    names = Counter(name for kernel in explained.kernels for name in kernel.dispatches)
    assert (statistics.made, engine().plans.misses) == (made, missed)
    cell = kind if kind in ("lstm", "gru") else "rnn"
    assert names[f"{cell}_cell"] == names[f"{cell}_cell_backward"] == steps * layers
    assert sum(names.values()) < (2 * 2 * steps + 16) * layers
    keys = statistics.by_key
    train()
    assert statistics.by_key == keys, "a recipe was looked up by its key and not found by a guard"
