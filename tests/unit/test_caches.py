"""Bounded caches: what stays, what is evicted, and what ``cache_stats`` says, against a model of the policy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_webgpu.caches import Cache, cache_stats, memoized


def look_up(cache: Cache[int, int], key: int) -> int | None:
    return cache.get(key) or cache.promote(key)


def test_what_was_used_last_stays() -> None:
    cache: Cache[int, int] = Cache("test", 8)
    for key in range(4):
        cache[key] = key + 1
    cache[4] = 5
    assert look_up(cache, 0) == 1, "of the old generation, and young again"
    for key in (5, 6, 7):
        cache[key] = key + 1
    assert look_up(cache, 0) == 1
    assert look_up(cache, 1) is None
    assert cache.evictions == 3


def test_what_is_put_in_again_counts_once() -> None:
    cache: Cache[str, int] = Cache("test", 10, weigh=int)
    for _ in range(5):
        cache["a"] = 4
    cache["b"] = 6
    assert cache.everything() == {"a": 4, "b": 6}
    cache["b"] = 7
    assert cache.everything() == {"b": 7}
    cache["c"] = 20
    assert cache.everything() == {"c": 20}, "heavier than all that fits, and alone"
    cache["d"] = 1
    assert cache.everything() == {"d": 1}


def test_entries_that_are_taken_away_leave_room() -> None:
    evicted: list[str] = []
    cache: Cache[str, int] = Cache("test", 10, int, lambda key, weight: evicted.append(key))
    cache["a"] = 6
    assert cache.pop("a") == 6
    assert cache.pop("a") is None
    cache["b"] = 6
    cache["c"] = 4
    assert cache.everything() == {"b": 6, "c": 4}
    assert not evicted
    cache.clear()
    cache["d"] = 6
    cache["e"] = 4
    assert cache.entries == 2
    assert not evicted, "clear() says nothing"
    cache.evict()
    assert evicted == ["d", "e"]
    assert cache.entries == 0


STEPS = st.lists(st.tuples(st.sampled_from(["use", "put", "pop", "clear", "evict"]), st.integers(0, 12)), max_size=80)


@given(STEPS, st.integers(1, 9))
def test_any_sequence_of_uses(steps: list[tuple[str, int]], limit: int) -> None:
    """The bound holds, values are those that were put in, the last half of the limit stays, nothing is evicted that is
    there, and everything that was put in is there or was taken away, once."""
    gone: list[int] = []
    cache: Cache[int, tuple[int, int]] = Cache("test", limit, itemgetter(0), lambda key, value: gone.append(key))
    present: dict[int, tuple[int, int]] = {}
    recent: list[int] = []  # keys in the order of their last uses
    for number, (step, key) in enumerate(steps, 1):
        gone.clear()
        if step == "use":
            value = look_up(cache, key)
            assert value == present.get(key)
            used = value is not None
        elif step == "put":
            cache[key] = present[key] = (1 + key % 3, number)  # its weight, and what tells it apart
            used = True
        else:
            used = False
            if step == "pop":
                assert cache.pop(key) == present.pop(key, None)
            elif step == "clear":
                cache.clear()
                present.clear()
            else:
                cache.evict()
        recent = [other for other in recent if other in present and other != key] + [key] * used
        for dropped in gone:
            del present[dropped]
        assert cache.everything() == present
        weight = sum(1 + other % 3 for other in present)
        assert weight <= limit or len(present) == 1
        newest = 0
        for other in reversed(recent if step != "evict" else []):
            newest += 1 + other % 3
            if 2 * newest > limit:
                break
            assert other in present, "it is among the last half of the limit"


def test_statistics_are_of_all_caches_of_a_name() -> None:
    caches: list[Cache[int, int]] = [Cache("statistics of a test", 4) for _ in range(2)]
    for cache in caches:
        for key in range(6):
            cache[key] = key
    held = sum(cache.entries for cache in caches)
    assert cache_stats()["statistics of a test"] == (2, held, 4, 12 - held)
    del cache, caches
    gc.collect()
    assert "statistics of a test" not in cache_stats()


@pytest.fixture
def double() -> Callable[[int], int]:
    return memoized("doubles of a test", 3)(lambda n: 2 * n)


def test_functions_are_listed(double: Callable[[int], int]) -> None:
    assert [double(n) for n in (1, 2, 1, 3, 4)] == [2, 4, 2, 6, 8]
    assert cache_stats()["doubles of a test"] == (1, 3, 3, 1)
