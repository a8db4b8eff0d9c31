"""Tracing: what a function does, as one plan, without running it.

The function runs on stand-ins for its inputs, tensors of their layouts without contents. Everything it records stays in
one batch, however long, which is fused as a whole. What would have to be known meanwhile (a value that is read, memory
that is resized) makes a plan impossible, and is said.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.compiler.fuse.fuser import fuse
from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.compiler.passes.horizontal_fusion import merged
from torch_webgpu.compiler.passes.lowering import Span, arranged, make_plan, tensors_of
from torch_webgpu.dtypes import of
from torch_webgpu.errors import TraceError
from torch_webgpu.plan import Buffer, Plan, Role, TensorSpec

from . import causes
from .flush import materialise
from .lane import Recording
from .random import RandomState, RandomWord, default_state, random_words
from .schedule import Placement
from .settings import UNBOUNDED
from .store import offset_in_allocation
from .tensor import Allocation

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .record import Engine


Blame = Callable[[tuple[int, ...]], None]
"""Is told which of the recorded operations cannot be lowered, before the error is raised."""
BROUGHT: tuple[tuple[Role, ...], ...] = (("input", "inout"), ("constant",), ("output",))
"""The order of the buffers that whoever runs a traced plan brings."""


class Tracing:
    """A trace underway on one device. Takes the place of a :class:`.capture.Capture`; the engine's lock is held."""

    def __init__(self, engine: Engine, device: Device, blame: Blame | None = None) -> None:
        self.engine = engine
        self.device = device
        self.blame = blame
        self.drawn = 0  # blocks of the random stream
        self.first_number = engine.mailbox.mark  # of the allocations made meanwhile
        self.inputs: set[int] = set()  # the numbers of their allocations

    def may_move(self, allocations: Sequence[Allocation]) -> bool:
        """Inputs: a plan runs on tensors that start at any multiple of 16 bytes."""
        return not self.inputs.isdisjoint([a.number for a in allocations])

    def refuse(self, index: int, what: str) -> None:
        """Raises, if it is on this device: ``what`` cannot be part of a plan."""
        if index == self.device.index:
            raise TraceError(f"{what} while a plan is traced on webgpu:{index}: nothing has run yet. Do it outside")

    def run(self, recording: Recording) -> None:
        """A flush before the trace's end."""
        names = ", ".join(dict.fromkeys(op.name for op in recording.ops[-3:]))
        self.refuse(self.device.index, f"what was recorded (last: {names}) would have to run")

    def write(self, allocation: Allocation, offset_bytes: int, data: memoryview, numel: int) -> bool:
        """False: contents from the host are written now, into a tensor that nothing recorded uses: a constant."""
        if self.engine.lanes.touching(self.device.index, allocation.number):
            self.refuse(self.device.index, "a CPU tensor cannot be copied into a tensor that the plan uses before")
        return False

    def stream_words(self, state: RandomState, blocks: int) -> list[RandomWord]:
        if state is not default_state(self.device.index):
            self.refuse(self.device.index, "a generator of its own cannot be drawn from")
        ahead, self.drawn = self.drawn, self.drawn + blocks
        RandomState.draws += 1
        return random_words(state, ahead)

    def finish(self, inputs: Sequence[torch.Tensor], result: Any) -> Plan:
        """What was recorded, as a plan of these stand-ins whose outputs are the tensors in ``result``."""
        engine = self.engine
        leaves, tree = pytree.tree_flatten(result)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.device != torch.device("webgpu", self.device.index):
                raise TraceError(f"what is traced must return tensors of webgpu:{self.device.index}, not {leaf!r}")
        engine.collect()
        recording = Recording(engine.lane(self.device.index).take(), engine.mailbox.allocations)
        for bundle in recording.lists:
            bundle.settle(engine.mailbox)
        placement = Placement(recording, range(len(recording.lists)))
        nodes, members = placement.nodes, placement.members
        given = {engine.allocation(t): k for k, t in enumerate(inputs)}
        returned = dict.fromkeys([engine.allocation(t) for t in leaves])
        outside = given.keys() | returned.keys()
        allocations = placement.memory.copy()
        allocations += [a for a in dict.fromkeys([*given, *returned]) if a not in set(allocations)]
        first: dict[Allocation, int] = {}  # tensors that are in several lists come up several times
        for n, a in enumerate(allocations):
            first.setdefault(a, n)
        written = {t.allocation for node in nodes for t in tensors_of(node.uses[node.op.n_inputs :], members)}
        roles = [self._role(a, n in written, given, returned) for n, a in enumerate(allocations)]
        owners = [*([a] for a in recording.allocations), *(bundle.allocations for bundle in recording.lists)]
        live = frozenset([n for n, memory in enumerate(owners) if not outside.isdisjoint(memory)])
        limits = engine.limits(self.device, max(1, len(nodes)))
        steps = fuse(nodes, live, limits, engine.scheduler.matcher())
        buffers = [Buffer(a.size_bytes, role) for a, role in zip(allocations, roles)]
        scalars = [[p.source if isinstance(p, RandomWord) else p for p in row] for row in recording.numbers]
        plan, spans = self._lowered(steps, nodes, buffers, scalars, members)
        origins = tuple([steps[n].nodes for n, span in enumerate(spans) for _ in range(span.start, span.stop)])
        brought = [n for role in BROUGHT for n, a in enumerate(allocations) if roles[n] in role and first[a] == n]
        places = [allocations[owner] for owner in plan.tensors]
        starts = [(given.get(a, -1), start) for a, start in zip(places, placement.starts, strict=True)]
        plan, numbers = arranged(replace(plan, origins=origins), brought, starts)
        plan = merged(plan, self.device.target)
        number = {a: numbers[n] for n, a in enumerate(allocations) if n in numbers}
        contents = {number[a]: self._contents(a) for a, role in zip(allocations, roles) if role == "constant"}
        digests = {n: sha256(data).hexdigest() for n, data in contents.items()}
        return replace(
            plan,
            tensors=tuple([number[a] for a in given]),
            inputs=tuple([self._spec(t, number) for t in inputs]),
            outputs=tuple([self._spec(t, number) for t in leaves]),
            constants=tuple(digests.items()),
            random_blocks=self.drawn,
            result=pytree.treespec_dumps(tree),
            contents={digests[n]: data for n, data in contents.items()},
        )

    def _lowered(self, steps: Sequence[FusedNode], *args: Any) -> tuple[Plan, tuple[Span, ...]]:
        """The plan of these steps: see :func:`make_plan`. Blames the first one that cannot be lowered."""
        nodes, buffers, scalars, members = args
        try:
            return make_plan(steps, nodes, buffers, scalars, self.device.target, members)
        except Exception:
            if self.blame is None:
                raise
            for step in steps:
                try:
                    make_plan([step], nodes, buffers, scalars, self.device.target, members)
                except Exception:
                    self.blame(step.nodes)
                    break
            raise

    def _role(
        self, a: Allocation, is_written: bool, given: Container[Allocation], returned: Container[Allocation]
    ) -> Role:
        if a in given:
            return "inout" if is_written else "input"
        if a.buffer is None and a.number >= self.first_number:
            return "output" if a in returned else "temporary"
        if is_written:
            raise TraceError(
                f"what is traced writes into a tensor of {a.size_bytes} bytes that is none of its inputs: make it one"
            )
        return "constant"

    def _spec(self, t: torch.Tensor, number: Mapping[Allocation, int]) -> TensorSpec:
        return TensorSpec(
            number[self.engine.allocation(t)], offset_in_allocation(t), of(t.dtype).name, tuple(t.shape), t.stride()
        )

    def _contents(self, a: Allocation) -> bytes:
        """The bytes of an allocation that nothing recorded writes."""
        (data,) = self.device.download([(materialise(self.device, a), 0, -(-a.size_bytes // 4) * 4)])
        return data.tobytes()

    def poison(self) -> None:
        """What was made meanwhile has no contents, and says so when it is read."""
        error = TraceError("this tensor belongs to a function that was traced: it was never computed")
        for number, allocation in self.engine.mailbox.allocations.items():
            if number >= self.first_number and allocation.buffer is None:
                allocation.error = error


def planning(engine: Engine, index: int) -> tuple[object, ...]:
    """What decides, beside a function and its inputs, the plan that :func:`trace` makes of it."""
    patterns = list(engine.scheduler.patterns.values())
    return engine.device(index).target, engine.settings.planning, patterns


def trace(engine: Engine, index: int, fn: Callable[..., Any], args: Sequence[Any], blame: Blame | None = None) -> Plan:
    """The plan of ``fn(*args)`` on an adapter, whose inputs are the tensors among ``args``, of that adapter or meta.

    What ``fn`` uses beside them is constant. Raises TraceError where no plan can be made.
    """
    with engine.lock:
        device = engine.device(index)
        engine.refuse("nothing can be traced")
        engine.flush(causes.PLAN)
        engine.raise_pending()
        default_state(index)  # is made at its first use, which is not to happen here
        tracing = Tracing(engine, device, blame)
        stand_ins = [stand_in(engine, a, index) if isinstance(a, torch.Tensor) else a for a in args]
        tracing.inputs = {engine.allocation(t).number for t in stand_ins if isinstance(t, torch.Tensor)}
        engine.capture = tracing
        try:
            with engine.using(threshold=UNBOUNDED):
                result = fn(*stand_ins)
                return tracing.finish([t for t in stand_ins if isinstance(t, torch.Tensor)], result)
        finally:
            engine.capture = None
            engine.lanes.clear(index)
            tracing.poison()


def stand_in(engine: Engine, t: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor of the layout of ``t`` without contents."""
    if t.device.type == "meta" or t.device == torch.device("webgpu", index):
        return engine.empty(t.shape, t.dtype, index, t.stride()).requires_grad_(t.requires_grad)
    raise TraceError(f"an input must be a tensor of webgpu:{index} or a meta tensor, not one of {t.device}")
