"""Tracing: what a function does, as one plan, without running it.

The function runs on stand-ins for its inputs, tensors of their layouts without contents. Everything it records stays in
one batch, however long, which is compiled as a whole, for an adapter or for a target that is only described. What would
have to be known meanwhile (a value that is read, memory that is resized) makes a plan impossible, and is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.compiler.compile import Blame, Compilation
from torch_webgpu.compiler.options import Options
from torch_webgpu.dtypes import of
from torch_webgpu.errors import ON_ONE_DEVICE, TraceError, WebGPUError
from torch_webgpu.ir.graph import Graph, Interface, Storage, TensorView
from torch_webgpu.plan import Plan, Structure, structure_of, whole_words

from . import flush_reason
from .current import current_device, set_current_device
from .flush import materialise
from .generators import RandomState, RandomWord, default_state, random_words
from .recording import Recording, graph_of
from .settings import UNBOUNDED
from .store import FIRST_DESCRIBED, offset_in_allocation
from .tensor import Allocation

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .record import Engine


class Input:
    """An input of what is traced: its stand-in, what the function calls it, whether it is a module's parameter."""

    def __init__(self, tensor: torch.Tensor, name: str, is_weight: bool) -> None:
        self.tensor, self.name, self.is_weight = tensor, name, is_weight


class Tracing:
    """A trace underway on one device. Takes the place of a :class:`.capture.Capture`; the engine's lock is held."""

    def __init__(self, engine: Engine, device: Device, blame: Blame | None = None) -> None:
        self.engine = engine
        self.device = device
        self.blame = blame
        self.drawn = 0  # blocks of the random stream
        self.first_number = engine.mailbox.mark  # of the allocations made meanwhile
        self.inputs: set[int] = set()  # the numbers of their allocations
        self._written_by_host: dict[Allocation, bytearray] = {}  # constants of the function's own

    @property
    def where(self) -> str:
        """What the plan is for, in an error."""
        index = self.device.index
        return f"on webgpu:{index}" if index < FIRST_DESCRIBED else f"for the target {self.device.name!r}"

    def may_move(self, allocations: Sequence[Allocation]) -> bool:
        """Inputs: a plan runs on tensors that start at any multiple of 16 bytes."""
        return not self.inputs.isdisjoint([a.number for a in allocations])

    def refuse(self, index: int, what: str) -> None:
        """Raises, if it is on this device: ``what`` cannot be part of a plan."""
        if index == self.device.index:
            raise TraceError(f"{what} while a plan is traced {self.where}: nothing has run yet. Do it outside")

    def run(self, recording: Recording) -> None:
        """A flush before the trace's end."""
        names = ", ".join(dict.fromkeys(op.name for op in recording.ops[-3:]))
        self.refuse(self.device.index, f"what was recorded (last: {names}) would have to run")

    def write(self, allocation: Allocation, offset_bytes: int, data: memoryview, numel: int) -> bool:
        """Keeps contents from the host that go into a new tensor which nothing recorded uses: a constant."""
        if self.engine.lanes.touching(self.device.index, allocation.number):
            self.refuse(self.device.index, "a CPU tensor cannot be copied into a tensor that the plan uses before")
        if allocation.number < self.first_number:
            return False  # a tensor of the program's, which is written now
        contents = self._written_by_host.setdefault(allocation, bytearray(whole_words(allocation.size_bytes)))
        contents[offset_bytes : offset_bytes + len(data)] = data
        return True

    def stream_words(self, state: RandomState, blocks: int) -> list[RandomWord]:
        if state is not default_state(self.device.index):
            self.refuse(self.device.index, "a generator of its own cannot be drawn from")
        ahead, self.drawn = self.drawn, self.drawn + blocks
        state.count_draw()
        return random_words(state, ahead)

    def finish(self, inputs: Sequence[Input], result: Any) -> Plan:
        """What was recorded, as a plan of these stand-ins whose outputs are the tensors in ``result``."""
        leaves, structure = structure_of(result)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.device != torch.device("webgpu", self.device.index):
                raise TraceError(f"what is traced {self.where} must return tensors of its inputs' device, not {leaf!r}")
        self.engine.collect()
        recording = Recording(self.engine.lane(self.device.index).take(), self.engine.mailbox.allocations)
        for tensor_list in recording.lists:
            tensor_list.settle(self.engine.mailbox)
        graph = self._graph(recording, inputs, leaves, structure)
        return Compilation(graph, self.device.target, self._options, self.blame).plan

    @property
    def _options(self) -> Options:
        return self.engine.plans.whole_function_options(self.engine.settings)

    def _graph(
        self, recording: Recording, inputs: Sequence[Input], outputs: Sequence[torch.Tensor], structure: Structure
    ) -> Graph:
        """The graph of a recording with this interface."""
        engine = self.engine
        inputs_at = {engine.allocation(one.tensor): one for one in inputs}
        returned = dict.fromkeys([engine.allocation(t) for t in outputs])
        outside = inputs_at.keys() | returned.keys()
        lists = range(len(recording.lists))
        memory = recording.memory(lists)
        known = set(memory)
        extra = [a for a in dict.fromkeys([*inputs_at, *returned]) if a not in known]
        number = dict(reversed([(a, n) for n, a in enumerate((*memory, *extra))]))  # the first of several
        owners = [*([a] for a in recording.allocations), *(tensor_list.allocations for tensor_list in recording.lists)]
        live = [not outside.isdisjoint(some) for some in owners]
        scalars = [[p.source if isinstance(p, RandomWord) else p for p in row] for row in recording.scalars]
        described: set[Allocation] = set()

        def storage_of(a: Allocation, _: bool) -> Storage:
            if a in described:
                return Storage(a.size_bytes, external=False)  # of a list's tensor: others have it by its first number
            described.add(a)
            return self._storage(a, inputs_at.get(a), a in returned)

        graph = graph_of(recording, storage_of, scalars, live)
        graph = replace(graph, extra=tuple([storage_of(a, True) for a in extra]))
        layout = graph.laid_out(lists)
        written = {a.storage for op, args in graph.calls for a in layout.tensors_of(args[op.n_inputs :])}
        constants = {number[a]: a for a in (*memory, *extra) if self._is_constant(a, inputs_at)}
        if wrong := written & constants.keys():
            size = constants[min(wrong)].size_bytes
            raise TraceError(
                f"what is traced writes into a tensor of {size} bytes that is none of its inputs: make it one"
            )
        order = {a: k for k, a in enumerate(inputs_at)}
        owners = [memory[owner] for owner in layout.owners]
        starts = [(order.get(a, -1), start) for a, start in zip(owners, recording.all_starts(lists), strict=True)]
        views = [[self._view(t, number) for t in some] for some in ([one.tensor for one in inputs], outputs)]
        contents = {n: self._contents(a) for n, a in constants.items()}
        interface = Interface(tuple(views[0]), tuple(views[1]), starts, structure, contents, self.drawn)
        return replace(graph, interface=interface)

    def _is_constant(self, a: Allocation, inputs: Any) -> bool:
        """Whether its contents are known when the function is traced."""
        is_new = a.buffer is None and a.number >= self.first_number and a not in self._written_by_host
        return a not in inputs and not is_new

    def _storage(self, a: Allocation, one: Input | None, is_returned: bool) -> Storage:
        if one is not None:
            return Storage(a.size_bytes, "weight" if one.is_weight else "input", live=True, name=one.name)
        if not self._is_constant(a, ()):
            return Storage(a.size_bytes, "new", live=is_returned, external=is_returned)
        return Storage(a.size_bytes, "constant")

    def _view(self, t: torch.Tensor, number: dict[Allocation, int]) -> TensorView:
        storage = number[self.engine.allocation(t)]
        return TensorView(storage, offset_in_allocation(t), of(t.dtype).name, tuple(t.shape), t.stride())

    def _contents(self, a: Allocation) -> bytes:
        """The bytes of an allocation that nothing recorded writes."""
        if a in self._written_by_host:
            return bytes(self._written_by_host[a])
        device = self.engine.device(a.device)
        (data,) = device.download([(materialise(device, a), 0, whole_words(a.size_bytes))])
        return data.tobytes()

    def poison(self) -> None:
        """What was made meanwhile has no contents, and says so when it is read."""
        error = TraceError("this tensor belongs to a function that was traced: it was never computed")
        for number, allocation in self.engine.mailbox.allocations.items():
            if number >= self.first_number and allocation.buffer is None:
                allocation.error = error


def planning(engine: Engine, index: int) -> tuple[object, ...]:
    """What decides, beside a function and its inputs, the plan that :func:`trace` makes of it."""
    return engine.device(index).target, engine.plans.whole_function_options(engine.settings)


def trace(
    engine: Engine,
    index: int,
    fn: Callable[..., Any],
    args: Sequence[Any],
    names: Sequence[str] = (),
    blame: Blame | None = None,
) -> Plan:
    """The plan of ``fn(*args)`` on a device, whose inputs are the tensors in ``args``, of that device or meta; on one
    that is only described, of any device.

    What ``fn`` uses beside them is constant. ``names``: what ``fn`` calls its arguments. Raises TraceError where no
    plan can be made.
    """
    with engine.lock, ExitStack() as after:
        device = engine.device(index)
        engine.refuse("nothing can be traced")
        engine.flush(flush_reason.PLAN)
        engine.raise_pending()
        default_state(index)  # is made at its first use, which is not to happen here
        tracing = Tracing(engine, device, blame)
        leaves, tree = pytree.tree_flatten(tuple(args))
        inputs = stand_ins(engine, index, args, names)
        tracing.inputs = {engine.allocation(one.tensor).number for one in inputs.values()}
        arguments = pytree.tree_unflatten([inputs[k].tensor if k in inputs else x for k, x in enumerate(leaves)], tree)
        engine.capture = tracing
        after.callback(tracing.poison)
        after.callback(engine.lanes.clear, index)
        after.callback(setattr, engine, "capture", None)
        after.callback(set_current_device, current_device())
        set_current_device(index)
        after.enter_context(engine.using(threshold=UNBOUNDED))
        if index < FIRST_DESCRIBED:
            return tracing.finish(list(inputs.values()), fn(*arguments))
        after.enter_context(engine.telling_devices_apart())
        try:
            return tracing.finish(list(inputs.values()), fn(*arguments))
        except RuntimeError as error:
            if isinstance(error, WebGPUError) or not str(error).startswith(ON_ONE_DEVICE):
                raise
            raise TraceError(
                f"what is traced {tracing.where} uses a tensor that is neither one of its inputs nor on their device, "
                f"but on {_other_device(error, index)}. Make it there, as in torch.arange(n, device=x.device); or make "
                "it a buffer of the module, or an input (a module's parameters by torch.func.functional_call)"
            ) from error


def _other_device(error: RuntimeError, index: int) -> str:
    """The device in an error of :func:`.errors.different_devices` that is not webgpu:``index``."""
    named = re.findall(r"[a-z]+(?::\d+)?", str(error).rpartition("devices, ")[2])
    return next((name for name in named if name not in ("and", f"webgpu:{index}")), "another device")


def stand_ins(engine: Engine, index: int, args: Sequence[Any], names: Sequence[str]) -> dict[int, Input]:
    """The inputs among the leaves of ``args``, by their numbers."""
    inputs = {}
    leaves, _ = pytree.tree_flatten_with_path(tuple(args))
    for k, (path, leaf) in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            first, *keys = map(_key, path)
            name = names[first] if first < len(names) else f"args.{first}"
            tensor = stand_in(engine, leaf, index)
            inputs[k] = Input(tensor, ".".join([name, *map(str, keys)]), isinstance(leaf, torch.nn.Parameter))
    return inputs


def _key(entry: Any) -> Any:
    """The key, the index or the attribute that an entry of a path in a tree is."""
    return getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry)))


def stand_in(engine: Engine, t: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor of the layout of ``t`` without contents."""
    if index >= FIRST_DESCRIBED or t.device.type == "meta" or t.device == torch.device("webgpu", index):
        return engine.empty(t.shape, t.dtype, index, t.stride()).requires_grad_(t.requires_grad)
    raise TraceError(f"an input must be a tensor of webgpu:{index} or a meta tensor, not one of {t.device}")
