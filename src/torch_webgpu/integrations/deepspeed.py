"""DeepSpeed: what it says where a model is on webgpu, which none of its accelerators is for.

It takes the CPU where it finds no accelerator that it knows, and would move the model there without a word.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch_webgpu.patching import Patches

NEW_ACCELERATORS = "https://www.deepspeed.ai/tutorials/accelerator-abstraction-interface/"
INSTEAD = (
    "DeepSpeed has no accelerator for webgpu: it would train on the CPU. On webgpu use PyTorch's own: "
    "DistributedDataParallel with ZeroRedundancyOptimizer for ZeRO stage 1, fully_shard(model, "
    "reshard_after_forward=False) for stage 2, fully_shard(model) for stage 3 "
    "(Accelerate: --use_fsdp; Trainer: fsdp=True; Lightning: strategy='fsdp')"
)

PATCHES = Patches()


@PATCHES.add("deepspeed.accelerator.real_accelerator", "get_accelerator", upstream=NEW_ACCELERATORS)
def accelerator(plain: Callable[[], Any]) -> Callable[[], Any]:
    """``DS_ACCELERATOR=webgpu`` is refused without a word what to use."""

    @wraps(plain)
    def get_accelerator() -> Any:
        try:
            return plain()
        except ValueError as error:
            if os.environ.get("DS_ACCELERATOR") != "webgpu":
                raise
            raise ValueError(f"{error}. {INSTEAD}") from None

    return get_accelerator


def refusing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A model that is on webgpu is moved to the CPU, and trained there."""

    @wraps(plain)
    def engine(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            parameters = getattr(value, "parameters", None)
            if callable(parameters) and any(parameter.device.type == "webgpu" for parameter in parameters()):
                raise RuntimeError(f"{INSTEAD}. DeepSpeed itself runs on the CPU: move the model there first")
        return plain(*args, **kwargs)

    return engine


for function in ("initialize", "init_inference", "tp_model_init"):
    PATCHES.add("deepspeed", function, upstream=NEW_ACCELERATORS)(refusing)
