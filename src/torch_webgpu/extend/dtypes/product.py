"""Products that read an operand of a registered dtype in place: ``x @ weight.t()``, as in ``torch.nn.Linear``.

The operator ``torch_webgpu::dtype_mm`` is what compiled graphs contain: a kernel on the device, and load → product
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.kernels.matmul.component_loads import Component, Elements
from torch_webgpu.kernels.matmul.components import described

from .component import DTypeComponent
from .compute import loaded
from .config import DTypeConfig
from .number import is_float8
from .table import find, registered
from .tensor import DTypeTensor

PLAIN = (torch.float32, torch.float16)
"""The dtypes of the other operand."""


def reads_in_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether ``a @ b`` can read ``b``, a transposed weight, in place."""
    if not isinstance(b, DTypeTensor) or isinstance(a, DTypeTensor) or b.device.type != "webgpu":
        return False
    return (
        b.config.number is not None
        and b.config.dtype == torch.float32
        and registered().get(b.config.name) is b.config
        and a.dtype in PLAIN
        and a.dim() == b.dim() == 2
        and a.shape[1] == b.shape[0]
        and a.device == b.device
        and (b.grouped_dim == 0 or b.config.block == 1)
        and all(one.t().is_contiguous() for one in b.components.values())
    )


def in_place_product(a: torch.Tensor, b: DTypeTensor) -> torch.Tensor:
    components = [one.t() for one in b.components.values()]
    return torch.ops.torch_webgpu.dtype_mm(a, components, b.config.name)


def dtype_mm(a: torch.Tensor, components: Sequence[torch.Tensor], dtype: str) -> torch.Tensor:
    """``a`` (m, k) times the transpose of the tensor (n, k) of these components, on the device."""
    config = find(dtype)
    codes = [one.view(torch.uint8) if is_float8(one.dtype) else one for one in components]
    m, n = a.shape[0], components[0].shape[0]
    body = described(dtypes.of(a.dtype).name, elements_of(config))
    (out,) = kernel_outputs("torch_webgpu::dtype_mm", (a, *codes), [((m, n), (n, 1), a.dtype)], body)
    return out


def elements_of(config: DTypeConfig) -> Elements:
    """How a kernel loads numbers of the dtype. Floats of 8 bits are loaded as their codes, and converted."""
    assert config.number is not None
    components = tuple([component_of(name, one) for name, one in config.parts.items()])
    return Elements(config.number, components, config.block)


def component_of(name: str, one: DTypeComponent) -> Component:
    if is_float8(one.dtype):
        return Component(name, "u8", one.elements, f"f32_from_{str(one.dtype).removeprefix('torch.')}")
    return Component(name, dtypes.of(one.dtype).name, one.elements)


def composed(a: torch.Tensor, components: Sequence[torch.Tensor], dtype: str) -> torch.Tensor:
    config = find(dtype)
    weight = DTypeTensor(config, dict(zip(config.components, components)))
    return torch.mm(a, loaded(weight).to(a.dtype).t())


def shape(a: torch.Tensor, components: Sequence[torch.Tensor], dtype: str) -> torch.Tensor:
    return a.new_empty(a.shape[0], components[0].shape[0])


library = torch.library.Library("torch_webgpu", "DEF")
library.define("dtype_mm(Tensor a, Tensor[] components, str dtype) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
library.impl("dtype_mm", composed, "CPU")
library.impl("dtype_mm", dtype_mm, "PrivateUse1")
library.impl("dtype_mm", shape, "Meta")
