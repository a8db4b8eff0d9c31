"""The process groups: which backend of a group carries its webgpu tensors.

A group of ``torch.distributed`` has a backend for each type of device. That of webgpu is gloo, too, but another one
than the CPU's: gloo matches collectives by their order, and those of webgpu tensors are issued by a thread, later than
they were called. What is issued goes to a *staging group*, which has this backend for tensors of the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import distributed as dist

from .adapters import choose_adapter
from .fake_transport import FakeTransport
from .gloo_transport import GlooTransport
from .registration import is_the_accelerator
from .roll_call import RollCall
from .self_messages import SelfTransport
from .shared_transport import SharedMemoryTransport
from .torch_c10d import (
    CPU,
    GLOO,
    WEBGPU,
    PrefixStore,
    checked,
    group_of_one_backend,
    new_gloo,
    unboxed_group,
    unused_part,
)
from .transport import Exchange, Request, Transport

GLOO_NAME, FAKE = "gloo", "fake"


class StagingGroup:
    """Where the collectives of a process group's webgpu tensors are issued: ``box`` is what its operators take."""

    def __init__(self, group: Any) -> None:
        self.name: str = group.group_name
        self.rank: int = group.rank()
        self.size: int = group.size()
        backend, store = group._get_backend(WEBGPU), group.get_group_store()
        is_real = backend.name() != FAKE
        if is_real:
            store = unused_part(store, "webgpu", self.rank)
        self._group = group_of_one_backend(store, self.rank, self.size, _carrier(group, store))
        self.box = self._group.boxed()
        roll_call = RollCall(PrefixStore("roll/", store), self.rank, self.size)
        self.transports: list[Transport] = [GlooTransport(roll_call, self._group.abort) if is_real else FakeTransport()]
        """The first that carries a collective has it; the last carries all."""
        self._shared: SharedMemoryTransport | None = None
        self._to_itself = SelfTransport(timeout_of(backend))
        if is_real:
            self._shared = SharedMemoryTransport(store, self.rank, self.size, timeout_of(backend), str(self))
            self.transports[:0] = [self._shared, self._to_itself]

    def __str__(self) -> str:
        return f"group {self.name!r}, rank {self.rank} of {self.size}"

    def begin(self, request: Request) -> Exchange:
        """A collective that was just called."""
        exchanges = (transport.begin(request) for transport in self.transports)
        exchange = next(exchange for exchange in exchanges if exchange is not None)
        return exchange if self._shared is None else self._shared.in_order(request, exchange)

    @property
    def why_through_gloo(self) -> str | None:
        """Why no collective goes through shared memory; None where they do, and before the first."""
        return "it is a fake" if self._shared is None else self._shared.refusal

    def close(self) -> None:
        """Lets the shared memory go. Nothing is underway."""
        if self._shared is not None:
            self._shared.close()

    def abort(self) -> None:
        """Has everything underway end with an error."""
        if self._shared is not None:
            self._shared.abort()
        self._to_itself.abort()
        self._group.abort()


def create(options: Any, backend_options: Any) -> Any:
    """The backend ``"webgpu"`` of a process group, as ``torch.distributed`` asks for it."""
    if not dist.is_initialized():
        choose_adapter()
    return new_gloo(
        options.store, options.group_rank, options.group_size, options.timeout, options.global_ranks_in_group,
        options.group_id,
    )  # fmt: skip


def complete(group: Any, store: Any, ranks: Sequence[int], timeout: timedelta, named_each: bool) -> None:
    """Gives a new group the other of the two devices: tensors of the CPU beside those of webgpu, and webgpu's beside
    the CPU's where gloo serves it.

    ``named_each``: the program named a backend for each device. PyTorch then leaves open which is the default.
    """
    devices = group._device_types
    if WEBGPU in devices and CPU not in devices:
        store = PrefixStore("cpu/", store)
        rank, size, name, description = group.rank(), group.size(), group.group_name, group.group_desc
        gloo = new_gloo(store, rank, size, timeout, ranks, name)
        group._register_backend(CPU, GLOO, checked(gloo, store, rank, size, timeout, name))
        group._set_group_name(name)  # of all its backends: it asks one of them for its own
        group._set_group_desc(description)
    elif CPU in devices and WEBGPU not in devices:
        backend = group._get_backend(CPU)
        if backend.name() in (GLOO_NAME, FAKE):
            group._register_backend(WEBGPU, GLOO, backend)
    elif named_each and {CPU, WEBGPU} <= set(devices) and group._get_backend(CPU).name() == GLOO_NAME:
        group._set_default_backend(GLOO)
        if not has_own_backend(group) and not dist.is_initialized():  # "cpu:gloo,webgpu:gloo"
            choose_adapter()


def has_own_backend(group: Any) -> bool:
    """Whether a process group has another backend for webgpu than for the CPU."""
    devices = group._device_types
    if WEBGPU not in devices:
        return False
    return CPU not in devices or group._get_backend(CPU) is not group._get_backend(WEBGPU)


def _carrier(group: Any, store: Any) -> Any:
    """The backend for what is staged: the group's for webgpu, unless that is the CPU's as well."""
    backend = group._get_backend(WEBGPU)
    if has_own_backend(group) or backend.name() == FAKE:
        return backend
    rank, size, name = group.rank(), group.size(), group.group_name
    store = PrefixStore("webgpu/", store)
    options, timeout = _options(backend), timeout_of(backend)
    ranks = options.global_ranks_in_group if options is not None else range(size)
    gloo = new_gloo(store, rank, size, timeout, ranks, name, connects_late=True)
    return checked(gloo, store, rank, size, timeout, name)


def _options(backend: Any) -> Any:
    return getattr(getattr(backend, "wrapped_pg", backend), "options", None)


def timeout_of(backend: Any) -> timedelta:
    options = _options(backend)
    timeout: timedelta = options._timeout if options is not None else dist.default_pg_timeout
    return timeout


_staging_groups: WeakKeyDictionary[Any, StagingGroup] = WeakKeyDictionary()
_lock = threading.Lock()


def staging_group(box: Any) -> StagingGroup:
    """That of the process group in an argument of an operator."""
    group = unboxed_group(box)
    known = _staging_groups.get(group)
    if known is None:
        with _lock:
            known = _staging_groups.get(group)
            if known is None:
                known = _staging_groups[group] = StagingGroup(group)
    return known


def known(group: Any) -> StagingGroup | None:
    """That of a process group; None if none of its collectives had tensors of webgpu."""
    return _staging_groups.get(group)


def staging_groups() -> list[StagingGroup]:
    """Those in use."""
    return list(_staging_groups.values())


def forget(group: Any = None) -> None:
    """A group is destroyed; None for all."""
    for one in list(_staging_groups) if group is None else [group]:
        staging = _staging_groups.pop(one, None)
        if staging is not None:
            staging.close()


def splitting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``split_group``: a new group of the same backends, since gloo's options cannot be copied to split one."""

    @wraps(plain)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
        group_desc: str | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        parent = parent_pg or dist.group.WORLD
        if not split_ranks or parent is None or not has_own_backend(parent):
            return plain(parent_pg, split_ranks, timeout, pg_options, group_desc, **kwargs)
        own = [ranks for ranks in split_ranks if parent.rank() in ranks]
        if len(own) > 1:
            raise ValueError(f"rank {parent.rank()} is in several of split_ranks: {own}")
        if not own:
            return None
        ranks = [dist.get_global_rank(parent, rank) for rank in sorted(own[0])]
        return dist.new_group(
            ranks, timeout, kwargs.get("backend"), use_local_synchronization=True, group_desc=group_desc
        )

    return split_group


def waiting_on_the_host(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``barrier(device_ids=[n])`` waits as ``barrier()`` does, which asks the CPU's backend where a group has one.

    All ranks have to ask the same one, and not all have an adapter of the number, nor use the device.
    """

    @wraps(plain)
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **options: Any) -> Any:
        return plain(group, async_op, None if is_the_accelerator() else device_ids, **options)

    return barrier
