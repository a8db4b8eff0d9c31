"""Attributes of other modules that are replaced for a while, and put back as they were."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Replacements:
    """What was replaced, in order. An attribute that a class or module inherited or lacked is deleted again."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """``owner.name = value``; returns what was there, None if there was nothing."""
        before = vars(owner).get(name, _ABSENT)
        inherited = getattr(owner, name, None) if before is _ABSENT else before
        setattr(owner, name, value)
        self.done.append((owner, name, before))
        return inherited

    def restore(self) -> None:
        """Puts back what was there, the last replacement first."""
        while self.done:
            owner, name, before = self.done.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
