"""What a device keeps prepared is bounded, and outdated at once when something it names is gone."""

from __future__ import annotations

from torch_webgpu.runtime.prepared import Prepared, PreparedCache


def made(commands: int, edition: object) -> Prepared:
    return Prepared([], [None] * commands, bytearray(), edition)


def test_the_most_recently_used_stay() -> None:
    edition, cache = object(), PreparedCache(max_commands=10)
    for key in "abc":
        cache.keep(key, made(3, edition))
    assert cache.get("a", edition) is not None
    cache.keep("d", made(3, edition))
    assert [key for key in "abcd" if cache.get(key, edition)] == ["a", "c", "d"]


def test_what_is_kept_again_counts_once() -> None:
    edition, cache = object(), PreparedCache(max_commands=10)
    for _ in range(5):
        cache.keep("a", made(4, edition))
    cache.keep("b", made(6, edition))
    assert len(cache) == 2
    cache.keep("b", made(7, edition))
    assert len(cache) == 1
    assert cache.get("a", edition) is None


def test_another_edition_needs_another() -> None:
    edition, cache = object(), PreparedCache()
    cache.keep("a", made(1, edition))
    assert cache.get("a", edition) is not None
    assert cache.get("a", object()) is None
