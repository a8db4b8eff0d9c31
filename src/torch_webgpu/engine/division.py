"""Operations beyond 32 bits, divided: tiles of their iteration space that kernels can number.

A per-element operation is one operation for each tile. A reduction whose reduced dimensions are cut leaves partial
states (``ir.combine``), which are merged one after the other; its epilogue comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple, NoReturn

from torch_webgpu.compiler.fuse.substitution import rewrite
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import AddressError
from torch_webgpu.ir.combine import COMBINES, accumulators
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Operation, Pointwise, Reduction, Spec, check_addressable, expressions
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import Shape, broadcast_strides, contiguous_strides, extent, is_addressable

ALIGNMENT_BYTES = 256
"""Where the binding of a part of a buffer may start, on every adapter."""
ROUND = 1024
"""Long dimensions are cut at multiples of so many elements, so that tiles begin as tensors do."""
MAX_TILES = 1 << 14


class Step(NamedTuple):
    """An operation over parts of storages: those of the divided operation's arguments, then temporary ones.

    ``starts``: bytes after the start of each storage. ``takes_scalars``: whether it has the divided one's scalars.
    """

    op: Operation
    storages: tuple[int, ...]
    starts: tuple[int, ...]
    takes_scalars: bool = True


class Division(NamedTuple):
    """Operations that one after the other compute a divided one; the sizes in bytes of their temporary storages."""

    steps: tuple[Step, ...]
    temporaries: tuple[int, ...] = ()


Tile = tuple[tuple[int, int], ...]
"""The first coordinate and the size, in each dimension of an iteration space."""


def spec_at(dtype: str, shape: Shape, strides: Shape, start_bytes: int) -> Spec:
    """The layout of a tensor that starts so many bytes after its allocation (see :class:`Spec` for ``aligned``)."""
    itemsize = BY_NAME[dtype].itemsize
    return Spec(dtype, shape, strides, itemsize > 4 or start_bytes % (4 if itemsize == 1 else 16) == 0)


class _Divided:
    """An operation as a function of its iteration space."""

    def __init__(self, op: Operation, starts: Sequence[int]) -> None:
        body = op.body
        assert isinstance(body, (Pointwise, Reduction))
        self.op, self.body, self.starts = op, body, starts
        self.shape = body.shape if isinstance(body, Reduction) else op.outputs[0].shape
        self.dims = body.dims if isinstance(body, Reduction) else ()
        # The dimensions of the iteration space that each argument has, and what a step in each of all is there.
        every = tuple(range(len(self.shape)))
        self.axes = [every] * len(op.args)
        self.steps = []
        for k, spec in enumerate(op.args):
            if self._is_reduced(k) and len(spec.shape) < len(self.shape):
                self.axes[k] = tuple([d for d in every if d not in self.dims])
            own = dict(zip(self.axes[k], self._strides(k, spec)))
            self.steps.append(tuple([0 if self._is_reduced(k) and d in self.dims else own.get(d, 0) for d in every]))

    def _is_reduced(self, k: int) -> bool:
        """Whether an argument has but one element for all points of the reduced dimensions."""
        roots = len(self.body.roots) if isinstance(self.body, Reduction) else 0
        return self.op.n_inputs <= k < self.op.n_inputs + roots

    def _strides(self, k: int, spec: Spec) -> Shape:
        if k < self.op.n_inputs:
            return broadcast_strides(spec.shape, spec.strides, self.shape)
        return spec.strides

    @cached_property
    def movable(self) -> list[int]:
        """The dimensions that may be cut: no value depends on a point's place there."""
        leaves = [e for e in walk(expressions(self.body)) if e.op in {"index", "linear", "reduced"}]
        if any(e.op == "linear" for e in leaves):
            return []
        fixed = {e.args[0] for e in leaves if e.op == "index"}
        body = self.body
        if isinstance(body, Reduction):
            ordered = any(COMBINES[name].ordered for name in body.combine)
            if ordered or body.maps or any(e.op == "reduced" for e in leaves):
                fixed.update(body.dims)
        return [d for d in range(len(self.shape)) if d not in fixed]

    def words(self, k: int) -> int:
        return max(1, BY_NAME[self.op.args[k].dtype].itemsize // 4)

    def sizes(self, k: int, sizes: Sequence[int]) -> Shape:
        """An argument's shape over a tile of these sizes."""
        return tuple([1 if self._is_reduced(k) and d in self.dims else sizes[d] for d in self.axes[k]])

    def strides(self, k: int) -> Shape:
        return tuple([self.steps[k][d] for d in self.axes[k]])

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether kernels can number a tile of these sizes, wherever it starts."""
        arguments = range(len(self.op.args))
        return is_addressable(tuple(sizes), (0,) * len(sizes), 1) and all(
            is_addressable(self.sizes(k, sizes), self.strides(k), BY_NAME[self.op.args[k].dtype].itemsize, 255)
            for k in arguments
        )

    def tile_sizes(self) -> list[int]:
        """The sizes of the tiles: the dimension that reaches farthest is halved until they fit. AddressError where no
        dimension that may be cut helps.
        """
        sizes = list(self.shape)
        arguments = range(len(self.op.args))
        while not self.fits(sizes):
            reach = [
                (max([(sizes[d] - 1) * self.steps[k][d] * self.words(k) for k in arguments]), sizes[d], d)
                for d in self.movable
                if sizes[d] > 1
            ]
            if not reach:
                refuse(self.op, self.starts)
            d = max(reach)[2]
            half = -(-sizes[d] // 2)
            sizes[d] = -(-half // ROUND) * ROUND if half > ROUND else half
        if prod([-(-n // size) for n, size in zip(self.shape, sizes)]) > MAX_TILES:
            refuse(self.op, self.starts)
        return sizes

    def start(self, k: int, tile: Tile) -> int:
        first = sum([at * step for (at, _), step in zip(tile, self.steps[k])])
        return self.starts[k] + first * BY_NAME[self.op.args[k].dtype].itemsize

    def spec(self, k: int, tile: Tile) -> Spec:
        """An argument's layout over a tile."""
        shape = self.sizes(k, [size for _, size in tile])
        return spec_at(self.op.args[k].dtype, shape, self.strides(k), self.start(k, tile))

    def step(self, tile: Tile) -> Step:
        """The operation over a tile."""
        every = range(len(self.op.args))
        body: Pointwise | Reduction = self.body
        if isinstance(body, Reduction):
            body = replace(body, shape=tuple([size for _, size in tile]))
        specs = tuple([self.spec(k, tile) for k in every])
        op = Operation(self.op.name, specs, self.op.n_outputs, body, self.op.param_kinds)
        return Step(op, tuple(every), tuple([self.start(k, tile) for k in every]))


def divide(op: Operation, starts: Sequence[int]) -> Division:
    """Operations that kernels can number, and that together are ``op`` over arguments that start so many bytes after
    their allocations. AddressError where it cannot be divided.
    """
    if _starts_far_only(op):
        return Division((Step(op, tuple(range(len(op.args))), tuple(starts)),))
    if not isinstance(op.body, (Pointwise, Reduction)):
        refuse(op, starts)
    divided = _Divided(op, starts)
    sizes = divided.tile_sizes()
    ranges = [[(at, min(size, n - at)) for at in range(0, n, size)] for n, size in zip(divided.shape, sizes)]
    if isinstance(op.body, Reduction) and any(len(ranges[d]) > 1 for d in divided.dims):
        return _reduced(divided, ranges)
    return Division(tuple([divided.step(tile) for tile in product(*ranges)]))


def is_numbered(op: Operation) -> bool:
    """Whether kernels can number the points of an operation's iteration space."""
    return not isinstance(op.body, Reduction) or is_addressable(op.body.shape, (0,) * len(op.body.shape), 1)


def _starts_far_only(op: Operation) -> bool:
    """Whether each argument could be numbered if it had a storage of its own."""
    return is_numbered(op) and all(is_addressable(s.shape, s.strides, BY_NAME[s.dtype].itemsize, 255) for s in op.args)


def refuse(op: Operation, starts: Sequence[int]) -> NoReturn:
    """Raises AddressError for an operation that cannot be divided."""
    for spec, start in zip(op.args, starts):
        check_addressable(op.name, spec, start)
    for spec in op.args:  # which ends so little below the limit that it might not wherever it starts
        check_addressable(op.name, spec, 255)
    raise AddressError(
        f"{op.name}: its elements are too many: kernels number elements, and 32-bit words, in 32 bits. Use parts of it"
    )


def _reduced(divided: _Divided, ranges: Sequence[list[tuple[int, int]]]) -> Division:
    """A reduction whose reduced dimensions are cut: partial states, merged in order."""
    op, body = divided.op, divided.body
    assert isinstance(body, Reduction)
    dtypes = accumulators(body.values, body.combine)
    kept = [ranges[d] if d not in divided.dims else [(0, divided.shape[d])] for d in range(len(ranges))]
    # Storages: those of the arguments, of the states so far, of the states of the next tile.
    first, n = len(op.args), len(dtypes)
    so_far, more = tuple(range(first, first + n)), tuple(range(first + n, first + 2 * n))
    steps: list[Step] = []
    elements = 0
    for rows in product(*kept):
        shape = divided.spec(op.n_inputs, rows).shape
        states = tuple([Spec(dtype, shape, contiguous_strides(shape)) for dtype in dtypes])
        elements = max(elements, prod(shape))
        tiles = product(*[ranges[d] if d in divided.dims else [rows[d]] for d in range(len(ranges))])
        for number, tile in enumerate(tiles):
            steps.append(_partial(divided, tile, states, more if number else so_far))
            if number:
                merge = Pointwise(tuple(_merged(body, dtypes)))
                merging = Operation(op.name, (*states, *states, *states), n, merge)
                steps.append(Step(merging, (*so_far, *more, *so_far), (0,) * 3 * n, takes_scalars=False))
        steps.append(_epilogue(divided, rows, states, so_far))
    sizes = [-(-elements * BY_NAME[dtype].itemsize // 4) * 4 for dtype in dtypes]
    return Division(tuple(steps), (*sizes, *sizes))


def _partial(divided: _Divided, tile: Tile, states: tuple[Spec, ...], storages: tuple[int, ...]) -> Step:
    """The states of a tile, without the epilogue."""
    op, body = divided.op, divided.body
    assert isinstance(body, Reduction)
    every = range(op.n_inputs)
    roots = tuple([ops.acc(k, state.dtype) for k, state in enumerate(states)])
    specs = (*[divided.spec(k, tile) for k in every], *states)
    partial = replace(body, shape=tuple([size for _, size in tile]), roots=roots)
    starts = (*[divided.start(k, tile) for k in every], *[0] * len(states))
    return Step(Operation(op.name, specs, len(states), partial, op.param_kinds), (*every, *storages), starts)


def _epilogue(divided: _Divided, rows: Tile, states: tuple[Spec, ...], storages: tuple[int, ...]) -> Step:
    """The outputs for some rows, of their states."""
    op, body, n = divided.op, divided.body, len(states)
    outputs = range(op.n_inputs, len(op.args))
    memo: dict[Expr, Expr] = {}

    def leaf(e: Expr) -> Expr:
        return ops.load(e.args[0], e.dtype) if e.op == "acc" else e

    roots = tuple([rewrite(root, leaf, memo) for root in body.roots])
    specs = (*states, *[divided.spec(k, rows) for k in outputs])
    epilogue = Operation(op.name, specs, op.n_outputs, Pointwise(roots), op.param_kinds)
    return Step(epilogue, (*storages, *outputs), (*[0] * n, *[divided.start(k, rows) for k in outputs]))


def _merged(body: Reduction, dtypes: Sequence[str]) -> Iterator[Expr]:
    """The states of two tiles merged: those in the first loads and in the others."""
    at, n = 0, len(dtypes)
    for value, name in zip(body.values, body.combine):
        own = range(at, at + len(COMBINES[name].dtypes(value.dtype)))
        at = own.stop
        a, b = (tuple([ops.load(k + m, dtypes[k]) for k in own]) for m in (0, n))
        yield from COMBINES[name].merge(a, b)


class Window(NamedTuple):
    """A part of a storage, in bytes, that a step binds as if it were the whole."""

    storage: int
    start: int
    end: int


def windows(step: Step, allocations: Sequence[int]) -> list[Window | None]:
    """For each argument of a step the window that it lies in, or None for all of its allocation.

    ``allocations``: which one each of its storages lies in. AddressError where a step writes into an allocation in
    which another argument lies too far away.
    """
    op = step.op
    itemsizes = [BY_NAME[spec.dtype].itemsize for spec in op.args]
    ends = [s + extent(a.shape, a.strides) * n for s, a, n in zip(step.starts, op.args, itemsizes)]

    def reaches(k: int, base: int) -> bool:
        return is_addressable(op.args[k].shape, op.args[k].strides, itemsizes[k], step.starts[k] - base)

    found: list[Window | None] = [None] * len(op.args)
    for owner in dict.fromkeys(allocations[s] for s in step.storages):
        members = [k for k, s in enumerate(step.storages) if allocations[s] == owner]
        if all(reaches(k, 0) for k in members):
            continue
        groups = [members] if members[-1] >= op.n_inputs else [[k] for k in members]
        for group in groups:
            base = min([step.starts[k] for k in group]) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            end = -(-max([ends[k] for k in group]) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if not all(reaches(k, base) for k in group):
                raise AddressError(
                    f"{op.name}: it reads and writes parts of one storage that lie too far from each other: the webgpu "
                    "device numbers elements, and 32-bit words, in 32 bits. Copy what it reads first"
                )
            window = Window(step.storages[group[0]], base, end)
            for k in group:
                found[k] = window
    return found
