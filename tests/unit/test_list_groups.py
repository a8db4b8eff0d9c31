"""What operations over lists become, on recordings written by hand: no GPU."""

from __future__ import annotations

from math import prod

from torch_webgpu.compiler.fuse.fuser import fuse
from torch_webgpu.compiler.fuse.nodes import FusedNode, FusionLimits
from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.ir.graph import Argument, Call
from torch_webgpu.ir.operation import ForEach, Number, Operation, Pointwise, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Source

SHAPES = ((2, 3), (5,), (7, 1))
STRIDES = ((3, 1), (1,), (1, 1))
LISTS = Spec("f32", (sum(map(prod, SHAPES)),), (1,))
TENSOR = Spec("f32", (5,), (1,))
TARGET = Target(True, True, True, immediates_bytes=128, max_binding_bytes=1 << 27, max_buffers=8)
A, B, X = range(3)
MEMBER = 9
"""The number of a tensor of list A that other arguments lie in."""


def whole(number: int) -> Argument:
    """A list that has no tensor in common with another one."""
    return Argument(number, number)


def scaled(to: Argument, source: Argument, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Call:
    """``to = source * number``, each tuple with its own number."""
    root = ops.mul(ops.load(0, "f32"), ops.param(0, "f32"))
    body = ForEach((root,), ("elements", "elements"), (Number("f", True),), shapes, STRIDES)
    return Call(Operation("_foreach_mul", (LISTS, LISTS), 1, body, body.param_kinds), (source, to))


def single(to: Argument, source: Argument) -> Call:
    body = Pointwise((ops.neg(ops.load(0, "f32")),))
    return Call(Operation("neg", (TENSOR, TENSOR), 1, body), (source, to))


def steps(*nodes: Call, live: tuple[int, ...] = (A, B, X, MEMBER)) -> list[FusedNode]:
    return fuse(nodes, frozenset(live), FusionLimits())


def test_operations_over_the_same_lists_are_one() -> None:
    (step,) = steps(scaled(whole(A), whole(A)), scaled(whole(B), whole(A)))
    assert step.nodes == (0, 1)
    assert step.op.name == "_foreach_mul+_foreach_mul"
    assert step.op.param_kinds == ("f",) * 6
    assert step.sources == ((0, 0), (0, 1), (1, 1))


def test_a_list_that_nobody_sees_is_not_stored() -> None:
    (step,) = steps(scaled(whole(A), whole(X)), scaled(whole(B), whole(A)), live=(B,))
    assert step.sources == ((0, 0), (1, 1))
    assert steps(scaled(whole(A), whole(X)), live=(B,)) == []


def test_they_join_across_what_has_nothing_to_do_with_them() -> None:
    found = steps(
        scaled(whole(A), whole(A)),
        single(whole(X), whole(X)),
        scaled(whole(A), whole(A)),
    )
    assert [step.nodes for step in found] == [(0, 2), (1,)]


def test_they_keep_their_order_to_what_uses_one_of_their_tensors() -> None:
    list_a, member = Argument(A, A, frozenset({MEMBER})), Argument(3, MEMBER)
    found = steps(scaled(list_a, list_a), single(member, member), scaled(list_a, list_a))
    assert [step.nodes for step in found] == [(0,), (1,), (2,)]


def test_lists_with_tensors_in_common_are_not_written_by_one_kernel() -> None:
    list_a, other = Argument(A, A, frozenset({MEMBER})), Argument(B, B, frozenset({MEMBER}))
    found = steps(scaled(list_a, list_a), scaled(other, other))
    assert [step.nodes for step in found] == [(0,), (1,)]
    assert "share tensors" in found[1].reason


def test_other_shapes_are_another_kernel() -> None:
    found = steps(scaled(whole(A), whole(A)), scaled(whole(B), whole(B), ((3, 2), (5,), (7, 1))))
    assert len(found) == 2
    assert "laid out" in found[1].reason


def test_a_dispatch_takes_as_many_tuples_as_buffers() -> None:
    node = scaled(whole(B), whole(A))
    lowered = lower(node.op, (0, 1), TARGET)
    assert [launch.bindings for launch in lowered.launches] == [(0, 1, 2, 3, 4, 5)]
    in_place = lower(node.op, (0, 0), TARGET)
    assert [launch.bindings for launch in in_place.launches] == [(0, 1, 2)]
    few = lower(node.op, (0, 1), Target(True, True, True, 128, 1 << 27, max_buffers=4))
    assert [launch.bindings for launch in few.launches] == [(0, 1, 3, 4), (2, 5)]
    numbers = [[v.index for v in launch.values if isinstance(v, Source)] for launch in few.launches]
    assert numbers == [[0, 1], [2]]
