"""Lightning's Trainer and Fabric, under both names of either package.

The accelerator joins Lightning's registry, so ``accelerator="webgpu"`` is known. What a registered accelerator cannot
say is which strategy and which autocast go with it (the CPU's and CUDA's do), nor that it is what "auto" means.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any

import torch

from torch_webgpu.api.device import device_count, is_available, set_device
from torch_webgpu.api.memory import empty_cache, memory_stats
from torch_webgpu.api.random import get_rng_state_all, set_rng_state_all
from torch_webgpu.distributed.adapters import adapters_alike
from torch_webgpu.patching import Patches

from . import lightning_distributed
from .choice import webgpu_device
from .lightning_distributed import FABRIC, THIRD_PARTY_DEVICES, TRAINER

MORE_ACCELERATORS = "https://github.com/Lightning-AI/pytorch-lightning/issues/20884"

CONNECTORS = {f"{name}.connector": "_Connector" for name in FABRIC} | {
    f"{name}.trainer.connectors.accelerator_connector": "_AcceleratorConnector" for name in TRAINER
}

PATCHES = Patches(lightning_distributed.PATCHES)


def connector(method: str, upstream: str) -> Callable[[Any], Any]:
    """Patches a method of the classes that turn the arguments of Fabric and of the Trainer into objects."""

    def decorate(make: Any) -> Any:
        for module, owner in CONNECTORS.items():
            PATCHES.add(module, f"{owner}.{method}", upstream=upstream)(make)
        return make

    return decorate


def parse_devices(devices: int | str | list[int]) -> list[int]:
    """Adapter indices from Lightning's ``devices``: a count, a list, or either in a string. One rank trains on each.

    Raises ValueError for adapters that are not there, for none, and for one twice.
    """
    if isinstance(devices, str):
        names = [int(part) for part in devices.split(",") if part.strip()]
        devices = names if "," in devices else names[0]
    count = device_count()
    wanted = list(devices) if isinstance(devices, (list, tuple)) else list(range(count if devices == -1 else devices))
    if not set(wanted) <= set(range(count)):
        raise ValueError(f"devices={devices!r}: there are {count} WebGPU adapters")
    if not wanted or len(set(wanted)) != len(wanted):
        raise ValueError(f"devices={devices!r}: name adapters once each, such as devices=[0]")
    return wanted


class WebGPU:
    """What the accelerators of Fabric and of the Trainer have in common: that they are ours."""


def is_interactive() -> bool:
    """Whether this is a shell or a notebook, where Lightning takes one GPU unless it is told a number."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


@cache
def make_accelerator(base: type) -> type:
    """``WebGPUAccelerator`` over Lightning's own base class."""

    class WebGPUAccelerator(WebGPU, base):
        """WebGPU adapters, one for each rank."""

        def __reduce__(self) -> tuple[Any, ...]:
            return new_accelerator, (base,)

        def setup_device(self, device: torch.device) -> None:
            if device.type != "webgpu":
                raise ValueError(f"Device should be webgpu, got {device} instead.")
            set_device(device)

        def teardown(self) -> None:
            empty_cache()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(memory_stats(device))

        parse_devices = staticmethod(parse_devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("webgpu", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1 if is_interactive() else len(adapters_alike())

        @staticmethod
        def is_available() -> bool:
            return is_available()

        @staticmethod
        def name() -> str:
            return "webgpu"

    return WebGPUAccelerator


def new_accelerator(base: type) -> Any:
    """What an accelerator becomes in another process (``strategy="ddp_spawn"``)."""
    return make_accelerator(base)()


@PATCHES.add([f"{name}.accelerators" for name in FABRIC + TRAINER], upstream=MORE_ACCELERATORS)
def register_accelerator(module: ModuleType) -> None:
    """``accelerator="webgpu"``, by Lightning's registry."""
    registry = module.ACCELERATOR_REGISTRY if hasattr(module, "ACCELERATOR_REGISTRY") else module.AcceleratorRegistry
    if "webgpu" not in registry:
        registry.register("webgpu", make_accelerator(module.Accelerator), description="WebGPU adapters")


@connector("_choose_auto_accelerator", MORE_ACCELERATORS)
def auto(plain: staticmethod[[], str]) -> staticmethod[[], str]:
    """``accelerator="auto"`` asks a list of accelerators, the registered ones not among them."""

    def _choose_auto_accelerator() -> str:
        found = plain.__func__()
        return "webgpu" if found == "cpu" and webgpu_device() is not None else found

    return staticmethod(_choose_auto_accelerator)


@connector("_choose_gpu_accelerator_backend", MORE_ACCELERATORS)
def gpu(plain: staticmethod[[], str]) -> staticmethod[[], str]:
    """``accelerator="gpu"`` knows MPS and CUDA."""

    def _choose_gpu_accelerator_backend() -> str:
        return plain.__func__() if webgpu_device() is None else "webgpu"

    return staticmethod(_choose_gpu_accelerator_backend)


def is_webgpu(self: Any) -> bool:
    """Whether a connector has our accelerator."""
    return isinstance(self.accelerator, WebGPU)


@connector("_choose_strategy", THIRD_PARTY_DEVICES)
def strategy(plain: Callable[..., Any]) -> Callable[..., Any]:
    """One device of an accelerator that is registered becomes ``SingleDeviceStrategy("cpu")``."""

    @wraps(plain)
    def _choose_strategy(self: Any) -> Any:
        if is_webgpu(self) and self._num_nodes_flag == len(self._parallel_devices) == 1:
            single = plain.__globals__["SingleDeviceStrategy"]
            return single(device=self._parallel_devices[0])
        return plain(self)

    return _choose_strategy


@connector("_check_strategy_and_fallback", THIRD_PARTY_DEVICES)
def sharded(plain: Callable[..., None]) -> Callable[..., None]:
    """FSDP is refused unless the accelerator has the name of CUDA's."""

    @wraps(plain)
    def _check_strategy_and_fallback(self: Any) -> None:
        flag = self._accelerator_flag
        if is_webgpu(self):
            self._accelerator_flag = "cuda"
        try:
            plain(self)
        finally:
            self._accelerator_flag = flag

    return _check_strategy_and_fallback


@connector("_check_and_init_precision", THIRD_PARTY_DEVICES)
def precision(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Mixed precision of an accelerator that is registered is CUDA's autocast, which does nothing elsewhere."""

    @wraps(plain)
    def _check_and_init_precision(self: Any) -> Any:
        known = plain.__globals__
        wanted, own = (
            (self._precision_flag, self._precision_plugin_flag)
            if hasattr(self, "_precision_flag")
            else (self._precision_input, self._precision_instance)
        )
        by_the_strategy = isinstance(self.strategy, (known["FSDPStrategy"], known["DeepSpeedStrategy"]))
        if own is not None or by_the_strategy or wanted not in ("16-mixed", "bf16-mixed") or not is_webgpu(self):
            return plain(self)
        known["rank_zero_info"](f"Using {wanted} Automatic Mixed Precision (AMP) on WebGPU")
        return known["MixedPrecision"](wanted, "webgpu")

    return _check_and_init_precision


@PATCHES.add([f"{name}.utilities.seed" for name in FABRIC], "_collect_rng_states", upstream=THIRD_PARTY_DEVICES)
def collect_random_states(plain: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """``isolate_rng``, around the sanity check before training, keeps the CPU's and CUDA's random states."""

    @wraps(plain)
    def _collect_rng_states(include_cuda: bool = True) -> dict[str, Any]:
        ours = {"torch.webgpu": get_rng_state_all()} if include_cuda and webgpu_device() is not None else {}
        return plain(include_cuda) | ours

    return _collect_rng_states


@PATCHES.add([f"{name}.utilities.seed" for name in FABRIC], "_set_rng_states", upstream=THIRD_PARTY_DEVICES)
def set_random_states(plain: Callable[..., None]) -> Callable[..., None]:
    """The other half of :func:`collect_random_states`."""

    @wraps(plain)
    def _set_rng_states(rng_state_dict: dict[str, Any]) -> None:
        plain(rng_state_dict)
        set_rng_state_all(rng_state_dict.get("torch.webgpu", []))

    return _set_rng_states


@PATCHES.add([f"{name}.trainer.setup" for name in TRAINER], "_log_device_info", upstream=MORE_ACCELERATORS)
def log_device(plain: Callable[..., None]) -> Callable[..., None]:
    """The Trainer tells which of the accelerators it knows are there, and used."""

    @wraps(plain)
    def _log_device_info(trainer: Any) -> None:
        plain(trainer)
        used = trainer.strategy.root_device.type == "webgpu"
        tell = plain.__globals__["rank_zero_info"]
        tell(f"WebGPU available: {is_available()}, used: {used}")

    return _log_device_info
