"""Sparse tensors on webgpu: PyTorch's own classes, over indices and values that are webgpu tensors.

PyTorch makes them for any device (``new_with_dims_and_tensor_sparse`` in aten/src/ATen/native/sparse/SparseTensor.cpp),
and most of their operators are C++ that only calls operators on the indices and values: one function serves the CPU and
CUDA, under the names of both, and serves webgpu here. Those that read memory have two, and kernels of their own in
:mod:`.sparse_kernels`, else run on the CPU, counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import (
    aten,
    impl,
    library,
    overload_named,
    overloads,
    overloads_with_kernel,
    shared_kernel,
)

from .sparse_indices import both_indices, row_starts, validate

KEYS = {"SparsePrivateUse1": "SparseCPU", "SparseCsrPrivateUse1": "SparseCsrCPU"}
"""This device's dispatch keys of sparse tensors → the CPU's."""

READ_MEMORY = {
    "SparseCPU": frozenset(
        (
            "_coalesce _pin_memory _sparse_log_softmax _sparse_log_softmax_backward_data _sparse_mask_projection "
            "_sparse_softmax _sparse_softmax_backward_data _sparse_sparse_matmul _sparse_sum_backward add.out addmm "
            "addmm_ addmm.out bmm hspmm index_select is_pinned mul.out sspaddmm"
        ).split()
    ),
    "SparseCsrCPU": frozenset(
        (
            "_pin_memory _sparse_csr_prod _sparse_csr_sum _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward "
            "add.out addmm.out addmv.out baddbmm.out bmm.out is_pinned sparse_sampled_addmm triangular_solve.X"
        ).split()
    ),
}
"""Operators, or single overloads, with functions of the CPU's own (native_functions.yaml of PyTorch)."""


def reads_memory(overload: OpOverload, key: str) -> bool:
    name = overload.name().removeprefix("aten::")
    return not {name, name.split(".")[0]}.isdisjoint(READ_MEMORY[key])


def on_cpu(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return run_on_cpu(overload, args, kwargs, "it has no kernel for sparse webgpu tensors")


@cache
def kernel_of(key: str, overload: OpOverload) -> Callable[..., Any]:
    # A program without sparse tensors does not pay for them.
    from . import sparse_kernels, sparse_reduce, sparse_softmax

    kernels: Mapping[OpOverload, Callable[..., Any]]
    if key == "SparsePrivateUse1":
        kernels = {**sparse_kernels.COO, **sparse_softmax.KERNELS}
    else:
        kernels = {**sparse_kernels.COMPRESSED, **sparse_reduce.KERNELS}
    if overload in kernels:
        return kernels[overload]
    if reads_memory(overload, KEYS[key]):
        return partial(on_cpu, overload)
    return shared_kernel(overload, KEYS[key])


def run(key: str, overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return kernel_of(key, overload)(*args, **kwargs)


def register_sparse() -> None:
    """Kernels for what takes sparse tensors on the CPU; the rest raises there what it raises.

    By name, though a fallback would do for most: PyTorch composes some for tensors of other kinds.
    """
    for key, cpu_key in KEYS.items():
        for name in overloads_with_kernel(cpu_key):
            overload = overload_named(name)
            library(key).impl(overload, partial(run, key, overload), key)
        library(key, "_").fallback(on_cpu, key)


# Operators of dense tensors that make sparse ones, or their indices

MAKERS = ("_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc")


def register() -> None:
    register_sparse()
    for name in MAKERS:
        for overload in overloads(name).values():
            if "out" not in overload._overloadname:
                impl(overload, shared_kernel(overload, "CPU"))
    register_operator(aten._convert_indices_from_coo_to_csr.default, row_starts)
    register_operator(aten._convert_indices_from_csr_to_coo.default, both_indices)
    impl(aten._validate_compressed_sparse_indices.default, validate)
