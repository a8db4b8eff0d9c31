"""What classes of PyTorch's are made with: names of devices among the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from torch.profiler import ProfilerActivity

from .target import Around, local_name


@Around
def autocast_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.autocast("cuda")`` is the target's. On the CPU float16 stays what was asked for."""

    @wraps(plain)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, local_name(device_type), *args, **kwargs)

    return __init__


@Around
def scaler_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.amp.GradScaler()``, whose device is "cuda" if none is named."""

    @wraps(plain)
    def __init__(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, local_name(device), *args, **kwargs)

    return __init__


@Around
def data_loader_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``DataLoader(pin_memory_device="cuda")``: pinned for the accelerator that there is."""

    @wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if local_name(kwargs.get("pin_memory_device", "")) != kwargs.get("pin_memory_device", ""):
            del kwargs["pin_memory_device"]
        plain(self, *args, **kwargs)

    return __init__


@Around
def profile_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.profiler.profile(activities=[CPU, CUDA])`` without CUDA: the host's side is shown."""

    @wraps(plain)
    def __init__(self: Any, *, activities: Iterable[Any] | None = None, **kwargs: Any) -> None:  # noqa: N807
        if activities is not None:
            kept = [activity for activity in activities if activity != ProfilerActivity.CUDA]
            activities = kept or [ProfilerActivity.CPU]
        plain(self, activities=activities, **kwargs)

    return __init__


@Around
def emit_nvtx_init(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.autograd.profiler.emit_nvtx()``, which emits nothing."""

    @wraps(plain)
    def __init__(self: Any, enabled: bool = True, record_shapes: bool = False) -> None:  # noqa: N807
        plain(self, False, record_shapes)

    return __init__


@Around
def storage_new(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.UntypedStorage(n, device="cuda")``"""

    @wraps(plain)
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if "device" in kwargs:
            kwargs["device"] = local_name(kwargs["device"])
        return plain(cls, *args, **kwargs)

    return __new__
