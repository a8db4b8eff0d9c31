"""Reading the files that plans are saved in: numpy's ``.npz``, whatever somebody has made of it.

What is read takes no more memory than the file: entries must lie in it as they are, not compressed, and arrays must
have the size that their headers say. numpy's own reader evaluates headers as Python, and fails in ways of its own where
they are damaged. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import re
import struct
from os import PathLike
from types import TracebackType
from zipfile import ZIP_STORED, BadZipFile, ZipFile

HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<kind>[<>]U|\|u)(?P<size>\d{1,9})', 'fortran_order': False, "
    rb"'shape': \((?:(?P<count>\d{1,12}),)?\), \} *\n",
    re.DOTALL,
)
"""What ``numpy.savez`` writes before a text, and before bytes."""
CHARACTER_BYTES = 4
DAMAGE = (ValueError, BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, struct.error)
"""What reading a damaged archive raises: RuntimeError for an entry that is said to be encrypted."""


class ArchiveError(ValueError):
    """It is no such file, or one that was damaged."""


class ArchiveReader:
    """A file of arrays by name, open for reading. Raises FileNotFoundError, and ArchiveError for what is no archive."""

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            self._file = ZipFile(path)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise ArchiveError(f"{type(error).__name__}: {error}") from None

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def text(self, name: str) -> str:
        """A string that was saved as an array without dimensions."""
        kind, size, count, data = self._array(name)
        if count is not None or not kind.endswith("U") or size * CHARACTER_BYTES != len(data):
            raise ArchiveError(f"{name} is no text of {len(data)} bytes")
        try:
            return data.decode("utf-32-be" if kind[0] == ">" else "utf-32-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise ArchiveError(f"{name} is no text: {error.reason}") from None

    def content(self, name: str) -> bytes:
        """The bytes of an array of bytes."""
        kind, size, count, data = self._array(name)
        if (kind, size, count) != ("|u", 1, len(data)):
            raise ArchiveError(f"{name} is no array of {len(data)} bytes")
        return data

    def _array(self, name: str) -> tuple[str, int, int | None, bytes]:
        """An array's kind, the size of its elements, how many there are in its only dimension, its bytes."""
        try:
            entry = self._file.getinfo(f"{name}.npy")
            if entry.compress_type != ZIP_STORED:
                raise ArchiveError(f"{name} is compressed, as nothing is in a plan's file")
            data = self._file.read(entry)
        except KeyError:
            raise ArchiveError(f"there is no {name} in it") from None
        except DAMAGE as error:
            raise ArchiveError(f"{name}: {error}") from None
        head = HEAD.match(data)
        if head is None:
            raise ArchiveError(f"{name} does not begin as an array of text or bytes does")
        count = None if head["count"] is None else int(head["count"])
        return head["kind"].decode(), int(head["size"]), count, data[head.end() :]
