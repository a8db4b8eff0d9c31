"""Tests of PyTorch's own files that are known to fail on the device while they pass on the CPU, and why.

Names are ``file::Class::function`` without the device, as regular expressions. One that passes fails the run.
"""

from __future__ import annotations

import re
from functools import cache

_COPY_ON_WRITE = "_lazy_clone copies at once: a Python backend cannot make PyTorch's copy-on-write storages"
_ON_HOST = "Tensor.map_ and map2_ are only implemented on CPU tensors, as on CUDA"

_LATER = "an index out of range is noticed when the kernel runs, and raised with the next read: docs/architecture.md"
_OVERLAP = "results may go where inputs lie, and are what they would be elsewhere: PyTorch refuses that"
_ROUNDED_ONCE = "sums and products of half types are taken in float32 and rounded once; the test rounds every step"
_AS_ON_CUDA = "gradients of grid_sample are summed by atomics, as on CUDA, of which alone the test expects the alert"
_LEGACY = (
    "torch.webgpu has no legacy classes of tensors, storages and gradient scalers; the test knows CUDA's and the CPU's"
)
_STORED_ONLY = "complex32 is only stored here; what warns of it is PyTorch's allocators"
_INTEGERS = "adaptive pools take integers here, which the CPU and CUDA refuse"

EXPECTED_FAILURES: tuple[tuple[str, str], ...] = (
    (r"test_torch\.py::.*::test_(parallel_cow|lazy_clone).*", _COPY_ON_WRITE),
    (r"test_torch\.py::.*::test_broadcast_fn_map2?", _ON_HOST),
    (r"test_torch\.py::.*::test_masked_scatter_(?!bool_tensor|mem_overlap|inplace).*", _LATER),
    (r"test_indexing\.py::.*::test_(advancedindex_float64|trivial_fancy_out_of_bounds)", _LATER),
    (r"nn/test_embedding\.py::.*::test_embedding_bag_out_of_bounds_idx_.*", _LATER),
    (r"test_torch\.py::.*::test_((shift|masked_fill|index_put)_mem_overlap|copy_mem_overlap_float64)", _OVERLAP),
    (r"test_torch\.py::.*::test_index_reduce_reduce_(mean_(b?float16)|prod_float16)", _ROUNDED_ONCE),
    (r"test_torch\.py::.*::test_nondeterministic_alert_grid_sample_[23]d", _AS_ON_CUDA),
    (r"test_torch\.py::.*::test_tensor_storage_type_.*", _LEGACY),
    (r"test_torch\.py::.*::test_grad_(scaler_deprecated_warning|scaling_state_dict)", _LEGACY),
    (r"test_torch\.py::.*::test_complex_half_experimental_warning", _STORED_ONLY),
    (r"nn/test_pooling\.py::.*::test_adaptive_pooling_no_suppot_input_.*", _INTEGERS),
)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), why) for pattern, why in EXPECTED_FAILURES)


def reason(name: str) -> str | None:
    """Why the test of this name is expected to fail; None if it is not."""
    return next((why for pattern, why in _patterns() if pattern.fullmatch(name)), None)
