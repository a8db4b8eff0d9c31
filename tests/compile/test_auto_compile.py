"""``torch.webgpu.auto_compile``: when it compiles what, and that a program does not notice it but by the clock."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.installed import needs_installation
from torch import nn
from torch.utils.checkpoint import checkpoint

from .against_eager import counting

AFTER = 2
Function = Any


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    torch.webgpu.auto_compile(False)


def mlp(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2)).to("webgpu")


class Counting(nn.Module):
    """Counts its calls in Python, and does ``then`` with its input."""

    def __init__(self, then: Function) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.then = then
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.append(1)
        return self.then(self.linear(x))


def record(name: str) -> Any:
    (found,) = (row for row in torch.webgpu.auto_compile_stats().modules if row.name == name)
    return found


def x(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes or (3, 4), device="webgpu")


def train(model: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Losses and gradients of a few steps with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch.manual_seed(0)
    results = []
    for batch in inputs:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        results += [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]
        optimizer.step()
        schedule.step()
    return results


def test_a_call_still_asks_for_what_is_compiled() -> None:
    """The canary of the patch: it is what ``Module.compile()`` sets, and nothing where nothing is compiled."""
    assert nn.Module._compiled_call_impl is None
    seen: list[int] = []
    plain = nn.Module.__call__
    with torch.webgpu.auto_compile():
        assert nn.Module.__call__ is plain
        assert nn.Module._compiled_call_impl is not None
    assert nn.Module._compiled_call_impl is None
    module = nn.Identity()
    module.__dict__["_compiled_call_impl"] = seen.append
    module(3)
    assert seen == [3]


def test_nothing_is_compiled_while_it_is_off() -> None:
    model = mlp()
    with counting() as stats:
        for _ in range(6):
            model(x())
    assert (stats.graphs, stats.plans) == (0, 0)
    assert torch.webgpu.auto_compile_stats() == {"compiled": 0, "left": 0, "modules": []}


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_module_is_compiled_after_so_many_calls(after: int) -> None:
    model = mlp()
    with torch.webgpu.auto_compile(after=after), torch.no_grad():
        with counting() as eager:
            for _ in range(after):
                model(x())
        with counting() as compiled:
            for _ in range(3):
                model(x())
        row = record("Sequential")
    assert eager.graphs == 0
    assert (compiled.graphs, compiled.plans, compiled.runs) == (1, 1, 3)
    assert (row.signatures, row.recompilations, row.compiled_calls, row.left) == (1, 0, 3, None)


def test_what_became_of_a_module_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torch_webgpu")
    with torch.webgpu.auto_compile(after=AFTER), torch.no_grad():
        for model in (mlp(), Counting(lambda y: y.tolist()).to("webgpu"), nn.DataParallel(mlp())):
            for rows in (3, 3, 3, 3, 2, 2, 2, 2):
                model(x(rows, 4))
    said = [text for text in caplog.messages if text.startswith("auto_compile: ")]
    assert [text.split()[1] for text in said] == ["Sequential", "Counting", "Linear", "DataParallel"]
    compiled, refused, part, spread = said
    assert compiled == "auto_compile: Sequential is compiled after 2 calls alike"
    assert refused.startswith("auto_compile: Counting stays eager, its parts are looked at instead: Unsupported: ")
    assert part == "auto_compile: Linear is compiled after 2 calls alike"
    assert spread == "auto_compile: DataParallel stays eager: DataParallel spreads it over devices or ranks"


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="not after 0"):
        torch.webgpu.auto_compile(after=0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_is_the_same_with_random_numbers_and_rates_that_change(dropout: float) -> None:
    model = mlp(dropout)
    twin, inputs = copy.deepcopy(model), [x() for _ in range(6)] + [x(2, 4)] + [x()]
    expected = train(model, inputs)
    with torch.webgpu.auto_compile(after=AFTER), counting() as stats:
        found = train(twin, inputs)
        row = record("Sequential")
    assert (row.compiled_calls, row.recompilations, stats.graphs) == (5, 0, 2)  # the smaller batch is eager
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_lengths_that_grow_compile_nothing() -> None:
    model = mlp()
    with torch.webgpu.auto_compile(after=AFTER), counting() as stats:
        for length in range(1, 12):
            model(x(length, 4))
    assert stats.graphs == 0


def test_a_module_that_changes_at_each_call_is_left_in_the_end() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache.append(x)
            return torch.cat(self.cache).sum(0)

    model, inputs = Growing(), [x() for _ in range(14)]
    with torch.webgpu.auto_compile(after=AFTER), counting() as stats:
        found = [model(part) for part in inputs]
        row = record("Growing")
    assert (row.recompilations, row.signatures) == (4, 0)
    assert "4 times again" in row.left
    assert stats.graphs == 5
    torch.testing.assert_close(found[-1].cpu(), torch.cat(inputs).sum(0).cpu())


@pytest.mark.parametrize("then", [lambda y: y.tolist(), lambda y: print(y.shape) or y], ids=["reads", "prints"])
def test_what_does_not_compile_runs_once_a_call_and_its_parts_are_compiled(then: Function) -> None:
    model = Counting(then).to("webgpu")
    with torch.webgpu.auto_compile(after=AFTER):
        for n in range(1, 9):
            model(x())
            assert len(model.calls) == n
        whole, part = record("Counting"), record("Linear")
    assert whole.left.startswith("Unsupported: ")
    assert (whole.compiled_calls, part.signatures) == (0, 1)
    assert part.compiled_calls == 8 - AFTER - 1 - AFTER


@pytest.mark.parametrize("then", [lambda y: 3, lambda y: None, lambda y: y, lambda y: y.relu()])
def test_side_effects_happen_once_a_call(then: Function) -> None:
    model = Counting(then).to("webgpu")
    with torch.webgpu.auto_compile(after=AFTER):
        for n in range(1, 9):
            model(x())
            assert len(model.calls) == n


def test_errors_of_a_program_are_its_own_and_leave_the_module_as_it_was() -> None:
    model = mlp()
    with torch.webgpu.auto_compile(after=AFTER), torch.no_grad():
        for _ in range(AFTER + 2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(x(3, 5))
        for _ in range(AFTER + 1):
            model(x())
        assert record("Sequential").compiled_calls == 1


def test_gradients_of_gradients_keep_a_module_eager() -> None:
    model = mlp()
    with torch.webgpu.auto_compile(after=AFTER):
        for _ in range(AFTER + 2):
            (gradient,) = torch.autograd.grad(model(x()).sum(), model[0].weight, create_graph=True)
            gradient.square().sum().backward()
        assert record("Sequential").left == "its gradients are differentiated"


def test_hooks_and_modes_that_come_later_are_seen() -> None:
    model, seen = mlp(0.5), []
    inputs = x()
    with torch.webgpu.auto_compile(after=AFTER), torch.no_grad():
        for _ in range(AFTER + 2):
            model(inputs)
        assert record("Sequential").compiled_calls == 2
        handle = model[0].register_forward_hook(lambda module, args, result: result * 0)
        model[3].register_forward_pre_hook(lambda module, args: seen.append(1))
        hooked = model(inputs)
        handle.remove()
        evaluated = model.eval()(inputs)
    assert len(seen) == 2
    torch.testing.assert_close(hooked.cpu(), model[3].bias.detach().cpu().expand(3, 2))
    torch.testing.assert_close(evaluated.cpu(), copy.deepcopy(model).cpu()(inputs.cpu()).detach())


def test_copies_states_and_pickles_know_nothing_of_it() -> None:
    model = mlp()
    before = set(vars(model))
    with torch.webgpu.auto_compile(after=AFTER), torch.no_grad():
        for _ in range(AFTER + 1):
            model(x())
        assert set(vars(model)) == before
        assert type(model) is nn.Sequential
        inputs = x()
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.cpu())).to("webgpu")):
            torch.testing.assert_close(twin(inputs), model.to("webgpu")(inputs))


def test_modules_are_not_kept_alive() -> None:
    model = mlp()
    with torch.webgpu.auto_compile(after=AFTER):
        for _ in range(AFTER + 1):
            model(x()).sum().backward()
        assert record("Sequential").signatures == 1
        dead = weakref.ref(model)
        del model
        gc.collect()
        assert dead() is None
        assert torch.webgpu.auto_compile_stats().modules == []


def test_what_is_compiled_or_on_the_cpu_is_left_alone() -> None:
    ours, cpu = torch.compile(mlp()), nn.Linear(4, 4)
    by_method = mlp()
    by_method.compile()
    with torch.webgpu.auto_compile(after=1), torch.no_grad():
        for _ in range(4):
            ours(x()), by_method(x()), cpu(torch.randn(3, 4))
        rows = torch.webgpu.auto_compile_stats().modules
    assert [(row.name, row.signatures, row.left) for row in rows] == [("OptimizedModule", 0, "it is compiled already")]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts(reentrant: bool) -> None:
    model = mlp()
    twin, inputs = copy.deepcopy(model), [x().requires_grad_() for _ in range(6)]
    results = []
    for one, enabled in ((model, False), (twin, True)):
        with torch.webgpu.auto_compile(enabled, after=AFTER):
            for part in inputs:
                checkpoint(one, part, use_reentrant=reentrant).sum().backward()
        results.append([p.grad.cpu() for p in one.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_transforms_captures_and_exports() -> None:
    model, inputs = mlp(), x()
    with torch.webgpu.auto_compile(after=1), torch.no_grad():
        for _ in range(3):
            mapped = torch.func.vmap(model)(inputs)
        assert torch.webgpu.auto_compile_stats().modules == []
        graph = torch.webgpu.Graph()
        with torch.webgpu.graph(graph):
            captured = model(inputs)
        graph.replay()
        program = torch.export.export(model, (inputs,))
        traced = torch.jit.trace(model, inputs, check_trace=False)  # which compares in float64
        assert torch.webgpu.auto_compile_stats().compiled == 0
        for found in (mapped, captured, program.module()(inputs), traced(inputs)):
            torch.testing.assert_close(found, model(inputs))


def test_threads_share_what_is_compiled() -> None:
    model, inputs, results = mlp(), x(), []

    def work() -> None:
        with torch.no_grad():
            results.extend(model(inputs).cpu() for _ in range(6))

    with torch.webgpu.auto_compile(after=AFTER):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert record("Sequential").left is None
    assert len(results) == 18
    for found in results:
        torch.testing.assert_close(found, results[0])


def test_it_ends_with_its_block_and_blocks_nest() -> None:
    torch.webgpu.auto_compile(after=1)
    model = mlp()
    with torch.no_grad():
        for _ in range(2):
            model(x())
    with torch.webgpu.auto_compile(False):
        assert nn.Module._compiled_call_impl is None
        assert torch.webgpu.auto_compile_stats().modules == []
    assert record("Sequential").signatures == 1
    torch.webgpu.auto_compile(False)
    assert nn.Module._compiled_call_impl is None


PROGRAM = """
import torch
model = torch.nn.Linear(4, 4)
print(torch.nn.Module._compiled_call_impl is None)
model.to("webgpu")
print(torch.nn.Module._compiled_call_impl is None)
with torch.no_grad():
    for _ in range(5):
        model(torch.ones(2, 4, device="webgpu"))
print(torch.webgpu.auto_compile_stats().compiled)
"""


@needs_installation
@pytest.mark.parametrize(("value", "printed"), [("1", "True False 1"), ("0", "True True 0")])
def test_the_environment_turns_it_on_at_first_use(value: str, printed: str) -> None:
    environment = os.environ | {
        "TORCH_WEBGPU_AUTO_COMPILE": value,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == printed.split(), done.stderr
