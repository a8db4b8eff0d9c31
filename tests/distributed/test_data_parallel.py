"""``nn.DataParallel`` and ``torch.nn.parallel``'s functions over two adapters, compared with one module on the CPU."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import threading
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import DataParallel
from torch.nn.parallel import comm, data_parallel, gather, parallel_apply, replicate, scatter

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it
from torch_webgpu.distributed.device_copies import FUNCTIONS

FIRST, SECOND = torch.device("webgpu:0"), torch.device("webgpu:1")
several = torch.webgpu.device_count() > 1
needs_two = pytest.mark.skipif(not several, reason="there is one adapter: the test of it as two runs this one")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="where there is CUDA, DataParallel takes its devices"),
]


@pytest.mark.skipif(several, reason="the others run in this process")
def test_one_adapter_opened_twice_does_as_two(request: pytest.FixtureRequest) -> None:
    full = ["--full"] if request.config.getoption("--full") else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *full, __file__]
    environment = os.environ | {"TORCH_WEBGPU_COPIES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert full == [] or " 1 skipped" in done.stdout


class Outputs(NamedTuple):
    logits: torch.Tensor
    hidden: list[torch.Tensor]


class Net(nn.Module):
    """With shared, complex and frozen parameters, buffers that a forward pass changes, and outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        self.middle = nn.Linear(96, 96)
        self.tied = nn.Linear(96, 96)
        self.tied.weight = self.middle.weight
        self.back = nn.Linear(96, 4).requires_grad_(False)
        self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.threads: set[str] = set()

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
        self.threads.add(threading.current_thread().name)
        self.steps += 1
        hidden = self.tied(self.middle(self.front(x))) * scale
        logits = self.back(hidden) * torch.view_as_real(self.phase).sum(-1) + options["shift"]
        return {"all": Outputs(logits, [hidden]), "mean": logits.mean(), "none": None}


def arguments(rows: int, device: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    x, scale = torch.randn(rows, 3, 6, 6, generator=generator), torch.rand(rows, 1, generator=generator)
    return x.to(device), {"scale": scale.to(device), "options": {"shift": 2.0}}


def tensors_of(outputs: dict[str, Any]) -> list[torch.Tensor]:
    return [outputs["all"].logits, *outputs["all"].hidden]


def loss_of(outputs: dict[str, Any]) -> torch.Tensor:
    return outputs["all"].logits.square().sum() + outputs["all"].hidden[0].sin().sum()


NAMES: list[Any] = [None, [0, 1], ["webgpu:0", SECOND]]


@needs_two
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0, but all")
@pytest.mark.parametrize("device_ids", NAMES, ids=["all", "numbers", "names"])
@pytest.mark.parametrize(
    ("rows", "where"),
    [(5, "cpu"), *[pytest.param(*case, marks=pytest.mark.slow) for case in ((8, FIRST), (1, SECOND))]],
)
def test_module(device_ids: Any, rows: int, where: Any) -> None:
    """Outputs and gradients are those of one module; statistics those of the first replica, as on CUDA."""
    expected, ours = Net(), Net().to(FIRST)
    parallel = DataParallel(ours, device_ids)
    assert parallel.device_ids == [0, 1]
    expected.eval()
    parallel.eval()
    x, options = arguments(rows, "cpu")
    on_cpu = expected(x, **options)
    loss_of(on_cpu).backward()
    x, options = arguments(rows, where)
    outputs = parallel(x, **options)
    loss_of(outputs).backward()
    assert len(ours.threads) == min(rows, 2)
    assert (type(outputs["all"]), outputs["none"]) == (Outputs, None)
    for actual, value in (
        (outputs["all"].logits, on_cpu["all"].logits),
        (outputs["all"].hidden[0], on_cpu["all"].hidden[0]),
    ):
        assert actual.device == FIRST
        torch.testing.assert_close(actual.cpu(), value, rtol=1e-4, atol=1e-5)
    if rows > 1:
        assert outputs["mean"].shape == (2,), "one for each replica"
    assert ours.steps.item() == 1
    assert ours.back.weight.grad is None
    for (name, actual), value in zip(ours.named_parameters(), expected.parameters(), strict=True):
        if value.grad is not None:
            assert actual.grad is not None, name
            assert actual.grad.device == FIRST, name
            torch.testing.assert_close(actual.grad.cpu(), value.grad, rtol=1e-4, atol=1e-4, msg=name)


@needs_two
@pytest.mark.filterwarnings("error")
def test_training() -> None:
    """Momentum, clipping and a normalization over rows: the parameters are those of the CPU after each step."""

    def trained(device: Any, wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).to(device)
        model, optimizer = wrap(net), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        seen = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            seen += [loss.detach().cpu(), *[p.detach().cpu().clone() for p in net.parameters()]]
        return seen

    torch.testing.assert_close(trained(FIRST, DataParallel), trained("cpu", lambda net: net), rtol=1e-4, atol=1e-5)


@needs_two
def test_statistics_are_those_of_the_first_replica() -> None:
    net, expected = nn.BatchNorm1d(3).to(FIRST), nn.BatchNorm1d(3)
    x = torch.randn(8, 3)
    DataParallel(net)(x.to(FIRST))
    expected(x[:4])
    torch.testing.assert_close(net.running_var.cpu(), expected.running_var)
    assert net.num_batches_tracked.item() == 1


@needs_two
@pytest.mark.parametrize("output", [1, "webgpu:1", SECOND])
def test_where_the_output_is(output: Any) -> None:
    net = nn.Linear(3, 2).to(FIRST)
    x = torch.randn(4, 3, device=FIRST)
    y = DataParallel(net, [0, 1], output_device=output)(x)
    assert y.device == SECOND
    torch.testing.assert_close(y.cpu(), net(x).cpu())
    assert data_parallel(net, x, [0, 1], output_device=1).device == SECOND
    with torch.no_grad():
        assert torch.equal(DataParallel(net, dim=1)(x[None])[0].cpu(), net(x).cpu())


@needs_two
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_reaches_the_replicas(dtype: torch.dtype) -> None:
    net = nn.Linear(3, 2).to(FIRST)
    parallel, x = DataParallel(net), torch.randn(4, 3, device=FIRST)
    with torch.autocast("webgpu", dtype):
        assert parallel(x).dtype == dtype
        with torch.autocast("webgpu", enabled=False):
            assert parallel(x).dtype == torch.float32
    assert parallel(x).dtype == torch.float32


@needs_two
def test_an_error_names_its_replica() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device == SECOND:
                raise ValueError("of the module")
            return x

    with pytest.raises(ValueError, match="Caught ValueError in replica 1 on device 1") as caught:
        DataParallel(Fails().to(FIRST))(torch.ones(2, device=FIRST))
    assert "of the module" in str(caught.value)


def test_a_module_of_the_cpu_stays_there() -> None:
    """Whatever devices are asked for: the program does not use webgpu."""
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    for device_ids in (None, [0]):
        parallel = DataParallel(net, device_ids)
        assert torch.equal(parallel(x), net(x))
        assert parallel.device_ids == []
        assert {p.device.type for p in parallel.parameters()} == {"cpu"}
    assert torch.equal(copy.deepcopy(parallel)(x), net(x))


@needs_two
def test_a_module_that_is_moved_after_it_is_wrapped() -> None:
    parallel = DataParallel(nn.Linear(3, 2), output_device=1).to(FIRST)
    y = parallel(torch.randn(4, 3))
    assert (parallel.device_ids, y.device) == ([0, 1], SECOND)
    with pytest.raises(RuntimeError, match=re.escape("on device webgpu:0 (device_ids[0]) but found one of them on")):
        parallel.to(SECOND)(torch.randn(4, 3))
    one = DataParallel(nn.Linear(3, 2).to(SECOND), [0])
    assert one.module.weight.device == FIRST, "PyTorch moves it to one device itself"


@needs_two
@pytest.mark.filterwarnings("error")
def test_functions() -> None:
    net, x = nn.Linear(3, 2).to(FIRST), torch.randn(5, 3, device=FIRST)
    replicas = replicate(net, [0, 1])
    assert [replica.weight.device for replica in replicas] == [FIRST, SECOND]
    assert replicas[0].weight.data_ptr() == net.weight.data_ptr()
    pieces = scatter((x, {"y": 1}), [FIRST, "webgpu:1"])
    found = [(x.shape[0], x.device, rest) for x, rest in pieces]
    assert found == [
        (3, FIRST, {"y": 1}),
        (2, SECOND, {"y": 1}),
    ]
    outputs = parallel_apply(replicas, [piece[:1] for piece in pieces], devices=[FIRST, "webgpu:1"])
    for target in (0, SECOND, "cpu"):
        y = gather(outputs, target)
        assert y.device == (FIRST if target == 0 else torch.device(target))
        torch.testing.assert_close(y.cpu(), net(x).cpu())


@needs_two
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64, torch.bool])
def test_copies(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 3) * 3).to(dtype)
    plain = torch.view_as_real(x) if dtype.is_complex else x
    for source in (x, x.to(FIRST), x.to(SECOND)):
        copies = comm.broadcast(source, [0, 1])
        assert [one.device for one in copies] == [FIRST, SECOND]
        assert all(torch.equal(one.cpu(), plain) for one in copies)
    out = [torch.empty_like(plain, device=device) for device in (SECOND, FIRST)]
    assert all(torch.equal(one.cpu(), plain) for one in comm.broadcast(x.to(FIRST), out=out))
    parts = comm.scatter(x.to(FIRST), [0, 1], [1, 3])
    assert [one.device for one in parts] == [FIRST, SECOND]
    assert [torch.equal(one.cpu(), part) for one, part in zip(parts, plain.split([1, 3]))] == [True, True]
    parts = comm.scatter(plain, out=[torch.empty_like(part) for part in parts])
    for destination in ("cpu", 1, None):
        assert torch.equal(comm.gather(parts, destination=destination).cpu(), plain)
    assert torch.equal(comm.gather(parts, out=torch.empty_like(plain)), plain)


@needs_two
@pytest.mark.filterwarnings("error")
def test_copies_of_many() -> None:
    """Together, in pieces of a size; each with a version counter of its own, and those on the first are themselves."""
    tensors = [torch.randn(n, 3) for n in (1, 400, 2, 0)] + [torch.arange(5)]
    ours = [tensor.to(FIRST) for tensor in tensors]
    for size in (1, 2000, 10485760):
        first, second = comm.broadcast_coalesced(ours, [0, 1], size)
        assert all(a is b for a, b in zip(first, ours, strict=True))
        for actual, value in zip(second, tensors, strict=True):
            assert actual.device == SECOND
            assert torch.equal(actual.cpu(), value)
        second[0].add_(1)
        assert second[1]._version == 0
    sums = comm.reduce_add_coalesced([ours, second], 1, 2000)
    second[0].sub_(1)
    assert all(one.device == SECOND for one in sums)
    torch.testing.assert_close(sums[1].cpu(), 2 * tensors[1])


@needs_two
def test_refusals() -> None:
    x = torch.ones(4, 3, device=FIRST)
    with pytest.raises(RuntimeError, match=re.escape("All tensors must be on devices[0]: 1")):
        comm.broadcast_coalesced([x], [1, 0])
    with pytest.raises(RuntimeError, match="Expected devices and chunk_sizes to be of same length"):
        comm.scatter(x, [0, 1], [4])
    with pytest.raises(RuntimeError, match="Expected at least one device to scatter to"):
        comm.scatter(x, [])
    with pytest.raises(RuntimeError, match="Expected an output tensor of shape"):
        comm.broadcast(x, out=[torch.empty(4, 4, device=SECOND)])
    with pytest.raises(RuntimeError, match="webgpu:7"):
        comm.broadcast(x, [0, 7])


def test_canary_copies_are_in_builds_for_cuda_alone() -> None:
    """Every function in C++ that ``torch.nn.parallel.comm`` calls is here; PyTorch itself has none of them."""
    source = (os.path.splitext(comm.__file__)[0]) + ".py"
    with open(source, encoding="utf-8") as file:
        assert set(re.findall(r"torch\._C\.(\w+)\(", file.read())) == FUNCTIONS.keys()
    script = f"import torch; print([hasattr(torch._C, name) for name in {list(FUNCTIONS)!r}], torch.version.cuda)"
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == f"{[torch.version.cuda is not None] * len(FUNCTIONS)} {torch.version.cuda}".split()


def test_without_webgpu_there_is_no_such_function() -> None:
    """Of a build without CUDA, as before."""
    if torch.version.cuda is not None:
        pytest.skip("this build has them")
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="_gather_out"):
        torch._C._gather_out([torch.ones(1, device="meta")], torch.ones(1), 0)
