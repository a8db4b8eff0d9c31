"""Traced plans bound to a device: functions of tensors that replay a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Plan, TensorSpec

from . import causes
from .interrupt import Uninterrupted
from .program import Program
from .random import default_state
from .store import address_of, offset_in_allocation
from .sync import upload
from .tensor import ADDRESS_BITS

if TYPE_CHECKING:
    from .record import Engine
    from .tensor import Allocation

INPUT_ALIGNMENT_BYTES = 16
"""Kernels move four elements at a time where a traced tensor started at its allocation's start."""


class BoundPlan:
    """``bound(*inputs)`` runs the plan on webgpu tensors of its inputs' dtypes, shapes and strides, without waiting.

    Returns new tensors arranged as the traced function returned them; what that wrote into its inputs is written.
    ValueError for other tensors. Every method is thread-safe.
    """

    def __init__(self, engine: Engine, plan: Plan, index: int, contents: Mapping[str, bytes]) -> None:
        self.plan = plan
        self._engine = engine
        self._index = index
        self._device = engine.device(index)
        self._tree = pytree.treespec_loads(plan.result)
        missing = [digest for _, digest in plan.constants if digest not in contents]
        if missing:
            raise WebGPUError(
                f"this plan has {len(plan.constants)} constants and {len(missing)} are not at hand, such as "
                f"{missing[0][:12]}…: load it with Plan.load, which has them, or pass their bytes as contents"
            )
        self._constants = {number: self._constant(contents[digest]) for number, digest in plan.constants}
        self._made = sorted({t.buffer for t in plan.outputs if plan.buffers[t.buffer].role == "output"})
        brought = len({*plan.tensors, *self._constants, *self._made})
        self._program = Program(plan, self._device, brought, range(brought), ())

    def _constant(self, data: bytes) -> torch.Tensor:
        t = self._engine.empty((len(data),), torch.uint8, self._index)
        upload(t, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return t

    def __call__(self, *inputs: torch.Tensor) -> Any:
        engine, plan = self._engine, self.plan
        starts = self._check(inputs)
        with Uninterrupted(), engine.lock:
            engine.check_process()
            engine.refuse("a plan cannot be run", self._index)
            # What was recorded before comes first.
            engine.flush(causes.PLAN, self._index)
            engine.raise_pending()
            owners = {spec.buffer: t for spec, t in zip(plan.inputs, inputs)} | self._constants
            for number in self._made:
                owners[number] = engine.empty((plan.buffers[number].size_bytes,), torch.uint8, self._index)
            allocations: list[Allocation] = [engine.allocation(owners[number]) for number in sorted(owners)]
            self._program.check(allocations)
            stream = default_state(self._index).reserve(plan.random_blocks) if plan.random_blocks else (0, 0)
            self._program.run(allocations, starts, (), stream=stream)
            engine.backpressure.submitted(self._device)
        return pytree.tree_unflatten([self._output(t, owners[t.buffer], inputs) for t in plan.outputs], self._tree)

    def _check(self, inputs: Sequence[torch.Tensor]) -> list[int]:
        """Where each input starts in its allocation, in bytes; ValueError if they are not what was traced."""
        if len(inputs) != len(self.plan.inputs):
            raise ValueError(f"this plan takes {len(self.plan.inputs)} tensors, not {len(inputs)}")
        starts = []
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
            starts.append(start)
        storages = [address_of(t) >> ADDRESS_BITS for t in inputs]
        for k, spec in enumerate(self.plan.inputs):
            if self.plan.buffers[spec.buffer].role == "inout" and storages.count(storages[k]) > 1:
                raise ValueError(f"input {k}, which the plan writes, shares its storage with another input")
        return starts

    def _output(self, spec: TensorSpec, owner: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor in ``owner``, or in the input that it is a view of."""
        dtype = BY_NAME[spec.dtype].torch
        first = spec.byte_offset // dtype.itemsize
        for given, t in zip(self.plan.inputs, inputs):
            if given.buffer == spec.buffer:
                flat = t if t.dtype == dtype else t.view(dtype)
                return flat.as_strided(spec.shape, spec.strides, int(t.storage_offset()) + first)
        return owner.view(dtype).as_strided(spec.shape, spec.strides, first)
