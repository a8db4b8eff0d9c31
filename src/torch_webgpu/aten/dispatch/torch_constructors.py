"""Constructors of PyTorch's classes in C++ that know no Python backend: events, streams and generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from torch_webgpu.patching import Make

from .torch_abi import DEVICE_TYPE, device_meant


def device_constructor(make: Callable[..., Any]) -> Make:
    """``torch.Event`` or ``torch.Stream`` calls ``make(device, **options)`` for webgpu.

    Without a device the current accelerator is meant, as in PyTorch. A stream named by its number (``stream_id=…``) is
    C++'s.
    """
    options = {"device", *inspect.signature(make).parameters} - {"kwargs"}

    def ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 or not options.issuperset(kwargs):
            return None
        named = args[0] if args else kwargs.get("device")
        device = torch.accelerator.current_accelerator() if named is None else device_meant(named)
        if device is None or device.type != DEVICE_TYPE:
            return None
        return make(device, **{k: v for k, v in kwargs.items() if k != "device"})

    return partial(_inheriting, ours)


def generator_constructor(make: Callable[[torch.device], torch.Generator]) -> Callable[[Any], None]:
    """``torch.Generator(device="webgpu")`` calls ``make``."""

    def ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = device_meant(args[0] if args else kwargs.get("device"))
        return make(device) if device is not None and device.type == DEVICE_TYPE else None

    def replace(module: Any) -> None:
        """Where the class has a Python metaclass (2.13) its call is intercepted, and ``torch.Generator`` stays."""
        plain = module.Generator
        metaclass: Any = type(plain)
        if metaclass is type:
            module.Generator = _inheriting(ours, plain)
            return
        original = metaclass.__call__

        @wraps(original)
        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            generator = ours(args, kwargs) if cls is plain else None
            return original(cls, *args, **kwargs) if generator is None else generator

        metaclass.__call__ = call

    return replace


def _inheriting(make: Callable[[tuple[Any, ...], dict[str, Any]], Any], plain: Any) -> Any:
    """A class that inherits from ``plain``, which is immutable, by its name; its calls ask ``make`` first.

    What that answers None to is made as before.
    """

    class ConstructorType(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            instance = make(args, kwargs) if cls is ours else None
            return super().__call__(*args, **kwargs) if instance is None else instance

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain) if cls is ours else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, plain) if cls is ours else super().__subclasscheck__(subclass)

    name = plain.__name__
    ours = ConstructorType(name, (plain,), {"__module__": "torch", "__qualname__": name, "__doc__": plain.__doc__})
    return ours
