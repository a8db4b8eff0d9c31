"""The GPU of a browser's tab as a WebGPU implementation."""

from __future__ import annotations

from typing import Any, Literal

from torch_webgpu.runtime.implementation import Adapter, NativeDevice

from .adapter import FEATURES, LIMITS
from .server import BrowserServer


class BrowserImplementation:
    """The GPU of the tab that ``server`` invited, as the one adapter of an implementation."""

    dialect: Literal["naga", "tint"] = "tint"  # whose text, without extensions, every browser reads

    def __init__(self, name: str, server: BrowserServer) -> None:
        self.name, self.server = name, server

    def version(self) -> str:
        return f"WebGPU of {self.server.browser}"

    def adapters(self) -> list[Adapter]:
        """One; none before a browser has joined."""
        facts = self.server.facts
        if facts is None:
            return []
        info: dict[str, Any] = {
            "vendor": facts["vendor"],
            "architecture": facts["architecture"],
            "device": facts["name"],
            "description": f"a browser at {self.server.address}",
            "vendor_id": 0,
            "device_id": 0,
            "adapter_type": "CPU" if facts["software"] else "Unknown",
            "backend_type": "Browser",
            "subgroup_min_size": 0,
            "subgroup_max_size": 0,
        }
        limits = {ours: facts["limits"][theirs] for theirs, ours in LIMITS.items()} | {"max-immediate-size": 0}
        return [Adapter(self, None, info, frozenset(FEATURES[name] for name in facts["features"]), limits)]

    def open(self, adapter: Adapter) -> NativeDevice:
        device: Any = self.server.open()  # its calls of the hot loop are functions, not attributes
        opened: NativeDevice = device
        return opened
