"""A browser as a device: a program under ``torch-webgpu serve``, and Chromium that opens its link."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_webgpu
from torch_webgpu.serve.device import page_files

from .chromium import NO_ADAPTER, executable
from .served import ROOT, Served, state

client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed: torch-webgpu[serve]")
PAGE = Path(torch_webgpu.__file__).parent / "runtime" / "browser" / "page"
COMPILER = ROOT / ".web-tools" / "node_modules" / ".bin" / "tsc"

SAMPLE = ("engine/test_reading", "engine/test_events", "tensors/test_copy", "optim/test_mixed_lists")

Serve = Callable[..., Served]

LOOP = """
import torch
x = torch.ones(1000, device="webgpu")
print("ready", x.sum().item(), flush=True)
try:
    while True:
        x = (x * 1.0001).relu()
        x.sum().item()
except torch.webgpu.DeviceLostError as error:
    print("lost:", error, flush=True)
if torch.webgpu.device_count() > 1:
    assert (torch.ones(3, device="webgpu:1") + 1).sum().item() == 6
    print("the other device computes", flush=True)
for _ in range(2):
    try:
        torch.ones(2, device="webgpu:0").cpu()
        raise SystemExit("a lost device computes")
    except torch.webgpu.DeviceLostError:
        pass
input()
torch.webgpu.reset_device(0)
assert (torch.ones(3, device="webgpu:0") + 1).sum().item() == 6
print("computes again", flush=True)
input()
"""
WAITING = "import torch\nprint('ready', torch.ones(2, device='webgpu').sum().item(), flush=True)\ninput()\n"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts programs from their source, or with a command line."""
    started: list[Served] = []

    def start(source: str | None = None, *arguments: str) -> Served:
        if source is not None:
            path = tmp_path / f"program{len(started)}.py"
            path.write_text(source, "utf-8")
            arguments = (*arguments, str(path))
        started.append(Served(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab, in which nothing is refused by the policy and no script fails."""
    context = browser.new_context()
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == []


def test_it_computes_trains_and_compiles(serve: Serve, tab: Any) -> None:
    """Also: a training step is one frame and one round trip; errors are those of other devices."""
    program = serve(None, "-m", "tests.web.browser_training")
    tab.goto(program.link)
    assert "fine" in program.end()
    assert state(tab, "ended") == "The program has ended. Thank you."
    assert int(tab.inner_text("#frames").replace(",", "")) > 10


def test_a_closed_tab_is_a_lost_device_and_an_opened_one_goes_on(serve: Serve, browser: Any) -> None:
    program, first, second = serve(LOOP), browser.new_page(), browser.new_page()
    first.goto(program.link)
    program.until("ready 1000")
    second.goto(program.link)
    assert "Another tab" in state(second, "failed")
    first.close()
    assert "its tab was closed, or left the page" in program.until("lost: .*")
    second.click("#again")
    state(second, "waiting")
    program.say()
    program.until("computes again")
    second.reload()
    state(second, "waiting")
    program.say()
    program.end()
    second.close()


def test_a_tab_without_the_token_is_refused(serve: Serve, tab: Any) -> None:
    program = serve(WAITING)
    tab.goto(program.link[:-3] + "abc")
    assert "This link is not valid" in state(tab, "failed")
    tab.goto(program.link.partition("#")[0])
    tab.reload()
    assert "lacks its end" in state(tab, "failed")
    tab.goto(program.link)
    program.until("ready 2.0")
    program.say()
    program.end()


def test_who_may_connect(serve: Serve) -> None:
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    program = serve(WAITING)
    address, _, token = program.link.partition("/#token=")
    url = address.replace("http", "ws") + "/session"

    def refused(code: int, **options: Any) -> None:
        with pytest.raises(InvalidStatus) as told:
            client.connect(url, **options)
        assert told.value.response.status_code == code

    protocols = ["torch-webgpu.1", token]
    refused(403, origin="http://elsewhere.example", subprotocols=protocols)
    refused(403, subprotocols=protocols)  # no origin: no page
    refused(403, origin=address, subprotocols=protocols, additional_headers={"Host": "rebound.example"})

    def closed_with(subprotocols: list[str], *messages: str | bytes) -> int:
        with client.connect(url, origin=address, subprotocols=subprotocols) as connection:
            for message in messages:
                connection.send(message)
            with pytest.raises(ConnectionClosed) as told:
                connection.recv()
        return told.value.rcvd.code

    assert closed_with(["torch-webgpu.1"]) == 4401
    for message in ("x" * 70_000, "{}", b"\0" * 64, '{"type": "hello", "version": 1, "adapter": {}}'):
        assert closed_with(protocols, message) == 4400


def test_the_page_says_what_is_missing(chromium: Any, serve: Serve) -> None:
    program = serve(WAITING)
    other = chromium.launch(executable_path=executable(), args=[*NO_ADAPTER])
    try:
        page = other.new_page()
        page.goto(program.link)
        assert "WebGPU" in state(page, "failed")
    finally:
        other.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(serve: Serve, tab: Any, width: int) -> None:
    program = serve(WAITING)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(program.link)
    program.until("ready")
    state(tab, "working")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    program.say()
    program.end()


def test_the_policy_allows_no_evaluation(serve: Serve) -> None:
    from urllib.request import urlopen

    program = serve(WAITING)
    with urlopen(program.link.partition("#")[0]) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in PAGE.glob("*.js"):
        assert not any(word in path.read_text() for word in ("eval(", "new Function", "innerHTML", "document.write"))


@pytest.mark.skipif(not COMPILER.exists(), reason="there is no TypeScript: make web-setup")
def test_types(tmp_path: Path) -> None:
    shutil.copy(PAGE / "tsconfig.json", tmp_path)
    for path, file in page_files().items():
        if file.suffix == ".js":
            (tmp_path / path[1:]).parent.mkdir(exist_ok=True)
            shutil.copy(file, tmp_path / path[1:])
    done = subprocess.run([COMPILER, "--project", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_tests_of_devices_pass(serve: Serve, tab: Any) -> None:
    chosen = [f"tests/device/{name}.py" for name in SAMPLE]
    program = serve(None, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *chosen)
    tab.goto(program.link)
    assert " passed" in program.end()


@pytest.mark.slow
def test_the_digits_are_learnt(serve: Serve, tab: Any) -> None:
    program = serve(None, str(ROOT / "examples" / "digits.py"))
    tab.goto(program.link)
    program.end()
