"""Collectives over gloo: tensors are staged through the host's memory, and gloo exchanges that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torch_webgpu.errors import WebGPUError

from .reductions import is_mean_of_integers
from .roll_call import RollCall
from .staging import Staged
from .timeline import ISSUED, READ, REDUCED
from .torch_c10d import operator, unboxed_work
from .transport import BOTH, IN, NOTHING, OUT, Exchange, Request, flat, structured


class GlooTransport:
    """Carries every collective, between any hosts: the same operator, with the host's side of the tensors.

    ``roll_call``: that of the group's ranks. ``abort``: ends the group's connections.
    """

    def __init__(self, roll_call: RollCall, abort: Callable[[], None]) -> None:
        self._roll_call, self._abort = roll_call, abort

    def begin(self, request: Request) -> GlooExchange:
        collective = request.collective
        try:
            staged, call = _stager(request)(request)
        except WebGPUError as error:  # the device's; what a collective does not take, all ranks refuse alike
            self._give_up(error)
            raise
        if collective.is_of_two:
            return GlooExchange(staged, call, self._give_up, None, collective.has_source)
        same = next(flat(request.tensors), None) if collective.roles == (BOTH,) else None
        number = self._roll_call.note(collective.called, same)
        return GlooExchange(staged, call, self._give_up, partial(self._roll_call.missing, number))

    def _give_up(self, error: BaseException) -> None:
        """This rank cannot take part in a collective that the others are in: they end, and no later one meets it."""
        self._roll_call.give_up(str(error) or type(error).__name__)
        self._abort()


class GlooExchange(Exchange):
    """A collective of gloo's. ``call`` calls it with the host's side of the tensors, and returns its work.

    ``give_up``: is called with an error that comes before. ``missing``: says which ranks are missing, where it failed.
    """

    carried_by = "gloo"

    def __init__(
        self, staged: Sequence[Staged], call: Callable[[], Any], give_up: Callable[[BaseException], None],
        missing: Callable[[], str] | None, has_source: bool = False,
    ) -> None:  # fmt: skip
        self._staged, self._call, self._has_source = staged, call, has_source
        self._give_up, self._missing = give_up, missing
        self._work: Any = None

    def issue(self) -> None:
        try:
            for staged in self._staged:
                staged.read()
        except BaseException as error:
            self._give_up(error)
            raise
        self.reached(READ)
        try:
            self._work = self._call()
        except RuntimeError as error:
            raise self._named(error) from error
        self.reached(ISSUED)

    def is_done(self) -> bool | None:
        try:
            return bool(self._work.get_future().done())
        except RuntimeError:  # some of gloo's works can only be waited for
            return None

    def finish(self) -> int:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._named(error) from error
        self.reached(REDUCED)
        source = self._work._source_rank() if self._has_source else -1
        for staged in self._staged:
            staged.write()
        return source

    def _named(self, error: RuntimeError) -> RuntimeError:
        """gloo's error, and which ranks are missing."""
        missing = "" if self._missing is None else self._missing()
        return RuntimeError(f"{str(error).rstrip('. ')}. {missing}") if missing else error


Issue = Callable[[], Any]


def _stager(request: Request) -> Callable[[Request], tuple[list[Staged], Issue]]:
    """What stages a call. All ranks get the same, since what they call is the same."""
    name, tensors = request.collective.name, request.tensors
    if name == "alltoall_":
        return _stage_lists
    if name == "allgather_" and len(tensors[1]) == 1 and len({t.nbytes for t in tensors[0][0]}) > 1:
        return _stage_parts_of_several_sizes
    return _stage


def _stage(request: Request) -> tuple[list[Staged], Issue]:
    """The host's side of a call's tensors, and what calls the same operator with them."""
    collective, group, rest, overload = request.collective, request.group, request.rest, request.collective.overload
    staged: list[Staged] = []

    def host_side(role: str, t: torch.Tensor) -> torch.Tensor:
        averages = collective.reduces and is_mean_of_integers(rest[0], t.dtype)
        one = Staged(t, role in (IN, BOTH), role in (OUT, BOTH), collective.reduces, averages)
        staged.append(one)
        return one.carrier.view(-1) if collective.is_flat else one.carrier

    if collective.roles == (NOTHING,):
        hosts: list[Any] = [torch.empty(1, device="cpu")]
    else:
        hosts = [structured(partial(host_side, request.role(k)), value) for k, value in enumerate(request.tensors)]

    def issue() -> Any:
        return unboxed_work(overload(*hosts, group.box, *rest))

    return staged, issue


def _stage_lists(request: Request) -> tuple[list[Staged], Issue]:
    """:func:`_stage` for lists of tensors for, and from, each rank: gloo takes one, of which each rank gets a part.

    Its own operator for lists came with PyTorch 2.12.
    """
    outputs, inputs = request.tensors
    staged: list[Staged] = []
    flat_sides, sizes = [], []
    for tensors, into in ((outputs, False), (inputs, True)):
        sizes.append([t.nbytes for t in tensors])
        memory = torch.empty(sum(sizes[-1]), dtype=torch.uint8, device="cpu")
        flat_sides.append(memory)
        for t, part in zip(tensors, memory.split(sizes[-1])):
            staged.append(Staged(t, into, not into, False, memory=part))
    overload, group, rest = operator("alltoall_base_"), request.group, request.rest

    def issue() -> Any:
        return unboxed_work(overload(*flat_sides, group.box, *sizes, *rest))

    return staged, issue


def _stage_parts_of_several_sizes(request: Request) -> tuple[list[Staged], Issue]:
    """:func:`_stage` for an ``all_gather`` to which ranks give tensors of several sizes, as NCCL takes them.

    gloo gathers as many bytes of each as the largest has.
    """
    ((outputs,), (given,)), group = request.tensors, request.group
    if len(outputs) != group.size or outputs[group.rank].numel() != given.numel():
        return _stage(request)  # gloo has words for it
    longest = max(t.nbytes for t in outputs)
    memory = torch.empty(group.size, longest, dtype=torch.uint8, device="cpu")
    own = torch.empty(longest, dtype=torch.uint8, device="cpu")
    staged = [Staged(given, True, False, False, memory=own[: given.nbytes])]
    staged += [Staged(t, False, True, False, memory=part[: t.nbytes]) for t, part in zip(outputs, memory)]
    overload, rest = operator("_allgather_base_"), request.rest

    def issue() -> Any:
        return unboxed_work(overload(memory.view(-1), own, group.box, *rest))

    return staged, issue
