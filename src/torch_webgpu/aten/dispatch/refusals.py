"""What CPU PyTorch says of arguments that it refuses, in its own words.

PyTorch's meta kernels are often written in Python and refuse in words, or with exceptions, of their own; some let
through what the kernels of every device refuse. Only the CPU's kernel knows what it says: it is asked with zeros, off
every path that a call that works takes twice.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

_thread = threading.local()
MAX_BYTES = 1 << 24
"""Of all tensors together; for larger arguments asking would take time and memory that nobody expects of an error."""

UNCHECKED = frozenset(
    {"_convert_indices_from_coo_to_csr", "_native_batch_norm_legit", "_pdist_forward", "_transform_bias_rescale_qkv"}
)
"""Operators whose kernels on the CPU end the process for some arguments: they look at less than meta kernels do."""


def may_end_process(
    overload: OpOverload, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Whether the CPU's kernel may trust its arguments, as PyTorch's own code calls it, or one is a number in the place
    of a dtype, which C++ believes to be one: what it says is not asked.
    """
    name = overload._schema.name.split("::")[1]
    if name in UNCHECKED or name.endswith("_backward"):
        return True
    arguments = overload._schema.arguments
    given = {a.name: value for a, value in zip(arguments, args)} | dict(kwargs)
    dtypes = [a.name for a in arguments if "ScalarType" in str(a.real_type)]
    return any(isinstance(given.get(dtype), int) for dtype in dtypes)


@contextmanager
def cpu_forbidden() -> Iterator[None]:
    """The CPU is asked nothing in this thread meanwhile: what would run there raises FallbackError, and is not counted;
    what is refused is refused in the words of PyTorch's meta kernels.
    """
    before = is_cpu_forbidden()
    _thread.forbids = True
    try:
        yield
    finally:
        _thread.forbids = before


def is_cpu_forbidden() -> bool:
    """Whether this thread is in :func:`cpu_forbidden`."""
    return getattr(_thread, "forbids", False)


def refusal(
    overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], of_dtypes: bool = False
) -> Exception | None:
    """What ``overload`` raises on the CPU for arguments with these layouts; None if nothing, or only that it has no
    kernel for a dtype, which says nothing about other devices, unless asked for (``of_dtypes``).
    """
    if is_cpu_forbidden() or may_end_process(overload, args, kwargs):
        return None
    given = [v for v in tree_leaves((tuple(args), kwargs)) if isinstance(v, torch.Tensor)]
    if sum(t.numel() * t.element_size() for t in given) > MAX_BYTES:
        return None
    try:
        host_args, host_kwargs = tree_map(_on_cpu, (tuple(args), kwargs))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            overload(*host_args, **host_kwargs)
    except NotImplementedError as error:
        return error.with_traceback(None) if of_dtypes else None
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        return error.with_traceback(None)
    return None


def check_as_cpu(overload: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Raises what the CPU's kernel raises for arguments with these layouts."""
    error = refusal(overload, args, kwargs)
    if error is not None:
        raise error


def check_parameters(method: str, dtype: torch.dtype, *parameters: Any) -> None:
    """Raises, and warns of, what the CPU's in-place ``method`` does for these numbers and a tensor of ``dtype``, which
    it looks at before it looks at elements. No random number of the CPU's is drawn."""
    getattr(torch.empty(0, dtype=dtype, device="cpu"), method)(*parameters)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            return value
        # As many bytes as the layout needs: zeros are also indices that every dimension has.
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu").zero_()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return None
    return value
