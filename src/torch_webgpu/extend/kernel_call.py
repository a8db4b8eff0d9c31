"""Calls of a program's kernels, recorded as every operator's are: batched, ordered, and part of plans.

:func:`recorder` is what callers keep: its calls cost what a built-in operator's do. :func:`record_shader` looks at
everything anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any

import torch

from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.compiler.passes.lowering import alias_pattern
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.layouts import copy_body, spec_of
from torch_webgpu.engine.recipe import Params
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.store import FIRST_DESCRIBED, address_of
from torch_webgpu.engine.tensor import ADDRESS_BITS
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.wgsl.expr import FLOAT_MAX, split_scalar
from torch_webgpu.wgsl.launch import MAX_GROUPS

from .shader_arguments import (
    check_count,
    check_number,
    check_range,
    constant_texts,
    flattened,
    needs_start,
    number_kinds,
    prepared,
    sized_constants,
)
from .shader_errors import check_entry, explained
from .shader_kernel import KINDS, ShaderCall, lower_shader
from .shader_source import EntryPoint
from .shader_uses import uses_of
from .shader_variant import Triple, Variant, workgroup_size

MAX_DIMENSIONS = 3
Record = Callable[..., Any]
"""What it returns means nothing."""


def record_shader(
    entry: EntryPoint,
    arguments: Sequence[Any],
    *,
    threads: Sequence[int] | int | None = None,
    group_size: Sequence[int] | int | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str = "",
) -> None:
    """Records one call of a kernel, which reads and writes tensors of one webgpu device.

    ``arguments``: tensors and numbers in the order of ``entry.resources``. ``threads``: how many in all, along up to
    three dimensions; by default one for each element of the first tensor. ``group_size``: of a workgroup, by default
    what the text says. ``constants``: values of override constants. ``name``: what profiles and plans call it.

    Raises TypeError, ValueError or ValueError for arguments that do not fit, ShaderCompileError for a kernel that
    does not compile.
    """
    recorder(entry, group_size=group_size, constants=constants, name=name, is_kept=False)(*arguments, threads=threads)


def recorder(
    entry: EntryPoint,
    *,
    group_size: Sequence[int] | int | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str = "",
    is_kept: bool = True,
) -> Record:
    """A function that records calls of a kernel: ``record(*arguments)`` or ``record(*arguments, threads=[…])``.

    Calls like an earlier one are recognised by their signature. ``is_kept``: whether there will be any.
    """
    uses_of(entry)
    size = None if group_size is None else checked_size("group_size", group_size, least=1)
    if size is not None:
        constants = sized_constants(entry, size, constants)
    kernel = _Kernel(entry, Variant(entry, constant_texts(entry, constants), size), name or entry.name)
    if not is_kept or needs_start(entry):
        call: Record = kernel
    else:
        call = record_once(kernel, kernel.numbers)
    return _flattening(entry, kernel.kinds, call) if kernel.is_composite else call


def _flattening(entry: EntryPoint, kinds: Mapping[int, list[str]], call: Record) -> Record:
    def record(*arguments: Any, **threads: Any) -> None:
        call(*flattened(entry, arguments, kinds), **threads)

    return record


class _Kernel:
    """A kernel with its constants, as a function that records a call."""

    def __init__(self, entry: EntryPoint, variant: Variant, name: str) -> None:
        self.entry, self.variant, self.name = entry, variant, name
        self.kinds = number_kinds(entry)
        self.is_composite = any(len(kinds) > 1 for kinds in self.kinds.values())
        self._places: list[tuple[int, str, str, int]] = []  # of numbers: argument, kind, type, its place in the text
        self._tensors: list[int] = []
        self._written: list[int] = []
        at = 0
        for k, resource in enumerate(entry.resources):
            if resource.is_tensor:
                self._tensors.append(at)
                if resource.is_written:
                    self._written.append(at)
                at += 1
                continue
            for kind in self.kinds[k]:
                self._places.append((at, KINDS[kind], kind, k))
                at += 1
        self._count = at
        self.__name__ = self.__qualname__ = name
        if not self._tensors:
            raise ValueError(f"{entry.name} has no storage buffer among its arguments: nothing could be seen of it")

    def numbers(self, values: Sequence[Any]) -> Params:
        """The parameters of the operation: the numbers among the arguments."""
        params: list[int | float] = []
        for at, kind, type_, argument in self._places:
            value = values[at]
            if kind == "f" and value.__class__ is float and -FLOAT_MAX <= value <= FLOAT_MAX:
                params.append(value)  # without a call, as often
                continue
            if kind != "f":
                check_range(self.entry, argument, int(value), type_)
            params += split_scalar(value, kind)
        return tuple(params)

    def __call__(self, *arguments: Any, threads: Sequence[int] | int | None = None) -> Any:
        """Returns the tensor that is written, if it is one: the next call like this is recorded fastest then."""
        entry = self.entry
        if len(arguments) != self._count:
            check_count(entry, arguments)
        for at, _, type_, argument in self._places:
            check_number(entry, argument, arguments[at], type_)
        tensors = [arguments[at] for at in self._tensors]
        ready = prepared(entry, tensors)
        total = checked_size("threads", [tensors[0].numel()] if threads is None else threads, least=0)
        call = ShaderCall(self.variant, total)
        device = tensors[0].get_device()
        self._check_groups(call, device)
        if 0 not in total:
            written = [t for t, use in zip(ready.tensors, uses_of(entry).tensors.values(), strict=True)
                       if use.resource.is_written]  # fmt: skip
            kinds = [kind for _, kind, _, _ in self._places]
            scalars = list(zip(kinds, [arguments[at] for at, _, _, _ in self._places], strict=True))
            body = Extern(lower_shader, (call,))
            self._compile(ready.tensors, written, body, tuple(kinds), device)
            engine().record(self.name, ready.tensors, written, body, (), scalars)
            for source, target in ready.copies_back:
                engine().record("copy", [source], [target], copy_body)
        return arguments[self._written[0]] if len(self._written) == 1 and not ready.copies_back else None

    def _check_groups(self, call: ShaderCall, index: int) -> None:
        """Raises ValueError for workgroups that the device cannot run, or too many of them."""
        device = engine().device(index)
        size, limits, target = workgroup_size(self.variant), device.limits, device.target
        count = size[0] * size[1] * size[2]
        if count > target.workgroup_threads:
            raise ValueError(
                f"{self.entry.name}: a workgroup of {_shown(size)} is {count} threads, and this adapter allows "
                f"{target.workgroup_threads}"
            )
        for d, axis in enumerate("xyz"):
            most = limits.get(f"max-compute-workgroup-size-{axis}", count)
            if size[d] > most:
                raise ValueError(
                    f"{self.entry.name}: a workgroup of {_shown(size)} has more than the {most} threads along {axis} "
                    "that this adapter allows"
                )
        groups = [-(-t // s) for t, s in zip(call.threads, size, strict=True)]
        parameters = self.entry.source.module.by_name[self.entry.name].signature
        assert parameters is not None
        is_row = groups[1:] == [1, 1] and all(p.builtin for p in parameters.parameters)
        for d, axis in enumerate("xyz"):
            if groups[d] > MAX_GROUPS and not (d == 0 and is_row):
                raise ValueError(
                    f"{self.entry.name}: {_shown(call.threads)} threads in workgroups of {_shown(size)} are "
                    f"{groups[d]} workgroups along {axis}, and WebGPU runs at most {MAX_GROUPS}: make the workgroups "
                    "larger, or use threads along x alone, with builtins that are parameters"
                )
        check_entry(self.variant, target)

    def _compile(
        self,
        tensors: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        body: Extern,
        kinds: tuple[str, ...],
        index: int,
    ) -> None:
        """Compiles the kernel, so that what is wrong with it is raised where it is called."""
        if index >= FIRST_DESCRIBED:
            return
        both = (*tensors, *written)
        op = Operation(self.name, tuple(map(spec_of, both)), len(written), body, kinds)
        eng, device = engine(), engine().device(index)
        alias = alias_pattern([address_of(t) >> ADDRESS_BITS for t in both])
        (launch,) = lower(op, alias, device.target).launches
        try:
            with Uninterrupted(), eng.lock:
                device.compile(launch.kernel)
        except ShaderCompileError as error:
            raise explained(self.variant, error, device) from None


def checked_size(what: str, value: Sequence[int] | int, least: int) -> Triple:
    """Three sizes, of which the last may be left out. TypeError and ValueError for anything else."""
    try:
        values = [index(v) for v in (value if isinstance(value, Iterable) else (value,))]
    except TypeError:
        raise TypeError(f"{what} is an int, or a tuple of up to three, not {value!r}") from None
    if not 1 <= len(values) <= MAX_DIMENSIONS or min(values) < least:
        raise ValueError(f"{what} is one to three numbers from {least} on, not {value!r}")
    x, y, z = [*values, 1, 1][:MAX_DIMENSIONS]
    return x, y, z


def _shown(size: Sequence[int]) -> str:
    """Sizes as people write them, without ones at the end: 8×8."""
    values = list(size)
    while len(values) > 1 and values[-1] == 1:
        values.pop()
    return "×".join(map(str, values))
