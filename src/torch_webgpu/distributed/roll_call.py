"""Which ranks are missing when a collective of gloo's has failed: gloo names an address, or nobody.

Nothing is exchanged while all goes well. A rank whose collective fails tells the group's store which collectives it has
called, and looks for a moment who else does: the ranks of a group fail at about the same time. Who tells nothing is not
in a collective, or is no more; who tells of another one is where the ranks went apart.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import Any

import torch

from torch_webgpu.engine.sync import pause

from .staging import describe_as

GRACE_S = 1.0
"""How long the first failure of a group waits for the others to tell of theirs."""
LONGEST_S = 2.0
"""After which a store that does not answer is given up: its host may be gone."""
REMEMBERED = 64
"""Of the latest collectives, what was called."""


class RollCall:
    """What the ranks of a group tell each other through its store when a collective fails."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank = store, rank
        self._others = [other for other in range(size) if other != rank]
        self._lock = threading.Lock()
        self._has_waited = False
        self._called = 0
        self._latest: deque[tuple[int, str, Any]] = deque(maxlen=REMEMBERED)

    def note(self, name: str, same: torch.Tensor | None) -> int:
        """The number of a collective that is called now. ``same``: a tensor that is as large on all ranks, if any is.

        All ranks call those of a group in the same order.
        """
        with self._lock:
            self._called += 1
            self._latest.append((self._called, name, None if same is None else (same.dtype, same.shape)))
            return self._called

    def missing(self, number: int) -> str:
        """Tells that a collective failed. What the others have told by then, as sentences; empty if all is alike."""
        with self._lock:
            grace_s, self._has_waited = 0.0 if self._has_waited else GRACE_S, True
        own = self._own()
        told = self._exchanged(own, grace_s)
        if told is None:
            return "The store does not answer: the process that had it (rank 0, or torchrun) has ended"
        return _sentences(number, own, told)

    def give_up(self, reason: str) -> None:
        """Tells that this rank takes part no more."""
        self._exchanged(self._own() | {"reason": reason}, 0.0)

    def _own(self) -> dict[str, str]:
        """What was called, by the number, and the last number."""
        with self._lock:
            return {str(one): _text(name, sizes) for one, name, sizes in self._latest} | {"last": str(self._called)}

    def _exchanged(self, own: dict[str, str], grace_s: float) -> dict[int, dict[str, str] | None] | None:
        """What each of the others has told, or None; None where the store does not answer."""
        told: dict[int, dict[str, str]] = {}
        answered = threading.Event()
        asking = threading.Thread(target=self._ask, args=(own, grace_s, told, answered), daemon=True)
        asking.start()
        asking.join(grace_s + LONGEST_S)
        return {other: told.get(other) for other in self._others} if answered.is_set() else None

    def _ask(
        self, own: dict[str, str], grace_s: float, told: dict[int, dict[str, str]], answered: threading.Event
    ) -> None:
        """Fills ``told`` with what the others have told. ``answered``: set once the store has answered all."""
        begin_s = time.perf_counter()
        try:
            self._store.set(f"failed/{self._rank}", json.dumps(own))
            while True:
                for other in self._others:
                    if other not in told and self._store.check([f"failed/{other}"]):
                        told[other] = json.loads(self._store.get(f"failed/{other}"))
                if len(told) == len(self._others) or time.perf_counter() - begin_s >= grace_s:
                    break
                pause(begin_s)
            answered.set()
        except RuntimeError:  # the store went with the rank that had it
            return


def _text(name: str, sizes: tuple[torch.dtype, torch.Size] | None) -> str:
    return name if sizes is None else f"{name} of {describe_as(*sizes)}"


def _sentences(number: int, own: dict[str, str], told: dict[int, dict[str, str] | None]) -> str:
    """``told``: what each of the others has told, or None."""
    silent = [str(other) for other, theirs in told.items() if theirs is None]
    said = []
    if silent:
        said.append(f"No word from rank {', '.join(silent)}: not in a collective, or its process has ended")
    for other, theirs in told.items():
        if theirs is None:
            continue
        if "reason" in theirs:
            said.append(f"Rank {other} gave up: {theirs['reason']}")
        elif int(theirs["last"]) < number:
            said.append(f"Rank {other} has called {theirs['last']} collectives of the group; this is number {number}")
        elif (called := theirs.get(str(number))) is not None and called != own.get(str(number), called):
            said.append(f"Rank {other} calls {called} where this rank calls {own[str(number)]}")
    return ". ".join(said)
