"""What a CUDA program calls inside what it compiles: ``fullgraph=True`` takes what it takes on CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is translated where there is CUDA")

BODIES = {
    "cuda": "return x.cuda() + 1",
    "cuda_of_index": "return (x * 2).cuda(0, non_blocking=True) + 1",
    "to": 'return x.to("cuda") + 1',
    "is_cuda": "return x + 1 if x.is_cuda else x - 1",
    "device_type": 'return x + 1 if x.device.type == "cuda" else x - 1',
    "zeros": 'return x.to("cuda") + torch.ones(4, device="cuda")',
    "device": 'return x.to(torch.device("cuda" if torch.cuda.is_available() else "cpu")) + 1',
    "is_available": "return x + 1 if torch.cuda.is_available() else x - 1",
    "device_count": "return x + torch.cuda.device_count()",
    "autocast": 'with torch.autocast("cuda", dtype=torch.float16): return x @ x',
    "amp_autocast": 'with torch.amp.autocast("cuda", dtype=torch.bfloat16): return x @ x',
    "cuda_amp_autocast": "with torch.cuda.amp.autocast(enabled=False): return x @ x",
    "current_device": "return x + torch.cuda.current_device()",
    "is_autocast_enabled": "return x + 1 if torch.is_autocast_enabled() else x - 1",
    "is_autocast_enabled_inside": 'with torch.autocast("cuda"): return x + int(torch.is_autocast_enabled())',
    "get_autocast_gpu_dtype": "return x.to(torch.get_autocast_gpu_dtype()) + 1",
    "synchronize": "y = x + 1; torch.cuda.synchronize(); return y * 2",
    "get_device_capability": "return x + torch.cuda.get_device_capability()[0]",
    "get_device_properties": "return x + torch.cuda.get_device_properties(0).major",
    "is_bf16_supported": "return x + 1 if torch.cuda.is_bf16_supported() else x - 1",
}
"""Name → the body of a function of ``x``, a matrix."""

PROGRAM = (
    """import json, sys, warnings
import torch

warnings.simplefilter("ignore")
"""
    + "\n".join(f"def {name}(x):\n    {body}\n" for name, body in BODIES.items())
    + """
outcomes = {}
for function in [value for value in list(globals().values()) if type(value).__name__ == "function"]:
    said = []
    for x in (torch.linspace(0, 1, 16).reshape(4, 4), torch.linspace(0, 1, 16, device="cuda").reshape(4, 4)):
        try:
            expected = function(x)
            got = torch.compile(function, fullgraph=True, backend=sys.argv[1])(x)
            alike = (got.device, got.dtype) == (expected.device, expected.dtype)
            said += [] if alike and torch.allclose(got, expected, 1e-2) else [f"{got} instead of {expected}"]
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    outcomes[function.__name__] = "; ".join(said)
print(json.dumps(outcomes))
"""
)

BEGIN = """import sys, torch
if sys.argv[2] == "before":
    import torch._dynamo
from torch_webgpu.translation import programs, router, session
begun = session.enable(sys.argv[1], look=router.available)
assert (sys.argv[2] == "before") == ("torch._dynamo" in sys.modules)
programs.run_script(begun, sys.argv[3], sys.argv[4:])
"""

CASES = [("webgpu", "before", "inductor"), ("webgpu", "after", "eager"), ("cpu", "after", "eager")]
"""Target; whether the compiler is imported before or after translation begins; its backend."""


def outcomes(target: str, order: str, backend: str, folder: Path) -> dict[str, str]:
    """Name → what went wrong with a function, "" if nothing."""
    (program := folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-c", BEGIN, target, order, str(program), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("target", "order", "backend"), CASES)
def test_calls_are_part_of_one_graph(target: str, order: str, backend: str, tmp_path: Path) -> None:
    found = outcomes(target, order, backend, tmp_path)
    assert found.keys() == BODIES.keys()
    assert {name: said for name, said in found.items() if said} == {}
