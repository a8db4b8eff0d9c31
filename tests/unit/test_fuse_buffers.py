"""No fused operation binds more buffers than the limit, however often and in whichever order it reads a tensor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.ir.combine import accumulators
from torch_webgpu.ir.operation import Pointwise, Reduction, Spec
from torch_webgpu.wgsl.builder import bind

from .test_fuse import MATRIX, TRANSPOSED, Recording

ACROSS = Spec("f32", (6, 6), (0, 1))
DOWN = Spec("f32", (6, 6), (1, 0))
LAYOUTS = (MATRIX, TRANSPOSED, ACROSS, DOWN)

reads = st.tuples(st.sampled_from("abcde"), st.sampled_from(LAYOUTS))
steps = st.tuples(st.booleans(), st.lists(reads, min_size=1, max_size=2))


def bound(r: Recording, step: FusedNode) -> int:
    """What it binds, and the states that it leaves between two launches if its rows are split."""
    places = [r.nodes[n].arguments[k].tensor for n, k in step.sources]
    bindings, _, _ = bind(step.op.args, tuple(places.index(p) for p in places), step.op.n_inputs)
    body = step.op.body
    return len(bindings) + (len(accumulators(body.values, body.combine)) if isinstance(body, Reduction) else 0)


def test_what_is_read_in_two_orders_is_bound_twice() -> None:
    r = Recording()
    r.pointwise("b", "a", "v", specs=(MATRIX, ACROSS))
    r.pointwise("c", "b", "v", specs=(MATRIX, DOWN))
    assert r.groups("avc", buffers=4) == [(0, 1)]
    assert bound(r, r.fuse("avc", buffers=4)[0]) == 4
    assert r.groups("avc", buffers=3) == [(0,), (1,)]


@given(st.lists(steps, min_size=2, max_size=10), st.integers(4, 7), st.integers(0, 3))
def test_no_step_binds_more_than_the_limit(program: list[tuple[bool, list]], limit: int, dead: int) -> None:
    r = Recording()
    made: list[str] = []
    for n, (reduces, sources) in enumerate(program):
        name = chr(ord("A") + n)
        if reduces and made:
            r.total(name, made[-1], target=Spec("f32", (6, 1), (1, 1)))
            continue
        names = [*(source for source, _ in sources), *made[-1:]]
        specs = (*(spec for _, spec in sources), *[MATRIX] * len(made[-1:]))
        r.pointwise(name, *names, specs=specs)
        made.append(name)
    live = [name for name in r.allocations if name.islower() or ord(name) % 4 >= dead]
    for step in r.fuse(live, buffers=limit):
        assert isinstance(step.op.body, (Pointwise, Reduction))
        assert bound(r, step) <= limit
