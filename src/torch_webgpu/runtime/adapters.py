"""Which adapters there are: those of all implementations, one for each GPU, best first."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_webgpu.config import config
from torch_webgpu.errors import NoAdapterError

from .implementation import Adapter
from .implementations import LOAD_ERRORS, MODULES, advice, implementation

_TYPE_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
_BACKEND_ORDER = ("Metal", "Vulkan", "D3D12", "Unknown", "OpenGL", "OpenGLES")


@dataclass
class Survey:
    """What there is on this machine."""

    absent: dict[str, str] = field(default_factory=dict)
    """The implementations that do not load, and why."""
    broken: list[Adapter] = field(default_factory=list)
    """Listings that are passed over, since the probe comes out wrong on them."""
    gpus: list[list[Adapter]] = field(default_factory=list)
    """The listings of each GPU, the one that is used first; the GPUs in the order of their devices."""


def adapters() -> list[Adapter]:
    """The usable adapters, software ones last, the wanted one in front; empty where there is none.

    ``TORCH_WEBGPU_IMPLEMENTATION`` says whose they are, ``TORCH_WEBGPU_ADAPTER`` puts one first; NoAdapterError when
    what they ask for is not there.
    """
    return unique(survey().gpus)


def survey() -> Survey:
    """Looks for adapters, and says what it did not take. Raises as :func:`adapters`."""
    from .probe import works  # which loads numpy

    chosen = config().implementation
    seen = Survey()
    adapters: list[Adapter] = []
    for name in MODULES if chosen == "auto" else (chosen,):
        try:
            offered = implementation(name).adapters()
        except LOAD_ERRORS as error:
            if chosen == name:
                raise NoAdapterError(f"TORCH_WEBGPU_IMPLEMENTATION={name}: {error}. {advice(name)}") from None
            seen.absent[name] = str(error)
            continue
        for adapter in offered:
            # Dawn is young: where there is a choice, it has to show that it works.
            usable = chosen != "auto" or name != "dawn" or works(adapter)
            (adapters if usable else seen.broken).append(adapter)
    seen.gpus = _ranked(adapters)
    if config().adapter and seen.gpus:
        first = _choose(unique(seen.gpus), config().adapter)
        seen.gpus.insert(0, seen.gpus.pop(first))
    return seen


def listed(adapters: list[Adapter]) -> list[Adapter]:
    """The best listing of each GPU that an implementation lists, software ones last."""
    return unique(_ranked(adapters))


def _ranked(adapters: list[Adapter]) -> list[list[Adapter]]:
    return sorted(by_gpu(adapters), key=lambda listings: _rank(listings[0]))


def unique(gpus: list[list[Adapter]]) -> list[Adapter]:
    """The best listing of each GPU."""
    return [listings[0] for listings in gpus]


def _rank(adapter: Adapter) -> int:
    return _place(_TYPE_ORDER, adapter.info["adapter_type"])


def _place(order: tuple[str, ...], name: str) -> int:
    """Where a name comes; what another implementation calls by a name of its own comes as what is unknown."""
    return order.index(name if name in order else "Unknown")


def by_gpu(adapters: list[Adapter]) -> list[list[Adapter]]:
    """``adapters``, the listings of one GPU by several backends or libraries together, the best of them first.

    Two entries of one library and backend are two GPUs, each of which stands for one entry of any other.
    """
    gpus: list[list[Adapter]] = []
    for adapter in sorted(adapters, key=_preference):
        others = (
            listings
            for listings in gpus
            if _same_gpu(adapter, listings[0]) and _source(adapter) not in map(_source, listings)
        )
        known = next(others, None)
        if known is None:
            gpus.append([adapter])
        else:
            known.append(adapter)
    return gpus


def _source(adapter: Adapter) -> tuple[str, str]:
    return adapter.implementation.name, adapter.info["backend_type"]


def _preference(adapter: Adapter) -> tuple[int, bool]:
    """The best backend first; of software adapters wgpu-native's, which have 64-bit numbers."""
    software = adapter.info["adapter_type"] == "CPU"
    return _place(_BACKEND_ORDER, adapter.info["backend_type"]), software and adapter.implementation.name != "wgpu"


def _same_gpu(one: Adapter, other: Adapter) -> bool:
    """Whether two listings may be the same GPU: by its numbers, or where one lacks them by how its name begins."""
    ids = [(adapter.info["vendor_id"], adapter.info["device_id"]) for adapter in (one, other)]
    if all(map(all, ids)):
        return ids[0] == ids[1]
    names = sorted((adapter.info["device"] for adapter in (one, other)), key=len)
    return names[1].startswith(names[0])


def _choose(best: list[Adapter], wanted: str) -> int:
    names = [adapter.info["device"] for adapter in best]
    if wanted.isdigit() and int(wanted) < len(best):
        return int(wanted)
    for index, name in enumerate(names):
        if wanted.lower() in name.lower():
            return index
    raise NoAdapterError(f"TORCH_WEBGPU_ADAPTER={wanted!r} matches none of: " + ", ".join(names))
