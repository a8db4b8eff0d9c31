"""What a device keeps prepared is bounded, and outdated at once when something it names is gone."""

from __future__ import annotations

from torch_webgpu.runtime.prepared import Prepared, PreparedCache


def made(commands: int) -> Prepared:
    return Prepared([], [None] * commands, bytearray())


def test_the_most_recently_used_stay() -> None:
    cache = PreparedCache(max_commands=10)
    for key in "abc":
        cache.keep(key, made(3))
    assert cache.get("a") is not None
    cache.keep("d", made(3))
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]


def test_what_is_kept_again_counts_once() -> None:
    cache = PreparedCache(max_commands=10)
    for _ in range(5):
        cache.keep("a", made(4))
    cache.keep("b", made(6))
    assert len(cache) == 2
    cache.keep("b", made(7))
    assert len(cache) == 1
    assert cache.get("a") is None


def test_what_is_outdated_is_not_kept() -> None:
    cache = PreparedCache(max_commands=10)
    cache.keep("a", made(6))
    cache.clear()
    assert cache.get("a") is None
    cache.keep("b", made(6))
    cache.keep("c", made(4))
    assert len(cache) == 2
