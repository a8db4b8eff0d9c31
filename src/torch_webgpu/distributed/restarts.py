"""The keys of a default group, where torchrun restarts its processes: those of each attempt have a prefix of their own.

The store of torchrun outlives the workers. PyTorch gives it to every attempt as it is (``_create_c10d_store`` in
torch/distributed/rendezvous.py: "We create a new TCPStore for every retry", which ``StaticTCPRendezvous`` and
``DynamicRendezvousHandler`` do not). gloo then reads addresses of processes that are no more, and ends with
"Connection refused" or waits for ever. ``TORCHELASTIC_RESTART_COUNT`` cannot be the prefix: agents of several hosts
count differently. So rank 0 makes one, and tells it to each rank that asks.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from typing import Any

from torch_webgpu.engine.sync import pause

from .torch_c10d import PrefixStore

PREFIX = "webgpu-attempt/"


def store_of_attempt(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The store with the prefix of this attempt, on which all ranks agree; as it is where torchrun does not own it.

    RuntimeError where a rank does not come in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    questions = PrefixStore(PREFIX, store)
    agree = _tell_prefix if rank == 0 else _ask_prefix
    return PrefixStore(agree(questions, rank, size, timeout), questions)


def _tell_prefix(questions: Any, rank: int, size: int, timeout: timedelta) -> str:
    """Rank 0 makes the prefix, and answers until every rank has it. Questions of earlier attempts are answered, too."""
    prefix, answered, begin_s = secrets.token_hex(8), 0, time.perf_counter()
    while questions.add(f"{prefix}/heard", 0) < size - 1:
        asked = questions.add("asked", 0)
        for number in range(answered, asked):
            questions.set(f"answer/{number + 1}", prefix)
        answered = asked
        if time.perf_counter() - begin_s > timeout.total_seconds():
            missing = [other for other in range(1, size) if not questions.check([f"{prefix}/{other}"])]
            raise RuntimeError(_late(missing, rank, size, timeout))
        pause(begin_s)
    return prefix


def _ask_prefix(questions: Any, rank: int, size: int, timeout: timedelta) -> str:
    """Asks by a number that no other question has, of whichever attempt."""
    number, begin_s = questions.add("asked", 1), time.perf_counter()
    while not questions.check([f"answer/{number}"]):
        if time.perf_counter() - begin_s > timeout.total_seconds():
            raise RuntimeError(_late([0], rank, size, timeout))
        pause(begin_s)
    prefix: str = questions.get(f"answer/{number}").decode()
    questions.set(f"{prefix}/{rank}", "")
    questions.add(f"{prefix}/heard", 1)
    return prefix


def _late(missing: list[int], rank: int, size: int, timeout: timedelta) -> str:
    ranks = ", ".join(map(str, missing))
    return (
        f"init_process_group (rank {rank} of {size}): timed out after {timeout.total_seconds():g} seconds, "
        f"in which rank {ranks} did not arrive"
    )
