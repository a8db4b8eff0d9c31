"""Operations over lists as launches: a dispatch serves as many tuples of tensors as the host binds buffers for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from torch_webgpu.compiler.fuse.substitution import renumber
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import ForEach, Operation
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch, Lowered, Source, Value
from torch_webgpu.wgsl.multi_tensor_kernel import Column, PerTuple, build_horizontal, groups_of

MAX_TUPLES = 16
"""Tuples in one dispatch: beyond, what is saved in dispatches is lost in finding a workgroup's tuple."""
ALONE_NUMEL = 1 << 20
"""A tensor of so many elements has a dispatch of its own, whose kernel need not look for the tuple."""


def lower_for_each(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """``alias[k]``: the first argument that is the same list as argument ``k``.

    The launches bind the tensors of the arguments, one argument's after the other's.
    """
    body = op.body
    assert isinstance(body, ForEach)
    lists = [(alias[k], spec.dtype) for k, spec in enumerate(op.args)]
    order = [lists.index(one) for one in dict.fromkeys(lists)]  # of each column the argument that it is first
    positions = [order.index(lists.index(one)) for one in lists]
    targets = tuple(positions[op.n_inputs :])
    used = sorted({e.args[0] for e in walk(body.roots) if e.op == "param"})
    columns = [
        Column(op.args[k].dtype, body.layouts[k], c in targets, not op.args[k].aligned) for c, k in enumerate(order)
    ]
    memo: dict[Expr, Expr] = {}
    params = {k: j for j, k in enumerate(used)}
    roots = tuple([renumber(root, positions, memo, params) for root in body.roots])
    per_tuple = PerTuple(op.name, roots, targets, tuple(columns), tuple([body.numbers[k] for k in used]))
    shared = [body.layouts[k] == "shared" for k in order]
    most = max(1, min(MAX_TUPLES, (target.max_buffers - sum(shared)) // max(1, len(order) - sum(shared))))
    first = list(accumulate(body.counts, initial=0))
    columns_at = list(zip([first[k] for k in order], shared))
    widths = [body.tuples if number.each else 1 for number in body.numbers]
    first_number = list(accumulate(widths, initial=0))
    numbers_at = [(first_number[k], not body.numbers[k].each) for k in used]
    offsets_at = [at for at, column in zip(columns_at, per_tuple.columns) if column.offset]
    launches = []
    for tuples in chunks([prod(shape) for shape in body.shapes], most):
        numels = [prod(body.shapes[j]) for j in tuples]
        starts, grid = groups_of(numels)
        values: list[Value] = [Source("scalar", n) for n in indices_of(numbers_at, tuples)]
        values += [*numels, *starts[1:], *(Source("offset", n) for n in indices_of(offsets_at, tuples))]
        kernel = build_horizontal(per_tuple, len(tuples))
        launches.append(Launch(kernel, tuple(indices_of(columns_at, tuples)), tuple(values), grid))
    return Lowered(tuple(launches))


def indices_of(at: Sequence[tuple[int, bool]], tuples: Sequence[int]) -> list[int]:
    """The indices of what these tuples have, of things that begin at an index and are, or are not, shared by all."""
    return [n for first, shared in at for n in ((first,) if shared else (first + j for j in tuples))]


def chunks(numels: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """The tuples of each dispatch, ``most`` at most, for tuples of these sizes."""
    alone = [(k,) for k, n in enumerate(numels) if n >= ALONE_NUMEL]
    small = [k for k, n in enumerate(numels) if n < ALONE_NUMEL]
    return [*alone, *(tuple(small[first : first + most]) for first in range(0, len(small), most))]
