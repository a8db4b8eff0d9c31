"""Calls recognised by one call into C++: what the caches of kernels ask before they make a whole key.

A key of shapes, strides and dtypes costs a microsecond and a half for two tensors. Dynamo's guards compare the same in
0.2 (see :func:`torch_abi.list_guard`), once it is known which signature to compare with; the first argument's shape
tells that well enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tensor import FIRST_ADDRESS
from torch_webgpu.ir.graph import Operation

from .caches import by_default_dtype
from .torch_abi import is_webgpu, list_guard

CACHE_SIZE = 1024
"""Shapes for which a kernel has forms."""
FORMS_PER_SHAPE = 4

Found = TypeVar("Found")
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]


def picker(indexes: Sequence[int]) -> Picker:
    """A function that picks these items of a sequence, as a tuple."""
    if not indexes:
        return lambda _: ()
    first = indexes[0]
    if list(indexes) == list(range(first, first + len(indexes))):
        return itemgetter(slice(first, first + len(indexes)))
    return itemgetter(*indexes)


Match = Callable[[tuple[Any, ...], Mapping[str, Any]], list[int] | None]
"""From a call to the addresses of the tensors among its arguments, if it has a certain signature."""


def same_keywords(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    # 1, 1.0 and True are equal, but promote differently.
    return found == wanted and all(found[key].__class__ is value.__class__ for key, value in wanted.items())


def matcher(args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers_vary: bool) -> Match | None:
    """What recognises calls with the signature of this one, whose first argument is a webgpu tensor; None where no form
    can tell it.

    A form can for webgpu tensors that start at multiples of 16 bytes, where every kernel can use its widest loads, and
    plain values, of which ``numbers_vary`` says that only their classes decide anything.
    """
    size = len(args)
    if not are_aligned([args[0].data_ptr()]):
        return None
    tensors = [k for k, v in enumerate(args) if is_webgpu(v)]
    others = [k for k in range(size) if k not in tensors]
    pick_tensors, pick_others = picker(tensors), picker(others)
    values = tuple([v.copy() if isinstance(v, list) else v for v in pick_others(args)])
    decisive = (*kwargs.values(),) if numbers_vary else (*values, *kwargs.values())
    if not all(map(is_plain, (*values, *kwargs.values()))) or any(v.__class__ is float and not v for v in decisive):
        return None  # 0.0 and -0.0 are equal
    given: list[torch.Tensor] = [args[k] for k in tensors]
    if not are_aligned([t.data_ptr() for t in given]):
        return None
    check, classes, keywords = list_guard(given), tuple(map(type, values)), dict(kwargs)
    if not keywords and (numbers_vary or not others) and tensors == list(range(len(tensors))):
        match_few = few_matcher(check, len(tensors), classes)
        if match_few is not None:
            return match_few

    def match(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) != size:
            return None
        own = pick_others(args)
        if tuple(map(type, own)) != classes or not (numbers_vary or own == values):
            return None
        if (kwargs or keywords) and not same_keywords(kwargs, keywords):
            return None
        tensors = pick_tensors(args)
        if not check(*tensors):
            return None
        addresses = [t.data_ptr() for t in tensors]
        return addresses if are_aligned(addresses) else None

    return match


def few_matcher(check: Callable[..., bool], tensors: int, classes: tuple[type, ...]) -> Match | None:
    """The commonest matchers, which take a third of the general one's time: one tensor or two, perhaps a number."""

    def match_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 1 and not kwargs and check(*args):
            address = args[0].data_ptr()
            return [address] if address >= FIRST_ADDRESS and not address & 15 else None
        return None

    def match_number(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 2 and args[1].__class__ is classes[0] and not kwargs and check(args[0]):
            address = args[0].data_ptr()
            return [address] if address >= FIRST_ADDRESS and not address & 15 else None
        return None

    def match_two(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 2 and not kwargs and check(*args):
            first, second = args[0].data_ptr(), args[1].data_ptr()
            if first >= FIRST_ADDRESS and second >= FIRST_ADDRESS and not (first | second) & 15:
                return [first, second]
        return None

    def match_two_and_number(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
        if len(args) == 3 and args[2].__class__ is classes[0] and not kwargs and check(args[0], args[1]):
            first, second = args[0].data_ptr(), args[1].data_ptr()
            if first >= FIRST_ADDRESS and second >= FIRST_ADDRESS and not (first | second) & 15:
                return [first, second]
        return None

    known = {(1, 0): match_one, (1, 1): match_number, (2, 0): match_two, (2, 1): match_two_and_number}
    return known.get((tensors, len(classes)))


def are_aligned(addresses: Sequence[int]) -> bool:
    """Whether these are the addresses of tensors with elements that start at multiples of 16 bytes."""
    return min(addresses) >= FIRST_ADDRESS and not any([address & 15 for address in addresses])  # noqa: C419  faster


class Forms(Generic[Found]):
    """Signatures seen so far and what was found out about each."""

    def __init__(self) -> None:
        self.known: dict[Any, list[tuple[Match, Found]]] = by_default_dtype({})
        """By the first argument's shape."""

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Found, numbers_vary: bool = False) -> None:
        """Remembers what was found out about a call, if there is a :func:`matcher` for it."""
        if not args or not is_webgpu(args[0]):
            return
        forms = self.known.get(args[0].shape, [])
        if len(forms) >= FORMS_PER_SHAPE:
            return
        match = matcher(args, kwargs, numbers_vary)
        if match is None:
            return
        if len(self.known) >= CACHE_SIZE:
            self.known.clear()
        forms.append((match, found))
        self.known[args[0].shape] = forms


def write_again(
    forms: Forms[Operation], tensors: tuple[torch.Tensor, ...], params: tuple[int | float, ...] = ()
) -> bool:
    """Records the operation that tensors which look like these had before, if it writes into the last of them.

    False, and nothing is recorded, for others, and where an input may share elements with what is written.
    """
    for match, op in forms.known.get(tensors[0].shape, ()):
        addresses = match(tensors, {})
        if addresses is not None and engine().append_over(op, addresses, params):
            return True
    return False


def is_plain(value: Any) -> bool:
    """Whether equality of such values, and of their classes, is all there is to tell."""
    if isinstance(value, list):
        # Shapes, dimensions and masks: which of them is the schema's choice. Floats compare like numbers.
        return {v.__class__ for v in value} in (set(), {int}, {bool})
    return not isinstance(value, (torch.Tensor, tuple, dict))
