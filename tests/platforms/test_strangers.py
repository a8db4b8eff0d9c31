"""Plan files of strangers: §4 of the audit of 23 November 2026. Plans with one fault each: test_plan_mutations.py.

A file that was changed anywhere is refused in words, or is the plan that was saved.
"""

from __future__ import annotations

import io
import json
import random
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.mutants import plan_of

from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Plan
from torch_webgpu.plan.parts_json import sealed

EXAMPLES, FULL_EXAMPLES = 1_000, 10_000


def saved(name: str) -> tuple[Plan, bytes]:
    plan = plan_of(name, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.npz"
        plan.save(path)
        return plan, path.read_bytes()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few bytes are others, a part is missing, doubled or moved, or the end is cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        start = chance.randrange(len(changed))
        size = chance.choice((1, 2, 4, 8, 64))
        kind = chance.randrange(6)
        if kind == 0:
            changed[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[start : start + size] = chance.randbytes(size)
        elif kind == 2:
            changed[start : start + size] = struct.pack("<Q", chance.choice((0, 1, 0xFFFFFFFF, 1 << 63)))[:size]
        elif kind == 3 and len(changed) > 2 * size:
            del changed[start : start + size]
        elif kind == 4:
            other = chance.randrange(len(changed))
            changed[other:other] = changed[start : start + size]
        elif len(changed) > 100:
            del changed[-chance.randrange(1, 60) :]
    return bytes(changed)


def repacked(data: bytes, chance: random.Random) -> bytes:
    """An archive that is whole, one entry of which was changed: its checksum is that of what it has now."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(out, "w") as after:
        entries = before.infolist()
        chosen = chance.choice(entries).filename
        for entry in entries:
            content = before.read(entry)
            if entry.filename == chosen:
                head = content[:200]  # where numpy's header is
                content = mutated(head, chance) + content[200:] if chance.random() < 0.7 else mutated(content, chance)
            after.writestr(entry.filename, content)
    return out.getvalue()


def loaded(data: bytes, path: Path) -> Plan | str:
    """The plan in a file, or what is said of it."""
    path.write_bytes(data)
    try:
        return Plan.load(path)
    except WebGPUError as error:
        return str(error)


@pytest.mark.parametrize("how", [mutated, repacked])
def test_a_file_that_was_changed_is_refused_in_words_or_says_the_same(
    how: Callable[[bytes, random.Random], bytes], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    plan, data = saved("constants")
    chance = random.Random(26)
    examples = (FULL_EXAMPLES if pytestconfig.getoption("full") else EXAMPLES) // 2
    refused = 0
    for _ in range(examples):
        changed = how(data, chance)
        outcome = loaded(changed, tmp_path / "plan.npz")
        if isinstance(outcome, str):
            refused += 1
            assert "plan" in outcome
            assert 25 < len(outcome) < 4000
        else:
            assert outcome.to_json() == Plan.from_json(plan.to_json()).to_json()
            assert outcome.contents == plan.contents
    assert refused > examples // 2


def archive(compression: int, **arrays: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, content in arrays.items():
            file.writestr(f"{name}.npy", content)
    return out.getvalue()


def array(shape: str, kind: str, content: bytes) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


BOMBS = {
    "compressed": (archive(zipfile.ZIP_DEFLATED, plan=array("(50000000,)", "|u1", bytes(50_000_000))), "compressed"),
    "a large shape": (archive(zipfile.ZIP_STORED, plan=array("(1000000000000,)", "<U1", b"")), "does not begin"),
    "a negative shape": (archive(zipfile.ZIP_STORED, plan=array("(-1, -4)", "|u1", b"abcd")), "does not begin"),
    "objects": (archive(zipfile.ZIP_STORED, plan=array("()", "|O", b"c" * 8)), "does not begin"),
    "fewer": (archive(zipfile.ZIP_STORED, plan=array("()", "<U9", bytes(32))), "no text of 32 bytes"),
    "no characters": (archive(zipfile.ZIP_STORED, plan=array("()", "<U1", b"\xff\xff\xff\x7f")), "no text"),
    "code": (archive(zipfile.ZIP_STORED, plan=array("__import__('os').abort()", "|u1", b"")), "does not begin"),
    "depth": (archive(zipfile.ZIP_STORED, plan=array("(" * 3000 + ")" * 3000, "|u1", b"")), "plan"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_row_cache_57_a_small_file_takes_little_memory(bomb: str, tmp_path: Path) -> None:
    data, said = BOMBS[bomb]
    tracemalloc.start()
    try:
        outcome = loaded(data, tmp_path / "plan.npz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, str)
    assert said in outcome
    assert peak < 10 * len(data) + (1 << 20)


def test_row_bound_48_nothing_is_imported_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's own form of a structure does, which once stood here."""
    (tmp_path / "stranger.py").write_text("raise SystemExit('a module of a stranger was imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = json.loads(plan_of("constants", None).to_json())
    del data["digest"]
    data["result"] = [1, {"type": "stranger.Kind", "context": "stranger.Kind", "children_spec": []}]
    with pytest.raises(WebGPUError, match="not a"):
        Plan.from_json(sealed(data))


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none.npz")
