"""Products of one row, as a language model has them for one token: a norm before them is part of them, layer norm or by
the root mean square, and the two of a gated linear unit are one dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.quantized import packed_matrix as packed
from torch_webgpu.aten.quantized.int4_mm import int4_mm
from torch_webgpu.aten.quantized.int4_mm import packed_matrix as int4_mm_matrix
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import projections as kernel

from .matching import Replacement, aten, calls, either_way_of, is_plain, uncast, unviewed, uses, value_of

PLAIN = (aten.mm.default, aten.addmm.default)
PACKED: dict[Any, Callable[..., packed.PackedMatrix]] = {
    aten._weight_int8pack_mm.default: packed.int8_matrix,
    aten._weight_int4pack_mm.default: packed.int4pack_matrix,
    aten._weight_int4pack_mm_with_scales_and_zeros.default: packed.int4_points_matrix,
    int4_mm: int4_mm_matrix,
}
"""Operators that multiply a packed matrix, and what makes it of their arguments after the first."""
PRODUCTS = (*PLAIN, *PACKED)
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
    """A product of a row, normed if there is a ``norm``, with a ``matrix``.

    ``norm``: a :class:`MatchedNorm` as a tuple, which arguments of nodes may be. ``matrix``: an operator of
    :data:`PRODUCTS`, and its arguments about the matrix. ``dtype``: of the result.
    """

    x: Node
    norm: tuple[Any, ...] | None
    matrix: tuple[Any, ...]
    bias: Node | None
    dtype: torch.dtype


def matrix_of(operator: Any, *arguments: Any) -> packed.PackedMatrix:
    """The matrix (N, K) that an operator multiplies with. A plain one is given as (K, N)."""
    if operator not in PLAIN:
        return PACKED[operator](*arguments)
    (weight,) = arguments
    k, n = weight.shape
    return packed.PackedMatrix(n, k, (weight.t(),), kernel.numbers(dtypes.of(weight.dtype).name))


def projected(
    x: torch.Tensor,
    norm: tuple[Any, ...] | None,
    matrices: list[tuple[Any, ...]],
    biases: list[torch.Tensor],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Of each matrix (N, K) the product with a row of K elements, (1, N): see ``kernels/matmul/projections.py``."""
    found = [matrix_of(*matrix) for matrix in matrices]
    gain, offset, eps, centred = norm or (None, None, 0.0, False)
    rows = [t.reshape(-1) for t in (x, gain, offset) if t is not None]
    results = [engine().empty((1, matrix.n), dtype, x.device.index) for matrix in found]
    of = kernel.Norm(eps, centred, gain is not None, offset is not None) if norm else None
    body = kernel.extern(dtypes.of(dtype).name, found[0].elements, len(found), of, len(biases))
    tensors = [t for matrix in found for t in matrix.tensors]
    record_kernel("projections", (*rows, *tensors, *biases), results, body)
    return results


def normed(
    x: torch.Tensor, norm: tuple[Any, ...], matrix: tuple[Any, ...], bias: Maybe, dtype: torch.dtype
) -> torch.Tensor:
    """``norm(x) @ matrixᵀ + bias`` for one row, as (1, N)."""
    return projected(x, norm, [matrix], [] if bias is None else [bias], dtype)[0]


def gated(
    first: tuple[Any, ...], second: tuple[Any, ...], activation: Any, options: dict[str, Any], shape: list[int]
) -> torch.Tensor:
    """``activation(a) * b`` of two :class:`Projection`, given as tuples, that differ in matrices and biases only."""
    one, other = Projection(*first), Projection(*second)
    biases = [p.bias for p in (one, other) if p.bias is not None]
    a, b = projected(one.x, one.norm, [one.matrix, other.matrix], biases, one.dtype)  # type: ignore[arg-type]
    return (activation(a, **options) * b).view(shape)


def match_normed(node: Node) -> Replacement | None:
    """For a product."""
    product = projection(node)
    if product is None:
        return None
    result = unviewed(product.x)
    if not all(user.target in PRODUCTS for user in uses(result)):
        return None
    for x, norm in norms(uncast(result)):
        if norm.centred and node.meta["val"].shape[1] > MAX_CENTRED:
            return None
        return normed, (x, tuple(norm), *product[2:])
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
    is_packed = node.target not in PLAIN
    x = node.args[0 if is_packed else -2]
    one, y = (n.meta.get("val") for n in (x, node))
    if not all(map(is_plain, (one, y))) or one.shape[0] != 1 or not 0 < one.shape[1] <= MAX_LENGTH or not y.numel():
        return None
    if is_packed:
        return Projection(x, None, (node.target, *node.args[1:]), None, y.dtype)
    *bias, _, weight = node.args
    matrix = weight.meta.get("val")
    if not is_plain(matrix) or matrix.stride()[0] != 1 or matrix.stride()[1] < matrix.shape[0]:
        return None
    if bias and bias[0].meta["val"].shape != matrix.shape[1:]:
        return None
    return Projection(x, None, (aten.mm.default, weight), bias[0] if bias else None, y.dtype)


def alike(one: Projection, other: Projection) -> bool:
    """Whether two products differ in their matrices, of one shape, and biases only."""
    if (unviewed(one.x), one.norm, one.dtype) != (unviewed(other.x), other.norm, other.dtype):
        return False
    described = [[about(argument) for argument in p.matrix] for p in (one, other)]
    return described[0] == described[1] and (one.bias is None) == (other.bias is None)


def about(argument: Any) -> Any:
    """What two matrices have in common that one kernel multiplies: of tensors, all but their numbers."""
    value = value_of(argument)
    return (value.shape, value.dtype, value.is_contiguous()) if isinstance(value, torch.Tensor) else argument


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
