"""The lowering pass: from fused calls to a plan, their kernels' dispatches in order over buffers with roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import prod

from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Argument, Graph, Layout, Storage, TensorView
from torch_webgpu.ir.operation import ForEach, Spec
from torch_webgpu.plan import (
    ERROR_FLAG_BYTES,
    BufferSpec,
    Clear,
    Label,
    Offset,
    Plan,
    Role,
    Step,
    TensorSpec,
    Word,
    bits,
    rebound,
    restarted,
    touched,
    whole_words,
)
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, Source

MOST_ELEMENT_BYTES = max(dtype.itemsize for dtype in BY_NAME.values())
ORDER: tuple[tuple[Role, ...], ...] = (("input", "weight", "state"), ("constant",), ("output",), ("temporary",))
"""In which buffers are numbered; the error flags are last."""


def arguments_of(step: FusedNode, graph: Graph) -> list[Argument]:
    """Where each argument of a fused call lies."""
    return [graph.calls[n].arguments[k] for n, k in step.sources]


def lists_of(steps: Sequence[FusedNode], graph: Graph) -> tuple[int, ...]:
    """The numbers of the lists that fused calls use, which have to lie in memory."""
    tensors = {a.tensor for step in steps for a in arguments_of(step, graph)}
    return tuple(sorted([tensor - graph.tensors for tensor in tensors if tensor >= graph.tensors]))


def alias_pattern(owners: Sequence[object]) -> tuple[int, ...]:
    """For each argument the first one with the same owner."""
    first: dict[object, int] = {}
    return tuple([first.setdefault(owner, k) for k, owner in enumerate(owners)])


def aliases(step: FusedNode, graph: Graph) -> tuple[int, ...]:
    """For each argument the first one in its storage, or, for operations over lists, that is it."""
    lists = isinstance(step.op.body, ForEach)
    return alias_pattern([a.tensor if lists else a.storage for a in arguments_of(step, graph)])


def lower_graph(graph: Graph, layout: Layout, fused: Sequence[FusedNode], target: Target) -> Plan:
    """The plan of fused calls."""
    lowered = [lower(step.op, aliases(step, graph), target) for step in fused]
    sizes = [size for one in lowered for size in one.temporaries]
    storages = len(layout.storages)
    errors = storages + len(sizes)
    kernels: dict[Kernel, int] = {}
    steps: list[Step | Clear] = []
    origins: list[tuple[int, ...]] = []
    labels: list[Label] = []
    operators: dict[int, str] = {}
    base = storages
    read_first, written = _first_uses(graph, layout, fused)
    if graph.interface is not None:  # nobody brings what has no contents: it is zero
        zeros = [Clear(n, whole_words(_bindable(layout.storages[n].size_bytes))) for n in sorted(read_first)]
        read_first, steps = set(), [*zeros]
        origins += [()] * len(zeros)
        labels += [Label("zeros", clear.size_bytes) for clear in zeros]
    for step, one in zip(fused, lowered, strict=True):
        start = len(steps)
        steps += _steps(graph, layout, step, one, base, errors, kernels)
        base += len(one.temporaries)
        origins += [step.nodes] * (len(steps) - start)
        labels += _labels(step, one)
        if any(ERRORS in launch.bindings for launch in one.launches):
            operators[step.op.id] = step.op.flag_name
    buffers = [_buffer(s, n in read_first, n in written) for n, s in enumerate(layout.storages)]
    buffers += [BufferSpec(size, "temporary") for size in sizes]
    buffers.append(BufferSpec(ERROR_FLAG_BYTES, "errors"))
    steps += _untouched_outputs(graph, buffers, steps)
    origins += [()] * (len(steps) - len(origins))
    labels += [Label("zeros", step.size_bytes) for step in steps[len(labels) :] if isinstance(step, Clear)]
    plan = _numbered(graph, layout, buffers, kernels, steps)
    return replace(plan, origins=tuple(origins), labels=tuple(labels), operators=tuple(sorted(operators.items())))


def _labels(step: FusedNode, lowered: Lowered) -> Iterator[Label]:
    """Of each step of a fused call. What it reads and writes are the tensors that it binds, each once."""
    yield from [Label(step.op.name, lowered.temporaries[t]) for t in lowered.cleared]
    sizes = [*map(tensor_bytes, step.op.tensors), *lowered.temporaries]
    if len(lowered.launches) == 1 and not lowered.temporaries:
        yield Label(step.op.name, sum(sizes))
        return
    for launch in lowered.launches:
        yield Label(step.op.name, sum([sizes[k] for k in launch.bindings if k != ERRORS]))


def tensor_bytes(spec: Spec) -> int:
    """The bytes of the distinct elements of a tensor."""
    return prod([n for n, stride in zip(spec.shape, spec.strides) if stride or n == 0]) * BY_NAME[spec.dtype].itemsize


def _steps(
    graph: Graph, layout: Layout, step: FusedNode, lowered: Lowered, base: int, errors: int, kernels: dict[Kernel, int]
) -> Iterator[Step | Clear]:
    """The steps of a fused call whose temporaries are numbered from ``base`` on. ``kernels``: gains its own."""
    tensors, shifts = layout.tensors_of(arguments_of(step, graph)), step.op.shifts
    if isinstance(step.op.body, ForEach):
        shifts = tuple([s for s, n in zip(shifts, step.op.body.counts, strict=True) for _ in range(n)])
    known = [*[a.storage for a in tensors], *range(base, base + len(lowered.temporaries))]
    scalars = [scalar for n in step.scalars for scalar in graph.scalars[n]]
    for t in lowered.cleared:
        yield Clear(base + t, lowered.temporaries[t])
    for launch in lowered.launches:
        kernel = kernels.setdefault(launch.kernel, len(kernels))
        bindings = tuple([errors if k == ERRORS else known[k] for k in launch.bindings])
        words = _words(launch, [a.tensor for a in tensors], shifts, scalars)
        if graph.interface is not None:
            words = tuple([restarted(word, graph.interface.starts) for word in words])
        yield Step(kernel, bindings, words, launch.grid)


def _words(
    launch: Launch, tensors: Sequence[int], shifts: Sequence[int], scalars: Sequence[Word | float]
) -> tuple[Word, ...]:
    words: list[Word] = []
    for value, param in zip(launch.values, launch.kernel.params):
        if isinstance(value, Source) and value.kind == "offset":
            words.append(Offset(tensors[value.index], shifts[value.index]))
            continue
        number = scalars[value.index] if isinstance(value, Source) else value
        words.append(bits(number, param.type) if isinstance(number, (int, float)) else number)
    return tuple(words)


def _first_uses(graph: Graph, layout: Layout, fused: Sequence[FusedNode]) -> tuple[set[int], set[int]]:
    """The storages without contents that are read before they are written, and those that are written."""
    read_first: set[int] = set()
    written: set[int] = set()
    for step in fused:
        arguments, inputs = arguments_of(step, graph), step.op.n_inputs
        read = {a.storage for a in layout.tensors_of(arguments[:inputs])}
        read_first |= read - written
        written |= {a.storage for a in layout.tensors_of(arguments[inputs:])}
    return {n for n in read_first if layout.storages[n].origin == "new"}, written


def _buffer(storage: Storage, is_read_first: bool, is_written: bool) -> BufferSpec:
    if storage.origin == "constant":
        return BufferSpec(storage.size_bytes, "constant")
    if storage.origin == "new" and not is_read_first:
        return BufferSpec(_bindable(storage.size_bytes), "output" if storage.live else "temporary")
    role: Role = "state" if is_written else "weight" if storage.origin == "weight" else "input"
    return BufferSpec(storage.size_bytes, role, not storage.live, storage.name)


def _bindable(size_bytes: int) -> int:
    """The size of a buffer that kernels bind: an empty tensor's has room for an element, since WebGPU binds no range
    that is shorter.
    """
    return size_bytes or MOST_ELEMENT_BYTES


def _untouched_outputs(graph: Graph, buffers: Sequence[BufferSpec], steps: Sequence[Step | Clear]) -> Iterator[Clear]:
    """What fills the outputs of a function that it made and did not write."""
    if graph.interface is not None:
        used = {buffer for step in steps for buffer in touched(step)}
        for number in dict.fromkeys([output.storage for output in graph.interface.outputs]):
            if buffers[number].role == "output" and number not in used and buffers[number].size_bytes:
                yield Clear(number, whole_words(buffers[number].size_bytes))


def _numbered(
    graph: Graph,
    layout: Layout,
    buffers: Sequence[BufferSpec],
    kernels: Mapping[Kernel, int],
    steps: Sequence[Step | Clear],
) -> Plan:
    """The plan, its buffers numbered by role, without temporaries that nothing touches."""
    used = {buffer for step in steps for buffer in touched(step)}
    arguments = [
        number for number, storage in enumerate(layout.storages) if _is_argument(storage, buffers[number].role)
    ]
    kept = used.union(arguments)
    order = [n for roles in ORDER for n, buffer in enumerate(buffers) if buffer.role in roles and n in kept]
    order.append(len(buffers) - 1)
    numbers = {old: new for new, old in enumerate(order)}
    interface = graph.interface
    if interface is None:
        tensors: Sequence[int] = [numbers[owner] for owner in layout.owners]
    else:
        tensors = [numbers[view.storage] for view in interface.inputs]
        arguments.sort(key=numbers.__getitem__)
    constants = {} if interface is None else {numbers[n]: data for n, data in interface.constants.items()}
    digests = {number: sha256(data).hexdigest() for number, data in constants.items()}
    return Plan(
        buffers=tuple([buffers[n] for n in order]),
        kernels=tuple(kernels),
        steps=tuple([rebound(step, numbers) for step in steps]),
        arguments=tuple([numbers[n] for n in arguments]),
        tensors=tuple(tensors),
        inputs=() if interface is None else _specs(interface.inputs, numbers),
        outputs=() if interface is None else _specs(interface.outputs, numbers),
        constants=tuple(sorted(digests.items())),
        random_blocks=0 if interface is None else interface.random_blocks,
        result=None if interface is None else interface.result,
        contents={digests[number]: data for number, data in constants.items()},
    )


def _is_argument(storage: Storage, role: Role) -> bool:
    return storage.external or role not in ("temporary", "output")


def _specs(views: Sequence[TensorView], numbers: Mapping[int, int]) -> tuple[TensorSpec, ...]:
    return tuple([TensorSpec(numbers[view.storage], *view[1:]) for view in views])
