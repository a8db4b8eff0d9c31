"""``torch-webgpu serve``: a program whose ``webgpu`` device is a browser's GPU."""

from __future__ import annotations

import argparse
import code
import os
import runpy
import sys
import webbrowser

import torch

from torch_webgpu.runtime import implementations
from torch_webgpu.runtime.browser.implementation import BrowserImplementation
from torch_webgpu.runtime.browser.server import BrowserServer
from torch_webgpu.runtime.device_config import DeviceConfig
from torch_webgpu.runtime.runtime import provide_first

from .device import show, start


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 is all of this machine's"
    )
    command.add_argument("--port", type=int, default=0, help="default: one that is free")
    command.add_argument("--certfile", metavar="FILE", help="a certificate, with which the link is https://")
    command.add_argument("--keyfile", metavar="FILE", help="its private key, if it is not in the same file")
    command.add_argument("--open", action="store_true", help="open the link in this machine's browser")
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="for how long to wait (for ever)")
    command.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as with python -m")
    command.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM ...",
        help="a script, and its arguments; without one, a prompt of Python's",
    )  # fmt: skip
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Waits for a browser, then runs the program; the exit status, unless the program ends the process itself."""
    try:
        server = start(options.host, options.port, options.certfile, options.keyfile)
    except (ImportError, OSError) as error:
        sys.stderr.write(f"torch-webgpu: {error}\n")
        return 1
    show(server)
    if options.open:
        webbrowser.open(server.link)
    try:
        server.wait(options.timeout)
        name = make_first(server)
    except (TimeoutError, RuntimeError) as error:
        sys.stderr.write(f"torch-webgpu: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stderr.write(f"torch-webgpu: webgpu:0 is {name}\n")
    start_program(options)
    return 0


def make_first(server: BrowserServer) -> str:
    """Makes the browser's GPU ``webgpu:0``, and this machine's the next ones; its name."""
    implementations.register(DeviceConfig("browser", lambda: BrowserImplementation("browser", server)))
    (device,) = provide_first(implementations.implementation("browser").adapters())
    return device.name


def start_program(options: argparse.Namespace) -> None:
    """Runs what the command line names, as Python would."""
    if not options.program:
        code.interact("Tensors are on the browser's GPU with device='webgpu'.", local={"torch": torch}, exitmsg="")
        return
    program = options.program[0]
    first = os.getcwd() if options.module else os.path.dirname(os.path.abspath(program))
    sys.path[: 0 if sys.flags.safe_path else 1] = [first]
    sys.argv = options.program
    if options.module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
