"""torchao: weights of 4 bits are packed on the device, where it asks CUDA what GPU there is.

``quantize_(model, Int8WeightOnlyConfig())`` needs nothing: its products are those of compile's patterns. Of the formats
of ``Int4WeightOnlyConfig`` the device has ``int4_packing_format="tile_packed_to_4d"``, whose operators it implements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest import mock

import torch

from torch_webgpu.patching import Patches

PATCHES = Patches()
AMPERE = (8, 0)


@PATCHES.add(
    "torchao.quantization.quantize_.workflows.int4.int4_tile_packed_to_4d_tensor",
    "Int4TilePackedTo4dTensor.from_hp",
    upstream="https://github.com/pytorch/ao",
)
def packed_on_the_device(plain: Any) -> Any:
    """torchao raises unless CUDA has tensor cores, wherever the weights are."""
    make: Callable[..., Any] = getattr(plain, "__func__", plain)

    @wraps(make)
    def from_hp(cls: type, hp_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if hp_tensor.device.type != "webgpu":
            return make(cls, hp_tensor, *args, **kwargs)
        with mock.patch.object(torch.cuda, "get_device_capability", return_value=AMPERE):
            return make(cls, hp_tensor, *args, **kwargs)

    return classmethod(from_hp)
