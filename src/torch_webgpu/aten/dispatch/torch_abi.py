"""The unstable parts of PyTorch that ATen registration leans on, each in one place.

Meta kernels are asked once per signature; schemas are read once per overload.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from itertools import repeat
from threading import RLock
from typing import Any
from weakref import finalize

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad

from torch_webgpu.caches import Cache
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import different_devices

from .refusals import refusal

aten = torch.ops.aten
CPU_KEY = torch._C.DispatchKey.CPU
BACKEND_KEY = "PrivateUse1"
AUTOGRAD_KEY = "AutogradPrivateUse1"
DEVICE_TYPE = "webgpu"
DEVICE_TYPE_NUMBER: int = torch._C._autograd.DeviceType.PrivateUse1.value
DISABLED_TORCH_FUNCTION = torch._C._disabled_torch_function_impl
"""``__torch_function__`` of a tensor subclass that wants none."""

Meta = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""A tensor without data: shape, strides, dtype."""


class DeviceGuard(torch._C._acc.DeviceGuard):
    """Tells PyTorch's C++ the device type, through a function that is C itself; see also :mod:`.torch_guard`."""

    type_ = repeat(torch._C._autograd.DeviceType.PrivateUse1).__next__  # type: ignore[assignment]


profiler_range = torch._C._profiler._RecordFunctionFast
"""Context manager: a range of this name in ``torch.profiler``, as ``record_function`` without its operator call."""

_DISPATCH = __name__.rpartition(".")[0] + "."

KERNELS: dict[OpOverload, str] = {}
"""Every overload with a kernel, and the module that registered it."""

_registered: dict[OpOverload, Callable[..., Any]] = {}

META_CACHE_SIZE = 50_000
METAS: Cache[Any, list[Meta]] = Cache("results of meta kernels", META_CACHE_SIZE)
"""What :func:`infer` was told."""
_libraries: dict[str, torch.library.Library] = {}


def library(key: str, namespace: str = "aten") -> torch.library.Library:
    """The registration handle for a dispatch key; kept alive, since dropping it would undo its registrations."""
    handle = _libraries.get(namespace + key)
    if handle is None:
        handle = _libraries[namespace + key] = torch.library.Library(namespace, "IMPL")
        # At exit its kernels would be gone while threads and other packages' handlers still use the device.
        for finalizer in tuple(finalize._registry):  # type: ignore[attr-defined]
            alive = finalizer.peek()
            if alive is not None and alive[0] is handle:
                finalizer.atexit = False
    return handle


def impl(overload: OpOverload, fn: Callable[..., Any], key: str = BACKEND_KEY) -> None:
    """Registers ``fn`` as ``overload``'s kernel for webgpu tensors."""
    if key == BACKEND_KEY:
        KERNELS[overload] = _family()
        _registered[overload] = fn
    library(key).impl(overload, fn, key, allow_override=True)


def wrap_kernels(wrap: Callable[[OpOverload, Callable[..., Any]], Callable[..., Any] | None]) -> None:
    """Puts ``wrap(overload, kernel)`` in the place of every kernel for webgpu for which it is not None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # C++ warns of kernels that replace others
        for overload, kernel in _registered.items():
            wrapped = wrap(overload, kernel)
            if wrapped is not None:
                library(BACKEND_KEY).impl(overload, wrapped, BACKEND_KEY, allow_override=True)


def _family() -> str:
    """The module of ``aten`` that a registration comes from, past those of ``dispatch/``, which help to register."""
    frame = sys._getframe(2)
    while (name := frame.f_globals["__name__"]).startswith(_DISPATCH) and frame.f_back is not None:
        frame = frame.f_back
    return name.rpartition(".")[2]


def on_cpu_key(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Runs the CPU kernel of a device-agnostic operator (views, metadata) on webgpu tensors."""
    return overload._op_dk(CPU_KEY, *args, **kwargs)


def has_kernel(overload: OpOverload, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)


def fused_attention_is_wanted() -> bool:
    """Whether ``torch.nn.attention.sdpa_kernel`` and ``torch.backends`` leave any road but the composition.

    Scripts name CUDA's roads.
    """
    c = torch._C
    return (
        c._get_overrideable_sdp_enabled()
        or c._get_flash_sdp_enabled()
        or c._get_mem_efficient_sdp_enabled()
        or c._get_cudnn_sdp_enabled()
    )


composes_attention_in_halves = torch._C._get_math_sdp_allow_fp16_bf16_reduction
"""Whether ``torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp`` lets the composition stay in 16-bit floats."""
below_autograd = torch._C._AutoDispatchBelowAutograd
"""Context manager: operators go past autograd's keys."""


def in_transform() -> bool:
    """Whether tensors may have tangents, or a transform of ``torch.func`` is underway."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def apply_function(function: Any) -> Callable[..., Any]:
    """``function.apply`` for a kernel of autograd's dispatch keys, where a transform of ``torch.func`` is one level of
    autograd, as below it.
    """
    apply = function.apply

    def call(*values: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is None:
            return apply(*values)
        from torch._functorch import autograd_function as functorch  # not before a transform is underway

        with functorch.enable_single_level_autograd_function():  # type: ignore[attr-defined]
            return apply(*values)

    return call


SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction
"""``torch.autograd.Function`` as functorch's own are: of the level of autograd that is active, whichever that is."""


def cpu_kernel(overload: OpOverload) -> Callable[..., Any]:
    """The CPU kernel of a device-agnostic operator by itself: without a Python frame, half a microsecond faster."""
    kernel = torch.library.get_kernel(overload, "CPU")
    return partial(kernel.call_boxed, torch._C.DispatchKeySet(CPU_KEY))


is_deterministic = torch._C._get_deterministic_algorithms
"""``torch.are_deterministic_algorithms_enabled`` without a Python frame."""
fills_what_is_unwritten = torch._C._get_deterministic_fill_uninitialized_memory
"""``torch.utils.deterministic.fill_uninitialized_memory`` without one."""

fp32_precision = torch._C._get_fp32_precision_getter

AUTOCAST_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


def overloads_with_kernel(key: str) -> list[str]:
    """The full names of the aten overloads that have a kernel of their own for a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return [name for name in names if name.startswith("aten::")]


def overload_named(name: str) -> OpOverload:
    """The overload whose full name this is (``aten::add.Tensor``)."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def shared_kernel(overload: OpOverload, key: str) -> Callable[..., Any]:
    """The kernel that is registered for ``key``, for tensors that have another key."""
    found = getattr(torch._C.DispatchKey, key)
    if any("Tensor[]" in str(a.type) or "Tensor]" in str(a.type) for a in overload._schema.arguments):
        return partial(overload.redispatch, torch._C.DispatchKeySet(found))  # see :func:`per_tensor`
    return partial(overload._op_dk, found)


_AUTOCAST = torch._C.DispatchKeySet(AUTOCAST_KEY)


def exclude_autocast() -> Any:
    """Context manager: autocast off for this device, as its own kernels need it."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


def pass_autocast_through(module: Any) -> None:
    """Lets higher-order operators without autocast of their own skip this device's key, as they skip CPU's and CUDA's.

    ``module``: torch._ops (https://github.com/pytorch/pytorch/blob/main/torch/_ops.py).
    """
    module._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(AUTOCAST_KEY)
    for operator in module._higher_order_ops.values():
        if AUTOCAST_KEY not in operator.py_kernels:
            operator.fallthrough(AUTOCAST_KEY)


def overloads(packet_name: str) -> dict[str, OpOverload]:
    """The overloads of ``aten::packet_name`` by name; empty where this PyTorch has no such operator."""
    packet = getattr(aten, packet_name, None)
    return {name: getattr(packet, name) for name in packet.overloads()} if packet is not None else {}


def is_out(overload: OpOverload) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write and a.kwarg_only for a in overload._schema.arguments)


def is_inplace(overload: OpOverload) -> bool:
    arguments = overload._schema.arguments
    return bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write


def is_composite(overload: OpOverload) -> bool:
    """Whether PyTorch composes it of other operators on every device: a kernel of our own would have no autograd."""
    return has_kernel(overload, "CompositeImplicitAutograd") and not has_kernel(overload, "CPU")


def takes_numbers(overload: OpOverload) -> bool:
    """Whether calls from Python may have numbers where the schema has tensors."""
    return torch._C._should_allow_numbers_as_tensors(overload._schema.name.split("::")[1])


@cache
def functional_of(overload: OpOverload) -> OpOverload | None:
    """The overload that returns new tensors and takes the same arguments; None if PyTorch has none."""
    if not is_out(overload) and not is_inplace(overload):
        return overload
    name = overload._schema.name.split("::")[1]
    base = name[:-1] if is_inplace(overload) and name.endswith("_") else name
    wanted = [(a.name, str(a.type)) for a in overload._schema.arguments if not _is_out_argument(a)]
    for candidate in overloads(base).values():
        if is_out(candidate) or is_inplace(candidate):
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
            return candidate
    return None


def _is_out_argument(argument: Any) -> bool:
    return argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write


def is_webgpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def device_meant(value: Any) -> torch.device | None:
    """The device that an argument names; None where it names none, which PyTorch then says in its words."""
    if isinstance(value, (str, int)):
        try:
            return torch.device(value)
        except RuntimeError:
            return None
    return value if isinstance(value, torch.device) else None


_ORDINARY = tuple(
    getattr(torch._C.DispatchKey, name) for name in ("CPU", "CUDA", "HIP", "MPS", "XPU", "HPU", "MTIA", BACKEND_KEY)
)


def have_compatible_keys(t: torch.Tensor, other: torch.Tensor) -> bool:
    """``TensorImpl::has_compatible_shallow_copy_type``, whose list of devices with ordinary tensors lacks this one."""
    keys, others = torch._C._dispatch_keys(t), torch._C._dispatch_keys(other)
    return keys == others or (any(map(keys.has, _ORDINARY)) and any(map(others.has, _ORDINARY)))


def is_wrapped_number(t: torch.Tensor) -> bool:
    """Whether a 0-dim CPU tensor stands for a Python number, which yields in type promotion."""
    if t.dim() or t.device.type != "cpu":
        return False
    narrow = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}.get(t.dtype)
    if narrow is None:
        return False
    return torch.result_type(t, torch.empty((), dtype=narrow)) == narrow


def signature(value: Any) -> Any:
    """A hashable stand-in for an argument that decides shapes and dtypes like it does."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device.type, is_wrapped_number(value))
    if isinstance(value, (list, tuple)):
        return tuple(map(signature, value))
    # 1, 1.0 and True are equal and hash alike, but promote differently.
    return (value.__class__, value)


def to_meta(value: Any, scalars: bool = False) -> Any:
    """``value`` with a meta tensor for every webgpu tensor; if ``scalars``, for CPU tensors without dimensions, too."""
    if is_webgpu(value) or (scalars and isinstance(value, torch.Tensor) and not value.dim()):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)([to_meta(v, scalars) for v in value])
    if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
        return torch.device("meta")
    return value


def infer(overload: OpOverload, *args: Any, **kwargs: Any) -> list[Meta]:
    """What ``overload`` returns for these arguments: PyTorch's own meta kernel, cached per signature.

    Raises what PyTorch raises for bad arguments, in its words.
    """
    key = (overload, signature(args), tuple((k, signature(v)) for k, v in kwargs.items()))
    metas = METAS.get(key)
    if metas is None:
        metas = METAS.promote(key)
    if metas is None:
        asked = overload
        overload, kwargs = _asked(overload, kwargs)
        try:
            result = _answer(overload, args, kwargs)
        except NotImplementedError:
            check_devices((*args, *kwargs.values()))  # the meta kernel's complaint would be about device "meta"
            raise
        except Exception as own:  # noqa: BLE001  meta kernels written in Python raise whatever trips them
            check_devices((*args, *kwargs.values()))
            refused = refusal(asked, args, kwargs)
            if refused is not None or not is_deterministic():
                raise (refused or own) from None
            with _any_order():
                result = _answer(overload, args, kwargs)
        metas = [_meta_of(t) for t in _flatten(result)]
        METAS[key] = metas
    return metas


def _answer(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the meta kernel says. Some take CPU tensors without dimensions beside CUDA's, and not beside meta ones."""
    try:
        return overload(*map(to_meta, args), **{k: to_meta(v) for k, v in kwargs.items()})
    except RuntimeError as refusal:
        try:
            return overload(*to_meta(args, scalars=True), **{k: to_meta(v, scalars=True) for k, v in kwargs.items()})
        except Exception:  # noqa: BLE001  whatever it is, the first is about what was asked
            raise refusal from None


@contextmanager
def _any_order() -> Iterator[None]:
    """Leaves deterministic mode: meta kernels take "meta" for CUDA, and alert of what its kernels do."""
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def _asked(overload: OpOverload, kwargs: dict[str, Any]) -> tuple[OpOverload, dict[str, Any]]:
    """Whom to ask: PyTorch's meta kernels of floor division forget the strides that those of truncation keep."""
    if overload is aten.floor_divide.default:
        return aten.div.Tensor_mode, {"rounding_mode": "trunc"}
    if kwargs.get("rounding_mode") == "floor":
        return overload, {**kwargs, "rounding_mode": "trunc"}
    return overload, kwargs


def _flatten(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for item in result for t in _flatten(item)] if isinstance(result, (tuple, list)) else []


def _meta_of(t: torch.Tensor) -> Meta:
    return tuple(t.shape), t.stride(), t.dtype


def check_devices(values: Sequence[Any]) -> None:
    """Raises PyTorch's error unless the tensors among ``values`` are on one device, 0-dim CPU tensors aside."""
    expected: torch.device | None = None
    for t in _tensors(values):
        device = t.device
        if device != expected and (t.dim() or device.type != "cpu"):
            if expected is not None:
                raise different_devices(expected, device)
            expected = device


def empty_like_meta(metas: Sequence[Meta], device: int) -> list[torch.Tensor]:
    """Uninitialised tensors with the given layouts."""
    make = engine().empty
    return [make(shape, dtype, device, strides) for shape, strides, dtype in metas]


def outputs_of(overload: OpOverload, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """New tensors for what ``overload`` returns for these arguments (the first tensor argument names the device)."""
    device = next(index for index in map(_device_index, _tensors((*args, *kwargs.values()))) if index is not None)
    return empty_like_meta(infer(overload, *args, **kwargs), device)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _tensors(value)
    return tensors


def _device_index(t: torch.Tensor) -> int | None:
    return t.device.index if t.device.type == DEVICE_TYPE else None


_CPU_KEYS = torch._C.DispatchKeySet(CPU_KEY)


def per_tensor(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own loop over the lists' tensors, which serves every device.

    ``_op_dk`` ends the process when it is given lists of tensors.
    """
    return overload.redispatch(_CPU_KEYS, *args, **kwargs)


def is_modified() -> bool:
    """Whether a function mode, a dispatch mode or a transform of functorch takes part in calls."""
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def list_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function of as many tensors: whether each has the type, dtype, device, sizes and strides of these.

    Dynamo's guards do that in C++, in 0.1 µs a tensor (https://github.com/pytorch/pytorch/blob/main/torch/csrc/dynamo/
    guards.cpp). ``requires_grad`` must be the same, too. The function keeps no tensor alive.
    """
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


eval_frame: Any = torch._C._dynamo.eval_frame
SKIP_FRAME = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
"""For Dynamo: run the function and what it calls as they are."""


def accelerator_hooks(table: dict[str, Callable[..., Any]]) -> Callable[[Any], None]:
    """Gives ``torch.accelerator`` Python implementations where the C++ ones end at a missing device allocator or guard.

    Every function of ``torch.accelerator`` looks its ``torch._C._accelerator_*`` up at each call. The originals serve
    as long as another device is the current accelerator.
    """

    def replace(module: Any) -> None:
        for name, ours in table.items():
            original = getattr(module, f"_accelerator_{name}", None)
            if original is not None:
                setattr(module, f"_accelerator_{name}", _when_current(ours, original))

    return replace


def _when_current(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def hook(*args: Any) -> Any:
        current = torch._C._accelerator_getAccelerator()
        return (ours if current is not None and current.type == DEVICE_TYPE else original)(*args)

    # Compiled functions ask for the current stream, and Dynamo would compile what it finds to be Python.
    eval_frame.set_code_exec_strategy(hook.__code__, SKIP_FRAME)  # type: ignore[attr-defined]
    return hook


_compiling = RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is true inside, as in ``torch.export``: libraries ask it before they read
    values that only make something faster, or check arguments.

    The flag is the process's. Dynamo's lock keeps threads that compile meanwhile from putting it back in another order;
    it is taken before the engine's, as there.
    """
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    with _compiling if dynamo is None else dynamo.compile_lock:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before
