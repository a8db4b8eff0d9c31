"""However a program ends, its exit code is right and the device says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest
from tests.device.processes import assert_ends_well, run_script

BUSY = """
    x = torch.ones(300, 300, device="webgpu")
    for _ in range(40):
        x = (x @ x).tanh()
        torch.webgpu.flush_batch()
"""


def test_daemon_threads_still_record_read_and_train():
    script = """
        def record():
            y = torch.ones(64, 64, device="webgpu")
            while True:
                y = (y @ y).tanh()

        def read():
            y = torch.ones(8, device="webgpu")
            while True:
                assert (y + 1).sum().item() == 16

        def train():
            lin = torch.nn.Linear(4, 4).to("webgpu")
            optimizer = torch.optim.SGD(lin.parameters(), lr=0.01)
            while True:
                lin(torch.ones(2, 4, device="webgpu")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                rounds.append(0)

        rounds = []
        for work in (record, read, train):
            threading.Thread(target=work, daemon=True).start()
        end = time.monotonic() + 60
        while len(rounds) < 20 and time.monotonic() < end:
            time.sleep(0.05)
        assert rounds
    """
    assert_ends_well(script)


def test_work_in_flight():
    assert_ends_well(BUSY)


def test_a_handler_at_exit_uses_the_device():
    script = """
        import atexit
        x = torch.arange(4.0, device="webgpu")
        atexit.register(lambda: print("early", (x * 2).tolist()))
        y = (x + 1).exp_()
        torch.webgpu.synchronize()
    """
    assert assert_ends_well(script) == "early [0.0, 2.0, 4.0, 6.0]\n"


def test_a_handler_registered_before_pytorch_was_imported_uses_the_device():
    """It runs after this package's own."""
    script = """
        import atexit
        atexit.register(lambda: print("late", (x + 1).sum().item()))
        import torch, torch_webgpu
        x = torch.arange(4.0, device="webgpu")
        (x + 1).sum().item()
        x *= 2
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "late 16.0\n", "")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(7)", 7),
        ("x.requires_grad_().register_hook(lambda g: sys.exit(5)); x.exp().sum().backward()", 5),
        ("os._exit(3)", 3),
    ],
)
def test_a_program_that_exits(ending, code):
    assert assert_ends_well(BUSY + "    x = x.detach()\n    " + ending, code) == ""


def test_an_exception_with_tensors_alive():
    done = run_script(BUSY + "    y = (x, x + 1)\n    1 / 0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert done.stderr.count("Traceback") == 1


def test_a_forked_child_runs_pythons_exit_handlers_and_not_those_of_drivers():
    script = (
        BUSY
        + """
    import atexit, ctypes
    x.sum().item()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        # Stands for a driver that cannot end in a child.
        libc.__cxa_atexit(libc.abort, None, None)
    pid = os.fork()
    if not pid:
        atexit.register(lambda: print("child ends"))
        sys.exit(4)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status))
    sys.stdout.flush()
    os._exit(0)
    """
    )
    assert assert_ends_well(script, PYTHONWARNINGS="ignore") == "child ends\n4\n"


def test_a_forked_child_and_its_parent_exit():
    script = (
        BUSY
        + """
    pid = os.fork()
    if not pid:
        sys.exit(4)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    assert x.sum().isfinite().item()
    """
    )
    assert_ends_well(script, PYTHONWARNINGS="ignore")


def test_threads_that_are_waited_for_finish_their_work():
    script = """
        def work():
            time.sleep(0.2)
            y = torch.ones(16, device="webgpu")
            for _ in range(50):
                y = y + 1
            print(f"{y.sum().item()}\\n", end="")  # in one piece: the other thread prints, too
        for _ in range(2):
            threading.Thread(target=work).start()
    """
    assert assert_ends_well(script) == "816.0\n816.0\n"
