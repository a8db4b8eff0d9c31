"""Indices in a program's own WGSL, with a compiler that knows only how long each vector is."""

from __future__ import annotations

import re

import pytest

from torch_webgpu.wgsl.indices import clamp_indices

LAST = {"p": 1, "q": 2, "v": 3, "m": 2}


def compiles(text: str) -> bool:
    """Whether every literal index of a vector is in range; a matrix is one of columns of four."""
    assert "\0" not in text
    return all(int(k) <= LAST[name] for name, k in re.findall(r"\b(\w)\[(\d+)u?\]", text)) and "nothing" not in text


@pytest.mark.parametrize(
    ("text", "clamped"),
    [
        ("p[k] + q[k] * v[k + 1]", "p[min(u32(k), 1u)] + q[min(u32(k), 2u)] * v[min(u32(k + 1), 3u)]"),
        ("v[0] + v[1u] + v[ 0x2i ]", "v[0] + v[1u] + v[ 0x2i ]"),
        ("v[k] = 1.0; v[u32(a)] += p[1];", "v[min(u32(k), 3u)] = 1.0; v[min(u32(u32(a)), 3u)] += p[1];"),
        ("v[u32(p[k])]", "v[min(u32(u32(p[min(u32(k), 1u)])), 3u)]"),
        ("p[u32(p[u32(p[k])])]", "p[min(u32(u32(p[min(u32(u32(p[min(u32(k), 1u)])), 1u)])), 1u)]"),
        ("m[k][j]", "m[min(u32(k), 2u)][min(u32(j), 3u)]"),
        ("a * b", "a * b"),
    ],
)
def test_an_index_that_is_no_literal_is_bounded_by_what_compiles(text: str, clamped: str) -> None:
    assert clamp_indices(text, compiles) == clamped


def test_what_does_not_compile_is_left_to_the_compiler() -> None:
    assert clamp_indices("v[k] + nothing[v[k]]", compiles) == "v[k] + nothing[v[k]]"
