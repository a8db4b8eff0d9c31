"""Captured graphs in torch.cuda's spelling: a step recorded once is replayed without any Python per operation.

See docs/graphs.md; the specification is torch/cuda/graphs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch_webgpu.engine.capture import Capture, CapturedGraph
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.graph_memory import PoolHandle
from torch_webgpu.engine.record import engine, started_in
from torch_webgpu.runtime.commands import ClearBuffer, Command, CopyBuffer, Dispatch

from .device import synchronize
from .streams import StreamContext

ERROR_MODES = ("default", "global", "thread_local", "relaxed")


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured on the current adapter. Never opens a device."""
    if started_in() is None:
        return False
    return engine().intake(current_device()) is not None


def graph_pool_handle() -> PoolHandle:
    """A new name for a pool of graph memory, for graphs that are to share one."""
    return engine().new_pool_handle()


class Graph:
    """A captured graph of one adapter, with the interface of ``torch.cuda.CUDAGraph``.

    ``keep_graph``: :meth:`instantiate`, which prepares pipelines and bind groups, happens when it is asked for, or at
    the first replay, instead of at the end of the capture.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._capture: Capture | None = None
        self._captured: CapturedGraph | None = None
        self._handle: PoolHandle | None = None
        self._checks_inputs = False

    def capture_begin(
        self, pool: PoolHandle | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Starts to capture what is recorded for the current adapter, from whichever thread, instead of running it.

        ``pool``: another graph's :meth:`pool`, or a :func:`graph_pool_handle`, to share its memory. Graphs that share
        must be replayed in the order of their captures, and one's results used before the next is replayed.
        ``capture_error_mode`` changes nothing: what cannot be captured is an error in every thread.
        ``check_input_liveness``: :meth:`replay` raises RuntimeError if a tensor from outside that the graph uses has
        died. (Its memory is kept for the graph in any case.)
        """
        if capture_error_mode not in ERROR_MODES:
            raise RuntimeError(f"unknown capture error mode {capture_error_mode!r}; expected one of {ERROR_MODES}")
        if self._captured is not None or self._capture is not None:
            raise RuntimeError("this graph was captured already; reset() it before another capture")
        self._capture = Capture.begin(engine(), current_device(), pool)
        self._handle = self._capture.handle
        self._checks_inputs = check_input_liveness

    def capture_end(self) -> None:
        """Ends the capture. RuntimeError if something happened in it that a graph cannot hold."""
        capture, self._capture = self._capture, None
        if capture is None:
            raise RuntimeError("capture_end() without capture_begin()")
        self._captured = capture.end(instantiate=not self._keep_graph)

    def instantiate(self) -> None:
        """Prepares the graph's pipelines and bind groups."""
        self._require().instantiate()

    def replay(self) -> None:
        """Submits the captured work after everything recorded so far, without waiting for it."""
        captured = self._require()
        if self._checks_inputs and (dead := captured.dead_inputs):
            raise RuntimeError(f"webgpu graph replay detected {dead} dead tensor(s) that the graph uses")
        captured.replay()

    def reset(self) -> None:
        """Forgets the graph and gives its memory back, less what tensors still hold. It can be captured again."""
        for part in (self._capture, self._captured):
            if part is not None:
                part.release()
        self._capture = self._captured = self._handle = None

    def pool(self) -> PoolHandle:
        """The name of the graph's memory pool."""
        if self._handle is None:
            raise RuntimeError("a graph has a memory pool once its capture has begun")
        return self._handle

    def register_generator_state(self, generator: Any) -> None:
        """Nothing to do: a graph knows the generators it draws from."""

    def enable_debug_mode(self) -> None:
        """Nothing to do: every graph can be dumped."""

    def debug_dump(self, debug_path: str) -> None:
        """Writes the graph to a file in Graphviz's DOT language: a node per command, an edge per dependence."""
        Path(debug_path).write_text("\n".join(dot(self._require().commands)) + "\n", encoding="utf-8")

    def _require(self) -> CapturedGraph:
        if self._captured is None:
            raise RuntimeError("this graph has not been captured")
        return self._captured

    def __del__(self) -> None:
        # Destructors run anywhere, also inside of the engine: it takes the memory back when it comes to it.
        for part in (self.__dict__.get("_capture"), self.__dict__.get("_captured")):
            if part is not None:
                part.discard()


CUDAGraph = Graph
"""Torch.cuda's name for it."""


class graph:  # noqa: N801 torch.cuda's name
    """Context manager that captures what its block records for the current adapter; nothing of it runs.

    ``stream`` makes its adapter the current one inside the block; the other arguments are those of
    :meth:`Graph.capture_begin`. An exception that leaves the block leaves the graph empty.
    """

    def __init__(
        self,
        cuda_graph: Graph,
        pool: PoolHandle | None = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        self.cuda_graph = cuda_graph
        self._arguments = (pool, capture_error_mode, check_input_liveness)
        self._stream = StreamContext(stream)

    def __enter__(self) -> None:
        self._stream.__enter__()
        try:
            synchronize()  # what went wrong before is not the capture's fault
            self.cuda_graph.capture_begin(*self._arguments)
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.reset()
        finally:
            self._stream.__exit__(kind, error, trace)


def dot(commands: Sequence[Command]) -> Iterator[str]:
    """The lines of a DOT graph of commands in the order they run."""
    yield "digraph webgpu {"
    last_write: dict[Any, int] = {}
    readers: dict[Any, list[int]] = {}
    for n, command in enumerate(commands):
        label, reads, writes = _uses(command)
        yield f'  n{n} [shape=box, label="{n}: {label}"];'
        before = {last_write[b] for b in reads + writes if b in last_write}
        before.update(reader for b in writes for reader in readers.get(b, ()))
        yield from (f"  n{other} -> n{n};" for other in sorted(before - {n}))
        for buffer in writes:
            last_write[buffer] = n
            readers[buffer] = []
        for buffer in reads:
            readers.setdefault(buffer, []).append(n)
    yield "}"


def _uses(command: Command) -> tuple[str, list[Any], list[Any]]:
    """What a command is called, the buffers it reads and those it writes."""
    if isinstance(command, Dispatch):
        bound = list(zip(command.buffers, command.kernel.bindings, strict=True))
        label = f"{command.kernel.name} {'x'.join(map(str, command.grid))}"
        return label, [b for b, _ in bound], [b for b, binding in bound if binding.access == "read_write"]
    if isinstance(command, CopyBuffer):
        return f"copy {command.nbytes} bytes", [command.src], [command.dst]
    assert isinstance(command, ClearBuffer)
    return f"clear {command.nbytes} bytes", [], [command.buffer]
