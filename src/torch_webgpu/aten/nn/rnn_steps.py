"""Recurrent layers of one direction: all steps, forward and backward, as cuDNN computes them.

Inputs meet their weights in one product for all steps, and so do gradients: a step by itself is one product with the
hidden weights and one cell kernel. What only these read is float32 whatever the layer's dtype is: gates before
activation, an LSTM's cell, a GRU's state beside its rounded result.

What a layer records is one recipe. Of a long sequence that would be thousands of instructions, other ones for each
length: its steps are recorded in parts, which share recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import exclude_autocast
from torch_webgpu.aten.linalg.matmul import product
from torch_webgpu.kernels.matmul.matmul import extern
from torch_webgpu.kernels.recurrent import rnn

from .rnn import new, record

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Of each kind of layer."""
KEPT = {"lstm": 5, "gru": 5, "tanh": 0, "relu": 0}
"""How many numbers each unit keeps of each step for the backward."""
PART = 128
"""Steps that are recorded together."""

Gradients = tuple[Maybe, ...]


def forward(
    x: torch.Tensor,
    h0: torch.Tensor,
    c0: Maybe,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Maybe,
    b_hh: Maybe,
    kind: str,
    is_reversed: bool,
    keeps: bool,
) -> tuple[torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """The results (T, B, H) of x (T, B, I), contiguous; the last state and cell (B, H); the workspace (T, B, 5 * H)."""
    (steps, rows, _), units = x.shape, h0.shape[1]
    gates = new(x, steps, rows, w_ih.shape[0], dtype=torch.float32)
    multiply(x.flatten(0, 1), w_ih.t(), gates.flatten(0, 1))
    out, kept, state = new(x, steps, rows, units), None, h0 if kind == "gru" else c0
    if keeps and KEPT[kind]:
        kept = new(x, steps, rows, KEPT[kind] * units, dtype=torch.float32)
    h, run = h0, forward_steps if steps <= PART else _forward_steps_once[kind, is_reversed]
    for part in parts(steps, is_reversed):
        taken = out[part]
        state = run(
            gates[part], h, state, w_hh, b_ih, b_hh, taken, None if kept is None else kept[part], kind, is_reversed
        )
        h = taken[0 if is_reversed else -1]
    cell = state.to(x.dtype) if kind == "lstm" and state is not None else None
    return out, h.clone(), cell, kept


def forward_steps(
    gates: torch.Tensor,
    h: torch.Tensor,
    state: Maybe,
    w_hh: torch.Tensor,
    b_ih: Maybe,
    b_hh: Maybe,
    out: torch.Tensor,
    kept: Maybe,
    kind: str,
    is_reversed: bool,
) -> Maybe:
    """Writes some steps' results and workspace. ``gates``: of the inputs. ``state``: an LSTM's cell or a GRU's state;
    it is returned as it is after these steps.
    """
    steps, rows, units = out.shape
    hidden = new(gates, rows, gates.shape[2])
    states = [new(gates, rows, units) for _ in range(2)]  # in turns: no kernel reads the buffer that it writes
    for n, t in enumerate(order(steps, is_reversed)):
        multiply(h, w_hh.t(), hidden)
        inputs: dict[str, Maybe] = {"input_gates": gates[t], "hidden_gates": hidden}
        workspace = {} if kept is None else {"workspace": kept[t]}
        h, following = out[t], states[n % 2]
        if kind == "lstm":
            inputs |= {"cx": state, "input_bias": b_ih, "hidden_bias": b_hh}
            record("lstm_cell", rnn.lstm_cell, inputs, {"hy": h, "cy": following, **workspace})
        elif kind == "gru":
            inputs |= {"hx": state, "b_input": b_ih, "b_hidden": b_hh}
            record("gru_cell", rnn.gru_cell, inputs, {"hy": h, "next": following, **workspace})
        else:
            inputs |= {"input_bias": b_ih, "hidden_bias": b_hh}
            record("rnn_cell", rnn.rnn_cell, inputs, {"hy": h}, kind)
        state = following
    return state if KEPT[kind] else None


def backward(
    x: torch.Tensor,
    h0: torch.Tensor,
    c0: Maybe,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    out: torch.Tensor,
    kept: Maybe,
    grad_out: Maybe,
    grad_hy: Maybe,
    grad_cy: Maybe,
    kind: str,
    is_reversed: bool,
    wanted: Sequence[bool],
) -> Gradients:
    """The gradients of x, h0, c0, w_ih, w_hh, b_ih and b_hh, those that are ``wanted``. Where both biases have the same
    one, all kinds but "gru", the first is returned if either is wanted.
    """
    steps, rows, units = out.shape
    of_inputs = new(x, steps, rows, w_ih.shape[0])
    of_hidden = new(x, steps, rows, w_ih.shape[0]) if kind == "gru" else of_inputs
    run = backward_steps if steps <= PART else _backward_steps_once[kind, is_reversed]
    h, carried = grad_hy, grad_cy
    ways = list(parts(steps, not is_reversed))
    for part in ways:
        before = c0
        if kind == "lstm" and kept is not None and (earlier := previous(part, steps, is_reversed)) is not None:
            before = kept[earlier][:, 4 * units :]
        h, carried = run(
            of_inputs[part],
            of_hidden[part] if kind == "gru" else None,
            w_hh,
            out[part] if kept is None else None,
            None if kept is None else kept[part],
            before,
            None if grad_out is None else grad_out[part],
            h,
            carried,
            kind,
            is_reversed,
            wanted[1] or part is not ways[-1],
        )
    flat = of_inputs.flatten(0, 1)
    found: list[Maybe] = [None] * 7
    if wanted[0]:
        found[0] = torch.mm(flat, w_ih).view(x.shape)
    if wanted[1] and h is not None:
        found[1] = (h + carried if kind == "gru" and carried is not None else h).to(x.dtype)
    if wanted[2] and carried is not None:
        found[2] = carried.to(x.dtype)
    if wanted[3]:
        found[3] = torch.mm(flat.t(), x.flatten(0, 1))
    if wanted[4]:
        found[4] = of_hidden_weights(of_hidden, h0, out, is_reversed)
    if wanted[5] or (wanted[6] and kind != "gru"):
        found[5] = flat.sum(0)
    if wanted[6] and kind == "gru":
        found[6] = of_hidden.flatten(0, 1).sum(0)
    return tuple(found)


def of_hidden_weights(grad: torch.Tensor, h0: torch.Tensor, out: torch.Tensor, is_reversed: bool) -> torch.Tensor:
    """The gradient of w_hh, from that of its products (T, B, G * H)."""
    first, later, before = (-1, grad[:-1], out[1:]) if is_reversed else (0, grad[1:], out[:-1])
    if not len(later):
        return torch.mm(grad[first].t(), h0)
    found = [new(grad, grad.shape[2], h0.shape[1], dtype=torch.float32) for _ in range(2)]
    multiply(grad[first].t(), h0, found[0])
    multiply(later.flatten(0, 1).t(), before.flatten(0, 1), found[1])
    return (found[0] + found[1]).to(grad.dtype)


def backward_steps(
    of_inputs: torch.Tensor,
    of_hidden: Maybe,
    w_hh: torch.Tensor,
    out: Maybe,
    kept: Maybe,
    before: Maybe,
    grad_out: Maybe,
    grad_hy: Maybe,
    carried: Maybe,
    kind: str,
    is_reversed: bool,
    goes_on: bool,
) -> tuple[Maybe, Maybe]:
    """Writes some steps' gradients of both products, where they differ. ``grad_hy`` and ``carried``: gradients of the
    state and of an LSTM's cell after these steps, or the rest of the state's gradient; they are returned as they are
    before, the first if the backward ``goes_on``. ``before``: an LSTM's cell before these steps.
    """
    (steps, rows, _), units = of_inputs.shape, w_hh.shape[1]
    product_of = new(of_inputs, rows, units, dtype=torch.float32)
    states = [new(product_of, rows, units) for _ in range(2)]  # in turns
    times = list(order(steps, not is_reversed))
    for n, t in enumerate(times):
        grads, following, to = of_inputs[t], states[n % 2], of_inputs if of_hidden is None else of_hidden
        inputs: dict[str, Maybe] = {"grad_hy": grad_hy, "grad_out": None if grad_out is None else grad_out[t]}
        if kind == "lstm" and kept is not None:
            cx = kept[times[n + 1]][:, 4 * units :] if n + 1 < steps else before
            inputs |= {"grad_cy": carried, "cx": cx, "workspace": kept[t]}
            outputs = {"grad_cx": following, "grad_gates": grads}
            record("lstm_cell_backward", rnn.lstm_cell_backward, inputs, outputs)
        elif kind == "gru" and kept is not None:
            inputs |= {"grad_next": carried, "workspace": kept[t]}
            outputs = {"grad_hx": following, "grad_input_gates": grads, "grad_hidden_gates": to[t]}
            record("gru_cell_backward", rnn.gru_cell_backward, inputs, outputs)
        elif out is not None:
            inputs["hy"] = out[t]
            record("rnn_cell_backward", rnn.rnn_cell_backward, inputs, {"grad_gates": grads}, kind)
        if goes_on or n + 1 < steps:
            multiply(to[t], w_hh, product_of)
        grad_hy, carried = product_of, following
    return product_of if goes_on else None, carried if KEPT[kind] else None


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Writes ``a @ b`` of two matrices into a float32 matrix."""
    if a.dtype == torch.float32:
        body = product(a, [(tuple(out.shape), out.stride(), out.dtype)])
    else:
        body = extern(dtypes.of(a.dtype).name, result_dtype=dtypes.of(out.dtype).name)
    record_kernel("aten::mm", (a, b), (out,), body)


def order(steps: int, is_reversed: bool) -> Sequence[int]:
    return range(steps)[::-1] if is_reversed else range(steps)


def parts(steps: int, is_reversed: bool) -> Iterator[slice]:
    """The steps in parts, in their order."""
    starts = range(0, steps, PART)
    for start in starts[::-1] if is_reversed else starts:
        yield slice(start, min(start + PART, steps))


def previous(part: slice, steps: int, is_reversed: bool) -> int | None:
    """The step before a part; None before the first."""
    step = part.stop if is_reversed else part.start - 1
    return step if 0 <= step < steps else None


# A table for each kind and direction, since guards of one table are few.
_WAYS = [(kind, is_reversed) for kind in GATES for is_reversed in (False, True)]
_forward_once = {way: record_once(forward) for way in _WAYS}
_backward_once = {way: record_once(backward) for way in _WAYS}
_forward_steps_once = {way: record_once(forward_steps) for way in _WAYS}
_backward_steps_once = {way: record_once(backward_steps) for way in _WAYS}


def run_forward(
    x: torch.Tensor, *args: Any, kind: str, is_reversed: bool, keeps: bool
) -> tuple[torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """:func:`forward`, as one recipe if that is not too long."""
    given: tuple[Any, ...] = (x, *args, kind, is_reversed, keeps)
    if len(x) <= PART:
        return _forward_once[kind, is_reversed](*given)
    with exclude_autocast():
        return forward(*given)


def run_backward(x: torch.Tensor, *args: Any, kind: str, is_reversed: bool, wanted: Sequence[bool]) -> Gradients:
    """:func:`backward`, as one recipe if that is not too long."""
    given: tuple[Any, ...] = (x, *args, kind, is_reversed, wanted)
    if len(x) <= PART:
        return _backward_once[kind, is_reversed](*given)
    with exclude_autocast():
        return backward(*given)
