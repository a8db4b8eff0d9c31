"""FlexAttention in kernels that keep no scores: :mod:`torch_webgpu.kernels.attention.flash` and, for few queries,
:mod:`torch_webgpu.kernels.attention.attention`, which call what the program's functions of scores became.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch

from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.engine.record import TypedScalar, engine
from torch_webgpu.ir.lines import Lines, expressions_of, lines_of
from torch_webgpu.kernels.attention import attention_few, block_mask, flash
from torch_webgpu.kernels.attention.attention import HIGHEST, Attention
from torch_webgpu.kernels.attention.score_function import BLOCKS, Element, ScoreFunction
from torch_webgpu.layout import dense_strides, iteration_order

from .attention_products import present
from .attention_tiles import like, mean_of
from .sdpa import FEW_QUERIES

MOST = 2e38
"""The magnitude of logarithms: more have no power of two, and stand for no sum."""
Written = tuple[object, ...]
"""A :class:`ScoreFunction` as numbers and names: see :func:`written`."""


def written(f: ScoreFunction) -> Written:
    """A function of scores as an argument of a graph's node."""
    roots = [root for root in (f.score, f.is_seen, f.slope) if root is not None]
    lines, numbers = lines_of([*roots, *(place for element in f.elements for place in element.places)])
    places = iter(numbers)
    named = tuple([None if root is None else next(places) for root in (f.score, f.is_seen, f.slope)])
    elements = tuple([(element.number, tuple([next(places) for _ in element.places])) for element in f.elements])
    return f.tensors, f.numbers, lines, named, elements, f.block


def read(
    tensors: int,
    numbers: int,
    lines: Lines,
    named: Sequence[int | None],
    elements: Sequence[tuple[int, Sequence[int]]],
    block: Sequence[int] | None,
) -> ScoreFunction:
    """What :func:`written` was given."""
    expressions = expressions_of(lines)
    score, is_seen, slope = (None if n is None else expressions[n] for n in named)
    places = [Element(number, tuple([expressions[n] for n in of_one])) for number, of_one in elements]
    sizes = None if block is None else (block[0], block[1])
    return ScoreFunction(tensors, numbers, tuple(places), score, is_seen, slope, sizes)


def flex_attention_in_tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    function: Sequence[object],
    numbers: Sequence[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """(B, H, L, D), laid out in the order of ``query``'s dimensions, and the logarithm of each query's sum to the base
    of two. ``tensors``: what ``function`` reads, and its mask of blocks; ``numbers``: its scalars, in int32.
    """
    b, h, n, width = query.shape
    if key.shape[0] != b or value.shape[:3] != key.shape[:3]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise ValueError(f"FlexAttention of query, key and value of shapes {shapes}: batches or lengths differ")
    shape = (b, h, n, value.shape[3])
    y = shape, tuple(dense_strides(shape, iteration_order(shape, query.stride()))), query.dtype
    sums = (b, h, n), (h * n, n, 1), torch.float32
    problem = Attention(scale, False, False, function=read(*function))  # type: ignore[arg-type]
    target = engine().device(query.get_device()).target
    few = n <= FEW_QUERIES and attention_few.fits(b, h, n, width, value.shape[3])
    if not few and not flash.fits(query.shape, key.shape[2], value.shape[3], target):
        raise NotImplementedError(f"FlexAttention of {n} queries of {b} × {h} heads of {width} numbers: too large")
    body = attention_few.extern(problem) if few else flash.forward(problem)
    out, lse = kernel_outputs("flex_attention", [query, key, value, *tensors], [y, sums], body, scalars_of(numbers))
    return out, in_powers_of_two(lse), None


def flex_attention_in_tiles_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_logsumexp: Maybe,
    tensors: Sequence[torch.Tensor],
    function: Sequence[object],
    numbers: Sequence[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value, laid out as these. ``tensors``: what ``function`` reads, its mask of
    blocks, and the same with lines of keys.
    """
    lse = in_powers_of_e(logsumexp).contiguous()
    delta = mean_of(grad, out)
    if grad_logsumexp is not None:
        delta = delta - (grad_logsumexp / log(2)).unsqueeze(3)
    of_scores = read(*function)  # type: ignore[arg-type]
    problem = Attention(scale, False, False, function=of_scores)
    operands = [query, key, value, *tensors]
    of_queries = of_keys = [*operands, grad, lse, delta]
    if of_scores.block is not None:
        *others, by_queries, by_keys = operands
        of_queries, of_keys = [[*others, mask, grad, lse, delta] for mask in (by_queries, by_keys)]
    scalars = scalars_of(numbers)
    (dq,) = kernel_outputs("flex_attention_query", of_queries, [like(query)], flash.query_gradient(problem), scalars)
    layouts = [like(key), like(value)]
    dk, dv = kernel_outputs("flex_attention_key", of_keys, layouts, flash.key_gradients(problem), scalars)
    return dq, dk, dv


def scalars_of(numbers: Sequence[int]) -> list[TypedScalar]:
    """A function's numbers as an operation's scalars. Raises OverflowError for those that are not in int32."""
    for number in numbers:
        if not -(2**31) <= number < 2**31:
            raise OverflowError(f"FlexAttention's functions use {number}: on webgpu their numbers are 32-bit integers")
    return [("i", number) for number in numbers]


def in_powers_of_two(lse: torch.Tensor) -> torch.Tensor:
    """FlexAttention's logarithms of the sums of queries: to the base of two, minus infinity if one sees nothing, or
    only the lowest scores.
    """
    return torch.where(lse.abs() > MOST, -float("inf"), lse / log(2))


def in_powers_of_e(lse: torch.Tensor) -> torch.Tensor:
    """What :func:`in_powers_of_two` was given."""
    return torch.where(lse == -float("inf"), HIGHEST, lse * log(2))


def mask_of_blocks(
    counts: torch.Tensor,
    numbers: torch.Tensor,
    full_counts: Maybe,
    full_numbers: Maybe,
    key: torch.Tensor,
    block: int,
    is_transposed: bool = False,
) -> torch.Tensor:
    """The mask of blocks that a BlockMask's lists of blocks of keys say, as :mod:`~.attention.block_mask` has it.
    ``block``: how many of ``key``'s lines one is. ``is_transposed``: with lines of keys.
    """
    lists = [counts, numbers, *present(full_counts), *present(full_numbers)]
    b, h, rows = counts.shape
    columns = -(-key.shape[2] // block)
    lines, blocks = (columns, rows) if is_transposed else (rows, columns)
    shape = b, h, lines, -(-blocks // BLOCKS)
    layout = shape, tuple(dense_strides(shape, range(4))), torch.int32
    return kernel_outputs("flex_attention_blocks", lists, [layout], block_mask.extern(is_transposed))[0]
