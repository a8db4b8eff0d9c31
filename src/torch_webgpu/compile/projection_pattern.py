"""Products of one row, as a language model has them for one token: a norm before them is part of them, layer norm or by
the root mean square, and the two of a gated linear unit are one dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import projections as kernel

from .matching import Replacement, aten, calls, either_way_of, is_plain, uncast, unviewed, uses

PRODUCTS = (aten.mm.default, aten.addmm.default)
ACTIVATIONS = (aten.silu.default, aten.gelu.default, aten.relu.default, aten.sigmoid.default, aten.tanh.default)
MAX_LENGTH = 1 << 14
"""Of a row: longer sums had better be split."""
MAX_CENTRED = 1 << 14
"""Outputs of a product that layer norm is part of: each workgroup finds the row's mean first, which for a vocabulary's
adds up to more than a dispatch.
"""


class MatchedNorm(NamedTuple):
    """A norm of a row: ``centred`` if it is layer norm, else by the root mean square."""

    gain: Node | None
    offset: Node | None
    eps: float
    centred: bool


class Projection(NamedTuple):
    """A product of a row, normed if there is a ``norm``, with a matrix (K, N) that is contiguous along K.

    ``norm``: a :class:`MatchedNorm` as a tuple, which arguments of nodes may be.
    """

    x: Node
    norm: tuple[Any, ...] | None
    weight: Node
    bias: Node | None


def projected(
    x: torch.Tensor, norm: tuple[Any, ...] | None, weights: list[torch.Tensor], biases: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Of each matrix (K, N) the product with a row of K elements, (1, N): see ``kernels/matmul/projections.py``."""
    first, *_ = weights
    gain, offset, eps, centred = norm or (None, None, 0.0, False)
    rows = [t.reshape(-1) for t in (x, gain, offset) if t is not None]
    results = [engine().empty((1, w.shape[1]), w.dtype, first.device.index) for w in weights]
    of = kernel.Norm(eps, centred, gain is not None, offset is not None) if norm else None
    body = kernel.extern(dtypes.of(first.dtype).name, len(weights), of, len(biases))
    record_kernel("projections", (*rows, *(w.t() for w in weights), *biases), results, body)
    return results


def normed(x: torch.Tensor, norm: tuple[Any, ...], weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    """``norm(x) @ weight + bias`` for one row, as (1, N)."""
    return projected(x, norm, [weight], [] if bias is None else [bias])[0]


def gated(
    first: tuple[Any, ...], second: tuple[Any, ...], activation: Any, options: dict[str, Any], shape: list[int]
) -> torch.Tensor:
    """``activation(a) * b`` of two :class:`Projection`, given as tuples, that differ in matrices and biases only."""
    x, norm, *_ = first
    biases = [b for *_, b in (first, second) if b is not None]
    one, other = projected(x, norm, [w for *_, w, _ in (first, second)], biases)
    return (activation(one, **options) * other).view(shape)


def match_normed(node: Node) -> Replacement | None:
    """For a product."""
    product = projection(node)
    if product is None:
        return None
    result = unviewed(product.x)
    if not all(user.target in PRODUCTS for user in uses(result)):
        return None
    for x, norm in norms(uncast(result)):
        if norm.centred and product.weight.meta["val"].shape[1] > MAX_CENTRED:
            return None
        return normed, (x, tuple(norm), product.weight, product.bias)
    return None


def match_gated(node: Any) -> Replacement | None:
    """For the product of elements that ends a gated linear unit."""
    y = node.meta.get("val")
    for active, other in either_way_of(node):
        active, b = unviewed(active), unviewed(other)
        if not isinstance(active, Node) or active.target not in ACTIVATIONS or len(active.args) != 1:
            continue
        a = unviewed(active.args[0])
        first, second = projection(a), projection(b)
        if first is None or second is None or not alike(first, second):
            continue
        alone = all(list(uses(n)) == [user] for n, user in ((a, active), (b, node), (active, node)))
        if alone and y.dtype == a.meta["val"].dtype and y.numel() == a.meta["val"].numel():
            return gated, (tuple(first), tuple(second), active.target, dict(active.kwargs), list(y.shape))
    return None


def projection(node: Any) -> Projection | None:
    """A node as a product of a row, if it is one."""
    if isinstance(node, Node) and node.target is normed:
        return Projection(*node.args)  # type: ignore[arg-type]
    if not calls(node, *PRODUCTS):
        return None
    *bias, x, weight = node.args
    one, matrix, y = (n.meta.get("val") for n in (x, weight, node))
    if not all(map(is_plain, (one, matrix, y))) or one.shape[0] != 1 or not 0 < one.shape[1] <= MAX_LENGTH:
        return None
    if matrix.stride()[0] != 1 or matrix.stride()[1] < matrix.shape[0] or not matrix.shape[1]:
        return None
    if bias and bias[0].meta["val"].shape != matrix.shape[1:]:
        return None
    return Projection(x, None, weight, bias[0] if bias else None)


def alike(one: Projection, other: Projection) -> bool:
    """Whether two products differ in their matrices, of one shape, and biases only."""
    if (unviewed(one.x), one.norm) != (unviewed(other.x), other.norm):
        return False
    a, b = (p.weight.meta["val"] for p in (one, other))
    return a.shape == b.shape and a.dtype == b.dtype and (one.bias is None) == (other.bias is None)


def norms(node: Any) -> Iterator[tuple[Node, MatchedNorm]]:
    """x and its norm, if a node is the norm of one row."""
    if calls(node, getitem) and node.args[1] == 0:
        yield from norms_of_operators(node.args[0])
    elif calls(node, aten.mul.Tensor):
        for gain, scaled in either_way_of(node):
            for x, scale in either_way_of(uncast(scaled)) if calls(uncast(scaled), aten.mul.Tensor) else ():
                eps = eps_of(scale, uncast(x))
                if eps is not None and is_row(uncast(x), gain):
                    yield uncast(x), MatchedNorm(gain, None, eps, centred=False)


def norms_of_operators(node: Any) -> Iterator[tuple[Node, MatchedNorm]]:
    """The same for PyTorch's operators, of which the first result is the norm."""
    if calls(node, aten._fused_rms_norm.default):
        x, shape, gain, eps = node.args
        norm = MatchedNorm(gain, None, torch.finfo(x.meta["val"].dtype).eps if eps is None else eps, centred=False)
    elif calls(node, aten.native_layer_norm.default):
        x, shape, gain, offset, eps = node.args
        norm = MatchedNorm(gain, offset, eps, centred=True)
    else:
        return
    given = x.meta["val"]
    is_alone = is_plain(given) and len(shape) == 1 and given.numel() == shape[0]
    if is_alone and all(t is None or is_row(x, t) for t in (norm.gain, norm.offset)):
        yield x, norm


def eps_of(scale: Any, x: Any) -> float | None:
    """eps, if a node is ``rsqrt(mean(x * x, -1, keepdim=True) + eps)``."""
    total: Any = scale.args[0] if calls(scale, aten.rsqrt.default) else None
    if not calls(total, aten.add.Tensor, aten.add.Scalar) or not isinstance(total.args[1], (int, float)):
        return None
    mean, eps = total.args
    rank = scale.meta["val"].dim()
    if not calls(mean, aten.mean.dim) or mean.args[1:] not in (([-1], True), ([rank - 1], True)):
        return None
    squares = mean.args[0]
    square = calls(squares, aten.pow.Tensor_Scalar) and squares.args[1] == 2
    if not square and not (calls(squares, aten.mul.Tensor) and squares.args[0] is squares.args[1]):
        return None
    return float(eps) if uncast(squares.args[0]) is x else None


def is_row(x: Node, gain: Node) -> bool:
    """Whether the first has as many elements as the second, a vector."""
    one, other = x.meta.get("val"), gain.meta.get("val")
    if not is_plain(one) or not is_plain(other):
        return False
    return other.dim() == 1 and one.numel() == one.shape[-1:].numel() == other.numel()
