"""``torch.webgpu.serve``: a link, and the device that a browser becomes when it opens it."""

from __future__ import annotations

import atexit
import sys
import webbrowser
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import torch

from torch_webgpu.extend.registry.devices import initialize_device, list_devices, register_device
from torch_webgpu.runtime.browser.implementation import BrowserImplementation
from torch_webgpu.runtime.browser.server import BrowserServer, is_loopback
from torch_webgpu.runtime.browser.session import SILENCE_S
from torch_webgpu.runtime.device_config import DeviceConfig

SHARED = ("js/device.js", "js/errors.js", "page/base.css")
"""Files of exported pages that this page uses, too."""
ANY_ADDRESS = ("0.0.0.0", "::", "")
INSECURE = (
    "Browsers have WebGPU only on https:// and on their own machine's http://localhost. For a browser of another "
    "machine give a certificate (--certfile, --keyfile), or forward the port: run "
    "'ssh -L {port}:127.0.0.1:{port} THIS-MACHINE' on that machine, whose browser then opens the link at 127.0.0.1."
)


def page_files() -> dict[str, Path]:
    """What the server serves, by path."""
    found: dict[str, Path] = {}
    with as_file(files("torch_webgpu.runtime.browser") / "page") as page:
        for file in page.iterdir():
            if file.suffix in (".html", ".js", ".css", ".svg"):
                found["/" if file.name == "index.html" else f"/{file.name}"] = file
    for name in SHARED:
        with as_file(files("torch_webgpu.export") / name) as file:
            found[f"/torch-webgpu/{file.name}"] = file
    return found


def start(
    host: str = "127.0.0.1",
    port: int = 0,
    certfile: str | None = None,
    keyfile: str | None = None,
    silence_s: float = SILENCE_S,
) -> BrowserServer:
    """A server that waits for a browser, until the process ends."""
    try:
        server = BrowserServer(page_files(), host, port, None if certfile is None else (certfile, keyfile), silence_s)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}. Try: pip install 'torch-webgpu[serve]'") from None
    atexit.register(server.close)
    return server


def warning_of(server: BrowserServer) -> str:
    """What is to be known of the address; empty where nothing is."""
    if is_loopback(server.host):
        return ""
    text = f"Whoever reaches {server.address} and has the link's token takes part in this program's computation."
    return text if server.secure else f"{text} {INSECURE.format(port=server.port)}"


def show(server: BrowserServer) -> None:
    """Prints the link, and what is to be known of it, on stderr."""
    link = server.link
    if server.host in ANY_ADDRESS:
        link = link.replace(server.host or "//:", "THIS-MACHINE", 1)
    if text := warning_of(server):
        sys.stderr.write(f"torch-webgpu: {text}\n")
    sys.stderr.write(f"torch-webgpu: open this link in a browser with WebGPU:\n\n    {link}\n\n")
    sys.stderr.flush()


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    certfile: str | None = None,
    keyfile: str | None = None,
    open_browser: bool = False,
    on_link: Callable[[str], object] | None = None,
    timeout_s: float | None = None,
) -> torch.device:
    """Waits for a browser to open a link, and returns the device that it becomes: ``webgpu:n``, behind all others.

    The device computes as any other while the browser's tab is open. When the tab is closed, it is a lost device:
    using it raises DeviceLostError. Once the link is open again, on the same GPU, ``torch.webgpu.reset_device(n)``
    opens it anew; its tensors are lost.

    Args:
        host: the address that is listened on; "0.0.0.0" is all of this machine's.
        port: 0 takes one that is free.
        certfile: a certificate (PEM), with which the link is https://. Browsers have WebGPU only there and on their
            own machine's localhost.
        keyfile: its private key, where that is in a file of its own.
        open_browser: whether this machine's default browser opens the link.
        on_link: gets the link, in the place of printing it on stderr.
        timeout_s: for how long to wait, in seconds; None waits for ever.

    Raises ImportError without the package ``websockets``, OSError where the port is taken or the certificate cannot be
    read, TimeoutError, and RegistrationFailedError where the browser's tab is closed again at once.
    """
    server = start(host, port, certfile, keyfile)
    try:
        if on_link is None:
            show(server)
        else:
            on_link(server.link)
        if open_browser:
            webbrowser.open(server.link)
        server.wait(timeout_s)
    except BaseException:
        atexit.unregister(server.close)
        server.close()
        raise
    name = free_name()
    register_device(DeviceConfig(name, lambda: BrowserImplementation(name, server)))
    return initialize_device(name).device


def free_name() -> str:
    """ "browser", or "browser-2" and on where a program has several."""
    taken, number, name = set(list_devices()), 1, "browser"
    while name in taken:
        number += 1
        name = f"browser-{number}"
    return name
