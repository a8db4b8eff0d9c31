"""Patches of PyTorch's Python classes for what a Python-only backend cannot hook from C++: storages and host memory.

Each one leaves other devices' behaviour as it is, says why it is there, and has a canary in ``tests/device`` that fails
when PyTorch no longer needs it. The missing C++ hooks are those of PrivateUse1HooksInterface
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/detail/PrivateUse1HooksInterface.h): a Python backend can
override three of them (torch/csrc/acc/Module.cpp), and neither ``resizePrivateUse1Bytes`` nor the allocators.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from itertools import product
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._device import _device_constructors

from torch_webgpu.engine.current import current_device
from torch_webgpu.errors import WebGPUError

from .torch_abi import DEVICE_TYPE, device_meant, is_webgpu

Storage = torch.UntypedStorage
WORD = ctypes.c_uint64
SEARCHED_WORDS = 8


@cache
def _nbytes_word() -> int:
    """Which 8-byte word of a ``c10::StorageImpl`` holds its size; found by looking, since no header says."""
    sizes = (0x2B3D5, 0x5C717)
    found: set[int] = set(range(SEARCHED_WORDS))
    for size in sizes:
        storage = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()
        words = (WORD * SEARCHED_WORDS).from_address(storage._cdata)
        found &= {k for k, word in enumerate(words) if word == size}
    if len(found) != 1:
        raise WebGPUError(
            f"torch {torch.__version__} lays storages out in an unknown way; they cannot be resized on webgpu"
        )
    return found.pop()


def set_storage_nbytes(storage: torch.UntypedStorage, size_bytes: int) -> None:
    """``StorageImpl::set_nbytes``, which Python cannot reach.

    2.13's ``UntypedStorage._swap_data_ptr_`` could take its place where torch 2.11 need not be supported.
    """
    (WORD * SEARCHED_WORDS).from_address(storage._cdata)[_nbytes_word()] = size_bytes
    if storage.nbytes() != size_bytes:
        raise WebGPUError(f"torch {torch.__version__}: a storage did not take its new size")


def _replace(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts ``make(plain)`` in the place of the storages' method ``plain``, by the name under which it is pickled."""
    plain = getattr(Storage, name)
    owner = next(c for c in Storage.__mro__ if name in vars(c))
    if owner is torch._C.StorageBase:  # C classes cannot be changed
        owner = Storage
    method = wraps(plain)(make(plain))
    method.__module__, method.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    setattr(owner, name, method)


def _replace_on_webgpu(name: str, ours: Callable[..., Any]) -> None:
    """Makes the storages' method ``name`` call ``ours`` for webgpu storages."""

    def make(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: (ours if self.device.type == DEVICE_TYPE else plain)(self, *args, **kwargs)

    _replace(name, make)


def replace_storage_methods(
    make: Callable[..., torch.UntypedStorage], resize: Callable[[torch.UntypedStorage, int], torch.UntypedStorage]
) -> None:
    """``UntypedStorage(n, device="webgpu")`` and ``new()`` call ``make``, where C++ dereferences a null allocator and
    crashes; ``resize_`` calls ``resize``, where C++ asks a hook that Python backends cannot set; sharing between
    processes is refused, where PyTorch takes every device but the CPU for CUDA.
    """

    def construct(plain: Callable[..., Any]) -> Callable[..., Any]:
        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            device = device_meant(kwargs.get("device"))
            if device is None or device.type != DEVICE_TYPE:
                return plain(cls, *args, **kwargs)
            return make(device, *args, **{k: v for k, v in kwargs.items() if k != "device"})

        return new

    def refuse(self: Any, *args: Any) -> Any:
        raise RuntimeError("webgpu memory cannot be shared between processes; use tensor.cpu() first")

    _replace("__new__", construct)
    _replace_on_webgpu("new", lambda self: make(self.device))
    _replace_on_webgpu("resize_", resize)
    _replace_on_webgpu("is_shared", lambda self: False)
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
        _replace_on_webgpu(name, refuse)


def move_storages() -> None:
    """``storage.webgpu()`` and ``is_webgpu``; copies to the host ask for no pinned memory, which webgpu has not."""
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )

    def make(plain: Callable[..., Any]) -> Callable[..., Any]:
        def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
            return plain(self, device=device, non_blocking=non_blocking and self.device.type != DEVICE_TYPE)

        return to

    _replace("to", make)


def print_on_host() -> None:
    """Formats tensors on the CPU: PyTorch would do it in float64, which most adapters lack, one kernel per step.

    Of a tensor that is printed in part only the printed elements are fetched.
    """
    from torch import _tensor_str

    plain = _tensor_str._tensor_str

    @wraps(plain)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return plain(_printed_part(self, _tensor_str.PRINT_OPTS) if is_webgpu(self) else self, indent)

    _tensor_str._tensor_str = tensor_str


def _printed_part(t: torch.Tensor, options: Any) -> torch.Tensor:
    """A CPU tensor of ``t``'s shape with ``t``'s values at least where printing looks."""
    if t.numel() <= options.threshold:
        return t.detach().cpu()
    edge = options.edgeitems
    ends = [(slice(None),) if n <= 2 * edge else (slice(0, edge), slice(n - edge, n)) for n in t.shape]
    host = torch.empty(t.shape, dtype=t.dtype, device="cpu")
    for corner in product(*ends):
        host[corner] = t.detach()[corner].cpu()
    return host


class _Scale:
    """A ``GradScaler``'s scale as its ``unscale_`` uses it, with the reciprocal taken in float32."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale, self.device = scale, scale.device

    def double(self) -> _Scale:
        return self

    def reciprocal(self) -> torch.Tensor:
        return self.scale.reciprocal()


def unscale_in_float32() -> None:
    """``GradScaler.unscale_`` takes its reciprocal in float64, except on MPS, "since division can be imprecise".

    Most adapters have no float64, and division is correctly rounded here.
    """
    plain = torch.amp.GradScaler.unscale_

    @wraps(plain)
    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> None:
        scale = getattr(self, "_scale", None)  # a scaler that is not enabled has none
        if scale is None or not is_webgpu(scale):
            return plain(self, optimizer)
        self._scale = _Scale(scale)
        try:
            return plain(self, optimizer)
        finally:
            self._scale = scale

    torch.amp.GradScaler.unscale_ = unscale_  # type: ignore[method-assign]


def refuse_uncapturable_optimizers(is_capturing: Callable[[], bool]) -> None:
    """An optimizer that counts its steps on the host refuses to be captured, as PyTorch has it refuse on CUDA and XPU.

    Its replays would repeat the step that was captured (``Optimizer._accelerator_graph_capture_health_check``).
    """
    plain = torch.optim.Optimizer._accelerator_graph_capture_health_check

    @wraps(plain)
    def check(self: Any) -> None:
        plain(self)
        if is_capturing() and any(
            is_webgpu(p) for group in self.param_groups if not group["capturable"] for p in group["params"]
        ):
            raise RuntimeError(
                f"Attempting WebGPU graph capture of step() for an instance of {type(self).__name__} but "
                "param_groups' capturable is False."
            )

    torch.optim.Optimizer._accelerator_graph_capture_health_check = check  # type: ignore[method-assign]


@cache
def resolve_bare_devices() -> None:
    """Makes ``t.to("webgpu")``, ``torch.tensor(…, device="webgpu")`` and their like mean the current adapter.

    They ask the C++ device guard, and a Python backend's answers 0 (PythonDeviceGuard::getDevice in
    torch/csrc/acc/Module.cpp). Called when another adapter first becomes current, so that nobody else pays for it.
    """
    _device_constructors()  # torch.device's contexts remember the functions they serve: these, which ours end in
    for owner, name in _BARE_DEVICE_TAKERS:
        setattr(owner, name, _with_current_device(getattr(owner, name)))


_BARE_DEVICE_TAKERS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "to"), (torch.Tensor, "new_tensor"), (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"),
)  # fmt: skip


def _with_current_device(plain: Callable[..., Any]) -> Callable[..., Any]:
    def complete(value: Any, index: int) -> Any:
        if isinstance(value, (str, torch.device)) and str(value) == DEVICE_TYPE:
            return torch.device(DEVICE_TYPE, index)
        return value

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if index := current_device():
            args = tuple([complete(a, index) for a in args])
            kwargs = {k: complete(v, index) for k, v in kwargs.items()}
        return plain(*args, **kwargs)

    return call


def save_on_cpu_without_pinning() -> None:
    """``torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="webgpu")`` takes plain memory instead."""
    from torch.autograd.graph import save_on_cpu

    plain = save_on_cpu.__init__

    @wraps(plain)
    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        plain(self, pin_memory and device_type != DEVICE_TYPE, device_type)

    save_on_cpu.__init__ = init  # type: ignore[method-assign]


def pass_through_data_parallel() -> None:
    """``nn.DataParallel`` uses the module where it is, as it does where there is no accelerator, and on MPS.

    PyTorch would move a CPU module to webgpu because webgpu is there, and scatter its inputs with functions that only
    builds for CUDA have (``torch._C._scatter``).
    """
    parallel = sys.modules["torch.nn.parallel.data_parallel"]
    plain = parallel._get_available_device_type

    @wraps(plain)
    def available() -> str | None:
        found = plain()
        return None if found == DEVICE_TYPE else found

    parallel._get_available_device_type = available  # type: ignore[attr-defined]


def lay_out_fake_convolutions(memory_format: Callable[[torch.Tensor, torch.Tensor], torch.memory_format]) -> None:
    """Fake tensors get the memory formats that webgpu's convolutions have: ``memory_format(input, weight)``.

    C++ takes the results of any device that it does not know for contiguous (determine_backend_memory_format in
    https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/Convolution.cpp), and a compiled program would
    view them so.
    """
    plain = torch._C._conv_determine_backend_memory_format

    @wraps(plain)
    def determine(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        return memory_format(input, weight) if input.device.type == DEVICE_TYPE else plain(input, weight, backend)

    torch._C._conv_determine_backend_memory_format = determine


def replace_constructor(name: str, make: Callable[..., Any]) -> None:
    """Makes ``torch.Event`` or ``torch.Stream`` call ``make(device, **options)`` for webgpu.

    The event that C++ makes for a Python backend cannot wait and has no time (c10::impl::VirtualGuardImpl ends at
    "Backend doesn't support synchronizing events"), and its stream knows only the first device. Without a device the
    current accelerator is meant, as in PyTorch. A stream named by its number (``stream_id=…``) is C++'s.
    """
    options = {"device", *inspect.signature(make).parameters} - {"kwargs"}

    def ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 or not options.issuperset(kwargs):
            return None
        given = args[0] if args else kwargs.get("device")
        device = torch.accelerator.current_accelerator() if given is None else device_meant(given)
        if device is None or device.type != DEVICE_TYPE:
            return None
        return make(device, **{k: v for k, v in kwargs.items() if k != "device"})

    _stand_in_for(name, ours)


def replace_generator_constructor(make: Callable[[torch.device], torch.Generator]) -> None:
    """Makes ``torch.Generator(device="webgpu")`` call ``make``: C++ asks a hook that Python backends cannot set.

    Where the class has a Python metaclass (2.13) its call is intercepted, and ``torch.Generator`` stays what it is.
    """
    plain: Any = torch.Generator

    def ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = device_meant(args[0] if args else kwargs.get("device"))
        return make(device) if device is not None and device.type == DEVICE_TYPE else None

    metaclass: Any = type(plain)
    if metaclass is type:
        _stand_in_for("Generator", ours)
        return
    original = metaclass.__call__

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = ours(args, kwargs) if cls is plain else None
        return original(cls, *args, **kwargs) if made is None else made

    metaclass.__call__ = call


def _stand_in_for(name: str, make: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Gives ``torch.name``, an immutable class, to one that inherits from it, whose calls ask ``make`` first.

    What that answers None to is made as before.
    """
    plain = getattr(torch, name)

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = make(args, kwargs) if cls is ours else None
            return super().__call__(*args, **kwargs) if made is None else made

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain) if cls is ours else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, plain) if cls is ours else super().__subclasscheck__(subclass)

    ours = Meta(name, (plain,), {"__module__": "torch", "__qualname__": name, "__doc__": plain.__doc__})
    setattr(torch, name, ours)


def observe_default_dtype(changed: Callable[[torch.dtype, torch.dtype], None]) -> None:
    """Calls ``changed(before, after)`` when the default dtype has become another one.

    Kernels would otherwise have to ask for it at each call. ``torch.set_default_dtype`` and ``set_default_tensor_type``
    look these two up when they are called, and nothing else sets it.
    """

    def observing(plain: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(plain)
        def setter(value: Any) -> None:
            before = torch.get_default_dtype()
            plain(value)
            after = torch.get_default_dtype()
            if after != before:
                changed(before, after)

        return setter

    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        setattr(torch._C, name, observing(getattr(torch._C, name)))


def name_dlpack_device() -> None:
    """``Tensor.__dlpack_device__``, which raises for device types that it does not know, and so ``torch.from_dlpack``.

    kDLExtDev is what C++ exports and imports tensors of Python backends as (aten/src/ATen/DLConvertor.cpp).
    """

    def named(plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
            if self.device.type != DEVICE_TYPE or torch.overrides.has_torch_function_unary(self):
                return plain(self)
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

        return dlpack_device

    torch.Tensor.__dlpack_device__ = named(torch.Tensor.__dlpack_device__)  # type: ignore[method-assign]
