"""The folder of an export: its files, their digests, and how the whole replaces an earlier one."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch

from torch_webgpu.errors import ExportError

CHUNK_BYTES = 16 << 20
"""What a page fetches, checks and keeps at a time."""
MAX_SHARD_BYTES = 2 * 10**9
MANIFEST = "plan.json"
KERNELS, PARAMS, CONSTANTS, EXAMPLE = "kernels.json", "params.bin", "constants.bin", "example.safetensors"
RUNTIME = "torch-webgpu"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of renameat2
_DOCUMENTATION = re.compile(r"/\*\*.*?\*/[ \n]*", re.DOTALL)
_BLANK_LINES = re.compile(r"\n\s*\n")
_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.-]+")
"""What a page takes as the name of a file: see js/manifest.js."""
_WEIGHTS = re.compile(r"(model|state)(-.*)?\.safetensors")
_OWN = (KERNELS, PARAMS, CONSTANTS, EXAMPLE, RUNTIME)
_COMPRESSED = (".json", ".js", ".html", ".css", ".bin")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``folder`` at the end, or vanishes if anything is raised.

    ExportError if there is something in its place that is no export: it is not deleted. What a link leads to is
    replaced, and the link stays.
    """
    folder = folder.resolve()
    if folder.exists() and not _is_export(folder):
        raise ExportError(f"{folder} exists and is no export of torch-webgpu: delete it, or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _settle(folder)
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    new, old = (folder.with_name(f".{folder.name}.{mark}.{which}") for which in ("new", "old"))
    new.mkdir()
    try:
        yield new
        if not folder.exists():
            os.replace(new, folder)
        elif not exchanged(new, folder):
            os.replace(folder, old)
            try:
                os.replace(new, folder)
            except OSError:
                os.replace(old, folder)
                raise
    finally:
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)


def exchanged(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step, so that no moment is without either. False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform.startswith("linux") else None
    return rename is not None and rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def _settle(folder: Path) -> None:
    """Clears up after an export to ``folder`` that was killed: what it had moved away comes back, the rest goes."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.(\d+)-[0-9a-f]{{8}}\.(new|old)")
    for path in folder.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match is None or _is_running(int(match[1])):
            continue
        if match[2] == "old" and not folder.exists():
            os.replace(path, folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    if sys.platform != "win32":  # where a signal would end it: what it left stays
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    return True


def _is_export(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        data = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and str(data.get("producer", "")).startswith("torch-webgpu ")


def write_json(path: Path, data: Any) -> None:
    """Compact JSON, as browsers read it: ValueError for numbers that are infinite or none."""
    path.write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False), "utf-8")


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes files of the user's into a folder that has no file yet. ExportError for names that pages refuse, and for
    those of the export's own files.
    """
    for name, text in texts.items():
        if not _NAME.fullmatch(name):
            raise ExportError(f"files has {name!r}: names are of letters, digits, '_', '-' and '.', which none begins")
        if name in (*_OWN, MANIFEST) or _WEIGHTS.match(name):
            raise ExportError(f"files has {name!r}, which the export writes itself")
        (folder / name).write_text(text, "utf-8")


def copy_page(destination: Path, page: bool | str | os.PathLike[str]) -> None:
    """Copies ``index.html`` and what belongs to it: this package's, or what is in the folder ``page``."""
    if page is False:
        return
    if page is not True and not Path(page).is_dir():
        raise ExportError(f"page is {str(page)!r}, which is no folder")
    with as_file(files("torch_webgpu.export") / "page") if page is True else nullcontext(Path(page)) as folder:
        if clash := sorted({p.name for p in folder.iterdir()} & {p.name for p in destination.iterdir()}):
            raise ExportError(f"the page has {', '.join(clash)}, which the export writes")
        _copy(folder, destination)


def _copy(folder: Path, destination: Path) -> None:
    """Copies a folder's contents as new files: a browser that asks a server what has changed gets them, and any server
    may read them.
    """
    shutil.copytree(folder, destination, dirs_exist_ok=True, copy_function=shutil.copyfile)


def copy_runtime(destination: Path) -> None:
    """Writes the runtime's modules, without the comments that document types: they are half of what would travel."""
    destination.mkdir()
    with as_file(files("torch_webgpu.export") / "js") as folder:
        for path in sorted(folder.glob("*.js")):
            (destination / path.name).write_text(without_documentation(path.read_text("utf-8")), "utf-8")


def without_documentation(text: str) -> str:
    """A module of the runtime without ``/** … */``, which stand nowhere in its strings and regular expressions."""
    return _BLANK_LINES.sub("\n", _DOCUMENTATION.sub("", text)).lstrip("\n")


def digests(path: Path) -> dict[str, Any]:
    """A file's size, its SHA-256 and that of each chunk of it, as the manifest has them."""
    whole, chunks, size = sha256(), [], 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            whole.update(data)
            chunks.append(sha256(data).hexdigest())
            size += len(data)
    return {"bytes": size, "sha256": whole.hexdigest(), **({"chunks": chunks} if len(chunks) > 1 else {})}


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a .safetensors file that a web server may read."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise ExportError("exports are written with safetensors: pip install 'torch-webgpu[export]'") from None
    save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, path)
    path.chmod(0o644)  # it leaves 0600


def sharded(tensors: Mapping[str, torch.Tensor], stem: str, limit: int = MAX_SHARD_BYTES) -> dict[str, list[str]]:
    """File name → names of its tensors, for files of at most ``limit`` bytes, but for larger tensors, named as
    Hugging Face's libraries name them.
    """
    shards: list[list[str]] = [[]]
    size = 0
    for name, t in tensors.items():
        if shards[-1] and size + t.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += t.nbytes
    if len(shards) == 1:
        return {f"{stem}.safetensors": shards[0]} if shards[0] else {}
    return {f"{stem}-{k:05}-of-{len(shards):05}.safetensors": names for k, names in enumerate(shards, 1)}


def tensor_places(path: Path) -> dict[str, tuple[str, int, int]]:
    """Of each tensor in a .safetensors file: the file, its first byte there and its number of bytes."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    start = 8 + header_bytes
    return {
        name: (path.name, start + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def save_weights(folder: Path, tensors: Mapping[str, torch.Tensor], stem: str) -> dict[str, tuple[str, int, int]]:
    """Writes tensors as one file or several, with an index; returns where each lies."""
    places: dict[str, tuple[str, int, int]] = {}
    shards = sharded(tensors, stem, MAX_SHARD_BYTES)
    for file, names in shards.items():
        save_tensors(folder / file, {name: tensors[name] for name in names})
        places |= tensor_places(folder / file)
    if len(shards) > 1:
        total = sum(t.nbytes for t in tensors.values())
        index = {name: file for file, names in shards.items() for name in names}
        write_json(folder / f"{stem}.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    return places


def save_constants(folder: Path, constants: Mapping[str, bytes]) -> dict[str, tuple[str, int, int]]:
    """Writes contents by their digests; returns where each lies."""
    places: dict[str, tuple[str, int, int]] = {}
    if not constants:
        return places
    with (folder / CONSTANTS).open("wb") as file:
        for digest, data in constants.items():
            places[digest] = (CONSTANTS, file.tell(), len(data))
            file.write(data.ljust(-(-len(data) // 16) * 16, b"\0"))
    return places


def compressed_bytes(paths: Iterable[Path]) -> int:
    """What a server that compresses sends of these files, but for weights."""
    return sum(len(gzip.compress(p.read_bytes(), 9)) for p in paths if p.suffix in _COMPRESSED)
