"""What raises in a backward pass is raised by the call of the backward pass, as on the CPU, and the next one works.

One process runs all cases and says what each came to; where one ends it, another goes on with the rest.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from tests.device.processes import run_script

CASES = """
    import signal
    from torch import nn
    from torch.autograd import Function, grad, graph
    from torch.utils.checkpoint import checkpoint

    def fail(*args):
        raise ZeroDivisionError("hook")

    def interrupt(*args):
        signal.raise_signal(signal.SIGINT)

    def net(device):
        torch.manual_seed(0)
        lin = nn.Linear(4, 4)
        return lin.to(device), torch.ones(3, 4).to(device).requires_grad_()

    def tensor_hook(device, hook=fail):
        lin, x = net(device)
        y = lin(x).relu()
        y.register_hook(hook)
        y.sum().backward()

    def leaf_hook(device):
        lin, x = net(device)
        lin.weight.register_hook(fail)
        lin(x).sum().backward()

    def retained_grad_hook(device):
        lin, x = net(device)
        y = lin(x)
        y.retain_grad()
        y.register_hook(fail)
        y.sum().backward()

    def post_accumulate_grad_hook(device):
        lin, x = net(device)
        lin.bias.register_post_accumulate_grad_hook(fail)
        lin(x).sum().backward()

    def node_hook(device):
        lin, x = net(device)
        y = lin(x)
        y.grad_fn.register_hook(fail)
        y.sum().backward()

    def node_prehook(device):
        lin, x = net(device)
        y = lin(x)
        y.grad_fn.register_prehook(fail)
        y.sum().backward()

    def multi_grad_hook(device):
        lin, x = net(device)
        graph.register_multi_grad_hook((lin.weight, lin.bias), fail)
        lin(x).sum().backward()

    def module_backward_hook(device):
        lin, x = net(device)
        lin.register_full_backward_hook(fail)
        lin(x).sum().backward()

    def module_backward_prehook(device):
        lin, x = net(device)
        lin.register_full_backward_pre_hook(fail)
        lin(x).sum().backward()

    def module_forward_hook(device):
        lin, x = net(device)
        lin.register_forward_hook(fail)
        lin(x).sum().backward()

    def forward_hook_in_checkpoint(device):
        lin, x = net(device)
        calls = []
        lin.register_forward_pre_hook(lambda *args: calls.append(0) if not calls else fail())
        checkpoint(lin, x, use_reentrant=False).sum().backward()

    def forward_hook_in_reentrant_checkpoint(device):
        lin, x = net(device)
        calls = []
        lin.register_forward_hook(lambda *args: calls.append(0) if not calls else fail())
        checkpoint(lin, x, use_reentrant=True).sum().backward()

    def tensor_hook_in_reentrant_checkpoint(device):
        lin, x = net(device)
        def inner(x):
            y = lin(x)
            if y.requires_grad:
                y.register_hook(fail)
            return y.relu()
        checkpoint(inner, x, use_reentrant=True).sum().backward()

    def pack_hook(device):
        lin, x = net(device)
        with graph.saved_tensors_hooks(fail, lambda t: t):
            lin(x).exp().sum().backward()

    def unpack_hook(device):
        lin, x = net(device)
        with graph.saved_tensors_hooks(lambda t: t, fail):
            y = lin(x).exp()
        y.sum().backward()

    class Failing(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            fail()

    class Nested(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                y = torch.ones(3, 4, device=g.device, requires_grad=True) * 2
                y.register_hook(fail)
                y.sum().backward()

    def custom_function(device):
        lin, x = net(device)
        Failing.apply(lin(x)).sum().backward()

    def nested_backward(device):
        lin, x = net(device)
        Nested.apply(lin(x)).sum().backward()

    def autograd_grad(device):
        lin, x = net(device)
        y = lin(x)
        y.register_hook(fail)
        grad(y.sum(), x)

    def create_graph(device):
        lin, x = net(device)
        y = lin(x).sigmoid()
        (g,) = grad(y.sum(), x, create_graph=True)
        g.register_hook(fail)
        g.pow(2).sum().backward()

    def dispatch_mode(device):
        from torch.utils._python_dispatch import TorchDispatchMode
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                fail()
        lin, x = net(device)
        loss = lin(x).sigmoid().sum()
        with Mode():
            loss.backward()

    def functional_grad(device):
        lin, x = net(device)
        def loss(x):
            y = x * 2
            y.register_hook(fail)
            return y.sum()
        torch.func.grad(loss)(x)

    def keyboard_interrupt(device):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tensor_hook(device, interrupt)

    def system_exit(device):
        tensor_hook(device, lambda g: sys.exit(3))

    def wrong_shape(device):
        tensor_hook(device, lambda g: g[:1])

    def of_a_thread(device):
        caught = []
        def work():
            try:
                tensor_hook(device)
            except BaseException as error:
                caught.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise caught[0]

    def kernel_out_of_memory(device):
        if device == "cpu":
            raise torch.OutOfMemoryError("of a kernel")
        from torch_webgpu.engine.record import Engine
        lin, x = net(device)
        loss = lin(x).exp().sum()
        append = Engine.append
        def full(*args):
            raise torch.OutOfMemoryError("of a kernel")
        Engine.append = full
        try:
            loss.backward()
        finally:
            Engine.append = append

    def outcome(case, device):
        try:
            case(device)
        except BaseException as error:
            return type(error).__name__, str(error)

    names = CASES[int(os.environ["FIRST_CASE"]):]
    for name in names:
        case = globals()[name]
        expected = outcome(case, "cpu")
        print(repr((name, "expected", expected)), flush=True)
        for _ in range(2):
            got = outcome(case, "webgpu")
            if got != expected:
                break
        lin, x = net("webgpu")
        lin(x).pow(2).sum().backward()
        lin, on_cpu = net("cpu")
        lin(on_cpu).pow(2).sum().backward()
        works = torch.allclose(x.grad.cpu(), on_cpu.grad)
        print(repr((name, "got", got, works)), flush=True)
"""

NAMES = (
    "tensor_hook", "leaf_hook", "retained_grad_hook", "post_accumulate_grad_hook", "node_hook", "node_prehook",
    "multi_grad_hook", "module_backward_hook", "module_backward_prehook", "module_forward_hook",
    "forward_hook_in_checkpoint", "forward_hook_in_reentrant_checkpoint", "tensor_hook_in_reentrant_checkpoint",
    "pack_hook", "unpack_hook", "custom_function", "nested_backward", "autograd_grad", "create_graph", "dispatch_mode",
    "functional_grad", "keyboard_interrupt", "system_exit", "wrong_shape", "of_a_thread", "kernel_out_of_memory",
)  # fmt: skip


def _runs() -> Iterator[tuple[object, ...]]:
    first = 0
    while first < len(NAMES):
        script = f"CASES = {NAMES!r}\n" + dedent(CASES)
        done = run_script(script, FIRST_CASE=str(first))
        found = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("('")]
        yield from found
        finished = {row[0] for row in found if row[1] == "got"}
        while first < len(NAMES) and NAMES[first] in finished:
            first += 1
        if first < len(NAMES):
            yield NAMES[first], "ended", done.returncode, done.stderr[-500:]
            first += 1


@pytest.fixture(scope="module")
def outcomes() -> dict[object, dict[object, tuple[object, ...]]]:
    found: dict[object, dict[object, tuple[object, ...]]] = {name: {} for name in NAMES}
    for name, kind, *rest in _runs():
        found[name][kind] = tuple(rest)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_raises_in_a_backward_pass_reaches_the_caller(outcomes, name):
    rows = outcomes[name]
    assert "ended" not in rows, rows["ended"]
    (expected,) = rows["expected"]
    got, works = rows["got"]
    assert expected is not None
    assert got == expected
    assert works, "the next backward pass is wrong"


def test_canary_another_python_backend_still_ends_the_process():
    """When this fails, ``torch_guard.let_exceptions_pass`` is needed no longer."""
    script = """
        from torch._C._acc import create_empty_tensor
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
        _setup_privateuseone_for_python_backend("other")
        library = torch.library.Library("aten", "IMPL")
        library.impl("neg", lambda x: create_empty_tensor(x.shape, x.dtype), "PrivateUse1")
        y = create_empty_tensor((2,), torch.float32).requires_grad_().neg()
        y.register_hook(lambda g: 1 / 0)
        print("begins", flush=True)
        y.backward(create_empty_tensor((2,), torch.float32))
    """
    done = subprocess.run(
        [sys.executable, "-c", "import torch\n" + dedent(script)],
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "begins\n", done.stderr
    assert done.returncode < 0
    assert "ZeroDivisionError" not in done.stderr
