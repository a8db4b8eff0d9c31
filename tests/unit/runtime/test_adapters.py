"""Which adapters become devices: implementations × backends × GPUs that may be identical, or software."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu import config
from torch_webgpu.errors import NoAdapterError
from torch_webgpu.runtime import adapters as choosing
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.runtime.probe import works


def probe(parts: Sequence[np.ndarray], params: bytes, grid: tuple[int, int, int]) -> None:
    words = parts[0].view(np.uint32)
    words[:64] = 3 * words[:64] + np.arange(64, dtype=np.uint32)


class Library(CheckedWebGPU):
    """An implementation with these adapters. The probe comes out right."""

    def __init__(self, name: str, *listed: dict[str, Any]) -> None:
        super().__init__(name)
        self.kernels["probe"] = probe
        self.listed = [self.adapter(info=info) for info in listed]

    def adapters(self) -> list[Adapter]:
        return self.listed


def gpu(name: str, ids: tuple[int, int] = (0, 0), backend: str = "Vulkan", kind: str = "DiscreteGPU") -> dict[str, Any]:
    vendor, number = ids
    return {"device": name, "vendor_id": vendor, "device_id": number, "backend_type": backend, "adapter_type": kind}


software = partial(gpu, kind="CPU")
H100, A10 = partial(gpu, "H100", (1, 1)), partial(gpu, "A10", (1, 2))
BIG, BIG_TI = partial(gpu, "RTX 3080", (1, 3)), partial(gpu, "RTX 3080 Ti", (1, 4))
LLVMPIPE, SWIFT = partial(software, "llvmpipe", (9, 1)), partial(software, "SwiftShader", (9, 2))

Use = Callable[..., list[tuple[str, str, str]]]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Use:
    """(implementation, name, backend) of the devices that these implementations make; exceptions do not load."""

    def use(dawn: Any = (), wgpu: Any = (), **flags: str) -> list[tuple[str, str, str]]:
        made = {
            name: listed if isinstance(listed, (Exception, Library)) else Library(name, *listed)
            for name, listed in (("dawn", dawn), ("wgpu", wgpu))
        }

        def implementation(name: str) -> Library:
            if isinstance(made[name], Exception):
                raise made[name]
            return made[name]

        monkeypatch.setattr(choosing, "implementation", implementation)
        monkeypatch.setattr(choosing, "config", lambda: config.Config(**flags))
        found = choosing.adapters()
        return [(one.implementation.name, one.info["device"], one.info["backend_type"]) for one in found]

    return use


CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]] = {
    # what Dawn lists, what wgpu-native lists, who serves what
    "nothing": ([], [], []),
    "one GPU by both": ([H100()], [H100()], ["dawn H100 Vulkan"]),
    "one GPU that only wgpu-native has": ([], [H100()], ["wgpu H100 Vulkan"]),
    "one GPU by two backends": (
        [],
        [H100(backend="OpenGL"), H100(backend="Vulkan")],
        ["wgpu H100 Vulkan"],
    ),
    "the better backend before the better library": (
        [H100(backend="D3D12")],
        [H100(backend="Vulkan"), H100(backend="D3D12")],
        ["wgpu H100 Vulkan"],
    ),
    "two identical GPUs, of which Dawn lists one": (
        [H100()],
        [H100(), H100()],
        ["dawn H100 Vulkan", "wgpu H100 Vulkan"],
    ),
    "two identical GPUs by two backends": (
        [],
        [H100(), H100(), H100(backend="D3D12"), H100(backend="D3D12")],
        ["wgpu H100 Vulkan"] * 2,
    ),
    "a software adapter by both": ([LLVMPIPE()], [LLVMPIPE()], ["wgpu llvmpipe Vulkan"]),
    "a software adapter that only Dawn has": ([SWIFT()], [], ["dawn SwiftShader Vulkan"]),
    "software adapters, one each": (
        [SWIFT()],
        [LLVMPIPE()],
        ["dawn SwiftShader Vulkan", "wgpu llvmpipe Vulkan"],
    ),
    "software comes last": (
        [SWIFT(), A10(kind="IntegratedGPU")],
        [LLVMPIPE(), H100()],
        ["wgpu H100 Vulkan", "dawn A10 Vulkan", "dawn SwiftShader Vulkan", "wgpu llvmpipe Vulkan"],
    ),
    "one name begins with another": (
        [BIG_TI()],
        [BIG(), BIG_TI()],
        ["dawn RTX 3080 Ti Vulkan", "wgpu RTX 3080 Vulkan"],
    ),
    "names where there are no numbers": (
        [gpu("Apple M3", backend="Metal")],
        [gpu("Apple M3 Pro", backend="Metal", kind="IntegratedGPU"), gpu("Other", backend="Metal")],
        ["dawn Apple M3 Metal", "wgpu Other Metal"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_gpu_is_used_once_by_the_best_that_offers_it(used: Use, case: str) -> None:
    dawn, wgpu, expected = CASES[case]
    assert sorted(" ".join(one) for one in used(dawn, wgpu)) == sorted(expected)


def test_kinds_are_in_order(used: Use) -> None:
    kinds = ["CPU", "Unknown", "IntegratedGPU", "DiscreteGPU"]
    found = used((), [gpu(kind, (1, 1 + k), kind=kind) for k, kind in enumerate(kinds)])
    assert [name for _, name, _ in found] == kinds[::-1]


@pytest.mark.parametrize("name", ["dawn", "wgpu"])
def test_an_implementation_may_be_asked_for(used: Use, name: str) -> None:
    assert used([H100()], [H100()], implementation=name) == [(name, "H100", "Vulkan")]
    other = {"dawn": "wgpu", "wgpu": "dawn"}[name]
    assert used(**{other: [H100()]}, implementation=name) == []


@pytest.mark.parametrize("missing", [ImportError("No module named 'x'"), OSError("libx.so: cannot open")])
def test_an_implementation_that_does_not_load(used: Use, missing: Exception) -> None:
    assert used(missing, [H100()]) == [("wgpu", "H100", "Vulkan")]
    assert used([H100()], missing) == [("dawn", "H100", "Vulkan")]
    assert used(missing, missing) == []
    with pytest.raises(NoAdapterError, match=r"TORCH_WEBGPU_IMPLEMENTATION=dawn: .*x.* Try: pip install .*\[dawn\]"):
        used(missing, [H100()], implementation="dawn")
    with pytest.raises(NoAdapterError, match=r"TORCH_WEBGPU_IMPLEMENTATION=wgpu: .*x.* Try: pip install wgpu"):
        used([H100()], missing, implementation="wgpu")


@pytest.mark.parametrize("wrong", ["computes nothing", "does not open", "is lost", "refuses the shader"])
def test_dawn_has_to_show_that_it_works_where_there_is_a_choice(used: Use, wrong: str) -> None:
    dawn = Library("dawn", H100())
    if wrong == "computes nothing":
        dawn.kernels.clear()
    elif wrong == "does not open":
        dawn.faults.opens = False
    elif wrong == "is lost":
        dawn.faults.lose_at = 1
    else:
        dawn.faults.refused.add("probe")
    assert used(dawn, [H100()]) == [("wgpu", "H100", "Vulkan")]
    assert used(dawn, [H100()], implementation="dawn") == [("dawn", "H100", "Vulkan")]
    assert all(native.closed for native in dawn.devices)


def test_the_probe_leaves_nothing_behind() -> None:
    library = Library("dawn", H100())
    assert works(library.listed[0])
    assert [native.closed for native in library.devices] == [True]


def test_an_adapter_may_be_put_first(used: Use) -> None:
    there = {"dawn": [A10()], "wgpu": [H100(), A10(), LLVMPIPE()]}
    assert [name for _, name, _ in used(**there)] == ["A10", "H100", "llvmpipe"]
    for wanted in ("h100", "1"):
        assert [name for _, name, _ in used(**there, adapter=wanted)] == ["H100", "A10", "llvmpipe"]
    with pytest.raises(NoAdapterError, match="'3' matches none of: A10, H100, llvmpipe"):
        used(**there, adapter="3")


def test_what_was_not_taken_is_told(monkeypatch: pytest.MonkeyPatch, used: Use) -> None:
    dawn = Library("dawn", H100())
    dawn.faults.opens = False
    used(dawn, [H100(), H100(backend="OpenGL")])
    seen = choosing.survey()
    assert seen.broken == dawn.listed
    assert [[one.info["backend_type"] for one in listings] for listings in seen.gpus] == [["Vulkan", "OpenGL"]]
    used(ImportError("gone"), [])
    assert choosing.survey().absent == {"dawn": "gone"}
