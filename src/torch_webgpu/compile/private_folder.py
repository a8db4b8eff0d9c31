"""Files that this user wrote, and nobody else may have: what is compiled without checks has to come from these.

A folder among the system's temporary files has a name that others know. On POSIX it is used if it is a folder (no link)
of this user's that nobody else may write to, and so are the files in it; both are asked of what is open, so that it
cannot be exchanged in between. Windows has no such owners: there the temporary folder is the user's own by its access
list, which Python cannot read. Files are used there, too, but are nobody's word for anything.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HAS_OWNERS = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_posix: Any = os
"""With what Windows' has not."""


class NotPrivateError(OSError):
    """A folder or a file that others may have written to."""


class PrivateFile(NamedTuple):
    """``is_ours``: whether it is certain that nobody else has written it."""

    data: bytes
    is_ours: bool


def user_id() -> int:
    """Who owns what this process makes."""
    return int(_posix.geteuid())


def make(folder: Path) -> None:
    """Makes a folder for this user alone. NotPrivateError for one that is there and belongs to others, too."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if HAS_OWNERS:
        os.close(_opened_folder(folder))


def read(folder: Path, name: str, most_bytes: int) -> PrivateFile:
    """A file in a private folder. NotPrivateError for any other, ValueError for one that is larger."""
    if not HAS_OWNERS:
        with open(folder / name, "rb") as file:
            return PrivateFile(_bounded(file.fileno(), most_bytes), is_ours=False)
    opened = _opened_folder(folder)
    try:
        descriptor = os.open(name, _posix.O_RDONLY | _posix.O_NOFOLLOW | _posix.O_NONBLOCK, dir_fd=opened)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivateError(f"{folder / name} is a link") from None
        raise
    finally:
        os.close(opened)
    try:
        _check(os.fstat(descriptor), folder / name, stat.S_ISREG)
        return PrivateFile(_bounded(descriptor, most_bytes), is_ours=True)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes) -> None:
    """A new file that only this user may read and write, whatever the process's umask."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _opened_folder(folder: Path) -> int:
    try:
        opened = os.open(folder, _posix.O_RDONLY | _posix.O_DIRECTORY | _posix.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotPrivateError(f"{folder} is a link, no folder, or not to be read: {error.strerror}") from None
    try:
        _check(os.fstat(opened), folder, stat.S_ISDIR)
    except NotPrivateError:
        os.close(opened)
        raise
    return opened


def _check(status: os.stat_result, path: Path, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode):
        raise NotPrivateError(f"{path} is another kind of file")
    if status.st_uid != user_id():
        raise NotPrivateError(f"{path} belongs to another user (number {status.st_uid})")
    if status.st_mode & OTHERS_WRITE:
        raise NotPrivateError(f"other users may write to {path} (chmod go-w it, if none has)")


def _bounded(descriptor: int, most_bytes: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    return data
