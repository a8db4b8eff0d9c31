"""What a first step on the device imports: what it needs, and not PyTorch's compiler."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.installed import needs_installation

STEP = """
import sys
import torch
from torch import nn

before = set(sys.modules)
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Dropout(0.1)).to("webgpu")
x, y = torch.randn(4, 6, device="webgpu"), torch.tensor([0, 2, 1, 0], device="webgpu")
for _ in range(2):
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-0.1)
            p.grad = None
convolved = nn.Conv2d(1, 2, 3).to("webgpu")(torch.randn(1, 1, 5, 5, device="webgpu"))
print(convolved.relu().amax((2, 3)).softmax(1).argmax(1).item(), torch.where(x > 0, x, 0).sum().item())
"""
HEAVY = ("torch._dynamo", "torch._inductor", "torch._numpy", "torch.distributed.fsdp", "torch.onnx", "transformers")


def printed(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@needs_installation
def test_an_eager_step_imports_nothing_of_the_compilers() -> None:
    imported = ast.literal_eval(printed(STEP + "print(sorted(set(sys.modules) - before))"))
    assert not [name for name in imported if name.startswith(HEAVY)]
    libraries = {name.partition(".")[0] for name in imported} - {*sys.stdlib_module_names, "torch", "torch_webgpu"}
    # PyTorch's meta kernels import sympy, to ask whether a number is one of its symbols. Kernels of products are
    # templates of Jinja's.
    known = {"wgpu", "wgpudawn", "cffi", "pycparser", "numpy", "sympy", "mpmath", "cython_runtime"}
    known |= {"jinja2", "markupsafe"}
    assert not {name for name in libraries - known if not name.startswith("_")}


@needs_installation
def test_dynamo_finds_what_it_is_not_to_trace_hidden_as_ever() -> None:
    script = (
        STEP
        + """
from torch_webgpu.aten.dispatch import torch_late_dynamo
functions = list(torch_late_dynamo.hidden_from_dynamo())
kept = [function for function in functions if getattr(function, torch_late_dynamo.KEPT, None) is function]
assert len(kept) == len(functions) > 50, (len(kept), len(functions))
import torch._dynamo
assert not [function for function in functions if getattr(function, torch_late_dynamo.KEPT, None) is function]
compiled = torch.compile(lambda a: torch.addmm(a, a, a).sin())
a = torch.randn(3, 3, device="webgpu")
torch.testing.assert_close(compiled(a).cpu(), torch.addmm(a.cpu(), a.cpu(), a.cpu()).sin())
torch.addmm(torch.ones(2, 2, device="meta"), torch.ones(2, 2, device="meta"), torch.ones(2, 2, device="meta"))
print("done")
"""
    )
    assert printed(script) == "done"


def test_pytorch_itself_still_imports_it() -> None:
    """A canary: once PyTorch's meta kernels do without Dynamo, aten/dispatch/torch_late_dynamo.py can go."""
    script = """
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
assert "torch._dynamo" not in sys.modules
x = torch.ones(2, 2, device="meta")
torch.ops.aten.addmm.default(x, x, x)
torch.ops.aten._log_softmax.default(x, 1, False)
print("torch._dynamo" in sys.modules)
"""
    assert printed(script) == "True"
