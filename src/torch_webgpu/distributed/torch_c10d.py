"""The private parts of ``torch.distributed`` that this package leans on, each in one place."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup
from torch._C._distributed_c10d import Work as Work
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import BACKEND_KEY, DEVICE_TYPE, SKIP_FRAME, eval_frame, library

gloo_class: Any = c10d.ProcessGroupGloo
HashStore, PrefixStore = c10d.HashStore, c10d.PrefixStore
GLOO = ProcessGroup.BackendType.GLOO
CPU, WEBGPU = torch.device("cpu"), torch.device(DEVICE_TYPE)
UNKNOWN_OPERATION = 100
"""``OpType::UNKNOWN``, which the works of Python have."""
_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
LAZY_THREADS = 2
"""As many as gloo has by default."""


def operator(name: str) -> OpOverload:
    """An operator of ``c10d``, in which every caller of a collective ends."""
    overload: OpOverload = getattr(torch.ops.c10d, name).default
    return overload


def position(overload: OpOverload, argument: str) -> int | None:
    """Which argument of an operator has this name, counted from 0; None if none has."""
    names = [a.name for a in overload._schema.arguments]
    return names.index(argument) if argument in names else None


def register_kernel(overload: OpOverload, kernel: Callable[..., Any], key: str = BACKEND_KEY) -> None:
    """Has an operator of ``c10d`` call ``kernel`` with tensors of webgpu. Dynamo does not look into it.

    ``key``: the dispatch key of those tensors, where they are not dense.
    """
    eval_frame.set_code_exec_strategy(kernel.__code__, SKIP_FRAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # C++ warns of kernels that replace others
        library(key, "c10d").impl(overload, kernel, key, allow_override=True)


def call_backend(overload: OpOverload, args: Sequence[Any]) -> Any:
    """What an operator returns whose tensors, of any device, go as they are to the group's backend for the CPU's."""
    return overload.redispatch(_CPU_KERNELS, *args)


def unboxed_group(box: Any) -> Any:
    """The process group in an argument of an operator."""
    return ProcessGroup.unbox(box)


def unboxed_work(returned: Any) -> Any:
    """The work in what an operator returns."""
    work = returned[-1] if isinstance(returned, (tuple, list)) else returned
    return Work.unbox(work) if isinstance(work, torch.ScriptObject) else work


_REDUCTIONS = {value.value: name.lower() for name, value in dist.ReduceOp.RedOpType.__members__.items()}


def reduction_name(reduce_op: Any) -> str:
    """That of an argument of ``ReduceOp``: "sum", "avg", "product", "min", "max", "band", "bor", "bxor"; or another."""
    return _REDUCTIONS[int(reduce_op.op())]


class _Holder(ProcessGroup):
    """C++ keeps a work of Python's alive only in a ``PyWorkHolder``, which it makes of what a Python group returns."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]
        self.work: Any = None

    def barrier(self, opts: Any = None) -> Any:
        return self.work


_holders = threading.local()


def held(work: Any) -> Any:
    """A C++ work that keeps one of Python's, and forwards ``wait`` and ``get_future`` to it."""
    holder = getattr(_holders, "holder", None)
    if holder is None:
        holder = _holders.holder = _Holder()
    holder.work = work
    try:
        return ProcessGroup.barrier(holder, c10d.BarrierOptions())
    finally:
        holder.work = None


def _operation(work: Any) -> int:
    number: int = work._get_op_type()
    return number


def is_of_python(work: Any) -> bool:
    """Whether a C++ work may be one that :func:`held` made."""
    return type(work) is Work and _operation(work) == UNKNOWN_OPERATION


def new_gloo(
    store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], name: str, connects_late: bool = False
) -> Any:
    """A gloo backend. ``connects_late``: two ranks connect when they first exchange something, else all at once."""
    if connects_late:
        options = gloo_class._Options()
        options._devices = [gloo_class.create_default_device(lazy_init=True)]
        options._timeout, options._threads = timeout, LAZY_THREADS
        gloo = gloo_class(store, rank, size, options)
    else:
        gloo = gloo_class(store, rank, size, timeout=timeout)
    gloo.options.global_ranks_in_group = list(ranks)
    gloo.options.group_name = name
    gloo._set_sequence_number_for_group()
    return gloo


def unused_part(store: Any, name: str, rank: int) -> Any:
    """A part of a store that no earlier group of this name has used. Every rank gets the same.

    The store of ``torchrun`` outlives process groups, the names of groups begin anew with the next
    ``init_process_group``, and ranks would find the addresses of the former group's processes.
    """
    made = PrefixStore(f"{name}/", store).add(f"groups of rank {rank}", 1)
    return store if made == 1 else PrefixStore(f"{made}/", store)


def checked(gloo: Any, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> Any:
    """The backend, in the wrapper that compares what the ranks ask for, where TORCH_DISTRIBUTED_DEBUG=DETAIL does."""
    if c10d.get_debug_level() != c10d.DebugLevel.DETAIL:
        return gloo
    wrap = dist.distributed_c10d._create_process_group_wrapper
    return wrap(wrapped_pg=gloo, store_prefix=name, store=store, rank=rank, world_size=size, timeout=timeout)


def group_of_one_backend(store: Any, rank: int, size: int, backend: Any) -> Any:
    """A process group that hands tensors of the CPU to ``backend``, and is nobody's but who asked for it."""
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(GLOO)
    group._register_backend(CPU, GLOO, backend)
    return group
