"""How a loaded model runs: calls, queueing, state, random numbers, memory, workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_webgpu.export import export

from .chromium import tensor_of


class Step(nn.Module):
    """Three products, and what follows each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * scale
        return x


@pytest.fixture(scope="module")
def step(folders: Path) -> str:
    export(Step(), (torch.randn(2, 8), torch.tensor(2.0)), folders / "step")
    return "/exports/step/"


def test_calls_of_a_run(page: Any, step: str) -> None:
    counted = page.evaluate(
        """async url => {
          const model = await Model.load(url), feeds = {x: new Float32Array(16), scale: 2};
          await model.run(feeds);
          for (const name of Object.keys(counted)) delete counted[name];
          await model.run(feeds);
          const read = {...counted};
          for (const name of Object.keys(counted)) delete counted[name];
          await model.run('forward', feeds, {outputs: []});
          return [read, {...counted}, model.manifest.programs.forward.steps.length];
        }""",
        step,
    )
    read, unread, steps = counted
    per_step = {"dispatchWorkgroups": steps, "setPipeline": steps, "setBindGroup": steps}
    assert unread == {**per_step, "submit": 1, "beginComputePass": 1, "writeBuffer": 2}
    assert read == {**unread, "copyBufferToBuffer": 1, "mapAsync": 1}


def test_feeds_of_all_kinds_are_the_same(page: Any, step: str) -> None:
    model = Step()
    x = torch.arange(16.0).reshape(2, 8) / 16
    with torch.no_grad():
        expected = model(x, torch.tensor(2.0))
    results = page.evaluate(
        """async url => {
          const model = await Model.load(url), numbers = Array.from({length: 16}, (_, k) => k / 16);
          const rows = [numbers.slice(0, 8), numbers.slice(8)];
          const feeds = [
            {x: Float32Array.from(numbers), scale: 2}, {x: numbers, scale: [2]}, {x: rows, scale: 2n},
            {x: rows.map(row => Float64Array.from(row)), scale: 2},
            {x: new Tensor('float32', numbers, [2, 8]), scale: new Tensor('float32', [2], [])},
          ];
          return Promise.all(feeds.map(async f => packed((await model.run(f)).output)));
        }""",
        step,
    )
    for result in results:
        torch.testing.assert_close(tensor_of(result), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ("{x: [1, 2], scale: 1}", "x is a float32 tensor of shape [2,8], not of shape [2]"),
        ("{x: new Float32Array(3), scale: 1}", "x is a float32 tensor of shape [2,8], not 3 numbers"),
        ("{x: new Float32Array(16)}", "scale is a float32 tensor of shape [], not undefined"),
        ("{x: new Float32Array(16), scale: 1, more: 2}", "forward has no input more: x, scale"),
        ("{x: new Tensor('int32', new Int32Array(16), [2, 8]), scale: 1}", "not int32 of shape [2,8]"),
        ("{x: Array(2).fill(Array(9).fill(0)), scale: 1}", "not of shape [2,9]"),
    ],
)
def test_feeds_that_do_not_fit(page: Any, step: str, feeds: str, message: str) -> None:
    error = page.evaluate(
        f"async url => {{ const model = await Model.load(url); return failure(() => model.run({feeds})); }}", step
    )
    assert error["name"] == "TypeError"
    assert message in error["message"]


def test_outputs_of_another_folders_runtime_are_feeds(page: Any, step: str) -> None:
    """Two exports bring the runtime twice, so there are two classes of tensors."""
    loaded, result = page.evaluate(
        """async url => {
          const other = await import(`${url}torch-webgpu/index.js`), x = new Float32Array(16).fill(1);
          const [first, second] = await Promise.all([other.Model.load(url), Model.load(url)]);
          const {output} = await first.run({x, scale: 1});
          return [output instanceof Tensor, packed((await second.run({x: output, scale: 1})).output)];
        }""",
        step,
    )
    assert not loaded
    with torch.no_grad():
        model, scale = Step(), torch.tensor(1.0)
        torch.testing.assert_close(
            tensor_of(result), model(model(torch.ones(2, 8), scale), scale), rtol=1e-5, atol=1e-6
        )


def test_runs_queue_up_and_a_failed_one_fails_alone(page: Any, step: str) -> None:
    results = page.evaluate(
        """async url => {
          const model = await Model.load(url), x = new Float32Array(16).fill(1);
          const runs = await Promise.allSettled([1, 'two', 3, 1].map(scale => model.run({x, scale})));
          return runs.map(r => r.status === 'fulfilled' ? Array.from(r.value.output.data) : r.reason.name);
        }""",
        step,
    )
    assert results[1] == "TypeError"
    assert results[0] == results[3] != results[2]


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_a_training_step(page: Any, folders: Path) -> None:
    model, optimizer = trained()

    def train(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def predict(images: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {"logits": F.linear(images.flatten(1) @ torch.ones(64, 256, device=images.device), model[4].weight)}

    images, labels = torch.rand(12, 1, 8, 8), torch.randint(0, 10, (12,))
    programs = {"train": (train, (images, labels)), "predict": (predict, (images,))}
    export(None, None, folders / "train", programs=programs, state={"model": model, "optimizer": optimizer})
    losses, twice, roles = page.evaluate(
        """async url => {
          const model = await Model.load(url), {in: feeds} = (await exampleOf(url)).train, losses = [[], []];
          for (const list of losses) {
            for (let k = 0; k < 6; k++) list.push((await model.run('train', feeds)).loss.item());
            await model.run('predict', {images: feeds.images});
            await model.state.reset();
          }
          return [...losses, model.state.names];
        }""",
        "/exports/train/",
    )
    assert {"model.0.weight", "model.1.running_mean", "optimizer.model.0.weight.momentum_buffer"} <= set(roles)
    expected = [train(images, labels)["loss"].item() for _ in range(6)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-5, atol=0)
    assert losses == twice
    assert expected[-1] < expected[0]


@pytest.mark.slow
def test_adam(page: Any, folders: Path) -> None:
    torch.manual_seed(2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True, foreach=True)

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = torch.randn(8, 4), torch.randn(8, 1)
    export(model, x, folders / "adam", programs={"train": (train, (x, y))}, state={"optimizer": optimizer})
    losses = page.evaluate(
        """async url => {
          const model = await Model.load(url), {in: feeds} = (await exampleOf(url)).train, losses = [];
          for (let k = 0; k < 5; k++) losses.push((await model.run('train', feeds)).output.item());
          return losses;
        }""",
        "/exports/adam/",
    )
    plain = torch.optim.AdamW(model.parameters(), lr=0.1)  # capturable steps need a device
    expected = []
    for _ in range(5):
        plain.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        plain.step()
        expected.append(loss.item())
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=0)


def test_random_numbers_are_those_of_python(page: Any, folders: Path) -> None:
    def draw(x: torch.Tensor) -> dict[str, torch.Tensor]:
        draws = {"uniform": torch.rand(7, device=x.device), "normal": torch.randn(5, device=x.device)}
        return {**draws, "dropped": F.dropout(x, 0.3), "index": torch.multinomial(x / 64, 1)}

    x = torch.ones(64)
    export(None, None, folders / "random", programs={"draw": (draw, (x,))})
    results = page.evaluate(
        """async url => {
          const model = await Model.load(url), runs = [];
          model.manual_seed(1234567890123n);
          for (let k = 0; k < 3; k++) runs.push(packedAll(await model.run({x: new Float32Array(64).fill(1)})));
          model.manual_seed(1234567890123n);
          runs.push(packedAll(await model.run({x: new Float32Array(64).fill(1)})));
          return runs;
        }""",
        "/exports/random/",
    )
    assert results[0] == results[3] != results[1]
    if not torch.webgpu.is_available():
        pytest.skip("there is no adapter to compare with")
    torch.manual_seed(1234567890123)
    on_device = x.to("webgpu")
    for result in results[:3]:
        expected = {name: t.cpu() for name, t in draw(on_device).items()}
        assert torch.equal(tensor_of(result["uniform"]), expected["uniform"])
        assert torch.equal(tensor_of(result["dropped"]), expected["dropped"])
        assert torch.equal(tensor_of(result["index"]), expected["index"])
        torch.testing.assert_close(tensor_of(result["normal"]), expected["normal"])


def test_memory_is_that_of_the_buffers_and_comes_back(page: Any, step: str) -> None:
    stats, alive = page.evaluate(
        """async url => {
          const made = new Set(), create = GPUDevice.prototype.createBuffer, destroy = GPUBuffer.prototype.destroy;
          GPUDevice.prototype.createBuffer = function (d) { const b = create.call(this, d); made.add(b); return b; };
          GPUBuffer.prototype.destroy = function () { made.delete(this); return destroy.call(this); };
          const model = await Model.load(url);
          for (let k = 0; k < 3; k++) await model.run({x: new Float32Array(16), scale: 1});
          const stats = model.memory_stats(), bytes = [...made].reduce((n, b) => n + b.size, 0);
          model.dispose();
          model.dispose();
          return [{...stats, bytes}, made.size];
        }""",
        step,
    )
    assert stats["bytes"] == stats["total"]
    assert stats["weight"] == 3 * (8 * 8 * 4 + 8 * 4)
    assert alive == 0


def test_a_device_of_the_page_serves_two_models_and_stays(page: Any, step: str) -> None:
    equal, after = page.evaluate(
        """async url => {
          const device = await openDevice({features: [], limits: {}});
          const feeds = {x: new Float32Array(16).fill(1), scale: 1};
          const [a, b] = await Promise.all([Model.load(url, {device}), Model.load(url, {device})]);
          const [x, y] = await Promise.all([a.run(feeds), b.run(feeds)]);
          a.dispose();
          return [String(x.output.data) === String(y.output.data), (await b.run(feeds)).output.shape];
        }""",
        step,
    )
    assert equal
    assert after == [2, 8]


def test_in_a_worker(page: Any, step: str) -> None:
    shape = page.evaluate(
        """url => new Promise((resolve, reject) => {
          const worker = new Worker('/worker.js', {type: 'module'});
          worker.onmessage = event => resolve(event.data);
          worker.onerror = event => reject(new Error(event.message));
          worker.postMessage(url);
        })""",
        step,
    )
    assert shape == [2, 8]


def test_capabilities(page: Any) -> None:
    found = page.evaluate("getCapabilities()")
    assert found["available"]
    assert found["limits"]["maxStorageBuffersPerShaderStage"] >= 8
