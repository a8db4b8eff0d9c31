"""Plans of compiled graphs on disk, so that a second process traces, fuses and lowers nothing again.

One file a plan, named by a digest of all that decides it: the graph, the layouts it was traced for, the adapter's
capabilities, the versions of torch and of this package, down to its sources. They lie where Inductor's lie by its
convention: ``TORCH_WEBGPU_CACHE_DIR``, or a folder of the user's among the system's temporary files. A file that is not
what was written is a plan that has to be made again. Several processes may share the folder.

A plan's kernels may be compiled without bounds checks, so that nobody else may have written it: see
:mod:`.private_folder`. A folder or a file that is not this user's alone is not used. Where that cannot be known, on
Windows, kernels that were read are compiled with checks, whatever the file says of them. So are those of plans that
``torch.compiler.load_cache_artifacts()`` brought, in files with a suffix of their own (:mod:`.artifacts`).
"""

from __future__ import annotations

import getpass
import json
import os
import re
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_webgpu.aten.dispatch import definitions
from torch_webgpu.config import config
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Plan

from . import artifacts, private_folder
from .private import without_fakes
from .private_folder import NotPrivateError

MAX_BYTES = 1 << 30
"""What the folder holds; the plans that were used least recently go first."""
MAX_PLAN_BYTES = 1 << 28
"""What one plan may have, unpacked, to be kept."""
OFF = "off"
SUFFIX = ".plan"
LOADED_SUFFIX = ".loaded.plan"
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_NAME = re.compile(r"[0-9a-f]{64}")
_DIGEST_BYTES = 64


class PlanFile:
    """Where the plan of a graph for arguments like these is kept.

    ``entry``: the folder and the plan's name in it; None where nothing is kept.
    """

    def __init__(self, entry: tuple[Path, str] | None) -> None:
        self._entry = entry

    def read(self) -> tuple[Plan, list[Any]] | None:
        """The plan, and of each of the graph's results the value, or None for a tensor; None if it is not there."""
        if self._entry is None:
            return None
        return self._read(SUFFIX, trusted=True) or self._read(LOADED_SUFFIX, trusted=False)

    def _read(self, suffix: str, trusted: bool) -> tuple[Plan, list[Any]] | None:
        assert self._entry is not None
        directory, name = self._entry
        path = directory / f"{name}{suffix}"
        try:
            data, is_ours = private_folder.read(directory, path.name, MAX_PLAN_BYTES)
            header, _, rest = unpacked(checked(data)).partition(b"\n")
            values = json.loads(header)
            with tempfile.TemporaryDirectory() as folder:
                plain = Path(folder) / "plan"
                plain.write_bytes(rest)
                plan = Plan.load(plain, trusted=trusted and is_ours)
            os.utime(path)
        except FileNotFoundError:
            return None
        except NotPrivateError as error:
            _warn(str(error))
            return None
        except (OSError, ValueError, zlib.error, WebGPUError):
            with suppress(OSError):
                path.unlink()
            return None
        artifacts.record(name, data)
        return plan, values

    def write(self, plan: Plan, values: Sequence[Any]) -> None:
        """Keeps them, if they can be: a full or read-only disk is no error."""
        if self._entry is None:
            return
        directory, name = self._entry
        try:
            with tempfile.TemporaryDirectory() as folder:
                plain = Path(folder) / "plan"
                plan.save(plain)
                content = json.dumps(list(values)).encode() + b"\n" + plain.read_bytes()
        except (OSError, TypeError):
            return
        if len(content) > MAX_PLAN_BYTES:
            return
        packed = zlib.compress(content, 1)
        data = sha256(packed).hexdigest().encode() + packed
        if _write(directory, f"{name}{SUFFIX}", data):
            artifacts.record(name, data)


def write_loaded(name: str, data: bytes) -> None:
    """Keeps a plan file that ``load_cache_artifacts()`` brought. Warns of one that is none, and writes nothing."""
    directory = folder()
    if directory is None:
        return
    try:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a plan")
        checked(data)
    except ValueError as error:
        warnings.warn(f"webgpu: an artifact of a plan was left out: {error}", stacklevel=2)
        return
    _write(directory, f"{name}{LOADED_SUFFIX}", data)


def _write(directory: Path, name: str, data: bytes) -> bool:
    """Puts a file in, at once or not at all, and says whether it is there."""
    try:
        private_folder.make(directory)
        with tempfile.TemporaryDirectory(dir=directory) as temporary:
            whole = Path(temporary) / "whole"
            private_folder.write(whole, data)
            os.replace(whole, directory / name)
        trim(directory)
    except NotPrivateError as error:
        _warn(str(error))
        return False
    except OSError:
        return False
    return True


def checked(data: bytes) -> bytes:
    """A file's packed content. ValueError unless it is what was written."""
    digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if sha256(packed).hexdigest().encode() != digest:
        raise ValueError("it is damaged")
    return packed


def unpacked(data: bytes) -> bytes:
    """What was packed, if it is not too much. ValueError for anything else."""
    packed = zlib.decompressobj()
    content = packed.decompress(data, MAX_PLAN_BYTES)
    if not packed.eof:
        raise ValueError(f"it is cut, or has more than {MAX_PLAN_BYTES} bytes")
    return content


@cache
def _warn(problem: str) -> None:
    warnings.warn(
        f"webgpu: plans of compiled graphs are not kept from process to process: {problem}. TORCH_WEBGPU_CACHE_DIR "
        "names another folder, or off",
        stacklevel=2,
    )


def folder() -> Path | None:
    """Where plans are kept; None where they are not."""
    chosen = config().cache_dir
    if chosen == OFF:
        return None
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"torch_webgpu_{_user()}"


def _user() -> str:
    try:
        return re.sub(r"\W", "_", getpass.getuser())
    except (KeyError, OSError, ImportError):  # a user without a name, before Python 3.13 on Windows
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


def trim(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Removes the plans that were used least recently until the others take no more than that."""
    files = [(path, path.stat()) for path in folder.glob(f"*{SUFFIX}")]
    total = sum(stat.st_size for _, stat in files)
    for path, stat in sorted(files, key=lambda file: file[1].st_mtime):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size


def file_for(digest: str | None, given: Sequence[Any], what_else: object) -> PlanFile:
    """Where the plan of a graph of that digest for these arguments is kept. ``what_else``: what decides it besides."""
    cache_folder = folder()
    arguments = "\n".join(map(_argument, given))
    if cache_folder is None or digest is None or _ADDRESS.search(arguments):
        return PlanFile(None)
    parts = (sources(), definitions.digest(), torch.__version__, repr(what_else), arguments, digest)
    return PlanFile((cache_folder, sha256("\0".join(parts).encode()).hexdigest()))


def digest_of(gm: GraphModule) -> str | None:
    """The same in every process for equal graphs, and for no others; None where that cannot be, or none is needed."""
    if folder() is None:
        return None
    number: dict[Node, str] = {}
    lines = []
    for node in gm.graph.nodes:
        number[node] = f"%{len(number)}"
        if node.op == "placeholder":
            lines.append(node.op)
        elif node.op == "get_attr":
            value: Any = gm
            for name in str(node.target).split("."):
                value = getattr(value, name)
            if not isinstance(value, torch.Tensor):
                return None
            with without_fakes():
                content = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            digest = sha256(content).hexdigest()
            lines.append(f"{node.op} {_argument(value)} {value.device} {digest}")
        else:
            args, kwargs = (map_arg(a, lambda n: _Name(number[n])) for a in (node.args, node.kwargs))
            lines.append(f"{node.op} {_target(node.target)} {args} {kwargs}")
    text = "\n".join(lines)
    return None if _ADDRESS.search(text) else sha256(text.encode()).hexdigest()


class _Name(str):
    """A node by its number."""

    def __repr__(self) -> str:
        return str(self)


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None)
    return f"{target.__module__}.{name}" if name and not isinstance(target, torch._ops.OpOverload) else str(target)


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()}"
    return repr(value)


@cache
def sources() -> str:
    """A digest of this package's sources: whatever is changed in them may change plans."""
    root = Path(__file__).parent.parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".wgsl", ".jinja"))
    return sha256(b"\0".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()
