"""Dictionaries in Python's manner and, as programs written for WebGPU in a browser know them, objects."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class Record(OrderedDict[str, Any]):
    """A dictionary whose entries are attributes, too: ``stats["fusions"]`` and ``stats.fusions``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} among {', '.join(self)}") from None
