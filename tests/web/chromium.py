"""Chromium for tests, driven by playwright: on the software adapter SwiftShader, without a network."""

from __future__ import annotations

import base64
import os
import shutil
from typing import Any

import torch

FLAGS = (
    "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--disable-quic", "--disable-sync",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-gpu-watchdog",  # it ends a process that a busy machine's software adapter keeps waiting
)  # fmt: skip
PATIENCE_MS = 600_000
"""For how long a page is waited for: a busy machine is slow, and what hangs is pytest's to end."""
NO_ADAPTER = tuple(flag for flag in FLAGS if "webgpu" not in flag)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The browser: the program that CHROMIUM names, or the first of the usual ones that is there."""
    chosen = os.environ.get("CHROMIUM")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str:
    """Why there can be no browser here; empty if there can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: make web-setup"
    return "" if executable() else "there is no Chromium: make web-setup"


def tensor_of(data: dict[str, Any]) -> torch.Tensor:
    """The tensor that ``packed`` of ``page.js`` wrote."""
    dtype = getattr(torch, data["dtype"])
    held = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    raw = bytearray(base64.b64decode(data["base64"]))
    flat = torch.frombuffer(raw, dtype=held) if raw else torch.empty(0, dtype=held)
    return flat.to(dtype).reshape(data["shape"])
