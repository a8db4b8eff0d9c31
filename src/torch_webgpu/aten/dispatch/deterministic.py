"""``torch.use_deterministic_algorithms(True)``: sums and copies through indices in an order that timing has no part in.

Floating-point atomics add in whatever order threads come, and of several writes to an element any one may be the last.
In deterministic mode the points are sorted by the element they name instead (``aten/indexing/sums.py``): each element
then adds its points in an order that follows from the indices, or takes the last of them. What has no such form raises,
or warns, as PyTorch does.
"""

from __future__ import annotations

import warnings

import torch

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


def last_of_each_key(keys: torch.Tensor) -> torch.Tensor:
    """For each of ``keys`` (n), the place of the last one that is equal to it: what is copied from there to each of
    them may be written in any order.
    """
    ordered, places = keys.sort(stable=True)
    return places.index_select(0, torch.searchsorted(ordered, keys, right=True) - 1)
