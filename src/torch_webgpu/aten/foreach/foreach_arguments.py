"""Lists of tensors as the engine records them: looked at once, recognised from then on.

A list is looked up by its tensors' addresses, which are hardly ever used again, and confirmed by one call into C++ that
compares types, dtypes, devices, sizes and strides: an address can be that of several views, and metadata can change in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE, list_guard
from torch_webgpu.caches import Cache
from torch_webgpu.compiler.fuse.substitution import renumber
from torch_webgpu.engine.lists import record_list
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.recorded_lists import ListGeometry, RecordedList
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import ForEach, ListLayout, Number, Operation, Spec
from torch_webgpu.layout import dense_strides, is_dense, iteration_order

LIST_CACHE_TENSORS = 100_000
NEW_TENSORS = 4096
"""After so many the tensor lists of tensors that have died, which nobody will ask for again, are dropped."""
GEOMETRY_CACHE_SIZE = 10_000
RECENT_FORMS = 8
LARGEST_NUMEL = 1 << 31

MOST_OPERATIONS = 1000
"""That one :class:`ListExpression` is remembered for."""

_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class Form:
    """How a list looks: ``check(*tensors)`` tells whether others look the same. Without a geometry no list path
    takes it.
    """

    check: Callable[..., bool]
    geometry: ListGeometry | None
    dtype: torch.dtype
    device: int


_tensor_lists: Cache[tuple[int, ...], RecordedList] = Cache(
    "lists of tensors", LIST_CACHE_TENSORS, weigh=attrgetter("size")
)
_new_tensors = [0]  # in the tensor lists that came after the dead ones were last dropped
_forms: dict[int, list[Form]] = {}
_geometries: Cache[Any, ListGeometry] = Cache("shapes of lists", GEOMETRY_CACHE_SIZE)


def find(tensors: Sequence[torch.Tensor]) -> RecordedList | None:
    """The tensor list of a list; None if it is not one that the list path takes.

    It takes dense webgpu tensors of one device and one dtype of at most four bytes that have elements, start at
    multiples of four elements and lie in storages that one binding can hold. Those it writes lie each in its own.
    """
    addresses = tuple(map(_address, tensors))
    tensor_list = _tensor_lists.get(addresses) or _tensor_lists.promote(addresses)
    if tensor_list is not None and engine().repeats_addresses and not tensor_list.is_alive:
        tensor_list = None
    if tensor_list is not None and tensor_list.check is not None and tensor_list.check(*tensors):
        return tensor_list
    form = _form(tensors)
    if form is None or form.geometry is None:
        return None
    kind = (form.geometry, form.dtype, form.device)
    if tensor_list is not None and (tensor_list.geometry, tensor_list.dtype, tensor_list.device) == kind:
        tensor_list.check = form.check
        return tensor_list
    made = _make(addresses, form)
    if made is not None:
        made.check = form.check
        remember(addresses, made)
    return made


def find_single(tensors: Sequence[torch.Tensor]) -> RecordedList | None:
    """The tensor list of one for a list that is the same 0-dim tensor again and again."""
    first = tensors[0]
    if first.dim() or any(t is not first for t in tensors):
        return None
    return find(tensors[:1])


def layout_in(domain: ListGeometry, geometry: ListGeometry) -> ListLayout | None:
    """What a tuple has of a list of this geometry in an operation over ``domain`` (see ``wgsl.horizontal.Column``)."""
    if geometry.lies_like(domain):
        return "elements"
    if not geometry.is_numbers or len(geometry.numels) not in (1, len(domain.numels)):
        return None
    return "number" if len(geometry.numels) == len(domain.numels) else "shared"


def remember(addresses: tuple[int, ...], tensor_list: RecordedList) -> None:
    """Makes ``tensor_list`` what is found at these addresses."""
    if addresses not in _tensor_lists:
        _new_tensors[0] += len(addresses)
    _tensor_lists[addresses] = tensor_list
    if _new_tensors[0] > NEW_TENSORS:
        for key in [key for key, old in _tensor_lists.everything().items() if not old.is_alive]:
            _tensor_lists.pop(key)
        _new_tensors[0] = 0


def addresses_of(tensor_list: RecordedList) -> tuple[int, ...]:
    """Of a tensor list without offsets."""
    return tuple([a.number << ADDRESS_BITS | FIRST_BYTE for a in tensor_list.allocations])


def largest_bytes(device: int) -> int:
    """What one binding surely holds: buffers are up to a sixteenth larger than what lies in them."""
    return engine().device(device).target.max_binding_bytes // 17 * 16 - 4096


def _make(addresses: Sequence[int], form: Form) -> RecordedList | None:
    allocations = engine().allocations_at(addresses)
    if allocations is None:
        return None
    starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in addresses]
    largest = largest_bytes(form.device)
    assert form.geometry is not None
    if any(starts) and any(start % (4 * form.dtype.itemsize) for start in starts):
        return None
    if max([a.size_bytes for a in allocations]) > largest:  # a list: a generator takes three times as long
        return None
    made = RecordedList(form.geometry, form.dtype, form.device, allocations, starts)
    intake = engine().intake(form.device)
    if intake is not None and intake.may_move(allocations):
        made.is_aligned = False
    return made


def _form(tensors: Sequence[torch.Tensor]) -> Form | None:
    recent = _forms.setdefault(len(tensors), [])
    for k, form in enumerate(recent):
        if form.check(*tensors):
            if k:
                recent.insert(0, recent.pop(k))
            return form
    if not tensors:
        return None
    first = tensors[0]
    if any(
        t.device != first.device or t.dtype != first.dtype or t.layout != torch.strided or t.is_neg() for t in tensors
    ):
        return None
    if first.device.type != DEVICE_TYPE:
        return None
    form = Form(list_guard(tensors), _geometry(tensors), first.dtype, first.device.index)
    recent.insert(0, form)
    del recent[RECENT_FORMS:]
    return form


def _geometry(tensors: Sequence[torch.Tensor]) -> ListGeometry | None:
    dtype = dtypes.BY_TORCH.get(tensors[0].dtype)
    if dtype is None or dtype.itemsize > 4:
        return None
    return geometry_of(tuple([tuple(t.shape) for t in tensors]), tuple([t.stride() for t in tensors]))


def geometry_of(shapes: tuple[tuple[int, ...], ...], strides: tuple[tuple[int, ...], ...]) -> ListGeometry | None:
    """The geometry of dense tensors that have elements; None for others."""
    key = (shapes, strides)
    geometry = _geometries.get(key) or _geometries.promote(key)
    if geometry is None:
        numels = tuple(map(prod, shapes))
        dense = all(map(is_dense, shapes, strides))
        if not dense or not all(0 < n < LARGEST_NUMEL for n in numels):
            return None
        ordered = tuple([tuple(dense_strides(s, iteration_order(s, t))) for s, t in zip(shapes, strides)])
        order = None if ordered == strides else geometry_of(shapes, ordered)
        geometry = _geometries[key] = ListGeometry(shapes, strides, numels, order)
    return geometry


@dataclass(frozen=True)
class ListColumn:
    """One argument of every tuple: the dtype's name in ``dtypes.BY_NAME``, and what a tuple has of it."""

    dtype: str
    layout: ListLayout


@dataclass(frozen=True, eq=False)
class ListExpression:
    """What an operation over lists computes, whatever the shapes: ``roots[j]`` is stored into list ``targets[j]``.

    Leaves of the expressions: ``load k`` of list ``k``, ``param k``: number ``k``.
    """

    name: str
    roots: tuple[Expr, ...]
    targets: tuple[int, ...]
    columns: tuple[ListColumn, ...]
    numbers: tuple[Number, ...]
    operations: Cache[Any, tuple[Operation, tuple[int, ...]]] = field(
        default_factory=partial(Cache, "operations over lists", MOST_OPERATIONS)
    )

    def record(self, domain: ListGeometry, lists: Sequence[RecordedList], params: tuple[int | float, ...]) -> bool:
        """Records it over these lists; False where one that it writes shares tensors with itself or another one."""
        key = domain.id, tuple([tensor_list.is_aligned for tensor_list in lists])
        known = self.operations.get(key) or self.operations.promote(key)
        if known is None:
            known = self.operations[key] = self._operation(domain, key[1])
        op, order = known
        if any(lists[k].shares for k in self.targets):
            return False
        return record_list(engine(), op, tuple([lists[k] for k in order]), params)

    def _operation(self, domain: ListGeometry, aligned: Sequence[bool]) -> tuple[Operation, tuple[int, ...]]:
        """The operation over lists of these shapes, and which list each of its arguments is."""
        inputs = sorted({e.args[0] for e in walk(self.roots) if e.op == "load"})
        memo: dict[Expr, Expr] = {}
        roots = tuple([renumber(root, {k: j for j, k in enumerate(inputs)}, memo) for root in self.roots])
        order = (*inputs, *self.targets)
        layouts = tuple([self.columns[k].layout for k in order])
        body = ForEach(roots, layouts, self.numbers, domain.shapes, domain.strides)
        sizes = {"elements": (sum(domain.numels),), "number": (len(domain.numels),), "shared": ()}
        specs = []
        for k, layout in zip(order, layouts):
            specs.append(Spec(self.columns[k].dtype, sizes[layout], (1,) * len(sizes[layout]), aligned[k]))
        return Operation(self.name, tuple(specs), len(self.targets), body, body.param_kinds), order
