"""Browsers and naga take the kernels that are made for the portable target: of a sample of operators, or of all."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_webgpu.engine.record import engine

from .chromium import FLAGS, executable
from .portable_kernels import Kernels, golden_kernels, portable_kernels
from .server import Site

AT_ONCE = 1
"""Kernels that the browser is given together: of 40 large ones its GPU process did not come back, of 4 it was slow."""
FIXED_SIZE = re.compile(r"@workgroup_size\(([\d, ]+)\)")
SOME_PIPELINES = 12
"""Of a sample's kernels every so-manieth becomes a pipeline: a software adapter takes a second or more for one."""
COMPILE = """async sources => {
  globalThis.compiler ??= await (await navigator.gpu.requestAdapter()).requestDevice();
  return (await Promise.all(sources.map(async ([code, label, pipeline]) => {
    const module = compiler.createShaderModule({code, label});
    const {messages} = await module.getCompilationInfo();
    const said = messages.filter(m => m.type === 'error').map(m => `${m.lineNum}: ${m.message}`);
    if (!said.length && pipeline) {
      compiler.pushErrorScope('validation');
      try {
        await compiler.createComputePipelineAsync({layout: 'auto', compute: {module, entryPoint: 'main'}});
      } catch (error) {
        said.push(error.message);
      }
      await compiler.popErrorScope();
    }
    return said.length ? [label, ...said] : null;
  }))).filter(Boolean);
}"""


@pytest.fixture(scope="module")
def some() -> Kernels:
    return portable_kernels(every=12, samples=2)


def refused_by_the_browser(page: Any, kernels: Kernels, every: int = 1) -> list[str]:
    """What the browser says against texts, and against pipelines: of each text that has memory of a workgroup or
    computes its size, both of which are checked there alone, and of every so-manieth other; 0: of none.
    """
    sources = [
        [text, label, every and (place % every == 0 or "var<workgroup>" in text or not FIXED_SIZE.search(text))]
        for place, (text, label) in enumerate(kernels.sources.items())
    ]
    return [
        " | ".join(said)
        for at in range(0, len(sources), AT_ONCE)
        for said in page.evaluate(COMPILE, sources[at : at + AT_ONCE])
    ]


def refused_by_naga(kernels: Kernels) -> list[str]:
    """What wgpu's compiler says. Skips where there is no adapter of it."""
    if not torch.webgpu.is_available():
        pytest.skip("there is no adapter")
    torch.ones(1, device="webgpu")
    device = engine().device(0)
    if device.target.dialect != "naga":
        pytest.skip("the adapter's compiler is not naga")
    pipelines = device.opened.pipelines
    return [f"{label}: {said}" for text, label in kernels.sources.items() for said in pipelines.problems(text, label)]


def check_limits(kernels: Kernels) -> None:
    for text, label in kernels.sources.items():
        words = set(re.findall(r"\w+", re.sub(r"//.*", "", text)))
        assert not words & {"i64", "u64", "f64", "f16", "enable", "immediate"}, label
        assert len(re.findall(r"var<storage", text)) <= 8, label
        if size := FIXED_SIZE.search(text):
            assert prod(map(int, size[1].split(","))) <= 256, label


def test_a_refused_kernel_is_seen(page: Any) -> None:
    wrong = Kernels(None, {"@compute @workgroup_size(1) fn main() { let x: i64 = 1; }": "wrong"})
    assert "i64" in refused_by_the_browser(page, wrong)[0]
    wide = Kernels(None, {"@compute @workgroup_size(512) fn main() { }": "wide"})
    assert "512" in refused_by_the_browser(page, wide)[0]


def test_a_refused_kernel_is_seen_on_naga() -> None:
    assert refused_by_naga(Kernels(None, {"@compute @workgroup_size(1) fn main() { let x: i32 = 1.5; }": "wrong"}))


def test_a_sample_of_operators(page: Any, some: Kernels) -> None:
    assert len(some.sources) > 200
    assert some.traced > some.refused
    check_limits(some)
    assert refused_by_the_browser(page, some, SOME_PIPELINES) == []


def test_a_sample_of_operators_on_naga(some: Kernels) -> None:
    assert refused_by_naga(some) == []


@pytest.mark.timeout(1800)  # a pipeline takes a software adapter seconds
@pytest.mark.parametrize("every", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_golden_programs(page: Any, every: int) -> None:
    kernels = golden_kernels()
    assert len(kernels.sources) > kernels.traced
    check_limits(kernels)
    assert refused_by_naga(kernels) == []
    assert refused_by_the_browser(page, kernels, every) == []


MOST_MIB, MOST_MS = 1200, 300_000
"""What a software adapter's compiler may take for a kernel: 530 MiB and 3 s were seen of the largest below."""
WITHIN = """([compile, sources, ms]) => Promise.race([
  eval(compile)(sources), new Promise(resolve => setTimeout(() => resolve(['takes too long']), ms)),
])"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("program", ["attention_tiles", "attention_few", "sort_integers"])
def test_a_large_kernel_compiles_in_little_memory(chromium: Any, site: Site, program: str) -> None:
    """A compiler that a kernel's text makes take gigabytes ends the GPU process of a small machine."""
    kernels = [[text, label, True] for text, label in golden_kernels([program]).sources.items()]
    browser = chromium.launch(executable_path=executable(), args=[*FLAGS])
    try:
        tab = browser.new_page()
        tab.goto(f"{site.url}/empty.html")
        assert tab.evaluate(WITHIN, [COMPILE, kernels, MOST_MS]) == []
        told = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
        (process,) = [found["id"] for found in told["processInfo"] if found["type"] == "GPU"]
        most = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text("utf-8"))
        assert most is not None
        assert int(most[1]) / 1024 < MOST_MIB
    finally:
        browser.close()


PARTS = 24


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators(page: Any, part: int) -> None:
    kernels = portable_kernels(every=PARTS, first=part)
    assert len(kernels.sources) > 50
    check_limits(kernels)
    assert refused_by_naga(kernels) == []
    assert refused_by_the_browser(page, kernels) == []
