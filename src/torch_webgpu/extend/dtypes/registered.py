"""Registering a dtype, and making tensors of it."""

from __future__ import annotations

from typing import Any

import torch

from . import compute
from .config import DTypeConfig
from .errors import MethodDTypeNotSupportedError
from .table import add, find
from .tensor import DTypeTensor, check_components, rebuild


class RegisteredDType:
    """A registered dtype: called with a plain tensor it makes a tensor of the dtype, which holds its numbers."""

    def __init__(self, config: DTypeConfig) -> None:
        self.config = config

    @property
    def name(self) -> str:
        return self.config.name

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        """The tensor of this dtype that is nearest to ``numbers``, a plain tensor: ``config.store`` of it.

        Gradients pass straight through, as in training for quantization. DTypeComponentsMismatchError if the last
        dimension is not a multiple of ``config.block``.
        """
        if self.config.store is None:
            raise MethodDTypeNotSupportedError(
                f"{self.name} does not say how numbers are stored (DTypeConfig(store=…)): make tensors of its "
                "components, "
                f"{self.name}.from_components({', '.join(f'{name}=…' for name in self.config.components)})"
            )
        numbers = numbers.to(self.config.dtype)
        if numbers.requires_grad and torch.is_grad_enabled():
            return StraightThrough.apply(numbers, self.config)
        return compute.stored(self.config, numbers.detach())

    def from_components(self, **components: torch.Tensor) -> DTypeTensor:
        """The tensor with these components, which it shares. DTypeComponentsMismatchError if they do not fit.

        RuntimeError for components that require gradients: these flow to tensors of the dtype, not to their components.
        """
        check_components(self.config, components)
        for name, component in components.items():
            if component.requires_grad:
                raise RuntimeError(
                    f"component {name!r} requires gradients, which do not flow from a tensor of {self.name} to its "
                    f"components: {name}.detach() it, and ask for those of the tensor with requires_grad_()"
                )
        return DTypeTensor(self.config, components)

    def __repr__(self) -> str:
        return f"<dtype {self.name}>"


class StraightThrough(torch.autograd.Function):
    """Storing numbers, whose gradient is that of what is stored."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor, config: DTypeConfig) -> torch.Tensor:
        return compute.stored(config, numbers)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (compute.loaded(gradient) if isinstance(gradient, DTypeTensor) else gradient), None


def register_dtype(config: DTypeConfig, *, override: bool = False) -> RegisteredDType:
    """Registers a dtype: plain tensors as components, and how elements are loaded, computed with and stored.

    Returns what makes its tensors. ``override``: it may take the place of one of the same name. Tensors of it may be
    loaded with ``torch.load(…, weights_only=True)`` from then on. DTypeAlreadyRegisteredError for a name that is taken.

        >>> int8 = register_dtype(DTypeConfig("scaled_int8", {"codes": torch.int8, "scale": DTypeComponent(…, 32)}, …))
        >>> weight = int8(torch.randn(64, 64, device="webgpu"))
    """
    if not isinstance(config, DTypeConfig):
        raise TypeError(f"register_dtype takes a DTypeConfig, and not {type(config).__name__}")
    add(config, override)
    torch.serialization.add_safe_globals([rebuild, DTypeTensor])
    return RegisteredDType(config)


def get_dtype(name: str) -> RegisteredDType:
    """The registered dtype of this name. DTypeNotFoundError, a LookupError, if there is none."""
    return RegisteredDType(find(name))
