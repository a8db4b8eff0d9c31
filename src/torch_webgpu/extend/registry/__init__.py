"""``torch.webgpu.registry``: what there is, by name, and how a program adds to it.

Devices are WebGPU implementations. Whatever PyTorch itself knows, such as operators, schemas and autograd formulas, is
looked up there: the registry is a view, and keeps no second list.
"""

# ruff: noqa: F401 everything imported here is the module's interface

from torch_webgpu.errors import (
    AlreadyRegisteredError,
    InvalidConfigError,
    NotRegisteredError,
    RegistrationFailedError,
    RegistryError,
)
from torch_webgpu.runtime.device_config import DeviceCapabilities, DeviceConfig
from torch_webgpu.runtime.forwarding import NATIVE_CALLS, ForwardingDevice, ForwardingImplementation
from torch_webgpu.runtime.implementation import Adapter, ErrorSink, Handle, Implementation, Mark, NativeDevice
from torch_webgpu.runtime.implementations import DeviceEntry
from torch_webgpu.target import MatrixConfig

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
from .handle import RegistrationHandle

__all__ = [name for name in dir() if not name.startswith("_")]
