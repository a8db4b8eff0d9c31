"""A browser as a device: a program under ``torch-webgpu serve``, and Chromium that opens its link."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_webgpu
from torch_webgpu.runtime.browser import commands as c
from torch_webgpu.runtime.browser.server import BrowserServer
from torch_webgpu.serve.device import page_files, start

from .chromium import NO_ADAPTER, executable
from .served import ROOT, WAIT_S, Served, state

client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed: torch-webgpu[serve]")
PAGE = Path(torch_webgpu.__file__).parent / "runtime" / "browser" / "page"
COMPILER = ROOT / ".web-tools" / "node_modules" / ".bin" / "tsc"

SAMPLE = (
    "engine/test_reading", "engine/test_events", "tensors/test_copy", "optim/test_mixed_lists", "runtime/test_runtime",
    "runtime/test_bounds", "runtime/test_prepared",
)  # fmt: skip

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
MAP_READ, COPY_DST = 1, 8
numbers = st.integers(0, 8) | st.sampled_from([64, 128, 140, 256, 4096, 1 << 20]) | st.integers(0, 2**32 - 1)
headers = st.builds(c.header, st.sampled_from([1, 1, 1, 2]), numbers, st.integers(0, 3), numbers, numbers)
commands = st.builds(
    lambda code, values, data, lie: c.words((code, lie if lie >= 0 else len(values) + len(data) // 4, *values)) + data,
    st.integers(0, 9), st.lists(numbers, max_size=7), st.sampled_from([b"", b"@compute", bytes(64)]),
    st.sampled_from([-1, -1, -1, 0, 1, 2**32 - 1]),
)  # fmt: skip
frames = st.binary(max_size=64) | st.builds(
    lambda head, some: head + b"".join(some), headers, st.lists(commands, max_size=6)
)
RUN_FRAMES = """async frames => {
  const said = [];
  for (const text of frames) {
    try {
      const reply = await gpu.run(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
      said.push(reply === null ? 'of another device' : `reply ${reply.byteLength}`);
    } catch (error) {
      said.push(String(error.message));
    }
  }
  return said;
}"""
LOSE = """() => {
  const make = GPUDevice.prototype.createCommandEncoder;
  GPUDevice.prototype.createCommandEncoder = function () {
    GPUDevice.prototype.createCommandEncoder = make;
    this.destroy();
    return make.call(this);
  };
}"""


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


@contextmanager
def serving(*certificate: str) -> Iterator[BrowserServer]:
    """A server that invites a tab, in this process."""
    made = start("127.0.0.1", 0, *certificate)
    try:
        yield made
    finally:
        atexit.unregister(made.close)
        made.close()


@pytest.fixture
def server() -> Iterator[BrowserServer]:
    with serving() as made:
        yield made


def computes(server: BrowserServer) -> bool:
    """Waits for the tab, and asks its GPU for what was written there."""
    server.wait(WAIT_S)
    device = server.open()
    buffer = device.create_buffer(16, MAP_READ | COPY_DST)
    device.write_buffer(buffer, 0, bytes(range(16)))
    read = device.map(buffer, 16)
    return read is not None and bytes(read) == bytes(range(16))


@pytest.fixture
def tab(new_tab: Any) -> Iterator[Any]:
    """A tab, in which nothing is refused by the policy and no script fails."""
    wrong: list[str] = []

    def told(message: Any) -> None:
        """Firefox also writes what WGSL it refuses, which a program here asks for."""
        if message.type in ("error", "warning") and "hader" not in message.text:
            wrong.append(message.text)

    with new_tab() as page:
        page.on("console", told)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield page
    assert wrong == []


def test_it_computes_trains_and_compiles(serve: Serve, tab: Any) -> None:
    """Also: a training step is one frame and one round trip; errors are those of other devices."""
    program = serve(None, "-m", "tests.web.browser_training")
    tab.goto(program.link)
    assert "fine" in program.end()
    assert state(tab, "ended") == "The program has ended. Thank you."
    assert not tab.is_visible("#meaning")
    assert int(tab.inner_text("#frames").replace(",", "")) > 10


@pytest.mark.slow
def test_doctor_names_it(serve: Serve, tab: Any) -> None:
    program = serve(None, "-m", "torch_webgpu.cli", "doctor")
    tab.goto(program.link)
    told = program.end().partition("\nwebgpu:0  ")[2].partition("\nwebgpu:1  ")[0]
    assert re.match(r".* in (Chrome|Firefox) \d+\n", told)
    assert "Browser, a browser at http://127.0.0.1:" in told
    assert told.count("\n  right  ") == 5
    assert "WRONG" not in told


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


def test_a_tab_without_the_token_is_refused(server: BrowserServer, tab: Any) -> None:
    """Also: nothing of the page is wider than a phone's window, or a desktop's."""
    tab.goto(server.link[:-3] + "abc")
    assert "This link is not valid" in state(tab, "failed")
    tab.goto(server.link.partition("#")[0])
    tab.reload()
    assert "lacks its end" in state(tab, "failed")
    tab.goto(server.link)
    assert computes(server)
    state(tab, "working")
    for width in (360, 1200):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_who_may_connect(server: BrowserServer) -> None:
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    address, _, token = server.link.partition("/#token=")
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


def test_it_listens_to_this_machine_alone(server: BrowserServer) -> None:
    """Another address of this machine than that of the link is refused by the operating system."""
    address = urlsplit(server.link)
    assert address.hostname == "127.0.0.1"
    assert address.port is not None
    with closing(socket(AF_INET, SOCK_STREAM)) as asking:
        asking.settimeout(WAIT_S)
        with pytest.raises(OSError):  # noqa: PT011 refused here; elsewhere there may be no such address
            asking.connect(("127.0.0.2", address.port))


def test_a_lost_gpu_is_a_lost_device(server: BrowserServer, tab: Any) -> None:
    """The tab stays, and computes again once the program opens the device anew."""
    tab.goto(server.link)
    server.wait(WAIT_S)
    device = server.open()
    state(tab, "working")
    (worker,) = tab.workers
    worker.evaluate(LOSE)
    assert device.run(device.create_encoder())
    device.poll(wait=True)
    assert "The GPU was lost" in state(tab, "lost")
    assert device.map(1, 4) is None
    assert device.sink.lost
    device.close()
    assert computes(server)


def test_frames_that_are_none_end_in_an_error(page: Any) -> None:
    """Random and nearly right frames are run, or refused by an Error; the device computes afterwards."""
    page.evaluate("import('/device/gpu.js').then(({Gpu}) => { globalThis.Gpu = Gpu; })")
    page.evaluate(
        """async () => {
          const adapter = await navigator.gpu.requestAdapter();
          globalThis.gpu = new Gpu(await adapter.requestDevice(), 1);
          gpu.device.lost.then(({reason}) => { globalThis.gone = reason; });
        }"""
    )

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(frames, min_size=1, max_size=20))
    def run(some: list[bytes]) -> None:
        said = page.evaluate(RUN_FRAMES, [b64encode(frame).decode() for frame in some])
        assert len(said) == len(some)
        assert all(isinstance(one, str) for one in said)

    run()
    right = c.header(1, 7, c.READ, 90, 16) + b"".join(
        [
            *c.command(c.CREATE_BUFFER, (90, MAP_READ | COPY_DST, 16)),
            *c.command(c.WRITE_BUFFER, (90, 0, 16), bytes(range(16))),
        ]
    )
    assert page.evaluate(RUN_FRAMES, [b64encode(right).decode()]) == ["reply 32"]
    assert page.evaluate("globalThis.gone") is None
    page.evaluate("gpu.device.destroy()")


def test_another_machines_browser_needs_a_certificate(browser: Any, tmp_path: Path) -> None:
    """The link is https:// then, and the session is encrypted."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl to make a certificate with")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    with serving(str(files[0]), str(files[1])) as server, browser.new_context(ignore_https_errors=True) as context:
        assert server.link.startswith("https://127.0.0.1:")
        page, sockets = context.new_page(), []
        page.on("websocket", lambda one: sockets.append(one.url))
        page.goto(server.link)
        assert computes(server)
        assert page.evaluate("isSecureContext")


def test_the_page_says_what_is_missing(chromium: Any, server: BrowserServer) -> None:
    other = chromium.launch(executable_path=executable(), args=[*NO_ADAPTER])
    try:
        page = other.new_page()
        page.goto(server.link)
        assert "WebGPU" in state(page, "failed")
    finally:
        other.close()


def test_the_policy_allows_no_evaluation(server: BrowserServer) -> None:
    from urllib.request import urlopen

    with urlopen(server.link.partition("#")[0]) as answer:
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
@pytest.mark.timeout(1200)  # on two busy cores it took five minutes
def test_tests_of_devices_pass(serve: Serve, tab: Any) -> None:
    chosen = [f"tests/device/{name}.py" for name in SAMPLE]
    program = serve(None, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *chosen)
    tab.goto(program.link)
    assert " passed" in program.end()


@pytest.mark.slow
@pytest.mark.timeout(1300)  # an epoch on a busy machine's software adapter
def test_the_digits_are_learnt(serve: Serve, tab: Any) -> None:
    program = serve(None, str(ROOT / "examples" / "digits.py"))
    tab.goto(program.link)
    program.end()
