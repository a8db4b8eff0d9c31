"""``torch.use_deterministic_algorithms(True)``: sums and copies through indices in an order that timing has no part in.

Floating-point atomics add in whatever order threads come, and of several writes to an element any one may be the last.
In deterministic mode the points are sorted by the element they name instead: each element then adds its points, or
takes the last of them, in their order. What has no such form raises, or warns, as PyTorch does.
"""

from __future__ import annotations

import warnings

import torch

from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.embedding_bag import SUM, lower_embedding_bag

from .operations import record_kernel
from .torch_abi import is_deterministic

ALERT = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True{})'. "
    "{}You can {}file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
    "deterministic support for this operation."
)
WAYS_OUT = (
    "You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's "
    "acceptable for your application. "
)


def alert_not_deterministic(name: str) -> None:
    """RuntimeError in deterministic mode, or a warning where the mode only warns, in PyTorch's words."""
    if not is_deterministic():
        return
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(ALERT.format(name, ", warn_only=True", "", ""), stacklevel=2)
    else:
        raise RuntimeError(ALERT.format(name, "", WAYS_OUT, "also "))


def sums_by_key(rows: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
    """The sums (``count``, features) of the float32 or complex64 ``rows`` (n, features) that have each of the ``keys``
    (n) 1, 2, …, added in order. Rows with other keys count for nothing.
    """
    if rows.is_complex():
        return torch.view_as_complex(sums_by_key(parts(rows), keys, count).view(count, rows.shape[1], 2))
    ordered, places = keys.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(1, count + 2, device=keys.device))
    sums = rows.new_empty((count, rows.shape[1]))
    sizes, largest = keys.new_empty(count), keys.new_empty((1, 1))
    if sums.numel():
        body = Extern(lower_embedding_bag, (SUM, -1, False))
        record_kernel("sums_by_key", [rows, places, starts], [sums, sizes, largest], body)
    return sums


def parts(rows: torch.Tensor) -> torch.Tensor:
    """Complex rows (n, features) as (n, 2 * features) real ones."""
    return torch.view_as_real(rows.resolve_conj()).reshape(rows.shape[0], -1)


def last_of_each_key(keys: torch.Tensor) -> torch.Tensor:
    """For each of ``keys`` (n), the place of the last one that is equal to it: what is copied from there to each of
    them may be written in any order.
    """
    ordered, places = keys.sort(stable=True)
    return places.index_select(0, torch.searchsorted(ordered, keys, right=True) - 1)
