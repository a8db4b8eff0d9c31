"""The compatibility matrix: every name, how it is answered on each target, and the one installer of the answers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, wraps
from types import MappingProxyType
from typing import Any

import torch

from torch_webgpu.translation.emulated.target import HERE, Around, local_name

from . import traced_answers
from .availability import by_asker
from .monitor import Answer, Monitor
from .replacements import Replacements
from .rows import Reply, Row

PARTS = ("cuda", "cuda_parts", "vendors", "devices", "pytorch")
"""The modules of :mod:`.names`."""

DEFINED_IN = {
    "torch": ("torch.serialization", "torch.random"),
    "torch.amp": ("torch.amp.autocast_mode",),
    "torch.cuda": ("torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams", "torch.cuda.graphs"),
    "torch.distributed": ("torch.distributed.distributed_c10d", "torch.distributed.device_mesh"),
    "torch.mps": ("torch.mps.event",),
    "torch.mtia": ("torch.mtia.memory", "torch.mtia.mtia_graph"),
    "torch.random": ("torch",),
    "torch.xpu": ("torch.xpu.memory", "torch.xpu.random", "torch.xpu.streams", "torch.xpu.graphs"),
}
"""Module → others that have the same objects under the same names, where programs find them, too."""

_NOT_THERE = object()


@cache
def table() -> Mapping[str, Row]:
    """Name → row, in the order in which they are printed. RuntimeError if a name has two."""
    rows: dict[str, Row] = {}
    for part in PARTS:
        for row in importlib.import_module(f"{__package__}.names.{part}").all_rows():
            if row.name in rows:
                raise RuntimeError(f"{row.name} is twice in the compatibility matrix")
            rows[row.name] = row
    return MappingProxyType(rows)


def look_up(name: str) -> Any:
    """What a full name ("torch.cuda.Stream", "torch.Tensor.cuda") is now; :data:`_NOT_THERE` if nothing."""
    place: Any = torch
    for n, part in enumerate(words := name.split(".")[1:], 2):
        attribute = getattr(place, part, _NOT_THERE)
        if attribute is _NOT_THERE and n <= len(words):
            try:
                attribute = importlib.import_module(".".join(["torch", *words[: n - 1]]))
            except ImportError:
                return _NOT_THERE
        place = attribute
        if place is _NOT_THERE:
            return _NOT_THERE
    return place


def is_there(name: str) -> bool:
    """Whether this version of PyTorch has ``name``."""
    return look_up(name) is not _NOT_THERE


def answering(by: str) -> Any:
    """What a reply's ``by`` names: something of PyTorch's or of :mod:`.emulated`. :data:`_NOT_THERE` if nothing."""
    if ":" not in by:
        return look_up(by)
    module, _, leaf = by.partition(":")
    return getattr(importlib.import_module(f"{__package__}.emulated.{module}"), leaf)


def owners(name: str, plain: Any) -> list[Any]:
    """The modules and classes where ``name`` is ``plain``: its own, and those of :data:`DEFINED_IN`."""
    module, _, leaf = name.rpartition(".")
    others = [look_up(other) for other in DEFINED_IN.get(module, ())]
    return [look_up(module), *(other for other in others if vars(other).get(leaf, _NOT_THERE) is plain)]


def is_known(by: str) -> bool:
    """Whether there is what a reply's ``by`` names."""
    return answering(by) is not _NOT_THERE


def refuse(name: str, target: str, note: str) -> str:
    """The text of the error for a name that cannot be had."""
    return f"{name} cannot be had on {target}: {note}"


def install(target: str, replacements: Replacements, monitor: Monitor) -> None:
    """Makes PyTorch's names answer as the matrix says for ``target``; ``replacements`` puts them back.

    What is the same stays as it is; names that this version of PyTorch lacks are passed over. What answers is looked
    up before anything is replaced: one name may answer another.
    """
    importlib.import_module("torch_webgpu")
    replacements.set(HERE, "type", target)
    replacements.set(HERE, "tensors", torch.Tensor)
    answers = [
        (row, plain, _answer(row, target, plain, monitor))
        for row in table().values()
        if row.replies[target].answer is not Answer.SAME and not row.removed
        for plain in [look_up(row.name)]
        if plain is not _NOT_THERE
    ]
    replacements.set(HERE, "originals", traced_answers.originals((answer, plain) for _, plain, answer in answers))
    for row, plain, answer in answers:
        for owner in owners(row.name, plain):
            replacements.set(owner, row.leaf, answer)


def _answer(row: Row, target: str, plain: Any, monitor: Monitor) -> Any:
    """What takes the place of ``plain``."""
    reply = row.replies[target]
    answering_it = _made(row, reply, target, plain)
    if row.asks:
        return by_asker(row.name, reply.answer, answering_it, plain, monitor)
    if isinstance(answering_it, type):
        return counted_class(row.name, reply, answering_it, local_names_to(answering_it), monitor)
    if isinstance(plain, type) and reply.by and callable(answering_it):
        return counted_class(row.name, reply, plain, answering_it, monitor)
    if not callable(answering_it):
        return answering_it
    counted = monitor.counted(row.name, reply.answer, answering_it, reply.note)
    if row.local:
        counted = unless_local(plain, counted, target)
    traced_answers.seen(row.name, plain, answering_it, counted)
    return staticmethod(counted) if row.leaf == "__new__" else counted


def _made(row: Row, reply: Reply, target: str, plain: Any) -> Any:
    if reply.by:
        answer = answering(reply.by)
        if answer is not _NOT_THERE:
            if isinstance(answer, Around):
                return answer.make(plain)
            own = ":" not in reply.by and callable(answer) and not isinstance(answer, type)
            return local_names_to(answer) if own else answer
        return _refusing(plain, refuse(row.name, target, f"this version of PyTorch has no {reply.by}"))
    if reply.answer is Answer.NOTHING:
        return wraps(plain)(_nothing)
    return _refusing(plain, refuse(row.name, target, reply.note))


def local_names_to(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, a device's own, told the local names of devices: its arguments may be "cuda:0"."""

    @wraps(function, updated=())
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*map(local_name, args), **{key: local_name(value) for key, value in kwargs.items()})

    return named


def unless_local(plain: Callable[..., Any], translated: Callable[..., Any], target: str) -> Callable[..., Any]:
    """``translated``, or ``plain`` at once where the first argument is the target's own name."""

    @wraps(plain)
    def of_device_type(*args: Any, **kwargs: Any) -> Any:
        return plain(*args) if args and args[0] == target and not kwargs else translated(*args, **kwargs)

    return of_device_type


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


def _refusing(plain: Any, text: str) -> Callable[..., Any]:
    """A function, or for a class a class, that raises NotImplementedError."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(text)

    if isinstance(plain, type):
        return type(plain.__name__, (), {"__new__": refuse, "__doc__": text, "__module__": plain.__module__})
    return wraps(plain)(refuse)


class CountedClass(type):
    """The class of classes whose calls are counted, and make instances of another class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        counted = cls.__dict__.get("_counted")
        return super().__call__(*args, **kwargs) if counted is None else counted(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        plain = cls.__dict__.get("_plain")
        return super().__instancecheck__(value) if plain is None else isinstance(value, plain)

    def __subclasscheck__(cls, other: type) -> bool:
        plain = cls.__dict__.get("_plain")
        return super().__subclasscheck__(other) if plain is None else issubclass(other, plain)


def counted_class(name: str, reply: Reply, plain: type, make: Callable[..., Any], monitor: Monitor) -> type:
    """A class that stands for ``plain``: its calls are ``make``'s, counted, and ``plain``'s instances are its own.

    A class of the user's may inherit from it as from ``plain``.
    """
    body = {
        "_plain": plain,
        "_counted": staticmethod(monitor.counted(name, reply.answer, make, reply.note)),
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "__slots__": (),
    }
    kind: Any = CountedClass if type(plain) is type else _counted_kind(type(plain))
    made: type = type.__new__(kind, plain.__name__, (plain,), body)
    return made


def _counted_kind(kind: type) -> type:
    """The class of counted classes whose class is ``kind``, under its name, which Dynamo asks for."""
    return type(kind.__name__, (CountedClass, kind), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
