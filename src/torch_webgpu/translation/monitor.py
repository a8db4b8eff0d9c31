"""What a translated program called, how it was answered, and where it did so first."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any

from . import callers


class Answer(StrEnum):
    """How a name that belongs to another device is answered on this one."""

    SAME = "same"
    """PyTorch's own function, which works on this device as it is."""
    TRANSLATED = "translated"
    """This device's counterpart."""
    EMULATED = "emulated"
    """Made of other things; the values are true, the means differ."""
    NOTHING = "no-op"
    """There is nothing to be done here, and the program is told so once."""
    ERROR = "error"
    """Cannot be had here; the error says what to do instead."""


@dataclass
class Calls:
    """The calls of one name."""

    answer: Answer
    count: int = 0
    seconds: float = 0.0
    """Time inside the translation and what it called, of the outermost calls."""
    location: str = ""
    """``file:line`` of the first call from the user's code."""


class Monitor:
    """Counts of one session, by name."""

    def __init__(self) -> None:
        self.calls: dict[str, Calls] = {}
        self.libraries: dict[str, int] = {}
        """Packages that asked whether a CUDA device is there and were told the truth, and how often: those that
        ``--package`` could translate."""

    def told_truth(self, package: str) -> None:
        """A package was told that there is no CUDA device. PyTorch itself cannot be translated."""
        if package and package not in ("torch", "torch_webgpu"):
            self.libraries[package] = self.libraries.get(package, 0) + 1

    def note(self, name: str, answer: Answer) -> Calls:
        """The record of ``name``, made with the location in the user's code if this is the first time."""
        calls = self.calls.get(name)
        if calls is None:
            calls = self.calls[name] = Calls(answer, location=callers.location())
        return calls

    def counted(self, name: str, answer: Answer, function: Callable[..., Any], note: str = "") -> Callable[..., Any]:
        """``function``, counted as ``name``; one that does nothing says so with ``note``, once."""

        @functools.wraps(function)
        def translated(*args: Any, **kwargs: Any) -> Any:
            calls = self.calls.get(name)
            if calls is None:
                calls = self.note(name, answer)
                if answer is Answer.NOTHING:
                    warnings.warn(f"{name} does nothing here: {note}", UserWarning, stacklevel=2)
            calls.count += 1
            start = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                calls.seconds += perf_counter() - start

        return translated
