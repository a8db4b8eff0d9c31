"""``torch.webgpu.amp``: torch.cuda.amp's names for what ``torch.amp`` does with ``device_type="webgpu"``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


class autocast(torch.amp.autocast):  # noqa: N801 torch's name
    """``torch.autocast("webgpu", …)``."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("webgpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("webgpu", …)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("webgpu", *args, **kwargs)


custom_fwd = partial(torch.amp.custom_fwd, device_type="webgpu")
custom_bwd = partial(torch.amp.custom_bwd, device_type="webgpu")
