"""Operations: ATen calls without their storages, as data.

An :class:`Operation` has everything that decides its code (layouts, dtypes, expressions) and nothing that doesn't
(storages, offsets, scalar values); it is built once per signature and shared. A :class:`Node` is one recorded call of
an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple
from weakref import WeakValueDictionary
from zlib import crc32

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import AddressError
from torch_webgpu.layout import MAX_INDEX, is_addressable

from .expr import Expr
from .values import check_function, check_values


class Spec(NamedTuple):
    """A tensor argument's layout. ``dtype`` is a name of ``dtypes.BY_NAME``; shape and strides are in elements.

    ``aligned``: its first element is a multiple of 16 bytes from the allocation's start, of 4 for 8-bit types, so that
    it can be moved in fours (of 16-bit types in eights) and starts a 32-bit word; always true for 64-bit types.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True


def check_addressable(name: str, spec: Spec, start_bytes: int = 0) -> None:
    """Raises AddressError for an argument of ``name`` whose elements kernels cannot number, ``start_bytes`` after the
    start of its allocation.
    """
    itemsize = BY_NAME[spec.dtype].itemsize
    if not is_addressable(spec.shape, spec.strides, itemsize, start_bytes):
        offset = f" {start_bytes // itemsize} elements into its storage" if start_bytes else ""
        raise AddressError(
            f"{name}: a {spec.dtype} tensor of shape {spec.shape} and strides {spec.strides}{offset} is too large: the "
            f"webgpu device numbers elements, and 32-bit words, up to {MAX_INDEX}. Use parts of it, with storages of "
            "their own, or the CPU"
        )


@dataclass(frozen=True)
class Pointwise:
    """One expression per output argument, evaluated at every point of the outputs' shape."""

    roots: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduction:
    """A reduction over ``dims`` of the iteration shape ``shape``.

    ``values`` (prologue) are what each point contributes, ``combine`` how contributions meet (rows of ``ir.combine``),
    ``roots`` (epilogue, over ``acc`` leaves) what is stored per output, ``maps`` (over ``acc`` leaves and loads) what
    is stored at every point once the accumulators are known: a softmax, a normalisation.
    ``running`` makes it a scan: the accumulators that a map sees are those of the points up to its own, in row-major
    order; there are no roots then.
    Input specs broadcast to the iteration shape. Output specs are those of ``roots``, all with the reduced dims of
    size 1 or all without them, then those of ``maps``.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    values: tuple[Expr, ...]
    combine: tuple[str, ...]
    roots: tuple[Expr, ...]
    maps: tuple[Expr, ...] = ()
    running: bool = False


@dataclass(frozen=True)
class Extern:
    """A hand-written kernel: ``lower(operation, alias, target, *arguments)`` returns its ``Lowered`` (``wgsl.launch``).

    ``lower`` is a function of a module, and ``arguments`` are values (:mod:`.values`): what they say is the same in
    every process.

    One that computes its output element by element may have an ``epilogue``: an expression per output over the finished
    element, ``acc 0`` (of several products ``acc k``), and over the inputs from number ``operands`` on, which broadcast
    to the outputs' shape. The inputs before those the kernel reads in whatever order it likes. Without an epilogue
    ``operands`` means nothing.
    """

    lower: Callable[..., Any]
    arguments: tuple[Hashable, ...] = ()
    operands: int = 0
    epilogue: tuple[Expr, ...] = ()


ListLayout = Literal["elements", "number", "shared"]
"""What a tuple has of a list: a tensor as large as the tuple's points, a number of its own, one that all share."""


@dataclass(frozen=True)
class Number:
    """One scalar argument of a :class:`ForEach`: its compute kind, and whether each tuple has its own."""

    kind: str
    each: bool


@dataclass(frozen=True)
class ForEach:
    """The same per-element expressions for each tuple of tensors from several lists.

    A list is one argument. Its spec is that of its tensors joined end to end; ``aligned`` says that each starts where
    its storage does. ``layouts``: what a tuple has of each argument. ``shapes``, ``strides``: those of each tuple.
    ``roots[j]`` is stored into output ``j``, whose layout is "elements". Their leaves are ``load k`` (of input ``k``)
    and ``param k`` (number ``k``). What each tuple has its own of takes as many scalars as there are tuples.
    """

    roots: tuple[Expr, ...]
    layouts: tuple[ListLayout, ...]
    numbers: tuple[Number, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def tuples(self) -> int:
        return len(self.shapes)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tensors each argument is."""
        return tuple([1 if layout == "shared" else self.tuples for layout in self.layouts])

    @property
    def param_kinds(self) -> tuple[str, ...]:
        """The kind of each scalar."""
        return tuple([n.kind for n in self.numbers for _ in range(self.tuples if n.each else 1)])

    def tensors(self, spec: Spec, layout: ListLayout) -> tuple[Spec, ...]:
        """The layout of each tensor of an argument."""
        if layout == "elements":
            shapes = zip(self.shapes, self.strides, strict=True)
            return tuple([Spec(spec.dtype, shape, strides, spec.aligned) for shape, strides in shapes])
        return (Spec(spec.dtype, (), (), spec.aligned),) * (1 if layout == "shared" else self.tuples)


Body = Pointwise | Reduction | ForEach | Extern


def expressions(body: Body) -> tuple[Expr, ...]:
    """All that a body computes, as far as it is expressions."""
    if isinstance(body, Reduction):
        return (*body.values, *body.roots, *body.maps)
    return body.epilogue if isinstance(body, Extern) else body.roots


REMEMBERED_NAMES = 1 << 17
_names: dict[int, str] = {}


def operation_name(op_id: int) -> str:
    """The :meth:`Operation.flag_name` of the operation with this id, for errors raised long after it was recorded."""
    return _names.get(op_id, "an_operation")


def remember_names(operators: Iterable[tuple[int, str]]) -> None:
    """Makes these names of operations, by their ids, known to :func:`operation_name`."""
    for op_id, name in operators:
        _names.setdefault(op_id, name)
        while len(_names) > REMEMBERED_NAMES:
            with suppress(RuntimeError):  # another thread remembers one, too
                _names.pop(next(iter(_names)), None)


class Operation:
    """One ATen call without its storages: ``args`` are the input layouts, then the output layouts.

    ``param_kinds`` gives the compute kind of each scalar argument; a node carries their 4-byte parts flattened.
    Immutable and hash-consed, as expressions are: equal operations are the same object, and share what is ``lowered``.
    """

    _interned: ClassVar[WeakValueDictionary[tuple[Any, ...], Operation]] = WeakValueDictionary()

    when_large: ClassVar[list[Callable[[], None]]] = []
    """Called when one is made of more elements than kernels can number, which whoever records it must divide."""

    name: str
    args: tuple[Spec, ...]
    n_inputs: int
    n_outputs: int
    body: Body
    param_kinds: tuple[str, ...]
    id: int
    """A digest of what it is called and looks like, the same in every process; kernels raise error flags with it."""
    lowered: dict[Any, Any]
    shifts: tuple[int, ...]
    """The base-2 logarithm of each argument's element size: from bytes to elements."""
    alike: frozenset[tuple[int, int]]
    """The pairs of an input and an output, by their places in ``args``, that have the same layout."""

    def __new__(
        cls, name: str, args: tuple[Spec, ...], n_outputs: int, body: Body, param_kinds: tuple[str, ...] = ()
    ) -> Operation:
        key = (name, args, n_outputs, body, param_kinds)
        operation = cls._interned.get(key)
        if operation is None:
            if isinstance(body, (Pointwise, Reduction)):
                if not all(is_addressable(s.shape, s.strides, BY_NAME[s.dtype].itemsize) for s in args):
                    for hook in cls.when_large:
                        hook()
            else:
                for spec in args:
                    check_addressable(name, spec)
            if isinstance(body, Extern):
                check_function(name, body.lower)
                check_values(name, body.arguments)
            operation = super().__new__(cls)
            operation.name, operation.args, operation.n_outputs, operation.body, operation.param_kinds = key
            dims = operation.indexed_dims
            operation.id = crc32(repr((name, args, n_outputs, param_kinds, *dims)).encode()) >> 1
            operation.lowered = {}
            operation.shifts = tuple([BY_NAME[spec.dtype].itemsize.bit_length() - 1 for spec in args])
            n = operation.n_inputs = len(args) - n_outputs
            alike = [(k, o) for o in range(n, len(args)) for k in range(n) if args[k] == args[o]]
            operation.alike = frozenset(alike)
            remember_names([(operation.id, operation.flag_name)])
            operation = cls._interned.setdefault(key, operation)
        return operation

    def __reduce__(self) -> tuple[type[Operation], tuple[Any, ...]]:
        return Operation, (self.name, self.args, self.n_outputs, self.body, self.param_kinds)

    @cached_property
    def tensors(self) -> tuple[Spec, ...]:
        """The layout of every tensor: of an argument that is a list, those of its tensors."""
        body = self.body
        if not isinstance(body, ForEach):
            return self.args
        layouts = zip(self.args, body.layouts, strict=True)
        return tuple([t for spec, layout in layouts for t in body.tensors(spec, layout)])

    @property
    def indexed_dims(self) -> tuple[tuple[int, int], ...]:
        """The number and the size of each dimension that its indices address, if its body says so."""
        arguments = self.body.arguments if isinstance(self.body, Extern) else ()
        return tuple([dim for argument in arguments for dim in getattr(argument, "indexed_dims", ())])

    @property
    def flag_name(self) -> str:
        """Its name, and the dimensions that its indices address: "gather 1:5" indexes dimension 1, of size 5."""
        return " ".join([self.name, *[f"{dim}:{size}" for dim, size in self.indexed_dims]])

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return self.args[: self.n_inputs]

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return self.args[self.n_inputs :]


class Node(NamedTuple):
    """One recorded call: the operation, each argument's allocation and element offset, the flattened scalars.

    What a list has in place of an allocation is the list.
    """

    op: Operation
    allocations: tuple[Any, ...]
    offsets: tuple[int, ...]
    params: tuple[int | float, ...] = ()
