"""Dtypes by name: PyTorch's that the device stores, and those of the program's own (``torch_webgpu.extend.dtypes``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_webgpu.dtypes import ROWS
from torch_webgpu.errors import NotRegisteredError, did_you_mean

if TYPE_CHECKING:
    from torch_webgpu.extend.dtypes import DTypeConfig, RegisteredDType


@dataclass(frozen=True)
class DTypeInfo:
    """An element type.

    ``bits`` of an element (of one of the program's own, on average); ``wgsl``: the type that kernels compute in, empty
    for what is only stored; ``is_custom``: of the program's own, whose ``config`` says more.
    """

    name: str
    dtype: torch.dtype
    bits: float
    wgsl: str
    is_floating_point: bool
    is_complex: bool
    is_custom: bool = False
    config: DTypeConfig | None = None


STORED = {row.torch: row for row in ROWS}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _table() -> Any:
    from torch_webgpu.extend import dtypes  # which defines operators

    return dtypes


def register_dtype(config: DTypeConfig, *, override: bool = False) -> RegisteredDType:
    """Registers an element type over plain tensors, and returns what makes tensors of it.

    Raises DTypeAlreadyRegisteredError, a ValueError, for a name that is taken, unless ``override``.
    """
    registered: RegisteredDType = _table().register_dtype(config, override=override)
    return registered


def unregister_dtype(name: str) -> DTypeConfig:
    """Forgets a dtype of the program's own. NotRegisteredError, a LookupError, where there is none."""
    config: DTypeConfig = _table().unregister_dtype(name)
    return config


def list_custom_dtypes() -> list[str]:
    """The names of the program's own dtypes."""
    return list(_table().registered())


def list_dtypes() -> list[str]:
    """The names of PyTorch's dtypes that the device stores, and of the program's own."""
    return [*map(_name, STORED), *list_custom_dtypes()]


def has_dtype(name: str | torch.dtype) -> bool:
    """Whether the device stores PyTorch's dtype of this name, or the program has registered one."""
    return (_name(name) if isinstance(name, torch.dtype) else name) in list_dtypes()


def get_dtype(name: str) -> torch.dtype | RegisteredDType:
    """PyTorch's dtype of a name, or the program's own. NotRegisteredError, a LookupError, where there is none."""
    for dtype in STORED:
        if _name(dtype) == name:
            return dtype
    if name in _table().registered():
        registered: RegisteredDType = _table().get_dtype(name)
        return registered
    raise NotRegisteredError(f"there is no dtype {name!r}{did_you_mean(name, list_dtypes())}")


def get_dtype_info(name: str | torch.dtype) -> DTypeInfo:
    """What is known of a dtype. NotRegisteredError, a LookupError that says *did you mean*, where there is none."""
    found = get_dtype(_name(name) if isinstance(name, torch.dtype) else name)
    if isinstance(found, torch.dtype):
        row = STORED[found]
        wgsl = row.compute if row.kind else ""
        return DTypeInfo(_name(found), found, row.bits, wgsl, found.is_floating_point, found.is_complex)
    config = found.config
    return DTypeInfo(
        name=config.name,
        dtype=config.dtype,
        bits=sum(8 * part.dtype.itemsize / part.elements for part in config.parts.values()),
        wgsl="",
        is_floating_point=config.dtype.is_floating_point,
        is_complex=config.dtype.is_complex,
        is_custom=True,
        config=config,
    )
