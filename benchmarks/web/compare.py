"""Exported models beside onnxruntime-web, on one adapter: see README.md beside."""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import models
from playwright.sync_api import Browser, sync_playwright

import torch_webgpu.export.folder as folders

HERE = Path(__file__).parent
ENGINES = ("ours", "ort-webgpu", "ort-wasm")
SOFTWARE = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
ALWAYS = ("--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking")
TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}
STORED = (".safetensors", ".onnx")
"""Weights, which do not compress."""
CALLS = {
    "dispatches": ("dispatchWorkgroups", "dispatchWorkgroupsIndirect"),
    "submits": ("submit",),
    "passes": ("beginComputePass",),
    "bind groups": ("createBindGroup",),
    "writes": ("writeBuffer",),
    "maps": ("mapAsync",),
}


@lru_cache(maxsize=256)
def body(file: Path) -> bytes:
    """What a host sends for a file: compressed, but for weights."""
    return file.read_bytes() if file.suffix in STORED else gzip.compress(file.read_bytes(), 6)


class Server:
    """Serves folders at paths, and counts what it sends: ``/begin`` sets the count to zero, ``/sent`` tells it."""

    def __init__(self, roots: Mapping[str, Path]) -> None:
        server, self.sent_bytes = self, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/begin":
                    server.sent_bytes = 0
                if path in ("/begin", "/sent"):
                    self.give(200, str(server.sent_bytes).encode(), {})
                    return
                root = max((r for r in roots if path.startswith(r)), key=len)
                file = roots[root] / path.removeprefix(root)
                if not file.is_file():
                    self.give(404, b"", {})
                    return
                data = body(file)
                server.sent_bytes += len(data)
                headers = {"Content-Type": TYPES.get(file.suffix, "application/octet-stream")}
                self.give(200, data, headers if file.suffix in STORED else {**headers, "Content-Encoding": "gzip"})

            def give(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data)), "Cache-Control": "no-store"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"


def measured(browser: Browser, url: str, engine: str, name: str, runs: int) -> dict[str, Any]:
    """What one engine needs for one model."""
    page = browser.new_page()
    page.set_default_timeout(0)
    page.goto(f"{url}/page.html")
    page.wait_for_selector("html[data-ready]", state="attached")
    result = page.evaluate("args => compare(...args)", [engine, name, runs])
    adapter = page.evaluate("navigator.gpu.requestAdapter().then(({info}) => `${info.vendor} ${info.architecture}`)")
    page.close()
    calls = {label: sum(result["calls"].get(n, 0) for n in names) for label, names in CALLS.items()}
    about = {"model": name, "engine": engine, "adapter": adapter.strip(), "browser": browser.version}
    return {**about, **result, "calls": calls}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results for people, medians over the rounds."""
    lines = ["| model | engine | MB | ready, ms | run, ms | " + " | ".join(CALLS) + " | difference |"]
    lines.append("|---" * (6 + len(CALLS)) + "|")
    for model, engine in dict.fromkeys((r["model"], r["engine"]) for r in rows):
        own = [r for r in rows if (r["model"], r["engine"]) == (model, engine)]
        ready, run = (statistics.median(r[key] for r in own) for key in ("ready", "run"))
        calls = " | ".join(str(own[-1]["calls"][label]) for label in CALLS)
        lines.append(
            f"| {model} | {engine} | {own[-1]['sent'] / 1e6:.2f} | {ready:.0f} | {run:.1f} | {calls} "
            f"| {max(r['difference'] for r in own):.0e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ort", type=Path, required=True, help="the folder of the package onnxruntime-web")
    parser.add_argument("--only", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", nargs="*", default=SOFTWARE, help="of Chromium; those of the software adapter")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    version = json.loads((options.ort / "package.json").read_text())["version"]
    rows = []
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        for name in options.only:
            models.write(name, folder / name)
        folders.copy_runtime(folder / "runtime")
        for file in ("page.html", "compare.js"):
            shutil.copyfile(HERE / file, folder / file)
        server = Server({"/": folder, "/ort/": options.ort})
        for _ in range(options.rounds):
            for name in options.only:
                for engine in options.engines:
                    browser = playwright.chromium.launch(executable_path=chromium, args=[*ALWAYS, *options.flags])
                    row = measured(browser, server.url, engine, name, options.runs)
                    browser.close()
                    rows.append(row)
                    if options.json:
                        print(json.dumps({**row, "ort": version}), flush=True)
    if not options.json:
        print(f"{rows[0]['adapter']}, Chromium {rows[0]['browser']}, onnxruntime-web {version}\n")
        print(table(rows))


if __name__ == "__main__":
    main()
