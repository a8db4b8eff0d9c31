"""Compiled kernels and their bind groups, cached so that a repeated dispatch finds both with one look-up.

wgpu-native's C interface has no pipeline-cache object, so compiled pipelines outlive the process only where the driver
keeps a cache of its own (Mesa's and NVIDIA's do).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_webgpu.caches import Cache
from torch_webgpu.config import is_printed, print_stage
from torch_webgpu.errors import ShaderCompileError, WebGPUError
from torch_webgpu.ir.names import operator_name
from torch_webgpu.target import Target
from torch_webgpu.wgsl.link import link

from .slow import SlowWatch

if TYPE_CHECKING:
    from torch_webgpu.wgsl.kernel import Kernel

    from .buffers import Buffer
    from .commands import Dispatch
    from .implementation import NativeDevice


Range = tuple[Any, int, int]
"""What is bound of a buffer: its handle, an offset and a size in bytes."""

MAX_PIPELINES = 8192
MAX_SOFTWARE_PIPELINES = 512
"""A software adapter compiles to machine code: over 3 MB a pipeline on lavapipe."""
MAX_COMPILERS = 8
SHOWN_KERNELS = 5
"""Names in a message."""


@dataclass(frozen=True, eq=False, slots=True)
class Pipeline:
    """A compiled kernel: the WGPUComputePipeline and the layout of its bind group."""

    handle: Any
    layout: Any
    uses_immediates: bool
    param_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """A pipeline with its buffers: all that a dispatch needs but the parameters and the grid."""

    pipeline: Any
    group: Any
    uses_immediates: bool
    param_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class _Source:
    """A linked kernel: its text, and what its pipeline is made with."""

    text: str
    layout: Any
    uses_immediates: bool
    param_bytes: int

    def pipeline(self, handle: Any) -> Pipeline:
        return Pipeline(handle, self.layout, self.uses_immediates, self.param_bytes)


class PipelineCache:
    """The pipelines of one device, and its bind groups.

    ``outdated()`` is called when one is released, for those who keep what they looked up.
    """

    def __init__(
        self,
        native: NativeDevice,
        target: Target,
        outdated: Callable[[], object] = lambda: None,
        bind_groups: int = 8192,
        pipelines: int | None = None,
    ) -> None:
        self._native = native
        most = pipelines or (MAX_SOFTWARE_PIPELINES if target.software else MAX_PIPELINES)
        self._pipelines: Cache[tuple[str, tuple[int, ...]], Pipeline] = Cache("pipelines", most, evicted=self._evict)
        self._target = target
        self._uniform: Buffer | None = None
        self._layouts: dict[tuple[tuple[bool, ...], bool], Any] = {}
        # The encoder looks here before it calls :meth:`bound`.
        self.recent: Cache[tuple[str, tuple[Buffer, ...]], Bound] = Cache(
            "bind groups", bind_groups, evicted=self._release
        )
        self._slow = SlowWatch()
        self.first_runs: list[str] | None = [] if target.software else None
        self.edition = 0
        """Goes up when any pipeline or bind group is released: what was looked up before may be gone."""
        self._outdated = outdated

    @property
    def pipeline_count(self) -> int:
        return self._pipelines.entries

    @property
    def bind_group_count(self) -> int:
        return self.recent.entries

    def use_uniform(self, buffer: Buffer) -> None:
        """Where parameters lie that don't travel as immediates."""
        self._uniform = buffer

    def bound(self, dispatch: Dispatch) -> Bound:
        """The pipeline and bind group of a dispatch. Raises ShaderCompileError; WebGPUError for unfit buffers."""
        key = (dispatch.kernel.key, dispatch.buffers)
        bound = self.recent.get(key) or self.recent.promote(key)
        if bound is None:
            bound = self._bind(dispatch.kernel, dispatch.buffers)
            for buffer in dispatch.buffers:
                buffer.bind_groups.add(key)
            self.recent[key] = bound
        return bound

    def pipeline(self, kernel: Kernel, windows: tuple[int, ...] = ()) -> Pipeline:
        """The compiled kernel, from the cache or the compiler. Raises ShaderCompileError."""
        key = (kernel.key, windows)
        pipeline = self._pipelines.get(key) or self._pipelines.promote(key)
        if pipeline is None:
            pipeline = self._pipelines[key] = self._compile(kernel, windows)
        return pipeline

    def prepare(self, dispatches: Sequence[Dispatch]) -> None:
        """Compiles the kernels of ``dispatches`` that are not compiled yet, several at a time.

        Those that do not compile are left to :meth:`pipeline`, which says which and why.
        """
        missing: dict[tuple[str, tuple[int, ...]], Kernel] = {}
        for kernel, buffers, _, _ in dispatches:
            key = (kernel.key, self._windows_of(buffers))
            if not (self._pipelines.get(key) or self._pipelines.promote(key)):
                missing[key] = kernel
        compilers = min(len(missing), MAX_COMPILERS, os.cpu_count() or 1)
        if compilers < 2 or self._pipelines.entries + len(missing) > self._pipelines.limit or is_printed("wgsl"):
            return
        try:
            sources = [self._link(kernel, windows) for (_, windows), kernel in missing.items()]
        except WebGPUError:
            return
        with ThreadPoolExecutor(compilers, "webgpu-compile") as pool:
            try:
                made = list(pool.map(self._build, missing.values(), sources))
            except RuntimeError:
                return  # the interpreter is ending, and starts no threads any more
        refused = bool(self._native.sink.take())
        for key, (shader, pipeline), source in zip(missing, made, sources, strict=True):
            self._native.release_shader(shader)
            if refused:  # which of them it was, the library does not say
                self._native.release_pipeline(pipeline)
            else:
                self._pipelines[key] = source.pipeline(pipeline)

    def _evict(self, key: tuple[str, tuple[int, ...]], pipeline: Pipeline) -> None:
        """Drops all bind groups, too, which name pipelines. What is encoded or running keeps its own references."""
        self._drop_groups()
        self._native.release_pipeline(pipeline.handle)

    def _drop_groups(self) -> None:
        self._begin_edition()
        self.recent.evict()

    def close(self) -> None:
        """Releases everything."""
        self._drop_groups()
        for pipeline in self._pipelines.everything().values():
            self._native.release_pipeline(pipeline.handle)
        for layout in self._layouts.values():
            self._native.release_layout(layout)
        self._pipelines.clear()
        self._layouts.clear()

    def forget(self, buffer: Buffer) -> None:
        """Releases the bind groups that name ``buffer``; they would keep its memory."""
        for key in tuple(buffer.bind_groups):
            self._release(key, self.recent.pop(key))

    def _begin_edition(self) -> None:
        self.edition += 1
        self._outdated()

    def _release(self, key: tuple[str, tuple[Buffer, ...]], bound: Bound) -> None:
        self._begin_edition()
        for buffer in key[1]:
            buffer.bind_groups.discard(key)
        self._native.release_bind_group(bound.group)

    def _compile(self, kernel: Kernel, windows: tuple[int, ...]) -> Pipeline:
        source = self._link(kernel, windows)
        if is_printed("wgsl"):
            print_stage("wgsl", f"{kernel.name}, windows {windows}", _numbered(source.text))
        shader, pipeline = self._build(kernel, source)
        self._raise_compile_errors(kernel, source.text, shader, pipeline)
        self._native.release_shader(shader)
        return source.pipeline(pipeline)

    def _link(self, kernel: Kernel, windows: tuple[int, ...]) -> _Source:
        linked = link(kernel, self._target, windows)
        writable = tuple(
            binding.access == "read_write"
            for binding, count in zip(kernel.bindings, windows or (1,) * len(kernel.bindings), strict=True)
            for _ in range(count)
        )
        if len(writable) > self._target.max_buffers:
            raise WebGPUError(
                f"kernel {kernel.name} binds {len(writable)} storage buffers (windows {windows}); "
                f"this adapter allows {self._target.max_buffers}"
            )
        uniform = bool(linked.param_bytes) and not linked.uses_immediates
        return _Source(linked.source, self._layout(writable, uniform), linked.uses_immediates, linked.param_bytes)

    def _build(self, kernel: Kernel, source: _Source) -> tuple[Any, Any]:
        """A shader and a pipeline; what is wrong with them is in the sink."""
        immediate_bytes = source.param_bytes if source.uses_immediates else 0
        if self.first_runs is not None:
            self.first_runs.append(kernel.name)
        with self._slow(f"webgpu: compiling the kernel {operator_name(kernel.name)}"):
            shader = self._native.create_shader(source.text, kernel.name, kernel.trusted)
            return shader, self._native.create_pipeline(shader, source.layout, immediate_bytes, kernel.name)

    def problems(self, source: str, label: str) -> list[str]:
        """What the host's compiler says against a WGSL text, which is not kept; nothing for one that is right."""
        self._native.release_shader(self._native.create_shader(source, label, trusted=False))
        return [message for _, message in self._native.sink.take()]

    def waiting(self) -> AbstractContextManager[None] | None:
        """What is to surround waiting for the device. Software adapters compile a kernel when it first runs."""
        if not self.first_runs:
            return None
        names = list(dict.fromkeys(map(operator_name, self.first_runs)))
        self.first_runs.clear()
        more = f" and {len(names) - SHOWN_KERNELS} more" if len(names) > SHOWN_KERNELS else ""
        shown = ", ".join(names[:SHOWN_KERNELS])
        return self._slow(f"webgpu: the first run of {shown}{more}, which the software adapter compiles now,")

    def _raise_compile_errors(self, kernel: Kernel, source: str, shader: Any, pipeline: Any) -> None:
        errors = self._native.sink.take()
        if not errors:
            return
        self._native.release_shader(shader)
        self._native.release_pipeline(pipeline)
        messages = "\n".join(message for _, message in errors)
        raise ShaderCompileError(f"kernel {kernel.name} does not compile:\n{messages}\n{_numbered(source)}")

    def _layout(self, writable: tuple[bool, ...], uniform: bool) -> Any:
        key = (writable, uniform)
        if key not in self._layouts:
            self._layouts[key] = self._native.create_layout(writable, uniform)
        return self._layouts[key]

    def _bind(self, kernel: Kernel, buffers: tuple[Buffer, ...]) -> Bound:
        assert self._uniform is not None
        pipeline, ranges = self.fit(kernel, buffers)
        group = self.group(kernel, pipeline, ranges, self._uniform.handle)
        return Bound(pipeline.handle, group, pipeline.uses_immediates, pipeline.param_bytes)

    def fit(self, kernel: Kernel, buffers: tuple[Buffer, ...]) -> tuple[Pipeline, list[Range]]:
        """The pipeline for buffers of these sizes, and what its bind group binds. Raises as :meth:`bound`."""
        _check_buffers(kernel, buffers)
        windows = self._windows_of(buffers)
        pipeline = self.pipeline(kernel, windows)
        width = self._target.window_bytes
        ranges: list[Range] = []
        for buffer, count in zip(buffers, windows or (1,) * len(buffers), strict=True):
            if count == 1:
                ranges.append((buffer.handle, buffer.start_bytes, buffer.size_bytes))
            else:
                starts = range(0, buffer.size_bytes, width)
                own = buffer.start_bytes
                ranges += [(buffer.handle, own + at, min(width, buffer.size_bytes - at)) for at in starts]
        return pipeline, ranges

    def group(self, kernel: Kernel, pipeline: Pipeline, ranges: list[Range], uniform: Any) -> Any:
        """A new bind group, the caller's to release; ``uniform`` is where parameters lie that are no immediates."""
        if pipeline.param_bytes and not pipeline.uses_immediates:
            ranges = [*ranges, (uniform, 0, -(-pipeline.param_bytes // 16) * 16)]
        group = self._native.create_bind_group(pipeline.layout, ranges)
        errors = self._native.sink.take()
        if errors:
            self._native.release_bind_group(group)
            raise WebGPUError(f"kernel {kernel.name}: " + "\n".join(message for _, message in errors))
        return group

    def _windows_of(self, buffers: tuple[Buffer, ...]) -> tuple[int, ...]:
        """How many bindings each buffer takes; empty where all take one."""
        windows = tuple([self._windows(buffer) for buffer in buffers])
        return windows if any(count > 1 for count in windows) else ()

    def _windows(self, buffer: Buffer) -> int:
        if buffer.size_bytes <= self._target.max_binding_bytes:
            return 1
        return -(-buffer.size_bytes // self._target.window_bytes)


def _check_buffers(kernel: Kernel, buffers: tuple[Buffer, ...]) -> None:
    """Runs once per kernel and set of buffers, so it costs a repeated dispatch nothing."""
    if len(buffers) != len(kernel.bindings):
        raise WebGPUError(
            f"kernel {kernel.name} has {len(kernel.bindings)} bindings and was given {len(buffers)} buffers"
        )
    if any(buffer.handle is None for buffer in buffers):
        raise WebGPUError(f"kernel {kernel.name} was given a buffer that was released and whose memory is gone")
    written = {buffer for buffer, b in zip(buffers, kernel.bindings, strict=True) if b.access == "read_write"}
    shared = {buffer for buffer in written if buffers.count(buffer) > 1}
    if shared:
        names = [b.name for buffer, b in zip(buffers, kernel.bindings, strict=True) if buffer in shared]
        raise WebGPUError(
            f"kernel {kernel.name}: bindings {', '.join(names)} are one buffer and one of them is written; "
            "the caller must merge them into a single read_write binding"
        )


def _numbered(source: str) -> str:
    return "\n".join(f"{number:4} | {line}" for number, line in enumerate(source.splitlines(), 1))
