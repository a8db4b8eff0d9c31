"""What takes the place of PyTorch's Python classes and functions where a Python-only backend has no hook in C++.

The functions here get what is replaced and return what replaces it; other devices' behaviour stays as it is. The rows
of ``torch_webgpu/patches.py`` say what each is for. The missing C++ hooks are those of PrivateUse1HooksInterface
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/detail/PrivateUse1HooksInterface.h): a Python backend can
override three of them (torch/csrc/acc/Module.cpp), and neither ``resizePrivateUse1Bytes`` nor the allocators.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache, wraps
from itertools import product
from traceback import clear_frames
from typing import Any

import torch
from torch.utils._device import _device_constructors

from torch_webgpu.engine.current import current_device
from torch_webgpu.errors import WebGPUError
from torch_webgpu.patching import Make

from .torch_abi import DEVICE_TYPE, device_meant, is_webgpu

UntypedStorage = torch.UntypedStorage
WORD = ctypes.c_uint64
SEARCHED_WORDS = 8


@cache
def _nbytes_word() -> int:
    """Which 8-byte word of a ``c10::StorageImpl`` holds its size; found by looking, since no header says."""
    sizes = (0x2B3D5, 0x5C717)
    candidates: set[int] = set(range(SEARCHED_WORDS))
    for size in sizes:
        storage = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()
        words = (WORD * SEARCHED_WORDS).from_address(storage._cdata)
        candidates &= {k for k, word in enumerate(words) if word == size}
    if len(candidates) != 1:
        raise WebGPUError(
            f"torch {torch.__version__} lays storages out in an unknown way; they cannot be resized on webgpu"
        )
    return candidates.pop()


def set_storage_nbytes(storage: torch.UntypedStorage, size_bytes: int) -> None:
    """``StorageImpl::set_nbytes``, which Python cannot reach.

    2.13's ``UntypedStorage._swap_data_ptr_`` could take its place where torch 2.11 need not be supported.
    """
    (WORD * SEARCHED_WORDS).from_address(storage._cdata)[_nbytes_word()] = size_bytes
    if storage.nbytes() != size_bytes:
        raise WebGPUError(f"torch {torch.__version__}: a storage did not take its new size")


def method(plain: Any, name: str, function: Any) -> Any:
    """``function`` in the place of the storages' method ``plain``, by the name under which that is pickled."""
    replaced = wraps(plain)(function)
    replaced.__module__, replaced.__qualname__ = UntypedStorage.__module__, f"{UntypedStorage.__qualname__}.{name}"
    return replaced


def storage_constructor(make: Callable[..., torch.UntypedStorage]) -> Make:
    """``UntypedStorage(n, device="webgpu")`` calls ``make``."""

    def constructing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            device = device_meant(kwargs.get("device"))
            if device is None or device.type != DEVICE_TYPE:
                return plain(cls, *args, **kwargs)
            return make(device, *args, **{k: v for k, v in kwargs.items() if k != "device"})

        return method(plain, "__new__", new)

    return constructing


def on_webgpu(ours: Callable[..., Any]) -> Make:
    """A method of storages that is ``ours`` for those on webgpu."""

    def choosing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (ours if self.device.type == DEVICE_TYPE else plain)(self, *args, **kwargs)

        return method(plain, plain.__name__, call)

    return choosing


def refuse_sharing(storage: torch.UntypedStorage, *args: Any) -> Any:
    raise RuntimeError("webgpu memory cannot be shared between processes; use tensor.cpu() first")


def move_without_pinning(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``storage.to``: copies to the host ask for no pinned memory."""

    @wraps(plain)
    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        return plain(self, device=device, non_blocking=non_blocking and self.device.type != DEVICE_TYPE)

    return to


def print_on_host(plain: Callable[..., str]) -> Callable[..., str]:
    """Formats tensors on the CPU. Of one that is printed in part only the printed elements are fetched."""
    from torch import _tensor_str

    @wraps(plain)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return plain(_printed_part(self, _tensor_str.PRINT_OPTS) if is_webgpu(self) else self, indent)

    return tensor_str


def release_what_printing_holds(plain: Callable[..., str]) -> Callable[..., str]:
    """``Tensor.__repr__``: an error's traceback does not keep alive what the frames of printing held. That is a guard
    which disables functorch for as long as it lives, and programs keep errors; interactive ones always do.
    """

    @wraps(plain)
    def string(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        try:
            return plain(self, tensor_contents=tensor_contents)
        except BaseException as error:
            if error.__traceback__ is not None:
                clear_frames(error.__traceback__.tb_next)
            raise

    return string


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


def unscale_in_float32(plain: Callable[..., None]) -> Callable[..., None]:
    """``GradScaler.unscale_`` with the reciprocal of the scale in float32: division is correctly rounded here."""

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

    return unscale_


def refuse_uncapturable_optimizers(is_capturing: Callable[[], bool]) -> Make:
    """An optimizer that counts its steps on the host refuses to be captured, as PyTorch has it refuse on CUDA and XPU.

    Its replays would repeat the step that was captured.
    """

    def refusing(plain: Callable[..., None]) -> Callable[..., None]:
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

        return check

    return refusing


def with_current_device(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes devices, to which ``"webgpu"`` without an index means the current adapter."""
    _device_constructors()  # torch.device's contexts remember the functions they serve: these, which ours end in

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

    know_replacement(plain, call)
    return call


def know_replacement(plain: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Gives Dynamo's rule for a function to the one in its place: it looks for functions by their names once, and
    would break graphs at one that was replaced later.
    """
    trace_rules = sys.modules.get("torch._dynamo.trace_rules")
    if trace_rules is not None:
        rules = trace_rules.get_torch_obj_rule_map()
        if plain in rules:
            rules[ours] = rules[plain]


class Methods(list[Any]):
    """Methods of tensors, those that were replaced as they are now."""

    from_torch_webgpu = True

    def __init__(self, methods: Iterable[Any]) -> None:
        super().__init__([getattr(torch.Tensor, method.__name__, method) for method in methods])


def with_own_device(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``Tensor.new_tensor``: on the adapter of the tensor, or with a bare ``"webgpu"`` on the current one."""
    completed = with_current_device(plain)

    @wraps(plain)
    def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None and self.device.type == DEVICE_TYPE:
            kwargs["device"] = self.device
        return completed(self, *args, **kwargs)

    return new_tensor


def save_on_cpu_without_pinning(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="webgpu")`` takes plain memory instead."""

    @wraps(plain)
    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        plain(self, pin_memory and device_type != DEVICE_TYPE, device_type)

    return init


def copies_between_devices(names: Iterable[str], ours: Callable[..., Any]) -> Callable[[Any], None]:
    """Gives ``torch._C`` the functions of these names that builds without CUDA lack: ``ours(name, *arguments)``.

    It may return NotImplemented: the arguments are not webgpu's.
    """

    def complete(module: Any) -> None:
        for name in names:
            setattr(module, name, _copying(name, ours, getattr(module, name, None)))

    return complete


def _copying(name: str, ours: Callable[..., Any], plain: Callable[..., Any] | None) -> Callable[..., Any]:
    def copy(*args: Any) -> Any:
        result = ours(name, *args)
        if result is not NotImplemented:
            return result
        if plain is None:
            raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
        return plain(*args)

    return copy


def lay_out_fake_convolutions(memory_format: Callable[[torch.Tensor, torch.Tensor], torch.memory_format]) -> Make:
    """Fake tensors get the memory formats that webgpu's convolutions have: ``memory_format(input, weight)``."""

    def determining(plain: Callable[..., torch.memory_format]) -> Callable[..., torch.memory_format]:
        @wraps(plain)
        def determine(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
            return memory_format(input, weight) if input.device.type == DEVICE_TYPE else plain(input, weight, backend)

        return determine

    return determining


def observe_default_dtype(changed: Callable[[torch.dtype, torch.dtype], None]) -> Make:
    """Calls ``changed(before, after)`` when the default dtype has become another one."""

    def observing(plain: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(plain)
        def setter(value: Any) -> None:
            before = torch.get_default_dtype()
            plain(value)
            after = torch.get_default_dtype()
            if after != before:
                changed(before, after)

        return setter

    return observing


def name_dlpack_device(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.__dlpack_device__``: kDLExtDev is what C++ exports and imports tensors of Python backends as.

    See aten/src/ATen/DLConvertor.cpp.
    """

    @wraps(plain)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != DEVICE_TYPE or torch.overrides.has_torch_function_unary(self):
            return plain(self)
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    return dlpack_device


def run_backward_in_calling_thread(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Makes backward passes run where they are called: recording needs the GIL anyway, so nothing is lost.

    Other accelerators cannot run a backward pass once webgpu is registered: that is said before C++ fails an assertion.
    """

    @wraps(plain)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        others = {t.device.type for t in outputs if isinstance(t, torch.Tensor)} - {"cpu", "meta", DEVICE_TYPE}
        if others:
            raise RuntimeError(
                f"PyTorch cannot run backward passes on {', '.join(sorted(others))} in a process where a backend such "
                "as webgpu is registered (https://github.com/pytorch/pytorch/issues/161129). Start it without "
                "importing torch_webgpu; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps `import torch` from doing so"
            )
        with torch.autograd.set_multithreading_enabled(False):
            return plain(outputs, *args, **kwargs)

    return run
