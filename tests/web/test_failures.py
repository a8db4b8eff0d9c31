"""What a page is told when something is wrong, and that it can go on afterwards."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from torch_webgpu.export import export

from .chromium import NO_ADAPTER, executable, tensor_of
from .server import TYPES, Site

LOAD = "([url, options]) => failure(() => Model.load(url, options))"


class Lookup(nn.Module):
    """An embedding, which flags indices that are out of range."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 8)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.table(i)


@pytest.fixture(scope="module")
def lookup(folders: Path) -> str:
    export(Lookup(), torch.tensor([1, 2, 3]), folders / "lookup")
    return "/exports/lookup/"


@pytest.fixture(scope="module")
def manifest(folders: Path, lookup: str) -> dict[str, Any]:
    return json.loads((folders / "lookup" / "plan.json").read_text())


def test_an_index_out_of_range_and_then_a_good_run(page: Any, lookup: str) -> None:
    error, good = page.evaluate(
        """async url => {
          const model = await Model.load(url), error = await failure(() => model.run({i: [1, 60, 3]}));
          return [error, packed((await model.run({i: [4, 5, 6]})).output)];
        }""",
        lookup,
    )
    assert error["kind"] == "index"
    assert "embedding: index 60 is out of bounds for dimension 0 with size 50" in error["message"]
    assert torch.equal(tensor_of(good), Lookup().table.weight.detach()[4:7])


def test_an_index_of_a_run_that_is_not_read_comes_with_the_next(page: Any, lookup: str) -> None:
    first, second = page.evaluate(
        """async url => {
          const model = await Model.load(url);
          await model.run('forward', {i: [1, -60, 3]}, {outputs: []});
          return [await failure(() => model.sync()), await failure(() => model.sync())];
        }""",
        lookup,
    )
    assert first["kind"] == "index"
    assert second is None


def test_a_lost_device(page: Any, lookup: str) -> None:
    pending, later, again = page.evaluate(
        """async url => {
          const model = await Model.load(url), run = failure(() => model.run({i: [1, 2, 3]}));
          model.device.destroy();
          const errors = [await run, await failure(() => model.run({i: [1, 2, 3]}))];
          return [...errors, (await (await Model.load(url)).run({i: [1, 2, 3]})).output.shape];
        }""",
        lookup,
    )
    assert later["kind"] == "lost"
    assert pending is None or pending["kind"] == "lost"
    assert again == [3, 8]


@pytest.mark.parametrize("name", ["plan.json", "kernels.json", "model.safetensors"])
def test_a_missing_file(page: Any, site: Site, lookup: str, name: str) -> None:
    site.missing.add(name)
    error = page.evaluate(LOAD, [lookup, {}])
    assert (error["name"], error["kind"]) == ("WebGPUError", "network")
    assert f"{name}: 404" in error["message"]


def test_nothing_is_told_after_a_failure(page: Any, site: Site, lookup: str) -> None:
    """Kernels are compiled while weights are on their way: a page may show the error, and nothing else after it."""
    site.missing.add("model.safetensors")
    error, told = page.evaluate(
        """async url => {
          const prototype = GPUDevice.prototype, compile = prototype.createComputePipelineAsync, events = [];
          let go;
          const gate = new Promise(resolve => { go = resolve; });
          prototype.createComputePipelineAsync = async function (d) { await gate; return compile.call(this, d); };
          const error = await failure(() => Model.load(url, {progress_callback: e => events.push(e.status)}));
          const before = events.length;
          prototype.createComputePipelineAsync = compile;
          go();
          await new Promise(resolve => setTimeout(resolve, 1000));
          return [error.kind, events.slice(before)];
        }""",
        lookup,
    )
    assert error == "network"
    assert told == []


def test_changed_weights(page: Any, site: Site, lookup: str, folders: Path) -> None:
    data = bytearray((folders / "lookup" / "model.safetensors").read_bytes())
    data[-3] ^= 1
    site.replaced["model.safetensors"] = bytes(data)
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "format"
    assert "is not what was exported" in error["message"]
    site.well()
    assert page.evaluate(LOAD, [lookup, {}]) is None


def test_truncated_weights(page: Any, site: Site, lookup: str) -> None:
    site.truncated["model.safetensors"] = 500
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "network"
    site.well()
    assert page.evaluate(LOAD, [lookup, {}]) is None


def test_weights_that_end_early(page: Any, site: Site, lookup: str, folders: Path) -> None:
    site.replaced["model.safetensors"] = (folders / "lookup" / "model.safetensors").read_bytes()[:-100]
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "network"
    assert "ended after" in error["message"]


@pytest.mark.parametrize("text", [b"<!doctype html><title>not found</title>", b"[]", b'{"format": 1}', b"null"])
def test_what_is_no_export(page: Any, site: Site, lookup: str, text: bytes) -> None:
    site.replaced["plan.json"] = text
    assert page.evaluate(LOAD, [lookup, {}])["kind"] == "format"


def test_a_later_format(page: Any, site: Site, lookup: str, manifest: dict[str, Any]) -> None:
    site.replaced["plan.json"] = json.dumps({**manifest, "format": 2}).encode()
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "format"
    assert "format 2, and this runtime reads format 1" in error["message"]


def test_integrity(page: Any, lookup: str) -> None:
    error = page.evaluate(LOAD, [lookup, {"integrity": f"sha256-{'0' * 64}"}])
    assert error["kind"] == "format"
    assert page.evaluate(
        """async url => {
          const {sha256} = await import('/runtime/files.js');
          const digest = await sha256(await (await fetch(url + 'plan.json')).arrayBuffer());
          return failure(() => Model.load(url, {integrity: 'sha256-' + digest}));
        }""",
        lookup,
    ) is None  # fmt: skip


@pytest.mark.parametrize(
    ("requires", "lacks"),
    [
        ({"features": ["shader-f128"], "limits": {}}, "shader-f128"),
        ({"features": [], "limits": {"maxBindGroups": 1000}}, "maxBindGroups 1000 (has "),
    ],
)  # fmt: skip
def test_a_gpu_that_lacks_something(
    page: Any, site: Site, lookup: str, manifest: Any, requires: Any, lacks: str
) -> None:
    site.replaced["plan.json"] = json.dumps({**manifest, "requires": requires}).encode()
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "needs"
    assert lacks in error["message"]
    assert site.requests["/exports/lookup/model.safetensors"] == 0


def test_too_large_for_the_gpu(page: Any, site: Site, lookup: str, manifest: Any) -> None:
    changed = copy.deepcopy(manifest)
    changed["buffers"] += [{"name": "x", "role": "temporary", "bytes": 1 << 45}]
    site.replaced["plan.json"] = json.dumps(changed).encode()
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "out-of-memory"
    assert site.requests["/exports/lookup/model.safetensors"] == 0


def test_a_kernel_that_does_not_compile(page: Any, site: Site, lookup: str, manifest: Any, folders: Path) -> None:
    from hashlib import sha256

    kernels = json.loads((folders / "lookup" / "kernels.json").read_text())
    text = json.dumps({digest: source.replace("fn main", "fn main_") for digest, source in kernels.items()}).encode()
    changed = copy.deepcopy(manifest)
    changed["files"]["kernels.json"] = {"bytes": len(text), "sha256": sha256(text).hexdigest()}
    site.replaced |= {"kernels.json": text, "plan.json": json.dumps(changed).encode()}
    error = page.evaluate(LOAD, [lookup, {}])
    assert error["kind"] == "compile"
    assert manifest["modules"][0]["label"] in error["message"]


def test_an_aborted_download(page: Any, lookup: str) -> None:
    names = page.evaluate(
        """async url => {
          const before = new AbortController(), during = new AbortController();
          before.abort();
          const progress_callback = ({file}) => { if (file) during.abort(); };
          return [(await failure(() => Model.load(url, {signal: before.signal}))).name,
                  (await failure(() => Model.load(url, {signal: during.signal, progress_callback}))).name,
                  await failure(() => Model.load(url))];
        }""",
        lookup,
    )
    assert names == ["AbortError", "AbortError", None]


def test_no_adapter(chromium: Any, site: Site, lookup: str) -> None:
    other = chromium.launch(executable_path=executable(), args=[*NO_ADAPTER])
    try:
        page = other.new_page()
        page.goto(f"{site.url}/empty.html")
        error, found = page.evaluate(
            """async url => {
              const {Model, getCapabilities} = await import('/runtime/index.js');
              return [await Model.load(url).catch(({kind, message}) => ({kind, message})), await getCapabilities()];
            }""",
            lookup,
        )
    finally:
        other.close()
    assert error["kind"] in ("unsupported", "no-adapter")
    assert found == {"available": False, "reason": error["message"]}


def test_a_page_that_is_not_secure(browser: Any, site: Site, lookup: str) -> None:
    """Browsers have neither WebGPU nor digests there, so this is said first, also where a digest is to be checked."""
    with browser.new_context() as context:
        page, origin = context.new_page(), "http://elsewhere.example"

        def answer(route: Any) -> None:
            path = urlsplit(route.request.url).path
            data = site.file_at(path)
            route.fulfill(
                status=404 if data is None else 200, body=data or b"", content_type=TYPES.get(Path(path).suffix)
            )

        page.route(f"{origin}/**", answer)
        page.goto(f"{origin}/worker.js")  # any text will do
        assert not page.evaluate("isSecureContext")
        kinds = page.evaluate(
            """async url => {
              const {Model, getCapabilities} = await import('/runtime/index.js');
              const load = options => Model.load(url, options).then(() => null, ({kind}) => kind);
              return [await load({}), await load({integrity: 'sha256-0'}), (await getCapabilities()).available];
            }""",
            lookup,
        )
    assert kinds == ["insecure", "insecure", False]


def test_a_browser_without_webgpu(page: Any, lookup: str) -> None:
    error = page.evaluate(
        """async url => {
          Object.defineProperty(navigator, 'gpu', {value: undefined, configurable: true});
          const error = await failure(() => Model.load(url));
          delete navigator.gpu;
          return error;
        }""",
        lookup,
    )
    assert error["kind"] == "unsupported"
    assert page.evaluate(LOAD, [lookup, {}]) is None


def test_what_webgpu_says_outside_of_a_call(page: Any, lookup: str) -> None:
    """An error that no scope catches is told by the next run; the one after it is well."""
    first, second = page.evaluate(
        """async url => {
          const model = await Model.load(url), {device} = model;
          device.createBuffer({size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE});
          await device.queue.onSubmittedWorkDone();
          const runs = [await failure(() => model.run({i: [1, 2, 3]})), await failure(() => model.run({i: [1, 2, 3]}))];
          model.dispose();
          runs.push(await failure(() => model.run({i: [1, 2, 3]})));
          return [runs[0], [runs[1], runs[2].kind, runs[2].message]];
        }""",
        lookup,
    )
    assert first["kind"] == "gpu"
    assert re.search("map_?read", first["message"], re.IGNORECASE)
    assert second == [None, "gpu", "this model was disposed of"]


class Cut(nn.Module):
    """Half-precision weights of which the chunks of a download cut words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(3).half())
        self.b = nn.Parameter(torch.randn(1 << 23).add(0.01 * torch.arange(1 << 23) % 3).half())
        self.c = nn.Parameter(torch.randn(1 << 20, 5).half())

    def forward(self, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i = at + torch.arange(64, device=at.device)
        return self.a * 1, self.b[i], self.b[-5:] * 1, self.c.flatten()[:7] * 1, self.c[-1] * 1


def test_a_download_in_chunks(page: Any, site: Site, folders: Path) -> None:
    model = Cut()
    export(model, torch.tensor(0), folders / "cut")
    entry = json.loads((folders / "cut" / "plan.json").read_text())
    sources = {b["name"]: b.get("source") for b in entry["buffers"]}
    border = (1 << 24) - sources["b"][1]
    assert border % 4, "the border is to cut a word"
    first = border // 2 - 32
    script = """async ([url, at]) => {
      let largest = 0, events = 0;
      const write = GPUQueue.prototype.writeBuffer;
      GPUQueue.prototype.writeBuffer = function (...args) {
        largest = Math.max(largest, args[2].byteLength);
        return write.apply(this, args);
      };
      const progress_callback = ({file}) => { events += file === 'model.safetensors'; };
      const model = await Model.load(url, {progress_callback});
      const outputs = packedAll(await model.run({at}));
      model.dispose();
      return [outputs, largest, events];
    }"""
    with torch.no_grad():
        expected = model(torch.tensor(first))
    weights = "/exports/cut/model.safetensors"
    for ranges in (True, False):
        site.ranges = ranges
        outputs, largest, events = page.evaluate(script, ["/exports/cut/", first])
        for actual, wanted in zip(outputs.values(), expected):
            assert torch.equal(tensor_of(actual), wanted)
        assert largest <= 1 << 24
        assert events > 2
        if ranges:
            assert site.requests[weights] == 1
        page.evaluate("caches.delete('torch-webgpu')")
    site.well()
    page.evaluate(script, ["/exports/cut/", first])
    assert site.requests[weights] == 1
    page.evaluate(script, ["/exports/cut/", first])
    assert site.requests[weights] == 1, "the second visit reads the cache"
    assert page.evaluate(
        """async () => {
          const cache = await caches.open('torch-webgpu'), keys = await cache.keys();
          return cache.delete(keys.find(k => k.url.includes('model.safetensors?chunk=1')).url);
        }"""
    )
    outputs, _, _ = page.evaluate(script, ["/exports/cut/", first])
    assert (site.requests[weights], site.ranged[weights]) == (2, 1), "the rest is fetched from where it is missing"
    assert torch.equal(tensor_of(outputs["output_1"]), expected[1])
    assert set(load_file(folders / "cut" / "model.safetensors")) == {"a", "b", "c"}


def test_a_new_export_in_the_place_of_one_that_the_browser_keeps(page: Any, site: Site, folders: Path) -> None:
    site.max_age_s = 3600
    for outputs in (2, 3):
        export(nn.Linear(3, outputs), torch.zeros(3), folders / "renewed")
        shape = page.evaluate(
            """async url => {
              const model = await Model.load(url, {cache: false});
              return (await model.run({input: [1, 2, 3]})).output.shape;
            }""",
            "/exports/renewed/",
        )
        assert shape == [outputs]


def test_earlier_exports_are_forgotten(page: Any, folders: Path) -> None:
    kept = []
    for seed in range(2):
        torch.manual_seed(seed)
        export(nn.Linear(3, 3), torch.zeros(3), folders / "again")
        kept.append(page.evaluate(
            """async url => {
              await Model.load(url);
              await new Promise(resolve => setTimeout(resolve, 300));
              return (await (await caches.open('torch-webgpu')).keys()).map(k => k.url);
            }""",
            "/exports/again/",
        ))  # fmt: skip
    assert len(kept[0]) == len(kept[1])
    assert kept[0] != kept[1]


PATHS = [
    ("producer",), ("requires",), ("requires", "features"), ("files", "params.bin"),
    ("files", "params.bin", "sha256"), ("buffers", 0), ("buffers", 0, "bytes"), ("buffers", 0, "role"),
    ("buffers", 0, "source"), ("buffers", 0, "source", 0), ("buffers", 0, "source", 1), ("modules", 0),
    ("modules", 0, "access"), ("modules", 0, "access", 0), ("modules", 0, "words"), ("programs", "forward"),
    ("programs", "forward", "inputs", 0), ("programs", "forward", "inputs", 0, "shape"),
    ("programs", "forward", "inputs", 0, "buffer"), ("programs", "forward", "outputs", 0, "dtype"),
    ("programs", "forward", "steps", 0), ("programs", "forward", "steps", 0, 0),
    ("programs", "forward", "steps", 0, 1, 0), ("programs", "forward", "steps", 0, 1, 0, 0),
    ("programs", "forward", "steps", 0, 1, 0, 2), ("programs", "forward", "steps", 0, 2),
    ("programs", "forward", "steps", 0, 3), ("programs", "forward", "steps", 0, 3, 0),
    ("programs", "forward", "random_blocks"), ("operators",), ("metadata",),
]  # fmt: skip
WRONG = st.sampled_from([None, -1, 0.5, 1 << 40, "x", "../../etc/passwd", [], {}, [None], True])


def test_a_manifest_with_a_wrong_part_is_refused(page: Any, manifest: dict[str, Any]) -> None:
    """A wrong part is told, before anything is made of it, as an error of the manifest's."""
    check = """async manifest => {
      const {checkManifest} = await import('/runtime/manifest.js');
      return failure(() => checkManifest(manifest));
    }"""
    assert page.evaluate(check, manifest) is None

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(PATHS), WRONG)
    def mutated(path: tuple[Any, ...], value: Any) -> None:
        changed = copy.deepcopy(manifest)
        owner = changed
        for key in path[:-1]:
            owner = owner[key]
        fits = {
            "operators": isinstance(value, dict), "metadata": isinstance(value, dict), "features": value == [],
            "producer": isinstance(value, str), "shape": value == [],
            "random_blocks": value == 1 << 40, "bytes": value == 1 << 40,
        }  # fmt: skip
        if fits.get(str(path[-1])) or owner[path[-1]] == value:
            return
        owner[path[-1]] = value
        error = page.evaluate(check, changed)
        assert error is not None, (path, value)
        assert error["kind"] == "format", (path, value, error)

    mutated()
