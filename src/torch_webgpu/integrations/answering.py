"""An object of a library that answers some questions otherwise."""

from __future__ import annotations

from typing import Any


class Answering:
    """``plain``, of whose attributes those in ``answers`` have these values."""

    def __init__(self, plain: Any, **answers: Any) -> None:
        self._plain = plain
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)
