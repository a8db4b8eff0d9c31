"""``torch.distributed._coalescing_manager(device=…)``: what is called in a block, as one work.

gloo coalesces nothing, and says so. Here each collective is issued by itself, and the block's work waits for them all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .torch_c10d import WEBGPU, held
from .work import CollectiveWork

_blocks = threading.local()


def note(work: CollectiveWork) -> None:
    """A collective was called, perhaps in a block of this thread."""
    works = getattr(_blocks, "works", None)
    if works is not None:
        works.append(work)


def start(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``ProcessGroup._start_coalescing``"""

    @wraps(plain)
    def start_coalescing(self: Any, device: torch.device) -> None:
        if device.type != WEBGPU.type:
            plain(self, device)
        else:
            _blocks.works = []

    return start_coalescing


def end(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``ProcessGroup._end_coalescing``"""

    @wraps(plain)
    def end_coalescing(self: Any, device: torch.device) -> Any:
        if device.type != WEBGPU.type:
            return plain(self, device)
        works, _blocks.works = _blocks.works, None
        return held(all_of(works))

    return end_coalescing


def all_of(works: list[CollectiveWork]) -> CollectiveWork:
    """A work that is complete when all of these are."""
    tensors = [t for work in works for t in work.tensors]
    whole = CollectiveWork(lambda: f"{len(works)} coalesced collectives", tensors)

    def ended(_: Any) -> None:
        errors = [error for work in works if (error := work.exception()) is not None]
        if errors:
            whole.fail(errors[0])
        else:
            whole.complete()

    torch.futures.collect_all([work.end for work in works]).then(ended)
    return whole
