"""Evaluates cpu_programs.txt and prints, as JSON, what came of each expression: values, errors and warnings.

Run with and without this package by test_cpu_unchanged.py; imports nothing of it.
"""

from __future__ import annotations

import copy
import gc
import inspect
import io
import json
import pickle
import re
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

S = torch.UntypedStorage
O = torch.optim  # noqa: E741
big = torch.arange(4000.0).view(2, 2000)
USED_BY_EXPRESSIONS = (DataLoader, copy, gc, inspect, threading)

SCALERS = (
    "torch.amp.GradScaler('cpu')",
    "torch.amp.GradScaler('cpu', enabled=False)",
    "torch.amp.GradScaler('cuda')",
    "torch.amp.GradScaler()",
    "torch.cuda.amp.GradScaler()",
    "torch.cuda.amp.GradScaler(enabled=False)",
    "torch.cpu.amp.GradScaler()",
    "torch.amp.GradScaler('meta')",
)
KINDS = ("torch.Event", "torch.Stream", "torch.Generator")
OPTIMIZERS = tuple(
    f"torch.optim.{name}"
    for name in "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split()
)


def expressions() -> list[str]:
    """Those of cpu_programs.txt."""
    found = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        variants = [line] if line and not line.startswith("#") else []
        for name, values in (("SCALER", SCALERS), ("OPTIMIZER", OPTIMIZERS), ("KIND", KINDS)):
            variants = [v.replace(name, value) for v in variants for value in (values if name in v else ("",))]
        found += variants
    return found


def text(value: Any) -> str:
    return re.sub(r"(0x|pid=)[0-9a-f]+", r"\1", value if isinstance(value, str) else repr(value))


def outcome(expression: str) -> str:
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = text(eval(expression))
        except BaseException as error:
            result = text(f"{type(error).__name__}: {error}")
    # How many threads there are at a fork, PyTorch's pool decides.
    said = [w for w in caught if "use of fork() may lead to deadlocks" not in str(w.message)]
    return result + "".join(sorted(f"\nwarns {w.category.__name__}: {text(str(w.message))}" for w in said))


class MyEvent(torch.Event):
    pass


class MyStream(torch.Stream):
    pass


class MyGenerator(torch.Generator):
    pass


class MyStorage(S):
    pass


class MyTensor(torch.Tensor):
    pass


class MyScaler(torch.amp.GradScaler):
    def unscale_(self, optimizer: Any) -> Any:
        return super().unscale_(optimizer)


def train(scaler: Any, clip: bool = True) -> Any:
    """Three steps, the second of which overflows."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 3)).float().square().sum()
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            out.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        out.append(scaler.step(optimizer))
        scaler.update()
    return out, scaler.get_scale(), scaler.state_dict(), [p.tolist() for p in model.parameters()]


def fused(scaler: Any) -> Any:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return [p.tolist() for p in model.parameters()]


def unscale_twice(scaler: Any) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def unscale_halves(scaler: Any) -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.float16))
    p.grad = torch.ones(2, dtype=torch.float16)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD([p], lr=0.1))


def optimize(kind: Any, **options: Any) -> Any:
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()], optimizer, len(optimizer.state_dict()["state"])


def multi_tensor(kind: Any) -> Any:
    """How the function behind ``foreach=True`` presents itself."""
    module = sys.modules[kind.__module__]
    f = getattr(module, f"_multi_tensor_{module.__name__.rpartition('.')[2]}")
    return (
        inspect.signature(f), f.__name__, f.__module__, f.__qualname__, f.__doc__, type(f),
        pickle.loads(pickle.dumps(f)) is f, inspect.getsource(f)[:80], inspect.getsourcelines(f)[1],
    )  # fmt: skip


def lbfgs() -> Any:
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([p])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return p


def pickled(owner: Any, *names: str) -> Any:
    """Whether each comes back from being pickled as what it was, its names and whether it is callable."""
    found = [getattr(owner, name) for name in names]
    return [
        (
            f.__name__,
            f.__module__ if not isinstance(owner, type) else None,
            callable(f),
            pickle.loads(pickle.dumps(f)) == f,
        )
        for f in found
    ]


def loader(**options: Any) -> Any:
    data = TensorDataset(torch.arange(6.0), torch.arange(6))
    return [[t.tolist() for t in batch] for batch in DataLoader(data, batch_size=2, **options)]


def shared() -> Any:
    storage = torch.ones(2).untyped_storage()
    return storage.share_memory_().is_shared(), storage.is_shared()


def meta_storage() -> Any:
    return torch.ones(2, device="meta").untyped_storage()


def saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def saved_bytes(value: Any) -> int:
    file = io.BytesIO()
    torch.save(value, file)
    return len(file.getvalue())


def fork(**options: Any) -> torch.Tensor:
    torch.manual_seed(1)
    with torch.random.fork_rng(**options):
        torch.rand(3)
    return torch.rand(2)


def on_cpu(**options: Any) -> Any:
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(**options):
        y = (x * x).sum()
    y.backward()
    return x.grad


def threads_in_backward() -> list[bool]:
    seen = []
    y = torch.ones(3, requires_grad=True) * 2
    y.register_hook(lambda g: seen.append(threading.current_thread() is threading.main_thread()))
    y.sum().backward()
    return seen


def check(reentrant: bool) -> Any:
    x = torch.ones(3, requires_grad=True)
    run = torch.utils.checkpoint.checkpoint
    run(lambda t: nn.functional.dropout(t) * 2, x, use_reentrant=reentrant).sum().backward()
    return x.grad


def anomaly() -> None:
    with torch.autograd.detect_anomaly():
        (torch.zeros(2, requires_grad=True).sqrt() * 0).sum().backward()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def custom() -> Any:
    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    return x.grad


def post_hook() -> list[Any]:
    seen: list[Any] = []
    x = torch.ones(2, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (x * 2).sum().backward()
    return seen


def hooked(move: Callable[[nn.Module], Any]) -> Any:
    m = nn.Linear(2, 2)
    w = m.weight
    w.register_hook(lambda g: g * 2)
    view, ref = w.view(-1), weakref.ref(w)
    move(m)
    m(torch.ones(1, 2, dtype=w.dtype)).sum().backward()
    return m.weight is w, ref() is w, w.grad, view.dtype, view._base is w


def cast(*args: Any, **kwargs: Any) -> torch.dtype:
    with torch.autocast(*args, **kwargs):
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def nested() -> Any:
    with torch.autocast("cpu"):
        return cast("cpu"), cast("cpu", enabled=False)


def default_device() -> Any:
    torch.set_default_device("cpu")
    before = torch.ones(1).device
    torch.set_default_device(None)
    with torch.device("meta"):
        return before, torch.ones(1).device, torch.tensor([1]).device, torch.as_tensor([1]).device


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def script_pinned(x: torch.Tensor) -> bool:
    return x.is_pinned()


def use(x: torch.Tensor) -> None:
    x.is_pinned()
    x.to("cpu")
    torch.tensor([1])
    x.data = x.data
    x.untyped_storage()
    repr(x)
    x.pin_memory("cpu")


def function_mode() -> list[str]:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    try:
        with Mode():
            use(torch.ones(2))
    except (RuntimeError, NotImplementedError) as error:
        seen.append(str(error))
    return seen


def function_subclass() -> list[Any]:
    seen = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            which = func is torch.Tensor.is_pinned, func is torch.Tensor.pin_memory
            seen.append((getattr(func, "__name__", str(func)), *which))
            return super().__torch_function__(func, types, args, kwargs or {})

    try:
        use(torch.ones(2).as_subclass(Logged))
    except (RuntimeError, NotImplementedError) as error:
        seen.append(str(error))
    return seen


def subclass() -> Any:
    x = torch.ones(2).as_subclass(MyTensor)
    return type(x + 1), type(x.to("cpu")), x.is_pinned(), x, type(x.data)


def exported() -> Any:
    return torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).graph_signature.user_outputs


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2).is_pinned(), nn.Linear(2, 2), torch.ones(2, pin_memory=False)


def put_number(queue: Any) -> None:
    queue.put(torch.ones(2).sum().item())


def put_tensor(queue: Any) -> None:
    queue.put(torch.ones(2))
    time.sleep(0.5)


def processes(method: str) -> Any:
    context = mp.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=put_number, args=(queue,))
    process.start()
    process.join()
    return process.exitcode, queue.get()


def forked_tensor() -> Any:
    context = mp.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put_tensor, args=(queue,))
    process.start()
    t = queue.get()
    process.join()
    return t


def profiled(**options: Any) -> Any:
    with torch.profiler.profile(**options) as p:
        torch.ones(2) + 1
    return sorted({e.key for e in p.key_averages()}), p.profiler.use_device, [a.name for a in p.activities]


def det() -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty(2)
    finally:
        torch.use_deterministic_algorithms(False)


def dtypes() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return (torch.ones(1, dtype=torch.int64) * 1.5).dtype, torch.ones(1).dtype, torch.get_default_dtype()
    finally:
        torch.set_default_dtype(torch.float32)


def gloo() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            t = torch.ones(2)
            dist.all_reduce(t)
            model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            found = [None]
            dist.all_gather_object(found, {"a": 1})
            return t, found, dist.get_backend()
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps({expression: outcome(expression) for expression in expressions()}))
