"""``torch.webgpu.registry``: what there is, by name, and how a program adds to it.

Operators, schemas, kernels and derivatives are those of PyTorch's dispatcher, and what is registered here is registered
with ``torch.library``: the registry is a view, and keeps no second list. Devices are WebGPU implementations.
"""

# ruff: noqa: F401 everything imported here is the module's interface

from importlib import import_module as _import_module

from torch_webgpu.errors import (
    AlreadyRegisteredError,
    DTypeNotSupportedError,
    InvalidConfigError,
    KernelSignatureError,
    NotRegisteredError,
    OpKindError,
    RegistrationFailedError,
    RegistryError,
)
from torch_webgpu.runtime.device_config import DeviceCapabilities, DeviceConfig
from torch_webgpu.runtime.forwarding import NATIVE_CALLS, ForwardingDevice, ForwardingImplementation
from torch_webgpu.runtime.implementation import Adapter, ErrorSink, Handle, Implementation, Mark, NativeDevice
from torch_webgpu.runtime.implementations import DeviceEntry
from torch_webgpu.target import MatrixConfig

from .autograd import (
    get_autograd,
    has_autograd,
    register_autograd,
    register_backward,
    register_forward,
    register_scalar_forward,
    unregister_autograd,
)
from .coverage import CoverageReport, OpCoverage, coverage_report
from .devices import (
    DeviceContext,
    get_device,
    get_device_config,
    get_device_context,
    has_device,
    initialize_device,
    list_custom_devices,
    list_devices,
    register_device,
    unregister_device,
)
from .dtypes import (
    DTypeInfo,
    get_dtype,
    get_dtype_info,
    has_dtype,
    list_custom_dtypes,
    list_dtypes,
    register_dtype,
    unregister_dtype,
)
from .functions import (
    get_function,
    get_method,
    has_function,
    has_method,
    list_functions,
    list_methods,
    register_function,
    register_method,
    unregister_function,
    unregister_method,
)
from .handle import RegistrationHandle
from .kernels import (
    KernelInfo,
    find_kernel,
    get_kernel,
    get_scalar_kernel,
    has_kernel,
    has_scalar_kernel,
    list_kernels,
    register_kernel,
    register_scalar_kernel,
    unregister_kernel,
)
from .operators import KINDS, OpInfo, OpKind, get_op_info, get_op_kind, get_op_schema, has_op, list_ops, op_schema

_OF_DTYPES = frozenset({
    "DTypeAlreadyRegisteredError", "DTypeComponent", "DTypeComponentsMismatchError", "DTypeConfig",
    "DTypeDisplayConfig", "DTypeNotFoundError", "DTypePromotionError", "DTypeSerializationConfig", "DTypeTensor",
    "MethodDTypeNotSupportedError", "RegisteredDType",
})  # fmt: skip
"""Names of ``extend.dtypes``, which is loaded when one is asked for, since it defines operators."""


def __getattr__(name: str) -> object:
    if name in _OF_DTYPES:
        return getattr(_import_module("torch_webgpu.extend.dtypes"), name)
    raise AttributeError(f"torch.webgpu.registry has no {name!r}")


__all__ = [name for name in globals() if not name.startswith("_")]
__all__ += list(_OF_DTYPES)


def __dir__() -> list[str]:
    return sorted(__all__)
