"""Backpressure: a program that never waits must not run away from the GPU, nor hoard what it no longer needs.

WebGPU queues whatever it is given. Each submission that waits there keeps its commands, and each upload its bytes, in
host memory; so beyond a bound the program waits for the oldest of them, like CUDA's, whose queue is 1,024 launches
long. Nothing waits for the newest work: the GPU always has something to do.

Memory is taken when a batch is flushed, which is when what died meanwhile is known and given back. Only an upload takes
memory before that: a loop that uploads would hold the tensors of a whole batch. So uploads flush when what would be
given back is more than a small part of what is alive.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

MIB = 1 << 20
MARK_SUBMISSIONS = 16
"""Submissions between two marks; a mark costs the host 10 to 17 microseconds."""
MARK_BYTES = 128 * MIB
"""Uploaded bytes after which there is a mark, however few submissions there were."""
MAX_MARKS = 2
"""Marks that may be ahead of the GPU: 32 submissions, at most 2,048 operations by default, or 256 MiB of uploads."""
HELD_BYTES = 32 * MIB
HELD_PART = 20
"""What uploads may leave to be given back by a flush: the larger of ``HELD_BYTES`` and this part of the live bytes."""
WAIT_S = 60.0
"""The longest wait. A GPU this slow, or one that is gone, is for the next synchronisation to deal with."""
POLL_S = 0.0002


@dataclass
class _Queue:
    """What was sent to one device: since the last mark, and the marks it has not reached."""

    submissions: int = 0
    uploaded_bytes: int = 0
    fresh_bytes: int = 0  # taken by uploads since the last look at what died
    marks: deque[Callable[[], bool]] = field(default_factory=deque)


class Backpressure:
    """The bounds of each device. Callers hold the engine's lock."""

    def __init__(self) -> None:
        self._queues: defaultdict[int, _Queue] = defaultdict(_Queue)

    def submitted(self, device: Device, uploaded_bytes: int = 0) -> None:
        """Counts a submission, or an upload of so many bytes; waits while too much is in flight."""
        queue = self._queues[device.index]
        if uploaded_bytes:
            queue.uploaded_bytes += uploaded_bytes
        else:
            queue.submissions += 1
        if queue.submissions >= MARK_SUBMISSIONS or queue.uploaded_bytes >= MARK_BYTES:
            queue.submissions = queue.uploaded_bytes = 0
            queue.marks.append(device.mark())
            if len(queue.marks) > MAX_MARKS:
                self._wait(queue)

    def done(self, device: Device) -> None:
        """Everything that was sent to the device is done."""
        queue = self._queues[device.index]
        queue.submissions = queue.uploaded_bytes = 0
        queue.marks.clear()

    @staticmethod
    def _wait(queue: _Queue) -> None:
        """Until there are no more marks ahead than may be."""
        deadline = time.perf_counter() + WAIT_S  # whose ticks are short on Windows, too
        while len(queue.marks) > MAX_MARKS:
            if queue.marks[0]() or time.perf_counter() > deadline:
                queue.marks.popleft()
            else:
                time.sleep(POLL_S)

    def in_flight(self, device: Device) -> int:
        """How many marks the device has not reached, as far as is known without asking it."""
        queue = self._queues.get(device.index)
        return len(queue.marks) if queue is not None else 0

    def too_much_held(self, index: int, size_bytes: int, live_bytes: int) -> int:
        """Asked before an upload takes memory: from how many bytes on that have died a flush pays; 0 for not now."""
        queue = self._queues[index]
        queue.fresh_bytes += size_bytes
        allowed = max(HELD_BYTES, live_bytes // HELD_PART)
        if queue.fresh_bytes < allowed:
            return 0
        queue.fresh_bytes = 0
        return allowed // 2

    def forget(self, index: int) -> None:
        """The device was opened anew: there is nothing in flight, and old marks must not be asked."""
        self._queues.pop(index, None)
