"""sentence-transformers: the device of ``SentenceTransformer(…)`` and its like."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from torch_webgpu.patching import Patches

from .choice import instead_of_cpu

PATCHES = Patches()

# The function lies in the first since release 5; in the second, a single file, before.
PLACES = ("sentence_transformers.util.environment", "sentence_transformers.util")


@PATCHES.add(PLACES, "get_device_name", upstream="https://github.com/huggingface/sentence-transformers")
def device_name(plain: Callable[[], str]) -> Callable[[], str]:
    """A model goes to the first backend of a list of names that is there, else the CPU."""

    @wraps(plain)
    def get_device_name() -> str:
        return str(instead_of_cpu(torch.device(plain())))

    return get_device_name
