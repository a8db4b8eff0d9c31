"""Tensors of a registered dtype: a wrapper subclass whose components are plain tensors.

PyTorch's conventions for such subclasses: ``__torch_dispatch__`` computes, ``__tensor_flatten__`` and
``__tensor_unflatten__`` take tensors apart for ``torch.compile``, and ``__reduce_ex__`` for ``torch.save``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from torch_webgpu.errors import did_you_mean, different_devices

from .config import DTypeConfig
from .errors import DTypeComponentsMismatchError
from .table import find

NO_DIM = -1
"""The grouped dimension of a dtype whose elements share nothing."""


class DTypeTensor(torch.Tensor):
    """A tensor of a registered dtype; its components are attributes.

    ``config``: the dtype's description. ``grouped_dim``: the dimension along which elements share components'
    elements, counted from the first; -1 if they share none. ``tensor.dtype`` is what numbers are computed in.
    """

    config: DTypeConfig
    grouped_dim: int
    run_operator: ClassVar[Callable[..., Any]]
    """What :mod:`.operators` computes with, which sets itself, since it makes tensors."""
    text_of: ClassVar[Callable[..., str]]
    """What :mod:`.display` prints, which sets itself."""
    # PyTorch's own default would make a DTypeTensor of every plain result.
    __torch_function__ = torch.nn.Parameter.__torch_function__

    @staticmethod
    def __new__(
        cls: type[DTypeTensor],
        config: DTypeConfig,
        components: Mapping[str, torch.Tensor],
        grouped_dim: int | None = None,
        size: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        requires_grad: bool = False,
    ) -> DTypeTensor:
        first = _finest(config, components)
        dim = _grouped(config, first, grouped_dim)
        if size is None or stride is None:
            size, stride = _layout(config, components, dim)
        self = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=stride, dtype=config.dtype, device=first.device, requires_grad=requires_grad
        )
        self.config, self.grouped_dim = config, dim
        for name in config.components:
            setattr(self, name, components[name])
        return self

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """``__new__`` has made it."""

    @property
    def components(self) -> dict[str, torch.Tensor]:
        """The component tensors by name."""
        return {name: getattr(self, name) for name in self.config.components}

    def __tensor_flatten__(self) -> tuple[list[str], tuple[DTypeConfig, int]]:
        return list(self.config.components), (self.config, self.grouped_dim)

    @staticmethod
    def __tensor_unflatten__(
        components: Mapping[str, torch.Tensor], context: tuple[DTypeConfig, int], size: Sequence[int], stride: Any
    ) -> DTypeTensor:
        config, dim = context
        return DTypeTensor(config, components, dim, size, stride)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch annotates what subclasses without one have
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls.run_operator(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # PyTorch's is unannotated
        return type(self).text_of(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """As ``torch.save``, ``pickle`` and ``copy`` want it: the components by name, with the format's version."""
        version = self.config.serialization.version
        return rebuild, (self.config.name, version, self.components, self.grouped_dim, self.requires_grad)

    def dequantize(self) -> torch.Tensor:
        """The numbers that it holds, as a plain tensor. Gradients pass to it as they are."""
        if self.requires_grad and torch.is_grad_enabled():
            return Dequantized.apply(self)
        return torch.dequantize(self)

    def map(self, apply: Callable[[torch.Tensor], torch.Tensor], grouped_dim: int | None = None) -> DTypeTensor:
        """A tensor of the components that ``apply`` makes of these."""
        components = {name: apply(one) for name, one in self.components.items()}
        return DTypeTensor(self.config, components, self.grouped_dim if grouped_dim is None else grouped_dim)


class Dequantized(torch.autograd.Function):
    """``torch.dequantize``, for which PyTorch has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: DTypeTensor) -> torch.Tensor:
        return torch.dequantize(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def rebuild(
    name: str, version: int, components: dict[str, torch.Tensor], grouped_dim: int, requires_grad: bool
) -> DTypeTensor:
    """What ``torch.load`` calls. LookupError if the dtype is not registered here."""
    config = find(name)
    rule = config.serialization
    if version != rule.version:
        if rule.upgrade is None:
            raise DTypeComponentsMismatchError(
                f"this tensor of {name} was saved in version {version} of its format, and {name} is registered "
                "with version "
                f"{rule.version}: DTypeSerializationConfig(upgrade=…) can say what to make of its components"
            )
        components = dict(rule.upgrade(version, components))
    check_components(config, components, grouped_dim)
    return DTypeTensor(config, components, grouped_dim, requires_grad=requires_grad)


def check_components(
    config: DTypeConfig, components: Mapping[str, torch.Tensor], grouped_dim: int | None = None
) -> None:
    """DTypeComponentsMismatchError unless the tensors are the components of one tensor of the dtype."""
    for name in components:
        if name not in config.components:
            raise DTypeComponentsMismatchError(
                f"{config.name} has no component {name!r}{did_you_mean(name, config.components)}; it has "
                f"{', '.join(config.components)}"
            )
    if missing := [name for name in config.components if name not in components]:
        raise DTypeComponentsMismatchError(f"{config.name} is without its component {missing[0]!r}")
    first = _finest(config, components)
    dim = _grouped(config, first, grouped_dim)
    sizes = _layout(config, components, dim)[0]
    if config.block > 1 and sizes[dim] % config.block:
        raise DTypeComponentsMismatchError(
            f"{config.name} has blocks of {config.block} elements, and dimension {dim} of shape {tuple(sizes)} is "
            "not a "
            "multiple of that: pad it first"
        )
    for name, component in config.parts.items():
        tensor, expected = components[name], list(sizes)
        if config.block > 1:
            expected[dim] //= component.elements
        if tensor.dtype != component.dtype:
            raise DTypeComponentsMismatchError(
                f"component {name!r} of {config.name} has to be {component.dtype}, and not {tensor.dtype}"
            )
        if list(tensor.shape) != expected:
            raise DTypeComponentsMismatchError(
                f"component {name!r} of a {config.name} tensor of shape {tuple(sizes)} has to have shape "
                f"{tuple(expected)}, "
                f"and not {tuple(tensor.shape)}"
            )
        if tensor.device != first.device:
            raise different_devices(first.device, tensor.device)


def _finest(config: DTypeConfig, components: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The component with the most elements."""
    parts = config.parts
    return components[min(parts, key=lambda name: parts[name].elements)]


def _grouped(config: DTypeConfig, tensor: torch.Tensor, grouped_dim: int | None) -> int:
    if config.block == 1:
        return NO_DIM
    if not tensor.dim():
        raise DTypeComponentsMismatchError(f"a tensor of {config.name} has blocks of {config.block} along a dimension")
    return tensor.dim() - 1 if grouped_dim is None else grouped_dim


def _layout(config: DTypeConfig, components: Mapping[str, torch.Tensor], dim: int) -> tuple[list[int], list[int]]:
    """The size and strides of a tensor with these components, as if each element took a place of its own."""
    first = _finest(config, components)
    elements = min(component.elements for component in config.parts.values())
    size, stride = list(first.shape), list(first.stride())
    if elements > 1:
        size[dim] *= elements
        dense = first.stride(dim) == 1
        stride = [one if dense and d == dim else one * elements for d, one in enumerate(stride)]
    return size, stride
