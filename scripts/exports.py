"""Writes tests/platforms/exports.json: what the libraries in other systems' wheels export, of the names we look up.

    pip download --no-deps --only-binary=:all: --platform win_amd64 --python-version 3.12 torch==2.13.0
    python scripts/exports.py *.whl

``--platform`` is win_amd64, macosx_14_0_arm64 or manylinux_2_28_aarch64. Needs lief, which reads the tables of all.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import lief

FILE = Path(__file__).parents[1] / "tests" / "platforms" / "exports.json"
LIBRARIES = {
    "torch/lib/c10.dll": "device_guard_impl_registry",
    "torch/lib/libc10.dylib": "device_guard_impl_registry",
    "wgpu/resources/wgpu_native-release.dll": "wgpu",
    "wgpu/resources/libwgpu_native-release.dylib": "wgpu",
    "wgpu/resources/libwgpu_native-release.so": "wgpu",
}
"""The libraries that are looked at, and what the names that are kept contain."""
GUARD_INTERFACE = "??_7DeviceGuardImplInterface@impl@c10@@6B@"
"""MSVC's name of the interface's table of virtual functions."""
GUARD_TYPE = b".?AUDeviceGuardImplInterface@impl@c10@@\0"
"""MSVC's name of the interface in the descriptor of its type."""


def exported(content: bytes, wanted: str) -> list[str]:
    binary = lief.parse(content)
    prefix = "_" if isinstance(binary, lief.MachO.Binary) else ""
    names = {str(symbol.name).removeprefix(prefix) for symbol in _all(binary)}
    return sorted(name for name in names if wanted in name)


def _all(binary: lief.Binary) -> Iterator[lief.Symbol]:
    if isinstance(binary, lief.PE.Binary):
        yield from binary.get_export().entries
    elif isinstance(binary, lief.MachO.Binary):
        yield from (symbol for symbol in binary.symbols if symbol.has_export_info)
    else:
        yield from binary.exported_symbols


def pure_functions(content: bytes) -> list[int]:
    """Which entries of the guards' interface are pure virtual functions: those that all point to the same place."""
    binary = lief.PE.parse(content)
    entries = struct.unpack("<20Q", _content(binary, _guard_interface(binary), 160))
    ((pure, _),) = Counter(entries).most_common(1)
    return [n for n, entry in enumerate(entries) if entry == pure]


def entries_before(content: bytes) -> int:
    """How many entries before the interface's first function are its own: those that locate the object and its type."""
    binary = lief.PE.parse(content)
    start, count = _guard_interface(binary), 0
    while _is_locator(binary, start - 8 * (count + 1)):
        count += 1
    return count


def _is_locator(binary: lief.PE.Binary, entry: int) -> bool:
    """Whether the entry at this address points to MSVC's RTTICompleteObjectLocator of the interface.

    Which is: a signature, two offsets, and the addresses of the type's descriptor, of its hierarchy and of itself.
    """
    (address,) = struct.unpack("<Q", _content(binary, entry, 8))
    address -= binary.optional_header.imagebase
    signature, _, _, descriptor, _, itself = struct.unpack("<6I", _content(binary, address, 24) or bytes(24))
    return (signature, itself) == (1, address) and _content(binary, descriptor + 16, len(GUARD_TYPE)) == GUARD_TYPE


def _guard_interface(binary: lief.PE.Binary) -> int:
    (start,) = [entry.address for entry in binary.get_export().entries if str(entry.name) == GUARD_INTERFACE]
    return int(start)


def _content(binary: lief.PE.Binary, address: int, size_bytes: int) -> bytes:
    """What lies at an address; empty where it is in no section of the library."""
    if not 0 <= address < binary.optional_header.sizeof_image:
        return b""
    return bytes(binary.get_content_from_virtual_address(address, size_bytes))


def main(wheels: list[str]) -> None:
    found: dict[str, list[str] | list[int] | int] = {}
    for wheel in sorted(map(Path, wheels)):
        name, version, *_, platform = wheel.stem.split("-")
        with ZipFile(wheel) as archive:
            for path in sorted(LIBRARIES.keys() & set(archive.namelist())):
                key = f"{name} {version} {platform} {path.rpartition('/')[2]}"
                found[key] = exported(archive.read(path), LIBRARIES[path])
                if path.endswith("c10.dll"):
                    found[f"{key} pure"] = pure_functions(archive.read(path))
                    found[f"{key} entries before"] = entries_before(archive.read(path))
    FILE.write_text(json.dumps(found, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
