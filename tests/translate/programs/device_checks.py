"""What utility modules do with devices, all in one."""

import json
import os
from typing import Optional, Union

import torch

DEVICE = "cuda"
DEVICES = ["cuda:0", "cpu"]
PRECISION = {"cuda": torch.float16, "mps": torch.float32, "cpu": torch.float32}


def get_device(name: Optional[str] = None) -> torch.device:
    if name is None or name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name not in {"cuda", "cpu", "mps"} and not name.startswith("cuda:"):
        raise ValueError(f"device must be one of cuda, cpu, mps, not {name}")
    return torch.device(name)


def select_device(device="", batch_size=None):
    device = str(device).strip().lower().replace("cuda:", "").replace("none", "")
    cpu = device == "cpu"
    if not cpu and device and device != "cuda":
        assert torch.cuda.is_available() and torch.cuda.device_count() >= len(device.split(","))
    if not cpu and torch.cuda.is_available():
        devices = device.split(",") if device and device != "cuda" else "0"
        for i, d in enumerate(devices):
            p = torch.cuda.get_device_properties(i)
            print(f"CUDA:{d} ({p.name}, {p.total_memory / (1 << 20):.0f}MiB)")
        return torch.device("cuda:0")
    return torch.device("cpu")


def is_on_gpu(x: Union[torch.Tensor, torch.nn.Module]) -> bool:
    if isinstance(x, torch.nn.Module):
        x = next(x.parameters())
    return x.device.type == "cuda"


checks = []


def check(value, expected=True):
    checks.append(bool(value) == expected)
    if not checks[-1]:
        raise AssertionError(f"check {len(checks)} is {value}")


device = get_device("auto")
x = torch.ones(2, 3, device=device)
y = x.cpu()
model = torch.nn.Linear(3, 1).to(device)

check(device.type == "cuda")
check("cuda" == device.type)
check(device.type != "cuda", False)
check(device.type in ("cuda", "mps"))
check(device.type in ["cuda"])
check(device.type not in ["cpu", "mps"])
check(device.type == DEVICE)
check(str(device) == "cuda")
check(str(x.device) == "cuda:0")
check(str(x.device).startswith("cuda"))
check("cuda" in str(x.device))
check("cuda" in x.device.type)
check(f"{x.device}" == "cuda:0")
check(x.device == torch.device("cuda:0"))
check(x.device == torch.device("cuda", 0))
check(x.device == torch.device(0))
check(x.device == torch.device(type="cuda", index=0))
check(x.device != torch.device("cpu"))
check(x.device in [torch.device(d) for d in DEVICES])
check(isinstance(device, torch.device))
check(x.device.index == 0 and device.index is None)
check(x.is_cuda and not y.is_cuda)
check(x.get_device() == 0 and y.get_device() == -1)
check(is_on_gpu(x) and is_on_gpu(model) and not is_on_gpu(y))
check(all(p.device.type == "cuda" for p in model.parameters()))
check({p.device.type for p in model.parameters()} == {"cuda"})
check(PRECISION[x.device.type] is torch.float16 and PRECISION[str(y.device)] is torch.float32)
check(PRECISION.get(device.type) is torch.float16)
check({"cuda": 1, "cpu": 2}.get(x.device.type, 3) == 1)
check(select_device("").type == select_device("cuda:0").type == "cuda" and select_device("cpu").type == "cpu")
check(getattr(torch, "cuda").is_available() and hasattr(torch, "cuda"))
check(torch.device("cuda").type == torch.device("cuda:0").type == "cuda")
check(torch.cuda.current_device() == 0 and torch.cuda.device_count() >= 1 and torch.cuda.is_initialized())
check(x.type() == "torch.cuda.FloatTensor" and y.type() == "torch.FloatTensor")
check((x.to("cuda") + x.to(0) + x.to(device) + y.cuda() + y.to(x) + y.to(device="cuda")).is_cuda)
check(torch.zeros(2, device="cuda:0").is_cuda and torch.zeros(2, device=0).is_cuda)
check(torch.empty_like(y, device="cuda").is_cuda and y.new_zeros(2, device="cuda").is_cuda)
check(torch.tensor([1.0], device=f"cuda:{0}").is_cuda and torch.as_tensor([1], device="cuda").is_cuda)
check(torch.from_numpy(x.cpu().numpy()).to(device).is_cuda)
check(torch.get_device_module("cuda").is_available() and torch.get_device_module(device).device_count() >= 1)
check(torch.amp.autocast_mode.is_autocast_available("cuda"))
check("CUDA_VISIBLE_DEVICES" not in os.environ or os.environ["CUDA_VISIBLE_DEVICES"] != "")
check(hasattr(x, "is_cuda") and hasattr(x, "cuda"))
kind, _, number = str(x.device).partition(":")
check(kind == "cuda" and number == "0")
kwargs = {"device": "cuda", "dtype": torch.float32}
check(torch.ones(1, **kwargs).is_cuda)
if device.type == "cuda":
    extra = {"fused": True}
elif device.type == "mps":
    raise AssertionError("not here")
else:
    extra = {}
check(extra == {"fused": True})
try:
    y + x
except RuntimeError as e:
    check("device" in str(e))
print(repr(device), x.device, x, model.weight.device, sep="\n")
print(json.dumps({"checks": len(checks), "passed": sum(checks), "gpu": is_on_gpu(x)}))
