"""Attention of many queries without the matrix of scores, forward and backward, after "FlashAttention-2" (Dao, 2023).

Operands, rules and results are those of :mod:`.attention`. A workgroup takes a block of queries of one head and visits
blocks of keys that they see (for the gradients of keys and values: the other way round), computes a block of scores at
a time and uses it up (:mod:`.flash_tile`). The forward keeps what it has relative to the greatest score so far; the
backward computes the weights again from each query's ``log(sum(exp(scores)))``. Scores, weights and sums are float32.

The algorithms stand in WGSL templates, ``flash_forward``, ``flash_backward_query`` and ``flash_backward_key``: of each
there is one for registers (:mod:`.flash_register`) and one for subgroup matrices (:mod:`.flash_matrix`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import MAX_GROUPS, Lowered

from . import flash_matrix, flash_register
from .attention import Attention
from .flash_problem import Flash, problem
from .flash_register import SMALL

MOST_WIDTH = 128
"""Of queries and of values: the sums of more do not fit in registers."""


def forward(a: Attention, dropout_p: float = 0.0) -> Extern:
    """Arguments: q, k, v, the mask if there is one, and with dropout the two words of its key (int64, no dimensions)
    → (B, H, L, D), and what :func:`.attention_few.extern` says of queries.

    A weight is kept, and divided by ``1 - dropout_p``, where the key's number for its row and column is less than that.
    """
    return Extern(lower_forward, (a, dropout_p))


def query_gradient(a: Attention, dropout_p: float = 0.0) -> Extern:
    """The same arguments, then the gradient of the result, each query's log(sum(exp(scores))), and its sum over the
    result times its gradient (both dense float32 (B, H, L)) → the gradient of q.
    """
    return Extern(lower_query, (a, dropout_p))


def key_gradients(a: Attention, dropout_p: float = 0.0) -> Extern:
    """The arguments of :func:`query_gradient` → the gradients of k and v."""
    return Extern(lower_key, (a, dropout_p))


def fits(query_shape: Sequence[int], keys: int, value_width: int, target: Target) -> bool:
    """Whether the kernels compute this. SwiftShader, Dawn's software adapter, takes 3 to 11 s to compile
    one, ten times as long as products of matrices."""
    if target.software and target.dialect == "tint":
        return False
    batch, heads, queries, width = query_shape
    blocks = -(-max(queries, keys) // SMALL.rows)
    widths = min(width, value_width) > 0 and max(width, value_width) <= MOST_WIDTH
    return widths and max(batch, heads, blocks) <= MAX_GROUPS and SMALL.workgroup_bytes(32) <= target.workgroup_bytes


def lower_forward(
    op: Operation, alias: tuple[int, ...], target: Target, attention: Attention, dropout_p: float
) -> Lowered:
    return lower("forward", problem(op, attention, dropout_p), target)


def lower_query(
    op: Operation, alias: tuple[int, ...], target: Target, attention: Attention, dropout_p: float
) -> Lowered:
    return lower("query", problem(op, attention, dropout_p, has_grad=True), target)


def lower_key(op: Operation, alias: tuple[int, ...], target: Target, attention: Attention, dropout_p: float) -> Lowered:
    return lower("key", problem(op, attention, dropout_p, has_grad=True), target)


def lower(kernel: str, p: Flash, target: Target) -> Lowered:
    if (choice := flash_matrix.choice(kernel, p, target)) is not None:
        return flash_matrix.lower(kernel, p, *choice, target)
    return Lowered((flash_register.launch(kernel, p, target),))
