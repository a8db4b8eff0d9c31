"""Golden texts are made in processes of their own, whose adapters are not there and whose environment says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected")
ROOT = Path(__file__).parents[2]
PARTS = {"programs": "compiled", "steps": "noted"}
"""The modules and their functions that make texts by name."""
TEXTS = "import json; from tests.golden.{0} import {1}; print(json.dumps({1}()))"


def all_texts() -> dict[str, str]:
    """Of all parts, which are made at the same time."""
    with ThreadPoolExecutor() as pool:
        return {name: text for found in pool.map(texts, PARTS) for name, text in found.items()}


def texts(part: str) -> dict[str, str]:
    """What the part's programs come down to, by name and adapter."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_WEBGPU_")}
    environment["TORCH_WEBGPU_CACHE_DIR"] = "off"
    code = TEXTS.format(part, PARTS[part])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
