"""A WebGPU implementation for tests: it needs no GPU and checks every call against WebGPU's rules.

What real libraries answer with undefined behaviour, an aborted process or a message is a :class:`ValidationError` here,
raised by the very call. Transfers really move bytes; a dispatch calls the Python function that
:attr:`CheckedWebGPU.kernels` has for its kernel. :class:`Faults` are what a device does wrong on purpose.
"""

from tests.webgpu_double.device import CheckedDevice
from tests.webgpu_double.implementation import CheckedWebGPU, Faults
from tests.webgpu_double.objects import ValidationError

__all__ = ["CheckedDevice", "CheckedWebGPU", "Faults", "ValidationError"]
