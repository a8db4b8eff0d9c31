"""How the ranks of a group come to share memory: whether they can, who makes it, whether it carries the right bytes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch_webgpu.config import config
from torch_webgpu.engine.imported import release_host_memory, takes_host_memory

from . import shared_slots
from .shared_board import Board
from .shared_link import Link
from .shared_memory import Peers, Process, SharedMemory, exchanged, processes, why_not
from .shared_slots import Slot, Slots
from .torch_c10d import PrefixStore

_log = logging.getLogger("torch_webgpu")
CHECK_S = 60.0
"""How long the first exchange may take, whatever the group's timeout: kernels are compiled meanwhile, by all ranks."""


def connect(store: Any, rank: int, size: int, index: int, timeout: timedelta) -> tuple[Link | None, str]:
    """The transport of a process group's ranks; None, and why, where they go on through gloo.

    Every rank calls this at its first collective, and all get the same answer. ``store``: what is of this group alone.
    ``index``: the device's.
    """
    refusal = ""
    if size == 1:
        return None, "it is alone"
    if not config().shared_memory:
        refusal = "TORCH_WEBGPU_SHARED_MEMORY is 0"
    elif not takes_host_memory(index):
        refusal = "its adapter does not take host memory (host-mapped-pointer)"
    store = PrefixStore("shared/", store)
    everybody = processes(store, rank, size, refusal, timeout)
    if reason := why_not(everybody):
        return None, reason
    peers = Peers(everybody, rank)
    try:
        memory = SharedMemory.shared(store, everybody, rank, slots_bytes(size, Slots.first_count(size)), timeout, peers)
    except OSError as error:
        peers.close()
        return None, str(error)
    board, problem, link = Board(memory, rank, size, Slots.most(size), peers, timeout), "", None
    try:
        slots = Slots(size)
        slots.add(slots.imported(index, memory.slots))
        link = Link(board, slots, peers, rank, index)
        del slots
    except RuntimeError as error:
        problem = f"rank {rank}: {error}"
        board.give_up(problem)
    if link is not None:
        try:
            link.check(CHECK_S)
            link.more_slots = partial(added, store, everybody, rank, timeout, peers)
        except RuntimeError as error:
            problem = f"rank {rank}: the first exchange went wrong: {error}"
    longest = max(timeout, timedelta(seconds=2 * CHECK_S))  # others may have begun later
    told = exchanged(store, "checked", rank, size, {"problem": problem}, longest, peers)
    problems = [one["problem"] for one in told if one["problem"]]
    if not problems:
        return link, ""
    _log.warning("collectives go through gloo, and not through shared memory: %s", "; ".join(problems))
    if link is not None:
        link.close()
    else:
        peers.close()
        memory.close()
    return None, problems[0]


def slots_bytes(ranks: int, count: int) -> int:
    """Of so many slots of each rank."""
    return ranks * count * shared_slots.SLOT_BYTES


def added(
    store: Any, everybody: Sequence[Process], rank: int, timeout: timedelta, peers: Peers, slots: Slots, index: int
) -> tuple[SharedMemory, Sequence[tuple[Slot, Slot]]] | None:
    """As many slots as each rank has, or as many as it may yet have, and their memory. They are not added.

    Every rank calls this at the same place, and all get some or none. The first exchange has shown that the bytes
    which a GPU writes into such memory are those that others read.
    """
    ranks = len(everybody)
    more = min(slots.count, Slots.most(ranks) - slots.count)
    if not more:
        return None
    store, imported, problem = PrefixStore(f"more/{slots.count}/", store), [], ""
    try:
        memory = SharedMemory.shared(store, everybody, rank, slots_bytes(ranks, more), timeout, peers)
    except OSError as error:
        _log.info("a group that lacks shared memory gets no more: %s", error)
        return None
    try:
        imported = slots.imported(index, memory.slots)
    except RuntimeError as error:
        problem = f"rank {rank}: {error}"
    told = exchanged(store, "imported", rank, ranks, {"problem": problem}, timeout, peers)
    problems = [one["problem"] for one in told if one["problem"]]
    if imported and not problems:
        return memory, imported
    _log.info("a group that lacks shared memory gets no more: %s", "; ".join(problems))
    imported.clear()
    release_host_memory(index)
    memory.close()
    return None
