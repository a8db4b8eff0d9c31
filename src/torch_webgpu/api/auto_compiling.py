"""``torch.webgpu.auto_compile``: ``torch.compile`` for the modules of a program that does not ask for it."""

from __future__ import annotations

from types import TracebackType

from torch_webgpu.config import config
from torch_webgpu.engine.record import at_first_use

from .records import Record

CALLS = 3
"""So many calls of a module are eager unless a program says otherwise."""


class auto_compile:  # noqa: N801 spelled as torch.autograd.set_detect_anomaly is
    """Compiles a program's modules by themselves, once they have repeated: a function, or a context manager, which puts
    back what was before.

    A module that the program calls (not one that a module calls) is compiled after ``after`` calls in a row with
    inputs of the same shapes, strides, dtypes and numbers, in the same modes. Other calls are eager. What does not
    compile as one graph, or compiles too often, stays eager; :func:`auto_compile_stats` says why. Off with
    ``enabled=False``. ``TORCH_WEBGPU_AUTO_COMPILE=1`` turns it on for a program. Raises ValueError if ``after`` is
    less than 1.
    """

    def __init__(self, enabled: bool = True, *, after: int = CALLS) -> None:
        if after < 1:
            raise ValueError(f"a module is compiled after 1 call or more, not after {after}")
        from torch_webgpu.compile import automatic  # which loads FX

        self._switch, self._before = automatic.switch, automatic.current()
        automatic.switch(automatic.AutoCompiler(after) if enabled else None)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._switch(self._before)


def auto_compile_stats() -> Record:
    """What :class:`auto_compile` knows of modules that are alive: ``compiled`` and ``left``, the numbers of modules,
    and ``modules``, a record of each: the ``name`` of its class, ``signatures`` that it is compiled for,
    ``recompilations`` for one of these, ``compiled_calls``, and ``left``, why it stays eager, or None.
    """
    from torch_webgpu.compile import automatic

    entries = list(automatic.entries())
    rows = [
        Record(
            name=entry.name,
            signatures=len(entry.compiled),
            recompilations=entry.recompilations,
            compiled_calls=entry.compiled_calls,
            left=entry.left,
        )
        for entry in entries
    ]
    compiled = sum(bool(entry.compiled) for entry in entries)
    return Record(compiled=compiled, left=sum(entry.left is not None for entry in entries), modules=rows)


def switch_on() -> None:
    """What the environment asks for."""
    auto_compile()


def register() -> None:
    """Turns it on at the device's first use, if the environment asks for it."""
    if config().auto_compile:
        at_first_use.append(switch_on)
