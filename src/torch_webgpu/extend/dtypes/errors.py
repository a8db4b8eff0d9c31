"""What goes wrong with element types of a program's own, as exceptions that PyTorch users already catch.

What an operator refuses is no TypeError: Python's ``x + y`` would take one for "ask the other operand", and say nothing
of it. PyTorch raises RuntimeError and NotImplementedError there, too.
"""

from __future__ import annotations

from torch_webgpu.errors import AlreadyRegisteredError, NotRegisteredError, RegistryError


class DTypeNotFoundError(NotRegisteredError):
    """No dtype of this name is registered."""


class DTypeAlreadyRegisteredError(AlreadyRegisteredError):
    """Another dtype of this name is registered."""


class DTypeComponentsMismatchError(RegistryError, ValueError):
    """Component tensors that do not fit the dtype, or each other."""


class DTypePromotionError(RuntimeError):
    """Two dtypes meet in an operator, and neither says what the result's is."""


class MethodDTypeNotSupportedError(RegistryError, NotImplementedError):
    """An operator that the dtype does not define."""
