"""Libraries that choose a device from names they know, taught webgpu.

A file for each library, imported when the library is. Each uses the library's own extension points, and patches where
there are none; docs/integrations.md says what every library needs for the patch to go. TORCH_WEBGPU_INTEGRATIONS=0
leaves all of them alone.
"""

from __future__ import annotations

from torch_webgpu.config import config
from torch_webgpu.on_import import watch

from .libraries import Libraries

LIBRARIES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "diffusers": "diffusers",
    "lightning": "lightning",
    "lightning_fabric": "lightning",
    "peft": "peft",
    "pytorch_lightning": "lightning",
    "safetensors": "safetensors",
    "sentence_transformers": "sentence_transformers",
    "stable_baselines3": "stable_baselines3",
    "torchao": "torchao",
    "transformers": "transformers",
}
"""By a library's package, the module here that is about it."""

known = Libraries({package: f"{__name__}.{module}" for package, module in LIBRARIES.items()})


def register() -> None:
    """Watches for the libraries' imports, unless the environment says to leave them alone."""
    if config().integrations:
        for package in LIBRARIES:
            watch(package, known.find)
