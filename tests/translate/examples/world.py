"""What the examples are made of."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

cuda_activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]


def inside(manager: Any) -> Any:
    """Enters and leaves a context manager; what it gave."""
    with manager as given:
        return given


def set_back(owner: Any, name: str, value: Any) -> Any:
    """Sets an attribute, reads it, and sets back what was there."""
    leaf = name.rpartition(".")[2]
    before = getattr(owner, leaf)
    setattr(owner, leaf, value)
    try:
        assert getattr(owner, leaf) == value
    finally:
        setattr(owner, leaf, before)
    return value


def captured(module: Any, graph: Any, t: torch.Tensor) -> torch.Tensor:
    """Captures and replays ``t + 1``."""
    made = next(getattr(module, name) for name in ("CUDAGraph", "XPUGraph", "MTIAGraph") if hasattr(module, name))()
    with graph(made):
        result = t + 1
    made.replay()
    copy: torch.Tensor = result.clone()
    made.reset()
    return copy


def forward(*args: Any) -> Any:
    return args


def method(self: Any, v: torch.Tensor) -> torch.Tensor:
    return v


def backward(*args: Any) -> Any:
    return args


def generator() -> Iterator[None]:
    yield


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


def saved(t: torch.Tensor, folder: str) -> str:
    """A file with a tensor."""
    torch.save(t, path := f"{folder}/tensor.pt")
    return path


def net(device: Any) -> torch.nn.Sequential:
    """A small network with known weights."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 4, device="cpu"), torch.nn.ReLU()).to(device).eval()


def script() -> Any:
    """A small network, scripted."""
    return torch.jit.script(net("cpu"))


def scripted(folder: str) -> str:
    """A file with one."""
    script().save(path := f"{folder}/scripted.pt")
    return path


def flat_buffer(folder: str) -> str:
    """The same as a flat buffer."""
    torch.jit.save_jit_module_to_flatbuffer(script(), path := f"{folder}/scripted.ff")
    return path


def exported(module: torch.nn.Module, t: torch.Tensor, folder: str) -> str:
    """A file with an exported program."""
    torch.export.save(torch.export.export(module, (t,)), path := f"{folder}/exported.pt2")
    return path


def call(functional_call: Callable[..., torch.Tensor], module: torch.nn.Module, t: torch.Tensor) -> torch.Tensor:
    return functional_call(module, {name: p + 1 for name, p in module.named_parameters()}, (t,))


class Own(torch.distributions.Distribution):
    """A distribution of nobody's."""


class Adding(torch.nn.Module):
    """Adds."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class Interface:
    """For TorchScript."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


@dataclass
class Point:
    """For torch.export."""

    x: torch.Tensor


def normal(mean: torch.Tensor) -> torch.distributions.Normal:
    return torch.distributions.Normal(mean, torch.ones_like(mean))


def future(value: Any) -> torch.futures.Future[Any]:
    made: torch.futures.Future[Any] = torch.futures.Future()
    made.set_result(value)
    return made


def wrapped(wrap: Callable[..., Any]) -> Any:
    """``torch.fx.wrap`` is called at the top of a module."""
    names: dict[str, Any] = {"wrap": wrap, "__name__": "somewhere"}
    exec("wrap('len')", names)
    return names["wrap"]


def conv() -> torch.nn.Conv2d:
    return torch.nn.Conv2d(1, 1, 1).eval()


def norm() -> torch.nn.BatchNorm2d:
    return torch.nn.BatchNorm2d(1).eval()


def to_quantize() -> torch.nn.Module:
    """A network that says how it is to be quantized."""
    made = torch.nn.Sequential(torch.quantization.QuantStub(), torch.nn.Linear(4, 4), torch.quantization.DeQuantStub())
    made.qconfig = torch.quantization.default_qconfig  # type: ignore[assignment]
    return made.eval()


def run(model: Any, *data: Any) -> None:
    for x in data:
        model(x)


def observers(load: Callable[..., None], model: torch.nn.Module) -> None:
    prepared = torch.quantization.prepare(model)
    load(prepared, torch.quantization.get_observer_state_dict(prepared))


def onnx(export: Callable[..., Any], folder: str) -> Any:
    """PyTorch's exporter, where its packages are installed; else its first check."""
    try:
        return export(net("cpu"), (torch.ones(4, 4),), f"{folder}/net.onnx", dynamo=False)
    except (ModuleNotFoundError, torch.onnx.errors.OnnxExporterError) as error:
        if "onnx" not in str(error):
            raise
        return None


def unregistered(unregister: Callable[..., None]) -> None:
    torch.onnx.register_custom_op_symbolic("somewhere::g", forward, 9)
    unregister("somewhere::g", 9)


def refused(generate: Callable[[], None]) -> str:
    """The private device has its methods already: PyTorch's own refusal."""
    try:
        generate()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


_meetings = count(1)


def anew(init: Callable[..., None], rank: int, meeting: str) -> str:
    """The default process group once more, as programs for CUDA ask for it."""
    torch.distributed.barrier()  # Gloo's connections are made by both, and not while one of them is leaving
    torch.distributed.destroy_process_group()
    init("nccl", init_method=f"file://{meeting}-{next(_meetings)}", rank=rank, world_size=2)
    torch.distributed.barrier()
    return torch.distributed.get_backend()


def destroyed(destroy: Callable[..., None]) -> None:
    group = torch.distributed.new_group()
    torch.distributed.barrier(group)
    destroy(group)


def number() -> str:
    """A name that nothing has."""
    return uuid.uuid4().hex
