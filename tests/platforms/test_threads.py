"""Threads and finalizers: §5 of the audit of 23 November 2026, row by row."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_webgpu.engine.generators import RandomState
from torch_webgpu.engine.tensor import Mailbox, Template
from torch_webgpu.ir import operation
from torch_webgpu.runtime.implementation import ErrorSink

ROUNDS = 2_000


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    """Runs these in a thread each; raises what one of them did."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_row_mailbox_a_slot_is_filled_again_one_collection_after_its_tensor_was_seen_dead() -> None:
    """A C library may go on clearing it in a thread of its own: glibc's ``sigset_t`` has 128 bytes."""
    mailbox, template = Mailbox(), Template((3,), (1,), torch.float32, 0)
    tensor, allocation = mailbox.make(template)
    (slab,) = mailbox._slabs
    slot = slab.owners.index(allocation)
    free = len(slab.free)
    del tensor
    assert mailbox.dead() == [allocation]
    assert slot not in slab.free
    kept = [mailbox.make(template)[0] for _ in range(free)]
    assert not mailbox.open
    assert slab.owners[slot] is None
    assert mailbox.dead() == []
    assert slab.free == [slot]
    kept.append(mailbox.make(template)[0])
    assert slab.owners[slot] is not None
    assert len(mailbox._slabs) == 1


def test_row_mailbox_tensors_that_come_and_go_need_no_more_than_one_slab_more() -> None:
    mailbox, template = Mailbox(), Template((3,), (1,), torch.float32, 0)
    for _ in range(5_000):
        if not mailbox.open:
            mailbox.forget(mailbox.dead())
        mailbox.make(template)
    assert len(mailbox._slabs) <= 2


def test_row_random_state_draws_of_two_threads_never_bring_a_number_back() -> None:
    seen: list[list[int]] = [[], []]
    state = RandomState(1)

    def work(own: list[int]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(ROUNDS):
                before = RandomState.draws
                state.reserve(1)
                own.append(RandomState.draws != before)

        return run

    together(*map(work, seen))
    assert all(map(all, seen))
    assert state.offset == 2 * ROUNDS


def test_row_error_sink_an_error_that_comes_while_others_are_taken_is_not_lost() -> None:
    sink, taken = ErrorSink(), []
    done = threading.Event()

    def tell() -> None:
        for k in range(ROUNDS):
            sink.errors.append(("validation", str(k)))
        done.set()

    def take() -> None:
        while not done.is_set():
            taken.extend(sink.take())

    together(tell, take)
    taken.extend(sink.take())
    assert [int(message) for _, message in taken] == list(range(ROUNDS))


def test_row_error_sink_a_callback_that_has_the_list_in_its_hand_still_reaches_it() -> None:
    sink = ErrorSink()
    in_hand = sink.errors.append
    assert sink.take() == []
    in_hand(("validation", "late"))
    assert sink.take() == [("validation", "late")]


def test_row_pop_of_the_oldest_threads_may_fill_a_cache_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "REMEMBERED_NAMES", 8)
    monkeypatch.setattr(operation, "_names", {})

    def fill(first: int) -> Callable[[], None]:
        return lambda: operation.remember_names((first + k, "add") for k in range(ROUNDS))

    together(fill(0), fill(ROUNDS), fill(2 * ROUNDS))
    assert len(operation._names) <= 8 + 3
