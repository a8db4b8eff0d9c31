"""Every environment flag of the package, read once, in one frozen table.

============================== =========================================================================
``TORCH_WEBGPU_ADAPTER``       index or part of the name of the adapter to put first
``TORCH_WEBGPU_IMPLEMENTATION`` whose WebGPU: ``wgpu``, ``dawn``, one of an installed package's (docs/devices.md), or
                               ``auto`` (default): Dawn where it is installed and its adapter works, else wgpu-native
``TORCH_WEBGPU_COPIES``        how many devices each adapter becomes: programs for several GPUs, tried on one
``TORCH_WEBGPU_FALLBACK``      ``warn`` (default), ``silent`` or ``error``: what a CPU fallback does
``TORCH_WEBGPU_DEBUG``         comma-separated stages to print on stderr: record, fuse, passes, wgsl, plan, fallback;
                               ``host``: what made the host late, at the end;
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
``TORCH_WEBGPU_TARGET``        pretend that the adapter offers no more than this description of a GPU, such as ``mali``
``TORCH_WEBGPU_SHARED_MEMORY`` ``0``: ranks of one host exchange through gloo, too, not through shared memory
``TORCH_WEBGPU_AUTO_COMPILE``  ``1``: compile modules by themselves that are called again and again
``TORCH_WEBGPU_CACHE_DIR``     where plans of compiled graphs are kept; ``off``: nowhere
``TORCH_WEBGPU_INTEGRATIONS``  ``0``: leave libraries as they are, which then need to be told ``device="webgpu"``
============================== =========================================================================

An empty variable is as good as none. Nothing is raised where the package is loaded, which programs for the CPU do, too:
a flag that cannot be read counts as not set, and :func:`check`, at the device's first use, raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from torch_webgpu.errors import FlagError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
PREFIX = "TORCH_WEBGPU_"
FALLBACK_MODES = ("warn", "silent", "error")
IMPLEMENTATIONS = ("auto", "wgpu", "dawn")
IMPLEMENTATIONS_GROUP = "torch_webgpu.implementations"
"""The entry points by which other packages' WebGPU implementations are found."""
PRINTED_STAGES = ("record", "fuse", "passes", "wgsl", "plan", "fallback", "compile", "host")
DEBUG_STAGES = (*PRINTED_STAGES, "where", "verify")
SWITCH = {**dict.fromkeys(("1", "on", "true", "yes"), True), **dict.fromkeys(("0", "off", "false", "no"), False)}
READ_ELSEWHERE = (
    "TRANSLATE", "TRANSLATE_PACKAGES", "TRANSLATE_PROCESS", "TRANSLATE_REPORT", "TRANSLATE_SCRIPT",
    "TRANSLATE_SCRIPT_PACKAGE",
)  # fmt: skip
"""Flags of ``translation``, which runs before the device is loaded."""
OF_TESTS = ("TEST_", "CONFORMANCE", "LEAK_ITERATIONS", "PYTORCH_TESTS_")
"""How flags begin that only the test suite reads."""


@dataclass(frozen=True)
class Flag(Generic[T]):
    """An environment variable. ``parse`` raises ValueError, which says what was expected, for what it cannot read."""

    name: str
    default: T
    parse: Callable[[str], T]

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def problem(self) -> str | None:
        """What is wrong with the variable's value, if anything."""
        try:
            self._parsed()
        except ValueError as error:
            return f"{self.variable}={os.environ[self.variable]!r}: {error}"
        return None

    def read(self) -> T:
        """The variable's value; the default where it is not set, or cannot be read."""
        try:
            return self._parsed()
        except ValueError:
            return self.default

    def _parsed(self) -> T:
        text = os.environ.get(self.variable, "").strip()
        return self.parse(text) if text else self.default


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}{did_you_mean(text, choices)}")
        return text

    return parse


def installed_implementations() -> dict[str, EntryPoint]:
    """The WebGPU implementations of other installed packages, by name. None of them is loaded."""
    from importlib.metadata import entry_points  # which only programs need that ask for one

    return {point.name: point for point in entry_points(group=IMPLEMENTATIONS_GROUP)}


def _implementation(text: str) -> str:
    if text in IMPLEMENTATIONS:
        return text
    return _one_of((*IMPLEMENTATIONS, *sorted(installed_implementations())))(text)


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ValueError(f"expected a whole number, {least} or more")
        return int(text)

    return parse


def _switch(text: str) -> bool:
    if text.lower() not in SWITCH:
        raise ValueError("expected 1 or 0")
    return SWITCH[text.lower()]


def _is(word: str) -> Callable[[str], bool]:
    """Of a flag that is set to one word, or not at all."""

    def parse(text: str) -> bool:
        if text != word:
            raise ValueError(f"expected {word}, or nothing")
        return True

    return parse


def _stages(text: str) -> frozenset[str]:
    stages = frozenset(filter(None, map(str.strip, text.split(","))))
    if unknown := sorted(stages.difference(DEBUG_STAGES)):
        meant = did_you_mean(unknown[0], DEBUG_STAGES)
        raise ValueError(f"there is no stage {', '.join(unknown)}, only {', '.join(DEBUG_STAGES)}{meant}")
    return stages


ADAPTER = Flag("ADAPTER", "", str)
COPIES = Flag("COPIES", 1, _number(1))
FALLBACK = Flag("FALLBACK", "warn", _one_of(FALLBACK_MODES))
IMPLEMENTATION = Flag("IMPLEMENTATION", "auto", _implementation)
DEBUG: Flag[frozenset[str]] = Flag("DEBUG", frozenset(), _stages)
BATCHING = Flag("BATCHING", True, _switch)
FUSION = Flag("FUSION", True, _switch)
FUSION_WINDOW = Flag("FUSION_WINDOW", 64, _number(0))
INT64 = Flag("INT64", False, _is("emulated"))
FLOAT16 = Flag("FLOAT16", False, _is("emulated"))
FLOAT64 = Flag("FLOAT64", False, _is("off"))
IMMEDIATES = Flag("IMMEDIATES", True, _switch)
INTEGRATIONS = Flag("INTEGRATIONS", True, _switch)
SHARED_MEMORY = Flag("SHARED_MEMORY", True, _switch)
AUTO_COMPILE = Flag("AUTO_COMPILE", False, _switch)
CACHE_DIR = Flag("CACHE_DIR", "", str)
MAX_BINDING = Flag("MAX_BINDING", 0, _number(0))
MAX_BUFFERS = Flag("MAX_BUFFERS", 0, _number(0))
TARGET = Flag("TARGET", "", str)
FLAGS: dict[str, Flag] = {value.name: value for value in list(globals().values()) if isinstance(value, Flag)}


@dataclass(frozen=True)
class Config:
    """The flags, typed. Build one through :func:`config`."""

    adapter: str = field(default_factory=ADAPTER.read)
    copies: int = field(default_factory=COPIES.read)
    fallback: str = field(default_factory=FALLBACK.read)
    implementation: str = field(default_factory=IMPLEMENTATION.read)
    debug: frozenset[str] = field(default_factory=DEBUG.read)
    batching: bool = field(default_factory=BATCHING.read)
    fusion: bool = field(default_factory=FUSION.read)
    fusion_window: int = field(default_factory=FUSION_WINDOW.read)
    emulate_int64: bool = field(default_factory=INT64.read)
    emulate_float16: bool = field(default_factory=FLOAT16.read)
    float64: bool = field(default_factory=lambda: not FLOAT64.read())
    immediates: bool = field(default_factory=IMMEDIATES.read)
    shared_memory: bool = field(default_factory=SHARED_MEMORY.read)
    integrations: bool = field(default_factory=INTEGRATIONS.read)
    auto_compile: bool = field(default_factory=AUTO_COMPILE.read)
    cache_dir: str = field(default_factory=CACHE_DIR.read)
    max_binding_bytes: int = field(default_factory=MAX_BINDING.read)
    max_buffers: int = field(default_factory=MAX_BUFFERS.read)
    target: str = field(default_factory=TARGET.read)
    problems: tuple[str, ...] = field(default_factory=lambda: tuple(problems()))


def problems() -> Iterator[str]:
    """What is wrong with this package's variables in the environment: those that are not known or cannot be read."""
    known = (*FLAGS, *READ_ELSEWHERE)
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in READ_ELSEWHERE or name.startswith(OF_TESTS):
            continue
        flag = FLAGS.get(name)
        if flag is None:
            yield f"there is no {variable}{did_you_mean(variable, [PREFIX + one for one in known])}"
        elif flag.problem is not None:
            yield flag.problem


@cache
def config() -> Config:
    """The process's configuration: the environment as it was at the first call."""
    return Config()


def check() -> None:
    """Raises FlagError if a flag is not known or cannot be read: for the device's first use."""
    if config().problems:
        raise FlagError("; ".join(config().problems))


def is_printed(stage: str) -> bool:
    """Whether ``TORCH_WEBGPU_DEBUG`` asks for one of ``PRINTED_STAGES``."""
    return stage in config().debug


def print_stage(stage: str, *lines: str) -> None:
    """Prints what a stage did, if it is asked for; who has to work for the text asks :func:`is_printed` before."""
    if is_printed(stage):
        sys.stderr.write("\n".join([f"[webgpu {stage}] {lines[0]}", *lines[1:], ""]))
