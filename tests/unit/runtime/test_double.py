"""The double finds what it is there to find: each rule is broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.webgpu_double import CheckedDevice, CheckedWebGPU, ValidationError

from torch_webgpu.runtime.implementation import BUFFER, READBACK, UNIFORM

SOURCE = """\
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1) fn main() { y[0] = x[0]; }
"""
WITH_IMMEDIATES = "var<immediate> P: u32;\n" + SOURCE
SIZE = 1024


class Scene:
    """A device with one of everything."""

    def __init__(self) -> None:
        self.webgpu = CheckedWebGPU()
        self.device: CheckedDevice = self.webgpu.open(self.webgpu.adapter())
        d = self.device
        self.a, self.b = d.create_buffer(SIZE, BUFFER), d.create_buffer(SIZE, BUFFER)
        self.uniform, self.staging = d.create_buffer(SIZE, UNIFORM), d.create_buffer(SIZE, READBACK)
        self.layout = d.create_layout([False, True], uniform=False)
        self.dynamic_layout = d.create_layout([False, True], uniform=True)
        self.shader = d.create_shader(SOURCE, "copy", trusted=True)
        self.pipeline = d.create_pipeline(self.shader, self.layout, 0, "copy")
        self.group = d.create_bind_group(self.layout, [(self.a, 0, SIZE), (self.b, 0, SIZE)])
        self.dynamic = d.create_bind_group(
            self.dynamic_layout, [(self.a, 0, SIZE), (self.b, 0, SIZE), (self.uniform, 0, 256)]
        )
        self.encoder = d.create_encoder()
        self.compute = d.begin_pass(self.encoder)

    def end(self) -> None:
        self.device.end_pass(self.compute)
        self.device.release_pass(self.compute)

    def immediates(self) -> Any:
        d = self.device
        shader = d.create_shader(WITH_IMMEDIATES, "p", trusted=True)
        return d.create_pipeline(shader, self.layout, 8, "p")

    def offset(self, value: int) -> Any:
        offsets = self.device.offsets(1)
        offsets[0] = value
        return offsets


def between_passes(call: Callable[[Scene], object]) -> Callable[[Scene], object]:
    def ended(s: Scene) -> object:
        s.end()
        return call(s)

    return ended


def dispatch(s: Scene, pipeline: Any, group: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    d = s.device
    if pipeline is not None:
        d.set_pipeline(s.compute, pipeline)
    if group is not None:
        dynamic = group is s.dynamic
        d.set_bind_group(s.compute, 0, group, int(dynamic), s.offset(0) if dynamic else d.null)
    d.dispatch_workgroups(s.compute, *grid)


def submit_while_mapped(s: Scene) -> None:
    s.device.copy_buffer(s.encoder, s.a, 0, s.staging, 0, 8)
    s.device.map(s.staging, 8)
    s.device.run(s.encoder)


def unmap_while_looked_at(s: Scene) -> None:
    look = memoryview(s.device.map(s.staging, 8))  # type: ignore[arg-type]
    s.device.unmap(s.staging)
    del look


def refused(s: Scene) -> Any:
    s.webgpu.faults.refused.add("bad")
    return s.device.create_shader(SOURCE, "bad", trusted=True)


def after_close(s: Scene) -> None:
    with pytest.raises(ValidationError, match="left at the close"):
        s.device.close()
    s.device.poll(wait=True)


def resolve_unwritten(s: Scene) -> None:
    s.device.resolve_query_set(s.encoder, s.device.create_timestamps(4), 0, 2, s.a, 0)
    s.device.run(s.encoder)


def other_device(s: Scene) -> None:
    other = s.webgpu.open(s.webgpu.adapter())
    s.device.write_buffer(other.create_buffer(SIZE, BUFFER), 0, bytes(4))


def twice(call: Callable[[Scene], object]) -> Callable[[Scene], object]:
    def run(s: Scene) -> None:
        call(s)
        call(s)

    return run


BROKEN: dict[str, tuple[str, Callable[[Scene], object]]] = {
    "use after release": (
        "was released",
        lambda s: (s.device.release_buffer(s.a), s.device.write_buffer(s.a, 0, bytes(4))),
    ),
    "double release": ("once too often", twice(lambda s: s.device.release_buffer(s.a))),
    "double release of an encoder": (
        "was released",
        between_passes(lambda s: (s.device.run(s.encoder), s.device.run(s.encoder))),
    ),
    "released once more than retained": (
        "once too often",
        lambda s: (s.device.retain_pipeline(s.pipeline), *(s.device.release_pipeline(s.pipeline) for _ in range(3))),
    ),
    "wrong kind": ("is no Buffer", lambda s: s.device.write_buffer(s.pipeline, 0, bytes(4))),
    "released as another kind": ("released as Shader", lambda s: s.device.release_shader(s.pipeline)),
    "another device's": ("another device's", other_device),
    "leak": ("left at the close", lambda s: s.device.close()),
    "after close": (
        "after the device was closed",
        after_close,
    ),
    "refused handle": (
        "was refused",
        lambda s: s.device.create_bind_group(s.layout, [(_out_of_memory(s), 0, 256), (s.b, 0, 256)]),
    ),
    "write usage": ("was not made for that", lambda s: s.device.write_buffer(_unwritable(s), 0, bytes(4))),
    "write alignment": ("no multiple of 4", lambda s: s.device.write_buffer(s.a, 2, bytes(4))),
    "write size": ("no multiple of 4", lambda s: s.device.write_buffer(s.a, 0, bytes(3))),
    "write range": ("are not within", lambda s: s.device.write_buffer(s.a, SIZE - 4, bytes(8))),
    "buffer size": ("of at most", lambda s: s.device.create_buffer(0, BUFFER)),
    "map usage": ("was not made for that", lambda s: s.device.map(s.a, 8)),
    "mapped twice": ("mapped already", twice(lambda s: s.device.map(s.staging, 8))),
    "mapped and submitted": ("is mapped", between_passes(submit_while_mapped)),
    "unmap while looked at": ("still looks", unmap_while_looked_at),
    "unmap unmapped": ("is not mapped", lambda s: s.device.unmap(s.staging)),
    "copy source usage": (
        "was not made for that",
        between_passes(lambda s: s.device.copy_buffer(s.encoder, s.uniform, 0, s.b, 0, 4)),
    ),
    "copy target usage": (
        "was not made for that",
        between_passes(lambda s: s.device.copy_buffer(s.encoder, s.a, 0, _unwritable(s), 0, 4)),
    ),
    "copy alignment": (
        "no multiple of 4",
        between_passes(lambda s: s.device.copy_buffer(s.encoder, s.a, 0, s.b, 2, 4)),
    ),
    "copy size": ("no multiple of 4", between_passes(lambda s: s.device.copy_buffer(s.encoder, s.a, 0, s.b, 0, 5))),
    "copy range": ("are not within", between_passes(lambda s: s.device.copy_buffer(s.encoder, s.a, SIZE, s.b, 0, 4))),
    "copy within": ("a copy within", between_passes(lambda s: s.device.copy_buffer(s.encoder, s.a, 0, s.a, 512, 4))),
    "copy in a pass": ("inside a pass", lambda s: s.device.copy_buffer(s.encoder, s.a, 0, s.b, 0, 4)),
    "clear alignment": ("no multiple of 4", between_passes(lambda s: s.device.clear_buffer(s.encoder, s.a, 1, 4))),
    "clear range": ("are not within", between_passes(lambda s: s.device.clear_buffer(s.encoder, s.a, 4, SIZE))),
    "shader without main": ("has no main", lambda s: s.device.create_shader("", "x", trusted=True)),
    "too many bindings": ("of 8", lambda s: s.device.create_layout([True] * 9, uniform=False)),
    "layout and shader": (
        "read_write in the shader, read in",
        lambda s: s.device.create_pipeline(s.shader, s.device.create_layout([False, False], False), 0, "x"),
    ),
    "immediates over the limit": (
        "of 64",
        lambda s: s.device.create_pipeline(s.shader, s.layout, 68, "x"),
    ),
    "immediates not laid out": (
        "not in the layout",
        lambda s: s.device.create_pipeline(
            s.device.create_shader(WITH_IMMEDIATES, "p", trusted=True), s.layout, 0, "p"
        ),
    ),
    "bindings of a group": (
        "for a layout of 2",
        lambda s: s.device.create_bind_group(s.layout, [(s.a, 0, SIZE)]),
    ),
    "binding offset": (
        "no multiple of 256",
        lambda s: s.device.create_bind_group(s.layout, [(s.a, 128, 256), (s.b, 0, 256)]),
    ),
    "binding range": (
        "are not within",
        lambda s: s.device.create_bind_group(s.layout, [(s.a, 256, SIZE), (s.b, 0, 256)]),
    ),
    "empty binding": (
        "are bound",
        lambda s: s.device.create_bind_group(s.layout, [(s.a, 0, 0), (s.b, 0, 256)]),
    ),
    "storage usage": (
        "was not made for that",
        lambda s: s.device.create_bind_group(s.layout, [(s.uniform, 0, 256), (s.b, 0, 256)]),
    ),
    "read and written": (
        "read and written",
        lambda s: s.device.create_bind_group(s.layout, [(s.a, 0, 256), (s.a, 256, 256)]),
    ),
    "written twice": (
        "where they overlap",
        lambda s: s.device.create_bind_group(
            s.device.create_layout([True, True], False), [(s.a, 0, 512), (s.a, 256, 512)]
        ),
    ),
    "no pipeline": ("without a pipeline", lambda s: dispatch(s, None, s.group)),
    "no group": ("without a bind group", lambda s: dispatch(s, s.pipeline, None)),
    "group and pipeline": ("does not fit", lambda s: dispatch(s, s.pipeline, s.dynamic)),
    "grid": ("exceeds", lambda s: dispatch(s, s.pipeline, s.group, (65536, 1, 1))),
    "no immediates": ("0 bytes of immediates are set", lambda s: dispatch(s, s.immediates(), s.group)),
    "wrong immediates": (
        "4 bytes of immediates are set",
        lambda s: (
            s.device.set_immediates(s.compute, 0, s.device.host_memory(bytes(4)), 4),
            dispatch(s, s.immediates(), s.group),
        ),
    ),
    "immediates beyond the host's": (
        "8 bytes of immediates from 4",
        lambda s: s.device.set_immediates(s.compute, 0, s.device.host_memory(bytes(4)), 8),
    ),
    "dynamic offsets missing": (
        "takes 1",
        lambda s: s.device.set_bind_group(s.compute, 0, s.dynamic, 0, s.device.null),
    ),
    "dynamic offset alignment": (
        "no multiple of 256",
        lambda s: s.device.set_bind_group(s.compute, 0, s.dynamic, 1, s.offset(16)),
    ),
    "dynamic offset range": (
        "leaves",
        lambda s: s.device.set_bind_group(s.compute, 0, s.dynamic, 1, s.offset(SIZE)),
    ),
    "pass left open": ("while a pass is open", lambda s: s.device.run(s.encoder)),
    "two passes": ("a second pass", lambda s: s.device.begin_pass(s.encoder)),
    "ended twice": ("ends twice", twice(lambda s: s.device.end_pass(s.compute))),
    "released unended": ("before it ends", lambda s: s.device.release_pass(s.compute)),
    "after the end": (
        "has ended",
        lambda s: (s.device.end_pass(s.compute), s.device.dispatch_workgroups(s.compute, 1, 1, 1)),
    ),
    "too many queries": ("a query set", lambda s: s.device.create_timestamps(4097)),
    "query range": (
        "which has 4",
        between_passes(
            lambda s: s.device.begin_timed_pass(s.encoder, query_set=s.device.create_timestamps(4), first_query=3)
        ),
    ),
    "unwritten queries": ("not all written", between_passes(resolve_unwritten)),
    "resolve alignment": (
        "no multiple of 256",
        between_passes(lambda s: s.device.resolve_query_set(s.encoder, s.device.create_timestamps(4), 0, 2, s.a, 16)),
    ),
}


def _unwritable(s: Scene) -> Any:
    return s.device.create_buffer(SIZE, 0x4)


def _out_of_memory(s: Scene) -> Any:
    s.webgpu.faults.memory_bytes = 0
    return s.device.create_buffer(SIZE, BUFFER)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(name: str) -> None:
    message, call = BROKEN[name]
    scene = Scene()
    with pytest.raises(ValidationError, match=message):
        call(scene)


def test_what_keeps_the_rules_passes() -> None:
    s = Scene()
    d = s.device
    d.write_buffer(s.a, 0, bytes(range(8)))
    dispatch(s, s.pipeline, s.group)
    s.end()
    d.copy_buffer(s.encoder, s.a, 4, s.staging, 0, 4)
    d.clear_buffer(s.encoder, s.a, 4, 4)
    assert d.run(s.encoder)
    mapped = d.map(s.staging, 8)
    assert mapped is not None
    assert bytes(mapped) == bytes([4, 5, 6, 7, 0, 0, 0, 0])
    d.unmap(s.staging)
    held = d.memory_bytes
    d.release_buffer(s.a)
    assert d.memory_bytes == held  # a bind group names it
    for group in (s.group, s.dynamic):
        d.release_bind_group(group)
    assert d.memory_bytes == held - SIZE
    for buffer in (s.b, s.uniform, s.staging):
        d.release_buffer(buffer)
    for layout in (s.layout, s.dynamic_layout):
        d.release_layout(layout)
    d.release_shader(s.shader)
    d.release_pipeline(s.pipeline)
    assert d.memory_bytes == 0
    d.close()


def test_a_refused_shader_makes_its_pipeline_refused_and_says_so() -> None:
    s = Scene()
    pipeline = s.device.create_pipeline(refused(s), s.layout, 0, "bad")
    assert [kind for kind, _ in s.device.sink.take()] == ["validation", "validation"]
    with pytest.raises(ValidationError, match="was refused"):
        s.device.set_pipeline(s.compute, pipeline)


def test_work_is_done_as_late_as_a_fault_says() -> None:
    s = Scene()
    s.webgpu.faults.late_polls = 2
    s.end()
    s.device.run(s.encoder)
    mark = s.device.mark()
    for _ in range(2):
        s.device.poll(wait=False)
        assert not mark.reached
    s.device.poll(wait=False)
    assert mark.reached
