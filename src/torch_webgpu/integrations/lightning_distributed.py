"""Lightning's strategies for several ranks on webgpu: DDP, FSDP and what they ask of CUDA by its name.

Which of them goes with the accelerator is in :mod:`.lightning`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from torch_webgpu.patching import Patches

from .choice import webgpu_device

THIRD_PARTY_DEVICES = "https://github.com/Lightning-AI/pytorch-lightning/pull/20349"

FABRIC = ("lightning.fabric", "lightning_fabric")
TRAINER = ("lightning.pytorch", "pytorch_lightning")
BOTH = FABRIC + TRAINER

PATCHES = Patches()


def no_device_ids(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A DDP module that is told its device's number is made under a stream of CUDA's.

    Without the number it finds the device itself; Lightning moves the batches.
    """

    @wraps(plain)
    def device_ids(self: Any) -> list[int] | None:
        return None if self.root_device.type == "webgpu" else plain(self)

    return device_ids


for package, method in [(p, "_determine_ddp_device_ids") for p in FABRIC] + [
    (p, "determine_ddp_device_ids") for p in TRAINER
]:
    PATCHES.add(f"{package}.strategies.ddp", f"DDPStrategy.{method}", upstream=THIRD_PARTY_DEVICES)(no_device_ids)


@PATCHES.add([f"{p}.strategies.ddp" for p in TRAINER], "DDPStrategy._register_ddp_hooks", upstream=THIRD_PARTY_DEVICES)
def communication_hooks(plain: Callable[..., None]) -> Callable[..., None]:
    """``ddp_comm_hook`` is passed over on devices but CUDA, without a word."""

    @wraps(plain)
    def _register_ddp_hooks(self: Any) -> None:
        plain(self)
        if self.root_device.type == "webgpu":
            plain.__globals__["_register_ddp_comm_hook"](
                model=self.model,
                ddp_comm_state=self._ddp_comm_state,
                ddp_comm_hook=self._ddp_comm_hook,
                ddp_comm_wrapper=self._ddp_comm_wrapper,
            )

    return _register_ddp_hooks


@PATCHES.add([f"{p}.strategies.fsdp" for p in BOTH], "FSDPStrategy.setup_environment", upstream=THIRD_PARTY_DEVICES)
def mesh(plain: Callable[..., None]) -> Callable[..., None]:
    """``FSDPStrategy(device_mesh=(2, 2))`` makes a mesh of CUDA's devices."""

    @wraps(plain)
    def setup_environment(self: Any) -> None:
        options = self.kwargs if hasattr(self, "kwargs") else self._fsdp_kwargs
        shape = options.get("device_mesh")
        if not isinstance(shape, tuple) or self.root_device.type != "webgpu":
            plain(self)
            return
        options["device_mesh"] = None
        plain(self)
        options["device_mesh"] = torch.distributed.device_mesh.init_device_mesh("webgpu", shape)

    return setup_environment


@PATCHES.add(
    [f"{p}.plugins.precision.fsdp" for p in BOTH], "FSDPPrecision.forward_context", upstream=THIRD_PARTY_DEVICES
)
def autocast_of_fsdp(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Mixed precision under FSDP is CUDA's autocast, which does nothing elsewhere."""

    @wraps(plain)
    def forward_context(self: Any) -> Any:
        if "mixed" not in self.precision or webgpu_device() is None:
            return plain(self)
        return torch.autocast("webgpu", dtype=torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16)

    return forward_context
