"""``torch.webgpu.explain``: what a function records, what becomes of it, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_webgpu.aten.dispatch.call_site import program_line
from torch_webgpu.compiler.compile import Compilation
from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.engine.flush_reason import EXPLAINED, PROFILE, Cause
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.recorded_lists import RecordedList
from torch_webgpu.ir.names import operator_name
from torch_webgpu.ir.operation import ForEach, Node, Operation
from torch_webgpu.plan import Step
from torch_webgpu.runtime.observer import Observer

if TYPE_CHECKING:
    from torch_webgpu.engine.tensor import Allocation
    from torch_webgpu.runtime.device import Device


@dataclass(frozen=True)
class RecordedOperation:
    """One recorded operation; tensors as ``f32[4, 6]``, lists of tensors as ``8 × f32[4, 6]``."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) → {', '.join(self.outputs)}"


@dataclass
class ExplainedKernel:
    """What one or several recorded operations became.

    ``operations``: their numbers in the flush. ``dispatches``: the names of the kernels it runs. ``reason``: why it did
    not become part of what came before; empty where nothing did.
    """

    name: str
    operations: tuple[int, ...]
    reason: str
    dispatches: tuple[str, ...] = ()


@dataclass
class ExplainedFlush:
    """Operations that were planned together. ``eliminated``: the numbers of those whose results nobody could see."""

    device: int
    cause: str
    operations: list[RecordedOperation]
    kernels: list[ExplainedKernel]
    eliminated: list[int] = field(default_factory=list)

    def lines(self, number: int) -> list[str]:
        dispatches = sum(len(kernel.dispatches) for kernel in self.kernels)
        sizes = [_count(len(self.operations), "operation"), _count(len(self.kernels), "kernel")]
        sizes.append(_count(dispatches, "dispatch", "es"))
        lines = [f"Flush {number} on webgpu:{self.device}, because {self.cause}: {', '.join(sizes)}"]
        lines.append("  recorded:")
        lines += [f"    {n:>3}  {operation}" for n, operation in enumerate(self.operations)]
        for k, kernel in enumerate(self.kernels, 1):
            which = ", ".join(map(str, kernel.operations))
            lines.append(f"  kernel {k}: {kernel.name}  ← {which}")
            if kernel.dispatches and kernel.dispatches != (kernel.name,):
                lines.append(f"      dispatches {', '.join(kernel.dispatches)}")
            if kernel.reason:
                lines.append(f"      does not join what came before: {kernel.reason}")
        if self.eliminated:
            lines.append("  eliminated, since nobody can see what they compute:")
            lines += [f"    {n:>3}  {self.operations[n]}" for n in self.eliminated]
        return lines


@dataclass
class Explanation:
    """What :func:`explain` found out; ``str()`` is for people. ``result`` is what the function returned."""

    function: str
    flushes: list[ExplainedFlush]
    result: Any

    @property
    def kernels(self) -> list[ExplainedKernel]:
        return [kernel for flush in self.flushes for kernel in flush.kernels]

    def __str__(self) -> str:
        operations = sum(len(flush.operations) for flush in self.flushes)
        eliminated = sum(len(flush.eliminated) for flush in self.flushes)
        head = (
            f"{self.function}: {_count(operations, 'operation')} recorded, {_count(len(self.kernels), 'kernel')}, "
            f"{eliminated} eliminated, {_count(len(self.flushes), 'flush', 'es')}"
        )
        parts = ["\n".join(flush.lines(n)) for n, flush in enumerate(self.flushes, 1)]
        return "\n\n".join([head, *parts])

    __repr__ = __str__


class _Witness(Observer):
    """Notes what one device is given. ``written``: which flush computed what lies in an allocation."""

    def __init__(self, device: Device, flushes: list[ExplainedFlush], written: dict[Any, int]) -> None:
        super().__init__(device)
        self.flushes = flushes
        self._written = written

    def planned(self, nodes: Sequence[Node], compilation: Compilation, cause: Cause) -> None:
        number = len(self.flushes) + 1
        kernels = [self._kernel(step, nodes) for step in compilation.fused]
        self._name_dispatches(kernels, compilation)
        run = {n for kernel in kernels for n in kernel.operations}
        self.flushes.append(
            ExplainedFlush(
                self.device.index,
                f"{cause}, at {line}" if cause.has_line and (line := program_line()) else str(cause),
                [_operation(node.op) for node in nodes],
                kernels,
                [n for n in range(len(nodes)) if n not in run],
            )
        )
        for node in nodes:
            self._written.update(dict.fromkeys(_memory(node.allocations[node.op.n_inputs :]), number))
        super().planned(nodes, compilation, cause)

    @staticmethod
    def _name_dispatches(kernels: Sequence[ExplainedKernel], compilation: Compilation) -> None:
        """Says which kernels each runs; not those of what cannot be lowered, which the flush will say."""
        try:
            plan = compilation.plan
        except Exception:  # noqa: BLE001  it is raised when the recording runs
            return
        for step, kernel in zip(compilation.fused, kernels, strict=True):
            names = [
                plan.kernels[s.kernel].name
                for s, calls in zip(plan.steps, plan.origins, strict=True)
                if isinstance(s, Step) and set(step.nodes) <= set(calls)
            ]
            kernel.dispatches = tuple(map(operator_name, names))

    def _kernel(self, step: FusedNode, nodes: Sequence[Node]) -> ExplainedKernel:
        reason = step.reason
        if not engine().settings.fusion:
            reason = "fusion is off"
        elif not reason:
            read = [a for n in step.nodes for a in nodes[n].allocations[: nodes[n].op.n_inputs]]
            before = {self._written[a] for a in _memory(read) if a in self._written}
            if before:
                reason = f"flush {max(before)} computed its input, and ended before it was recorded"
        return ExplainedKernel(operator_name(step.op.name), _needed(step, nodes), reason)


def _memory(owners: Sequence[Allocation | RecordedList]) -> list[Allocation]:
    """What arguments lie in, those of lists tensor by tensor."""
    return [a for owner in owners for a in (owner.allocations if isinstance(owner, RecordedList) else [owner])]


def _needed(step: FusedNode, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The nodes of a step that what it stores depends on; fused ones that are left are not computed."""
    if len(step.nodes) == 1:
        return step.nodes
    latest: dict[tuple[int, int], int] = {}  # by memory, which node of the step wrote it
    feeds: dict[int, set[int]] = {}
    for n in step.nodes:
        operands = list(zip(map(id, nodes[n].allocations), nodes[n].offsets, strict=True))
        inputs = nodes[n].op.n_inputs
        feeds[n] = {latest[operand] for operand in operands[:inputs] if operand in latest}
        latest.update(dict.fromkeys(operands[inputs:], n))
    pending = {n for n, _ in step.sources[len(step.sources) - step.op.n_outputs :]}
    needed: set[int] = set()
    while pending:
        n = pending.pop()
        needed.add(n)
        pending |= feeds[n] - needed
    return tuple([n for n in step.nodes if n in needed])


def _count(n: int, what: str, plural: str = "s") -> str:
    return f"{n} {what}{'' if n == 1 else plural}"


def _operation(op: Operation) -> RecordedOperation:
    arguments = [_argument(op, k) for k in range(len(op.args))]
    return RecordedOperation(operator_name(op.name), tuple(arguments[: op.n_inputs]), tuple(arguments[op.n_inputs :]))


def _argument(op: Operation, k: int) -> str:
    """A tensor's dtype and shape; a list's length as well, and its elements if it has tensors of several shapes."""
    spec = op.args[k]
    if not isinstance(op.body, ForEach):
        return f"{spec.dtype}{list(spec.shape)}"
    tensors = op.body.tensors(spec, op.body.layouts[k])
    if len({tensor.shape for tensor in tensors}) > 1:
        return f"{len(tensors)} × {spec.dtype}, {spec.shape[0]} elements"
    one = f"{spec.dtype}{list(tensors[0].shape)}"
    return one if len(tensors) == 1 else f"{len(tensors)} × {one}"


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Runs ``fn(*args, **kwargs)`` once; an object whose ``str()`` says what it recorded and what became of it.

    For each flush: the recorded operations, the kernels that ran and which operations each stands for, why a kernel did
    not become part of what came before, and what was eliminated. ``result`` holds what ``fn`` returned. The timer that
    submits incomplete batches is off meanwhile: it would show how slow a first call is, not how the work is divided.

    ``print(torch.webgpu.explain(model, x))``
    """
    eng = engine()
    flushes: list[ExplainedFlush] = []
    written: dict[Any, int] = {}
    with ExitStack() as installed:
        with Uninterrupted(), eng.lock:
            eng.refuse("a function cannot be explained")
            eng.flush(PROFILE)
            installed.enter_context(eng.using(delay_ms=0.0))
        for device in eng.devices:
            installed.enter_context(_Witness(device, flushes, written))
        result = fn(*args, **kwargs)
        eng.flush(EXPLAINED)
    return Explanation(getattr(fn, "__name__", type(fn).__name__), flushes, result)
