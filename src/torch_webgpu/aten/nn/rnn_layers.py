"""``torch.nn.LSTM``, ``GRU`` and ``RNN``: layers of many steps whose host cost is that of a look-up for each.

PyTorch composes them of a product and a cell for each step, and so autograd their derivatives. Here they are registered
above autograd: what :func:`is_plain` allows is one call of :mod:`.rnn_steps` for each layer and direction, and another
in the backward. Everything else is PyTorch's composition, which also says what is wrong with arguments: projections,
packed sequences, other dtypes, and whatever wants to see the operators. Gradients that are to have gradients are the
composition's, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.autocast import cast, eligible
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE, aten, exclude_autocast
from torch_webgpu.aten.dispatch.torch_compositions import ORDINARY, composite, is_observed, leave_to_tracers, recompose

from .rnn_steps import GATES, run_backward, run_forward

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
OPERATORS: dict[str, OpOverload] = {
    "lstm": aten.lstm.input,
    "gru": aten.gru.input,
    "tanh": aten.rnn_tanh.input,
    "relu": aten.rnn_relu.input,
}
COMPOSITIONS = {kind: composite(overload) for kind, overload in OPERATORS.items()}


def is_plain(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> bool:
    """Whether :mod:`.rnn_steps` knows these dtypes and shapes."""
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    count = layers * directions
    if layers < 1 or len(params) != each * count or len(states) != (2 if kind == "lstm" else 1) or not x.numel():
        return False
    dtype, device = x.dtype, x.device
    for t in (x, *states, *params):
        if t.__class__ not in ORDINARY or t.dtype is not dtype or t.device != device or t.layout is not torch.strided:
            return False
        if t.is_neg():
            return False
    if dtype not in FLOATS or x.dim() != 3 or states[0].dim() != 3:
        return False
    rows, units = x.shape[0 if batch_first else 1], states[0].shape[2]
    if not units or any(t.shape != (count, rows, units) for t in states):
        return False
    gates = GATES[kind] * units
    for n in range(count):
        w_ih, w_hh, *biases = params[each * n : each * (n + 1)]
        width = x.shape[2] if n < directions else directions * units
        if w_ih.shape != (gates, width) or w_hh.shape != (gates, units) or any(b.shape != (gates,) for b in biases):
            return False
    return True


class Layer(torch.autograd.Function):
    """(out, hy, cy) of x, h0, c0, w_ih, w_hh, b_ih, b_hh for a kind of layer, which may go back in time."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        *inputs, kind, is_reversed = args
        out, hy, cy, kept = run_forward(*inputs, kind=kind, is_reversed=is_reversed, keeps=True)
        ctx.save_for_backward(*inputs, out, kept)
        ctx.kind, ctx.is_reversed = kind, is_reversed
        ctx.set_materialize_grads(False)
        return out, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *inputs, out, kept = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:7])
        if torch.is_grad_enabled():
            return *differentiable_backward(ctx.kind, ctx.is_reversed, inputs, grads, wanted), None, None
        kind, is_reversed = ctx.kind, ctx.is_reversed
        given = *inputs[:5], out, kept, *grads
        found = list(run_backward(*given, kind=kind, is_reversed=is_reversed, wanted=wanted))
        if kind != "gru":  # both biases have the same gradient
            found[5:] = [found[5] if want else None for want in wanted[5:]]
        return *found, None, None


def differentiable_backward(
    kind: str, is_reversed: bool, inputs: Sequence[Maybe], grads: Sequence[Maybe], wanted: Sequence[bool]
) -> list[Maybe]:
    """Gradients that have gradients: those of PyTorch's composition, computed again."""
    # Of aliases: one input may be a function of another, and what goes by that is no part of these gradients.
    with exclude_autocast():
        x, h0, c0, *weights = aliases = [None if t is None else t.view_as(t) for t in inputs]
        assert x is not None
        assert h0 is not None
        states = [h0.unsqueeze(0)] if c0 is None else [h0.unsqueeze(0), c0.unsqueeze(0)]
        params = [w for w in weights if w is not None]
        results = compose(
            kind, x.flip(0) if is_reversed else x, states, params, len(params) == 4, 1, 0.0, False, False, False
        )
        out, *last = results
        outputs = [out.flip(0) if is_reversed else out, *[t.squeeze(0) for t in last]]
        pairs = [(t, grad) for t, grad in zip(outputs, grads) if grad is not None]
        asked = [t for t, want in zip(aliases, wanted) if want and t is not None]
        found = iter(
            torch.autograd.grad(
                [t for t, _ in pairs], asked, [grad for _, grad in pairs], create_graph=True, allow_unused=True
            )
        )
    return [next(found) if want and t is not None else None for t, want in zip(aliases, wanted)]


def compose(kind: str, x: torch.Tensor, states: Sequence[torch.Tensor], *rest: Any) -> Any:
    """PyTorch's composition."""
    return COMPOSITIONS[kind](x, list(states) if kind == "lstm" else states[0], *rest)


def layer_of(kind: str) -> Callable[..., Any]:
    """The kernel of the operator for a kind of layers."""
    takes_list = kind == "lstm"

    def kernel(x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *options: Any) -> tuple[torch.Tensor, ...]:
        states = list(hx) if takes_list else [hx]
        given, is_cast = (x, states, params), torch.is_autocast_enabled(DEVICE_TYPE)
        if is_observed() or (is_cast and not all(map(eligible, (x, *states, *params)))):
            return compose(kind, x, states, params, *options)
        with exclude_autocast():
            if is_cast:  # as CUDA's: the composition casts in each step
                given = tuple([cast(value, torch.get_autocast_dtype(DEVICE_TYPE)) for value in given])
            if is_plain(kind, *given, *options):
                return stacked(kind, *given, *options)
        return compose(kind, x, states, params, *options)

    return kernel


def stacked(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Layer on layer, each of one direction or two, with dropout in between."""
    if batch_first:
        x = x.transpose(0, 1)
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    h0, c0 = ([*t.unbind(0)] for t in (states[0], states[-1]))
    absent = () if has_biases else (None, None)
    is_derived = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *params))
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for n in range(layers):
        x, found = x.contiguous(), []
        for d in range(directions):
            k = n * directions + d
            weights = params[each * k : each * (k + 1)]
            args = x, h0[k], c0[k] if kind == "lstm" else None, *weights, *absent
            if is_derived:
                out, *ends = Layer.apply(*args, kind, d == 1)
            else:
                out, *ends = run_forward(*args, kind=kind, is_reversed=d == 1, keeps=False)[:3]
            found.append(out)
            for ended, end in zip(last, ends):
                ended.append(end)
        x = torch.cat(found, 2) if bidirectional else out
        if train and dropout and n + 1 < layers:
            x = torch.dropout(x, dropout, True)
    if batch_first:
        x = x.transpose(0, 1)
    return (x, *[torch.stack(ended) if len(ended) > 1 else ended[0].unsqueeze(0) for ended in last])


def register() -> None:
    for kind, overload in OPERATORS.items():
        recompose(overload, layer_of(kind))
        leave_to_tracers(overload)
