"""Handles of what was registered, in the manner of ``torch.utils.hooks.RemovableHandle``."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RegistrationHandle:
    """What a ``register_…`` function returns: ``unregister()`` takes the registration back, once.

    As a context manager it does so at the end of the block. ``name``: what was registered.
    """

    def __init__(self, name: str, unregister: Callable[[], object]) -> None:
        self.name = name
        self._unregister: Callable[[], object] | None = unregister
        self._lock = threading.Lock()

    @property
    def is_registered(self) -> bool:
        """Whether :meth:`unregister` was not called yet."""
        return self._unregister is not None

    def unregister(self) -> None:
        """Takes the registration back; nothing where that was done."""
        with self._lock:
            unregister, self._unregister = self._unregister, None
        if unregister is not None:
            unregister()

    remove = unregister  # RemovableHandle's name for it

    def __enter__(self) -> RegistrationHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        return f"<RegistrationHandle {self.name}{'' if self.is_registered else ', unregistered'}>"
