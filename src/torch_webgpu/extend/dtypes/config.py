"""The description of an element type: its components, how elements are loaded and stored, and all that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from torch_webgpu.errors import InvalidConfigError, did_you_mean
from torch_webgpu.ir.expr import Expr

from .component import DTypeComponent
from .number import POSITION, expression_of

Components = Mapping[str, torch.Tensor]
Load = Callable[..., torch.Tensor]
Store = Callable[..., Components]
Number = bool | int | float | complex


@dataclass(frozen=True)
class DTypeDisplayConfig:
    """How tensors are printed.

    ``element``: a format string over the components' names, such as ``"{value:.4f}+{derivative:.4f}e"``, for a dtype
    each of whose components has an element for each of its own; None prints the numbers that ``load`` gives, as PyTorch
    prints numbers. ``components``: the components' shapes and dtypes follow.
    """

    element: str | None = None
    components: bool = False


@dataclass(frozen=True)
class DTypeSerializationConfig:
    """How tensors are kept by ``torch.save``: the components by name, with the ``version`` of the format.

    ``upgrade(version, components)`` makes today's components of those of an older version; None refuses these.
    """

    version: int = 1
    upgrade: Callable[[int, dict[str, torch.Tensor]], Components] | None = None


@dataclass(frozen=True, eq=False)
class DTypeConfig:
    """An element type over plain tensors.

    * ``name``: what it is registered and printed as
    * ``components``: the dtype of each component by its name, or a :class:`DTypeComponent`
    * ``wgsl``: an expression of one number over the components' names, which are the elements that serve it, 8-bit
      floats as ``f32``. ``i`` is the number's position in its block, an ``i32``. Operators load numbers with it, and
      products on the device read them in place.
    * ``load``: where no expression says it: numbers of the components, which come as keyword arguments in the numbers'
      shape. Where elements share components, that is in blocks: of components that serve 32 and 2 elements each, the
      last dimension K of the tensor is ``(…, K / 32, 16, 2)``. It may take an ``i``, too, int32. Beside an expression
      it is what all but products in place load with.
    * ``store``: the components, by name, of numbers in this shape. A component that 32 share comes back as
      ``(…, K / 32, 1, 1)``, one that 2 share as ``(…, K / 32, 16, 1)``. It may take an ``i``, too.
    * ``dtype``: what numbers are computed in, and what ``tensor.dtype`` says
    * ``promote``: the result's dtype by the other operand's: a ``torch.dtype``, or the name of a registered dtype.
      Operands of the dtype alone, and numbers, give the dtype itself, unless its own name is a key, or ``int``,
      ``float`` … for a number.
    * ``operators``: functions by an operator's name ("mul", or one overload, "mul.Tensor"), in place of load → compute
      → store. They get what the operator got, and return a mapping of components or a plain tensor.
    * ``display``, ``serialization``: see there

    Without ``wgsl`` and ``load`` elements are not numbers, and ``operators`` has all that can be computed.
    InvalidConfigError, a ValueError, or TypeError for what cannot be a dtype; ExpressionError, with line, column and a
    caret, for what is no expression.
    """

    name: str
    components: Mapping[str, DTypeComponent | torch.dtype]
    wgsl: str = ""
    load: Load | None = None
    store: Store | None = None
    dtype: torch.dtype = torch.float32
    promote: Mapping[str | type | torch.dtype, str | torch.dtype] = field(default_factory=dict)
    operators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    display: DTypeDisplayConfig = field(default_factory=DTypeDisplayConfig)
    serialization: DTypeSerializationConfig = field(default_factory=DTypeSerializationConfig)
    number: Expr | None = field(init=False, repr=False, default=None)
    """``wgsl``, read."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InvalidConfigError(f"a dtype's name has to be an identifier, as int4x2, and not {self.name!r}")
        if not self.components:
            raise InvalidConfigError(f"{self.name} has no components: a dtype has one plain tensor at least")
        components = {
            name: one if isinstance(one, DTypeComponent) else DTypeComponent(one)
            for name, one in self.components.items()
        }
        object.__setattr__(self, "components", components)
        for name, component in components.items():
            self._check_component(name, component)
        number = expression_of(self.wgsl, components, self.dtype) if self.wgsl else None
        object.__setattr__(self, "number", number)
        for name in self.operators:
            self._check_operator(name)
        if self.display.element is not None and self.block > 1:
            raise InvalidConfigError(
                f"display.element of {self.name} needs components with an element for each of the dtype's"
            )

    def _check_component(self, name: str, component: DTypeComponent) -> None:
        if not name.isidentifier() or hasattr(torch.Tensor, name) or name in ("config", "grouped_dim", POSITION):
            raise InvalidConfigError(
                f"component {name!r} of {self.name}: a component is an attribute of the tensor, so that its name "
                "has to be "
                "an identifier that torch.Tensor does not have yet"
            )
        if not isinstance(component.dtype, torch.dtype):
            raise TypeError(f"component {name!r} of {self.name} has to have a torch.dtype, and not {component.dtype!r}")
        larger = [size for size in self.levels if size > component.elements]
        if component.elements < 1 or any(size % component.elements for size in larger):
            raise InvalidConfigError(
                f"component {name!r} of {self.name} serves {component.elements} elements, which has to divide the "
                "larger "
                f"such numbers, {larger}"
            )

    def _check_operator(self, name: str) -> None:
        packet, _, overload = name.partition(".")
        if packet not in (known := dir(torch.ops.aten)) and not hasattr(torch.ops.aten, packet):
            raise InvalidConfigError(
                f"operators of {self.name}: there is no operator {packet!r}{did_you_mean(packet, known)}"
            )
        overloads = getattr(torch.ops.aten, packet).overloads()
        if overload and overload not in overloads:
            raise InvalidConfigError(
                f"operators of {self.name}: {packet!r} has no overload {overload!r}{did_you_mean(overload, overloads)}"
            )

    @property
    def parts(self) -> Mapping[str, DTypeComponent]:
        """The components, all as :class:`DTypeComponent`."""
        return self.components  # type: ignore[return-value]

    @property
    def has_numbers(self) -> bool:
        """Whether elements are numbers; otherwise only ``operators`` compute with them."""
        return self.load is not None or self.number is not None

    @property
    def levels(self) -> list[int]:
        """How many elements the components serve, each number once, from the largest down to 1."""
        return sorted({1, *(component.elements for component in self.parts.values())}, reverse=True)

    @property
    def block(self) -> int:
        """How many neighbours are loaded and stored together."""
        return self.levels[0]

    @property
    def block_shape(self) -> tuple[int, ...]:
        """A block's dimensions, one a level: (16, 2) of components that serve 32 and 2 elements."""
        return tuple(larger // smaller for larger, smaller in pairwise(self.levels))

    def component_shape(self, elements: int) -> tuple[int, ...]:
        """The dimensions of a block of a component that serves so many elements; the others are 1."""
        return tuple(n if size > elements else 1 for size, n in zip(self.levels, self.block_shape))

    def __deepcopy__(self, memo: dict[int, Any]) -> DTypeConfig:
        """Itself: a copy of a tensor has its dtype."""
        return self

    def __repr__(self) -> str:
        return f"DTypeConfig({self.name!r}, components={dict(self.components)})"
