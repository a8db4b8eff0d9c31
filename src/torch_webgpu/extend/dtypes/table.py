"""The registered dtypes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch_webgpu.errors import did_you_mean

from .config import DTypeConfig
from .errors import DTypeAlreadyRegisteredError, DTypeNotFoundError

_configs: dict[str, DTypeConfig] = {}


def registered() -> Mapping[str, DTypeConfig]:
    """The descriptions of all registered dtypes, by name, in the order of their registration. It follows changes."""
    return MappingProxyType(_configs)


def add(config: DTypeConfig, override: bool) -> None:
    if config.name in _configs and not override:
        raise DTypeAlreadyRegisteredError(
            f"a dtype {config.name!r} is registered: choose another name, unregister_dtype({config.name!r}) first, or "
            "register_dtype(…, override=True)"
        )
    _configs[config.name] = config


def find(name: str) -> DTypeConfig:
    """The description of the dtype of this name. DTypeNotFoundError, a LookupError, if none is registered."""
    try:
        return _configs[name]
    except KeyError:
        known = f"registered: {', '.join(_configs)}" if _configs else "none is registered"
        raise DTypeNotFoundError(f"no dtype {name!r} is registered{did_you_mean(name, _configs)}; {known}") from None


def unregister_dtype(name: str) -> DTypeConfig:
    """Forgets a dtype, and returns its description. Its tensors stay what they are. DTypeNotFoundError if none is
    registered under this name.
    """
    config = find(name)
    del _configs[name]
    return config
