"""Every environment flag of the package, read once, in one frozen table.

============================== =========================================================================
``TORCH_WEBGPU_ADAPTER``       index or part of the name of the adapter to put first
``TORCH_WEBGPU_IMPLEMENTATION`` whose WebGPU: ``wgpu``, ``dawn``, or ``auto`` (default): Dawn where it is installed and
                               its adapter works, else wgpu-native
``TORCH_WEBGPU_COPIES``        how many devices each adapter becomes: programs for several GPUs, tried on one
``TORCH_WEBGPU_FALLBACK``      ``warn`` (default), ``silent`` or ``error``: what a CPU fallback does
``TORCH_WEBGPU_DEBUG``         comma-separated stages to print on stderr: record, fuse, passes, wgsl, plan, fallback;
                               ``where``: lines that use an index out of range raise, not the next read;
                               ``verify``: every plan is checked before it runs
``TORCH_WEBGPU_BATCHING``      ``0`` submits after every operation
``TORCH_WEBGPU_FUSION``        ``0`` runs every recorded operation as its own kernel
``TORCH_WEBGPU_FUSION_WINDOW`` how many kernels back an operation looks for one to join (64)
``TORCH_WEBGPU_INT64``         ``emulated``: pretend the adapter has no 64-bit integers
``TORCH_WEBGPU_FLOAT16``       ``emulated``: pretend the adapter has no shader-f16
``TORCH_WEBGPU_FLOAT64``       ``off``: pretend the adapter has no shader-f64
``TORCH_WEBGPU_IMMEDIATES``    ``0``: pass kernel parameters in a uniform buffer
``TORCH_WEBGPU_MAX_BINDING``   bytes: pretend the adapter binds no more than this at once
``TORCH_WEBGPU_MAX_BUFFERS``   pretend that a kernel binds no more buffers than this; every adapter has 8
``TORCH_WEBGPU_CACHE_DIR``     where plans of compiled graphs are kept; ``off``: nowhere
``TORCH_WEBGPU_INTEGRATIONS``  ``0``: leave libraries as they are, which then need to be told ``device="webgpu"``
============================== =========================================================================
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import cache


def _flag(name: str, default: str = "") -> str:
    return os.environ.get(f"TORCH_WEBGPU_{name}", default)


FALLBACK_MODES = ("warn", "silent", "error")
IMPLEMENTATIONS = ("auto", "wgpu", "dawn")


def _choice(name: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first where nothing is said."""
    chosen = _flag(name, choices[0])
    if chosen not in choices:
        raise ValueError(f"TORCH_WEBGPU_{name}={chosen!r}: expected one of {', '.join(choices)}")
    return chosen


PRINTED_STAGES = ("record", "fuse", "passes", "wgsl", "plan", "fallback")
DEBUG_STAGES = (*PRINTED_STAGES, "where", "verify")


def _debug_stages() -> frozenset[str]:
    stages = frozenset(filter(None, map(str.strip, _flag("DEBUG").split(","))))
    if unknown := stages.difference(DEBUG_STAGES):
        raise ValueError(
            f"TORCH_WEBGPU_DEBUG: there is no stage {', '.join(sorted(unknown))}, only {', '.join(DEBUG_STAGES)}"
        )
    return stages


@dataclass(frozen=True)
class Config:
    """The flags, typed. Build one through :func:`config`."""

    adapter: str = field(default_factory=lambda: _flag("ADAPTER"))
    copies: int = field(default_factory=lambda: int(_flag("COPIES", "1")))
    fallback: str = field(default_factory=lambda: _choice("FALLBACK", FALLBACK_MODES))
    implementation: str = field(default_factory=lambda: _choice("IMPLEMENTATION", IMPLEMENTATIONS))
    debug: frozenset[str] = field(default_factory=_debug_stages)
    batching: bool = field(default_factory=lambda: _flag("BATCHING", "1") != "0")
    fusion: bool = field(default_factory=lambda: _flag("FUSION", "1") != "0")
    fusion_window: int = field(default_factory=lambda: int(_flag("FUSION_WINDOW", "64")))
    emulate_int64: bool = field(default_factory=lambda: _flag("INT64") == "emulated")
    emulate_float16: bool = field(default_factory=lambda: _flag("FLOAT16") == "emulated")
    float64: bool = field(default_factory=lambda: _flag("FLOAT64") != "off")
    immediates: bool = field(default_factory=lambda: _flag("IMMEDIATES", "1") != "0")
    integrations: bool = field(default_factory=lambda: _flag("INTEGRATIONS", "1") != "0")
    cache_dir: str = field(default_factory=lambda: _flag("CACHE_DIR"))
    max_binding_bytes: int = field(default_factory=lambda: int(_flag("MAX_BINDING", "0")))
    max_buffers: int = field(default_factory=lambda: int(_flag("MAX_BUFFERS", "0")))


@cache
def config() -> Config:
    """The process's configuration: the environment as it was at the first call."""
    return Config()


def is_printed(stage: str) -> bool:
    """Whether ``TORCH_WEBGPU_DEBUG`` asks for one of ``PRINTED_STAGES``."""
    return stage in config().debug


def print_stage(stage: str, *lines: str) -> None:
    """Prints what a stage did, if it is asked for; who has to work for the text asks :func:`is_printed` before."""
    if is_printed(stage):
        sys.stderr.write("\n".join([f"[webgpu {stage}] {lines[0]}", *lines[1:], ""]))
