"""The slots of a rank, without a device: which are taken, lent, free again."""

from __future__ import annotations

from torch_webgpu.distributed.shared_memory import progress
from torch_webgpu.distributed.shared_ring import KEPT_FREE, Ring


def test_slots_are_free_again_when_all_others_have_read_so_far() -> None:
    read = 0
    ring = Ring(4, lambda: read)
    assert [ring.take(ahead=False) for _ in range(5)] == [0, 1, 2, 3, None]
    ring.lend(2, progress(1, 1))
    ring.lend(0, progress(1, 2))
    ring.lend(1, progress(2, 1))
    assert ring.take(ahead=False) is None
    assert ring.first_free_at() == progress(1, 1)
    read = progress(1, 1)
    assert [ring.take(ahead=False), ring.take(ahead=False)] == [2, None]
    read = progress(2, 0)  # of collective 1 all was read
    assert [ring.take(ahead=False), ring.take(ahead=False)] == [0, None]
    ring.give_back(3)
    read = progress(3, 0)
    assert [ring.take(ahead=False), ring.take(ahead=False)] == [1, 3]
    assert ring.first_free_at() == 0


def test_some_are_kept_for_the_collective_whose_turn_it_is() -> None:
    ring = Ring(8, lambda: 0)
    ahead = [ring.take(ahead=True) for _ in range(8)]
    assert ahead == [*range(8 - KEPT_FREE), *[None] * KEPT_FREE]
    assert [ring.take(ahead=False) for _ in range(KEPT_FREE)] == [6, 7]
    ring.give_back(0)
    assert ring.take(ahead=True) is None
    assert ring.take(ahead=False) == 0


def test_progress_grows() -> None:
    steps = [progress(number, step) for number in range(3) for step in (0, 1, 7, 100_000)]
    assert steps == sorted(set(steps))
