"""Operations that operators record: pointwise ones, reductions and scans, and kernels.

What is computed is a function of a module and the values it is called with (``arguments``), which together are its key
in caches: a closure is refused (:mod:`torch_webgpu.ir.values`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from torch_webgpu.engine.record import TypedScalar, engine
from torch_webgpu.ir.combine import accumulators
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern, Pointwise, Reduction, Spec
from torch_webgpu.ir.ops import ops

from .torch_abi import Meta, empty_like_meta

Expression = Callable[..., Expr | tuple[Expr, ...]]
"""``expression(*arguments, *elements)``: what is stored at a point, one expression for each output."""


class Fold(NamedTuple):
    """What a reduction computes: ``values`` that each point contributes (the prologue), how contributions meet
    (``combine``, a row of ``ir.combine`` for each), and ``epilogue(*accumulators)``, an expression for each output.
    """

    values: tuple[Expr, ...]
    combine: tuple[str, ...]
    epilogue: Callable[..., tuple[Expr, ...]]


def record_pointwise(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    expression: Expression,
    arguments: tuple[Hashable, ...] = (),
    scalars: Sequence[TypedScalar] = (),
    dtype: str | None = None,
) -> None:
    """Records ``expression(*arguments, *elements)`` at each point of ``outputs``, to whose dtypes results are
    converted. ``inputs`` broadcast to their shape. In an expression ``ops.param(k, dtype)`` is number ``k`` of
    ``scalars``. ``dtype``: what elements are converted to; by default they come as they are stored.
    """
    if outputs[0].numel():
        engine().record(name, inputs, outputs, _pointwise, (len(inputs), dtype, expression, arguments), scalars)


def _pointwise(
    specs: tuple[Spec, ...], n: int, dtype: str | None, expression: Expression, arguments: tuple[Hashable, ...]
) -> Pointwise:
    result = expression(*arguments, *_elements(specs[:n], dtype))
    roots = result if isinstance(result, tuple) else (result,)
    return Pointwise(tuple([ops.to_dtype(r, spec.dtype) for r, spec in zip(roots, specs[n:], strict=True)]))


def _elements(specs: Sequence[Spec], dtype: str | None = None) -> list[Expr]:
    return [ops.to_dtype(ops.load(k, spec.dtype), dtype or spec.dtype) for k, spec in enumerate(specs)]


def record_reduction(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    shape: Sequence[int],
    dims: tuple[int, ...],
    fold: Callable[..., Fold],
    arguments: tuple[Hashable, ...] = (),
    *,
    maps: int = 0,
    running: bool = False,
    scalars: Sequence[TypedScalar] = (),
) -> None:
    """Records a reduction over ``dims`` of ``inputs`` broadcast to ``shape``: ``fold(*arguments, *elements)``.

    The last ``maps`` outputs have the full shape and are stored at every point, if ``running`` (a scan) from the points
    up to that one. Nothing is recorded where the outputs have no elements. For ``scalars`` see
    :func:`record_pointwise`.
    """
    if outputs[0].numel():
        values = (len(inputs), tuple(shape), dims, maps, running, fold, arguments)
        engine().record(name, inputs, outputs, _reduction, values, scalars)


def _reduction(
    specs: tuple[Spec, ...],
    n: int,
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    maps: int,
    running: bool,
    fold: Callable[..., Fold],
    arguments: tuple[Hashable, ...],
) -> Reduction:
    values, combine, epilogue = fold(*arguments, *_elements(specs[:n]))
    states = [ops.acc(k, d) for k, d in enumerate(accumulators(values, combine))]
    results = [ops.to_dtype(r, spec.dtype) for r, spec in zip(epilogue(*states), specs[n:], strict=True)]
    roots = len(results) - maps
    return Reduction(shape, dims, values, combine, tuple(results[:roots]), tuple(results[roots:]), running)


def record_kernel(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    kernel: Extern,
    scalars: Sequence[TypedScalar] = (),
) -> None:
    """Records a hand-written or generated kernel that reads ``inputs`` and writes ``outputs``."""
    engine().record(name, inputs, outputs, kernel, (), scalars)


def kernel_outputs(
    name: str,
    inputs: Sequence[torch.Tensor],
    layouts: Sequence[Meta],
    kernel: Extern,
    scalars: Sequence[TypedScalar] = (),
) -> list[torch.Tensor]:
    """New tensors with these ``layouts``, which PyTorch's meta kernel tells (:func:`.torch_abi.infer`), and
    :func:`record_kernel` on them; zeros where an input has no elements.
    """
    outputs = empty_like_meta(layouts, inputs[0].get_device())
    if not any(t.numel() for t in outputs):
        return outputs
    if all(t.numel() for t in inputs):
        record_kernel(name, inputs, outputs, kernel, scalars)
    else:
        for t in outputs:
            t.zero_()
    return outputs
