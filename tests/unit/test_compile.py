"""The compiler's front door, from a graph written by hand to a plan, for targets that are only described: no GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from torch_webgpu.compiler.compile import Compilation, compile
from torch_webgpu.compiler.options import Options
from torch_webgpu.ir.graph import Argument, Call, Graph, Interface, Storage, TensorView
from torch_webgpu.ir.operation import Operation, Pointwise, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.plan import Offset, Scalar, Step, verify
from torch_webgpu.target import named

BROWSER = named("browser")
VECTOR = Spec("f32", (1000,), (1,))
X, Y, Z = range(3)


def scaled(source: int, to: int) -> Call:
    """``to = source * number``."""
    body = Pointwise((ops.mul(ops.load(0, "f32"), ops.param(0, "f32")),))
    return Call(Operation("scale", (VECTOR, VECTOR), 1, body, ("f",)), (Argument(source, source), Argument(to, to)))


def graph(*storages: Storage) -> Graph:
    """``y = x * a; z = y * b``."""
    return Graph((scaled(X, Y), scaled(Y, Z)), 3, storages, ((Scalar(0),), (Scalar(1),)))


READ, NEW = Storage(4000, "input", live=True), Storage(4000)
SEEN = NEW._replace(live=True)


def test_a_batch_brings_all_its_memory() -> None:
    plan = compile(graph(READ, NEW, SEEN), BROWSER)
    assert [buffer.role for buffer in plan.buffers] == ["input", "output", "temporary", "errors"]
    assert plan.arguments == (0, 2, 1)  # x, y, z
    (step,) = plan.steps
    assert isinstance(step, Step)
    assert step.bindings == (0, 1)
    assert [word for word in step.words if isinstance(word, Scalar)] == [Scalar(0), Scalar(1)]
    assert {word.tensor for word in step.words if isinstance(word, Offset)} == {X, Z}
    assert plan.origins == ((0, 1),)
    assert plan.labels[0].size_bytes == 8000
    assert not verify(plan)


def test_what_is_seen_is_stored() -> None:
    plan = compile(graph(READ, SEEN, SEEN), BROWSER)
    assert [buffer.role for buffer in plan.buffers] == ["input", "output", "output", "errors"]
    assert len(plan.steps) == 1
    assert compile(graph(READ, NEW, NEW), BROWSER).steps == ()


def test_what_nobody_needs_any_more_is_donated() -> None:
    plan = compile(graph(READ._replace(live=False), NEW, SEEN), BROWSER)
    assert [buffer.donated for buffer in plan.buffers] == [True, False, False, False]


def test_what_is_read_first_is_an_input_also_if_nobody_wrote_it() -> None:
    assert compile(graph(NEW._replace(live=True), NEW, SEEN), BROWSER).buffers[0].role == "input"


def test_without_fusion_each_call_is_a_dispatch() -> None:
    plan = compile(graph(READ, NEW, SEEN), BROWSER, Options(fusion=False))
    assert [plan.kernels[step.kernel].name for step in plan.steps if isinstance(step, Step)] == ["scale", "scale"]
    assert plan.origins == ((0,), (1,))


def test_a_function_has_an_interface() -> None:
    own = NEW._replace(external=False)
    views = [TensorView(n, 0, "f32", (1000,), (1,)) for n in (X, Z)]
    starts = [(0, 0), (-1, 0), (-1, 0)]
    whole = replace(
        graph(READ._replace(origin="weight", name="w"), own, SEEN),
        scalars=((2.0,), (3.0,)),
        interface=Interface((views[0],), (views[1],), starts, 0, {}, 0),
    )
    plan = compile(whole, BROWSER, Options(fusion=False))
    assert [(b.role, b.name) for b in plan.buffers] == [
        ("weight", "w"), ("output", ""), ("temporary", ""), ("errors", ""),
    ]  # fmt: skip
    assert plan.arguments == (0, 1)
    assert [spec.buffer for spec in (*plan.inputs, *plan.outputs)] == [0, 1]
    assert plan.requires.max_buffers == 2
    assert not any(isinstance(word, Scalar) for step in plan.steps if isinstance(step, Step) for word in step.words)


def test_a_call_by_itself() -> None:
    """What a flush falls back on when something fails: what later calls use is seen then."""
    compilation = Compilation(graph(READ, NEW, SEEN), BROWSER, Options(fusion=False))
    first, last = (compilation.part(n).plan for n in range(2))
    assert [b.role for b in first.buffers] == ["input", "output", "output", "errors"]
    assert [b.role for b in last.buffers] == ["input", "input", "output", "errors"]
    assert len(first.steps) == len(last.steps) == 1


def test_who_cannot_be_lowered_is_blamed() -> None:
    bad = Call(Operation("bad", (VECTOR, VECTOR), 1, Pointwise((ops.load(7, "f32"),))), scaled(Y, Z).arguments)
    broken = replace(graph(READ, NEW, SEEN), calls=(scaled(X, Y), bad), scalars=((Scalar(0),), ()))
    blamed: list[tuple[int, ...]] = []
    with pytest.raises(IndexError):
        _ = Compilation(broken, BROWSER, Options(fusion=False), blamed.append).plan
    assert blamed == [(1,)]


PASSES = """
from torch_webgpu.plan import trace
import torch
trace(lambda x: ((x @ x).relu().sum(0), x.cumsum(0).cumsum(0).cumsum(0)), torch.empty(8, 8), target="browser")
"""


def test_every_pass_can_be_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PASSES],
        env={"TORCH_WEBGPU_DEBUG": "passes", "PYTHONPATH": ":".join(filter(None, sys.path)), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("[webgpu passes] ") for line in done.stderr.splitlines() if "[webgpu passes]" in line]
    assert [line.partition(",")[0] for line in said[::2]] == [
        "match_and_fuse", "choose_tiles_together", "lower", "fuse_horizontally", "share_memory", "require", "verify",
    ]  # fmt: skip
    assert said[-1] == "verify, changed nothing"
