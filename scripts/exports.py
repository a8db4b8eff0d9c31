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
    (start,) = [entry.address for entry in binary.get_export().entries if str(entry.name) == GUARD_INTERFACE]
    entries = struct.unpack("<20Q", bytes(binary.get_content_from_virtual_address(start, 160)))
    ((pure, _),) = Counter(entries).most_common(1)
    return [n for n, entry in enumerate(entries) if entry == pure]


def main(wheels: list[str]) -> None:
    found: dict[str, list[str] | list[int]] = {}
    for wheel in sorted(map(Path, wheels)):
        name, version, *_, platform = wheel.stem.split("-")
        with ZipFile(wheel) as archive:
            for path in sorted(LIBRARIES.keys() & set(archive.namelist())):
                key = f"{name} {version} {platform} {path.rpartition('/')[2]}"
                found[key] = exported(archive.read(path), LIBRARIES[path])
                if path.endswith("c10.dll"):
                    found[f"{key} pure"] = pure_functions(archive.read(path))
    FILE.write_text(json.dumps(found, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
