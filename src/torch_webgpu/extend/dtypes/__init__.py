"""Element types of a program's own: composite and sub-byte types over plain tensors (docs/custom-dtypes.md)."""

from . import display, operators  # noqa: F401  tensors compute and print with these
from .component import DTypeComponent
from .config import DTypeConfig, DTypeDisplayConfig, DTypeSerializationConfig
from .errors import (
    DTypeAlreadyRegisteredError,
    DTypeComponentsMismatchError,
    DTypeNotFoundError,
    DTypePromotionError,
    MethodDTypeNotSupportedError,
)
from .registered import RegisteredDType, get_dtype, register_dtype
from .table import registered, unregister_dtype
from .tensor import DTypeTensor

__all__ = [
    "DTypeAlreadyRegisteredError",
    "DTypeComponent",
    "DTypeComponentsMismatchError",
    "DTypeConfig",
    "DTypeDisplayConfig",
    "DTypeNotFoundError",
    "DTypePromotionError",
    "DTypeSerializationConfig",
    "DTypeTensor",
    "MethodDTypeNotSupportedError",
    "RegisteredDType",
    "get_dtype",
    "register_dtype",
    "registered",
    "unregister_dtype",
]
