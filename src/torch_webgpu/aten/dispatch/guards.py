"""Guards: calls recognised by one call into C++, before a key is made of them.

A key of shapes, strides and dtypes costs a microsecond and a half for two tensors. Dynamo's guards compare the same in
0.2 (see :func:`torch_abi.list_guard`), once it is known which signature to compare with; the first argument's shape
tells that well enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import copysign
from operator import itemgetter, or_
from typing import Any

import torch

from torch_webgpu.engine.store import address_of
from torch_webgpu.engine.tensor import FIRST_ADDRESS

from .torch_abi import is_webgpu, list_guard

NUMBERS = (int, float, complex)
data_ptr = torch.Tensor.data_ptr

Guard = Callable[[tuple[Any, ...], Mapping[str, Any]], list[int] | None]
"""From a call to the addresses of the tensors among its arguments, if it has a certain signature; those given by name
come last, in their order."""


def guard_for(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers_vary: bool, reads_flags: bool = False
) -> Guard | None:
    """What recognises calls with the signature of this one, whose first argument is a webgpu tensor or a list of them;
    None where no guard can tell it.

    A guard can for webgpu tensors that start at multiples of 16 bytes, where every kernel can use its widest loads, or
    have no elements, and plain values. ``numbers_vary``: of the numbers among these (booleans are none) only the
    classes decide anything.
    ``reads_flags``: PyTorch hands the kernel real tensors that are negated by a flag, too.
    """
    if args and args[0].__class__ is list:
        return guard_for_list(args, kwargs, numbers_vary, reads_flags)
    if not args or not is_webgpu(args[0]):
        return None
    arguments, names = (*args, *kwargs.values()), tuple(kwargs)
    tensors = [k for k, v in enumerate(arguments) if is_webgpu(v)]
    if not all(map(starts_well, itemgetter(0, *tensors)(arguments))):
        return None
    empty = [n for n, k in enumerate(tensors) if not arguments[k].numel()]
    others = [k for k in range(len(arguments)) if k not in tensors]
    fixed = [k for k in others if not (numbers_vary and arguments[k].__class__ in NUMBERS)]
    pick_tensors, pick_others, pick_fixed = picker(tensors), picker(others), picker(fixed)
    values = tuple([v.copy() if isinstance(v, list) else v for v in pick_fixed(arguments)])
    if not all(map(is_plain, values)):
        return None
    zeros = [k for k in fixed if arguments[k].__class__ is float and not arguments[k]]
    signs = [copysign(1.0, arguments[k]) for k in zeros]
    check, classes, size = look_alike(pick_tensors(arguments)), tuple(map(type, pick_others(arguments))), len(arguments)
    if reads_flags or any(arguments[k].is_complex() for k in tensors):
        check = with_flags(check, pick_tensors(arguments))
    if not names and not fixed and not empty and tensors == list(range(len(tensors))):
        few = guard_for_few(check, len(tensors), classes)
        if few is not None:
            return few

    def guard(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if kwargs or names:
            if tuple(kwargs) != names:
                return None
            args = (*args, *kwargs.values())
        # 1, 1.0 and True are equal, but promote differently.
        if len(args) != size or tuple(map(type, pick_others(args))) != classes or pick_fixed(args) != values:
            return None
        if zeros and [copysign(1.0, args[k]) for k in zeros] != signs:  # 0.0 and -0.0 are equal, too
            return None
        tensors = pick_tensors(args)
        if not check(*tensors) or reduce(or_, addresses := list(map(data_ptr, tensors))) & 15:
            return None
        for n in empty:  # PyTorch gives their data no address; which storage is whose matters all the same
            addresses[n] = address_of(tensors[n])
        return addresses if min(addresses) >= FIRST_ADDRESS else None

    return guard


def starts_well(t: torch.Tensor) -> bool:
    """Whether a guard can be for a tensor that starts there."""
    return address_of(t) >= FIRST_ADDRESS and not t.data_ptr() & 15


def guard_for_list(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers_vary: bool, reads_flags: bool
) -> Guard | None:
    """:func:`guard_for` of a call whose first argument is a list: that of a call with its items instead."""
    count = len(args[0])
    guard = guard_for((*args[0], *args[1:]), kwargs, numbers_vary, reads_flags) if count else None
    if guard is None:
        return None

    def listed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        first = args[0]
        if first.__class__ is not list or len(first) != count:
            return None
        return guard((*first, *args[1:]), kwargs)

    return listed


def guard_for_few(check: Callable[..., bool], tensors: int, classes: tuple[type, ...]) -> Guard | None:
    """The commonest guards, which take a third of the general one's time: three tensors at most, perhaps a number."""

    def one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 1 and not kwargs and check(*args):
            address = args[0].data_ptr()
            return [address] if address >= FIRST_ADDRESS and not address & 15 else None
        return None

    def one_and_number(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 2 and args[1].__class__ is classes[0] and not kwargs and check(args[0]):
            address = args[0].data_ptr()
            return [address] if address >= FIRST_ADDRESS and not address & 15 else None
        return None

    def two(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 2 and not kwargs and check(*args):
            first, second = args[0].data_ptr(), args[1].data_ptr()
            if first >= FIRST_ADDRESS and second >= FIRST_ADDRESS and not (first | second) & 15:
                return [first, second]
        return None

    def two_and_number(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 3 and args[2].__class__ is classes[0] and not kwargs and check(args[0], args[1]):
            first, second = args[0].data_ptr(), args[1].data_ptr()
            if first >= FIRST_ADDRESS and second >= FIRST_ADDRESS and not (first | second) & 15:
                return [first, second]
        return None

    def three(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 3 and not kwargs and check(*args):
            a, b, c = args
            first, second, third = starts = [a.data_ptr(), b.data_ptr(), c.data_ptr()]
            if (
                first >= FIRST_ADDRESS
                and second >= FIRST_ADDRESS
                and third >= FIRST_ADDRESS
                and not (first | second | third) & 15
            ):
                return starts
        return None

    known = {(1, 0): one, (1, 1): one_and_number, (2, 0): two, (2, 1): two_and_number, (3, 0): three}
    return known.get((tensors, len(classes)))


def look_alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """:func:`torch_abi.list_guard`, also for tensors of which some are the same one: those that refuses to compare."""
    if len(set(map(id, tensors))) == len(tensors):
        return list_guard(tensors)
    checks = [list_guard([t]) for t in tensors]
    return lambda *tensors: all([check(t) for check, t in zip(checks, tensors, strict=True)])  # noqa: C419  faster


def with_flags(check: Callable[..., bool], tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """``check``, also for the flags that say that a tensor is conjugated or negated.

    Dynamo's guards compare dispatch keys without those that are excluded where they are asked, and under a
    ``TorchDispatchMode`` that is true of the two flags' keys.
    """
    flags = [(t.is_conj(), t.is_neg()) for t in tensors]
    if not any(t.is_complex() or t.is_neg() for t in tensors):  # real ones, of copies: the commonest by far
        if len(tensors) == 1:
            return lambda t: check(t) and not t.is_neg()
        if len(tensors) == 2:
            return lambda a, b: check(a, b) and not a.is_neg() and not b.is_neg()
    return lambda *found: check(*found) and [(t.is_conj(), t.is_neg()) for t in found] == flags


def picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that picks these items of a sequence, as a tuple."""
    first = indexes[0] if indexes else 0
    if list(indexes) == list(range(first, first + len(indexes))):
        return itemgetter(slice(first, first + len(indexes)))
    return itemgetter(*indexes)


def is_plain(value: Any) -> bool:
    """Whether equality of such values, and of their classes, is all there is to tell."""
    if isinstance(value, list):
        # Shapes, dimensions and masks: which of them is the schema's choice. Floats compare like numbers.
        return {v.__class__ for v in value} in (set(), {int}, {bool})
    return not isinstance(value, (torch.Tensor, tuple, dict))
