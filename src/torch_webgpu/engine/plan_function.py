"""Traced plans as functions of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import WebGPUError
from torch_webgpu.ir.operation import Spec, check_addressable
from torch_webgpu.layout import MAX_INDEX, extent
from torch_webgpu.plan import Plan, TensorSpec, arranged, wrong_contents

from . import flush_reason
from .executable import BoundMemory, Executable
from .generators import default_state
from .interrupt import Uninterrupted
from .lists import make_tensors
from .store import address_of, offset_in_allocation
from .sync import upload
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation, Image, Template

if TYPE_CHECKING:
    from torch_webgpu.runtime.opened import Opened

    from .record import Engine

INPUT_ALIGNMENT_BYTES = 16
"""Kernels move four elements at a time where a traced tensor started at its allocation's start."""
MANY = 8
"""Outputs that are made faster together than one by one."""


class PlanFunction:
    """A plan as a function of tensors: ``function(*inputs)`` runs it on webgpu tensors, without waiting.

    The inputs have the plan's dtypes, shapes and strides, and may be nested in tuples, lists and dictionaries as those
    were that were traced. Returns new tensors arranged as the traced function returned them; what that wrote into its
    inputs is written. ValueError for other tensors. Every method is thread-safe.
    """

    def __init__(self, engine: Engine, plan: Plan, index: int, contents: Mapping[str, bytes]) -> None:
        self.plan = plan
        self._engine = engine
        self._index = index
        self._device = engine.device(index)
        if plan.result is None:
            raise WebGPUError("this plan is of a batch: it does not say what it is given and what it returns")
        self._result = plan.result
        missing = [digest for _, digest in plan.constants if digest not in contents]
        if missing:
            raise WebGPUError(
                f"this plan has {len(plan.constants)} constants and {len(missing)} are not at hand, such as "
                f"{missing[0][:12]}…: load it with Plan.load, which has them, or pass their bytes as contents"
            )
        if wrong := [*wrong_contents(plan, contents)]:
            raise WebGPUError(f"this plan cannot have these constants: {'; '.join(wrong)}")
        self._executable = Executable(plan, self._device)
        self._constants = {number: self._constant(contents[digest]) for number, digest in plan.constants}
        roles = [plan.buffers[number].role for number in plan.arguments]
        output_buffers = [number for number, role in zip(plan.arguments, roles) if role == "output"]
        alone = {number: self._alone(number) for number in output_buffers}
        self._templates = [self._template(number, spec) for number, spec in alone.items()]
        self._image = Image(self._templates) if len(output_buffers) >= MANY else None
        self._inputs_by_buffer = {spec.buffer: k for k, spec in enumerate(plan.inputs)}
        self._pointers: list[int] = []  # of the last run's inputs; an executable never sees one address twice
        positions = {number: position for position, number in enumerate(plan.arguments)}
        self._input_positions = [positions[spec.buffer] for spec in plan.inputs]
        self._output_positions = [positions[number] for number in output_buffers]
        self._order = {number: k for k, number in enumerate(output_buffers)}
        # Of each output which of the new tensors it is, or where it lies.
        self._outputs = [self._order[t.buffer] if alone.get(t.buffer) else t for t in plan.outputs]
        self._new = frozenset(self._output_positions)
        self._allocations: list[Any] = [None] * len(plan.arguments)  # of the last run
        for number, t in self._constants.items():
            self._allocations[positions[number]] = engine.allocation(t)
        self._starts: list[int] = []
        self._memory: BoundMemory | None = None  # of the last run, where all but its outputs had memory
        self._relocations = 0  # the engine's then

    def _constant(self, data: bytes) -> torch.Tensor:
        t = self._engine.empty((len(data),), torch.uint8, self._index)
        upload(t, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return t

    def _alone(self, number: int) -> TensorSpec | None:
        """The output that is all of a buffer."""
        specs = [spec for spec in self.plan.outputs if spec.buffer == number]
        first = specs[0]
        whole = (
            extent(first.shape, first.strides) * BY_NAME[first.dtype].itemsize == self.plan.buffers[number].size_bytes
        )
        return first if len(specs) == 1 and not first.byte_offset and whole else None

    def _template(self, number: int, spec: TensorSpec | None) -> Template:
        """Of the tensor that is made for a buffer: the output that is all of it, or its bytes."""
        if spec is None:
            return self._engine.template((self.plan.buffers[number].size_bytes,), torch.uint8, self._index)
        return self._engine.template(spec.shape, BY_NAME[spec.dtype].torch, self._index, spec.strides)

    def __call__(self, *inputs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        self._check(tensors)
        return arranged(self._result, self.run(tensors, [t.data_ptr() for t in tensors]))

    def run(self, inputs: Sequence[torch.Tensor], pointers: list[int]) -> list[torch.Tensor]:
        """The outputs in order, for tensors at these addresses that are known to be what was traced."""
        engine, plan, index, device = self._engine, self.plan, self._index, self._device
        with Uninterrupted(), engine.lock:
            engine.check_process()
            engine.refuse("a plan cannot be run", index)
            # What was recorded before comes first.
            engine.flush(flush_reason.PLAN, index)
            engine.raise_pending()
            made, allocations = self._bring(inputs, pointers)
            opened = device.opened
            memory = self._memory_for(opened, allocations)
            random = default_state(index) if plan.random_blocks else None
            stream = random.reserve(plan.random_blocks) if random else (0, 0)
            try:
                device.with_room(
                    self._executable.run, opened, allocations, self._starts, (), stream=stream, memory=memory
                )
            except BaseException:
                if random:
                    random.give_back(stream, plan.random_blocks)
                raise
            engine.backpressure.submitted(device)
        return [made[spec] if isinstance(spec, int) else self._output(spec, made, inputs) for spec in self._outputs]

    def _memory_for(self, opened: Opened, allocations: Sequence[Allocation]) -> BoundMemory:
        """What :meth:`Executable.memory` says. Raises the error that is an input's value.

        Inputs that had memory in the last run have it still, and no error, as long as nothing was relocated.
        """
        memory, relocations = self._memory, self._engine.relocations
        if memory is None or relocations != self._relocations:
            self._executable.check(allocations)
            memory = self._executable.memory(opened, allocations)
            if self._new.issuperset([position for position, _ in memory.missing]):
                self._memory, self._relocations = memory, relocations
        return memory

    def failing_step(self, inputs: Sequence[torch.Tensor], pointers: list[int]) -> int | None:
        """Whose fault an exception of :meth:`run` is: see :meth:`Executable.failing_step`. Nothing runs."""
        with Uninterrupted(), self._engine.lock:
            _, allocations = self._bring(inputs, pointers)
            if any(allocation.error is not None for allocation in allocations):
                return None  # an input that was never computed
            return self._executable.failing_step(allocations, self._starts, ())

    def _bring(
        self, inputs: Sequence[torch.Tensor], pointers: list[int]
    ) -> tuple[list[torch.Tensor], list[Allocation]]:
        """New tensors for the outputs; the allocations that the executable is given."""
        if pointers is not self._pointers and pointers != self._pointers:
            self._locate(inputs, pointers)
        engine, arguments = self._engine, self._allocations
        if self._image is None:
            pairs = [engine.make_with(template) for template in self._templates]
            tensors, allocations = [t for t, _ in pairs], [a for _, a in pairs]
        else:
            tensors, allocations = make_tensors(engine, self._image)
        for position, allocation in zip(self._output_positions, allocations):
            arguments[position] = allocation
        return tensors, arguments

    def _locate(self, inputs: Sequence[torch.Tensor], pointers: list[int]) -> None:
        """Finds the allocations of the inputs that are others than the last time."""
        engine, allocations, known = self._engine, self._allocations, self._engine.mailbox.allocations
        before = self._pointers or [0] * len(inputs)
        # A list of its own: a prepared submission compares with the one that its parameters were written from.
        starts = self._starts.copy() or [0] * len(inputs)
        for k, (then, now) in enumerate(zip(before, pointers)):
            if not now:  # a tensor without elements has no address
                allocations[self._input_positions[k]] = engine.allocation(inputs[k])
                starts[k] = offset_in_allocation(inputs[k])
            elif now != then:
                allocations[self._input_positions[k]] = allocation = known[now >> ADDRESS_BITS]
                starts[k] = (now & OFFSET_MASK) - FIRST_BYTE
                if allocation.size_bytes > MAX_INDEX:
                    spec = self.plan.inputs[k]
                    check_addressable(f"input {k} of a plan", Spec(spec.dtype, spec.shape, spec.strides), starts[k])
        self._pointers, self._starts, self._memory = pointers, starts, None

    def _check(self, inputs: Sequence[torch.Tensor]) -> None:
        """ValueError if they are not what was traced."""
        if len(inputs) != len(self.plan.inputs):
            raise ValueError(f"this plan takes {len(self.plan.inputs)} tensors, not {len(inputs)}")
        for k, (t, spec) in enumerate(zip(inputs, self.plan.inputs)):
            start = offset_in_allocation(t)
            if (
                t.device != torch.device("webgpu", self._index)
                or t.dtype != BY_NAME[spec.dtype].torch
                or tuple(t.shape) != spec.shape
                or t.stride() != spec.strides
                or start % INPUT_ALIGNMENT_BYTES
            ):
                raise ValueError(
                    f"input {k} is a {t.dtype} tensor of shape {tuple(t.shape)}, strides {t.stride()} on {t.device}, "
                    f"{start} bytes into its allocation; the plan was traced for {BY_NAME[spec.dtype].torch}, "
                    f"{spec.shape}, {spec.strides} on webgpu:{self._index}, at a multiple of {INPUT_ALIGNMENT_BYTES}"
                )
        storages = [address_of(t) >> ADDRESS_BITS for t in inputs]
        for k, spec in enumerate(self.plan.inputs):
            if self.plan.buffers[spec.buffer].role == "state" and storages.count(storages[k]) > 1:
                raise ValueError(f"input {k}, which the plan writes, shares its storage with another input")

    def _output(self, spec: TensorSpec, made: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor of a buffer, or in it, or in the input that it is a view of."""
        dtype = BY_NAME[spec.dtype].torch
        first = spec.byte_offset // dtype.itemsize
        if spec.buffer in self._inputs_by_buffer:
            t = inputs[self._inputs_by_buffer[spec.buffer]]
            if t.dtype != dtype:  # only a flat tensor of any layout may be viewed as any dtype
                t = _viewed(t.as_strided((extent(t.shape, t.stride()),), (1,), t.storage_offset()), dtype)
            return t.as_strided(spec.shape, spec.strides, int(t.storage_offset()) + first)
        if spec.buffer in self._constants:  # the caller may write into what it is given
            return _viewed(self._constants[spec.buffer], dtype).as_strided(spec.shape, spec.strides, first).clone()
        return _viewed(made[self._order[spec.buffer]], dtype).as_strided(spec.shape, spec.strides, first)


def _viewed(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor as one of another dtype, as many whole elements as it has."""
    rest = flat.numel() * flat.itemsize % dtype.itemsize
    return (flat[: -(rest // flat.itemsize)] if rest else flat).view(dtype)
