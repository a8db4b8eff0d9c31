"""Checkpoints: places that were saved, or are asked for, under the name of another device."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from torch_webgpu.translation.device_names import FOREIGN

from .target import HERE, Around, local_name


@Around
def restore_location(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.load`` asks for every storage, whatever its ``map_location`` is: "cuda:1" is the target's. An index
    that is not there is the current device's, as for a checkpoint of a larger machine it has to be."""

    @wraps(plain)
    def default_restore_location(storage: Any, location: Any) -> Any:
        if isinstance(location, str) and location.partition(":")[0] in FOREIGN:
            location = local_name(location)
            index = location.partition(":")[2]
            if index and int(index) >= HERE.count:
                location = f"{HERE.type}:{HERE.current}"
        return plain(storage, location)

    return default_restore_location


@Around
def load(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load`` with a dictionary: its keys are meant for the names that devices were saved under."""

    @wraps(plain)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {**_otherwise_named(map_location), **map_location}
        return plain(f, map_location, *args, **kwargs)

    return load


def _otherwise_named(places: dict[Any, Any]) -> dict[Any, Any]:
    """The entries under the devices' other name: the user's "cuda" constants have become the target's, and a checkpoint
    may be of either."""
    renamed = {}
    for key, place in places.items():
        kind, colon, index = str(key).partition(":")
        if kind == HERE.type != "cpu":
            renamed[f"cuda{colon}{index}"] = place
        elif kind in FOREIGN:
            renamed[local_name(str(key))] = place
    return renamed


@Around
def jit_load(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.jit.load(f, map_location="cuda")``"""

    @wraps(plain)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)):
            map_location = local_name(map_location)
        return plain(f, map_location, *args, **kwargs)

    return load
