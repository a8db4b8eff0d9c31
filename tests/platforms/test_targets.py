"""Adapters that people have: plans for them are made here, and ask for nothing that they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.plans_for_targets import inputs, meta_of
from tests.webgpu_double import CheckedWebGPU
from torch.utils import _pytree as pytree

from torch_webgpu.config import Config
from torch_webgpu.errors import FlagError
from torch_webgpu.plan import Plan, trace, verify
from torch_webgpu.runtime import adapter_target
from torch_webgpu.runtime.adapter_target import target_of
from torch_webgpu.target import named, names

STRICTEST = "mali"


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def foreach(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return list(torch._foreach_add(tensors[:24], tensors[24:], alpha=2))


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (torch.mm, (meta(70, 130), meta(130, 50))),
    "large product": (torch.mm, (meta(1024, 1024), meta(1024, 1024))),
    "halves": (torch.mm, (meta(256, 256, dtype=torch.float16), meta(256, 256, dtype=torch.float16))),
    "convolution": (F.conv2d, (meta(2, 8, 12, 12), meta(16, 8, 3, 3))),
    "attention": (F.scaled_dot_product_attention, (meta(4, 25, 64, 16),) * 3),
    "decoding": (F.scaled_dot_product_attention, (meta(1, 8, 1, 64), meta(1, 8, 300, 64), meta(1, 8, 300, 64))),
    "softmax": (lambda x: x.softmax(-1), (meta(16, 5000),)),
    "layer_norm": (lambda x: F.layer_norm(x, (5000,)), (meta(16, 5000),)),
    "sort": (lambda x: x.sort(), (meta(4, 5000),)),
    "cumsum": (lambda x: x.cumsum(0), (meta(5000, 3, dtype=torch.int64),)),
    "integers": (lambda x, y: (x * y) // 3, (meta(9, dtype=torch.int64), meta(9, dtype=torch.int64))),
    "lists": (foreach, tuple(meta(5) for _ in range(48))),
}


@cache
def _examples() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    described = {name: (fn, pytree.tree_map_only(torch.Tensor, meta_of, args)) for name, (fn, args) in inputs().items()}
    return FUNCTIONS | described


@cache
def plans_for(target: str) -> dict[str, Plan]:
    return {name: trace(fn, *args, target=target) for name, (fn, args) in _examples().items()}


@pytest.mark.parametrize("target", names())
def test_plans_ask_for_nothing_that_a_target_lacks(target: str) -> None:
    limits = named(target)
    for name, plan in plans_for(target).items():
        assert not verify(plan), name
        assert plan.requires.missing(limits) == [], name
        for kernel in plan.kernels:
            assert len(kernel.bindings) <= limits.max_buffers, f"{name}: {kernel.name}"


@pytest.mark.parametrize(
    ("fn", "x"),
    [(torch.linalg.det, meta(2, 0, 0, dtype=torch.complex64)), (lambda x: list(x.unbind(0)), meta(5, 0, 5))],
)
def test_tensors_without_elements_are_part_of_plans(fn: Callable[..., Any], x: torch.Tensor) -> None:
    """Kernels bind a whole element of theirs, and views of them may start anywhere."""
    assert not verify(trace(fn, x, target="h200-dawn"))


def test_row_5_list_kernels_fit_into_metal_s_buffers() -> None:
    """Each tensor of a list is a binding: of 24 additions of three each, ten make 30."""
    most = {t: max(len(k.bindings) for k in plans_for(t)["lists"].kernels) for t in ("metal", "apple-dawn", "mali")}
    assert most["metal"] <= 29
    assert most["apple-dawn"] <= 28
    assert most["mali"] <= 8


def test_a_target_within_another_has_what_both_have() -> None:
    h200, mali = named("h200-dawn"), named("mali")
    both = h200.within(mali)
    assert (both.max_buffers, both.workgroup_bytes, both.workgroup_threads) == (8, 16384, 256)
    assert (both.dialect, both.float16, both.subgroup_sizes, both.matrices) == ("tint", True, False, ())
    assert both.name == "h200-dawn, as mali"
    assert h200.within(h200) == h200
    assert named("browser").within(h200).max_buffers == 8


def test_a_misspelt_target_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_target, "config", lambda: Config(target="malli"))
    with pytest.raises(FlagError, match="did you mean 'mali'"):
        target_of(CheckedWebGPU().adapter())


@pytest.mark.parametrize(
    ("info", "size"),
    [
        ({"vendor_id": 0x10DE, "device": "NVIDIA H200"}, 32),
        ({"vendor_id": 0x10005, "device": "llvmpipe (LLVM 15.0.6, 256 bits)"}, 8),
        ({"vendor_id": 0x8086, "device": "Intel(R) Arc(tm) A770"}, 0),
    ],
)
def test_sizes_of_subgroups_that_wgpu_native_does_not_tell(info: dict[str, Any], size: int) -> None:
    """NVIDIA's and llvmpipe's are always the same; Intel's differ from kernel to kernel."""
    library = CheckedWebGPU()
    assert target_of(library.adapter(info=info)).subgroup_size == size
    assert target_of(library.adapter(info=info, without=["subgroup"])).subgroup_size == 0


SCRIPT = """
import torch, torch_webgpu
from torch_webgpu.engine.record import engine
target = engine().device(0).target
assert (target.max_buffers, target.workgroup_threads, target.workgroup_bytes) == (8, 256, 16384), target
torch.manual_seed(0)
def compare(fn, *args, tolerance=1e-4):
    expected = fn(*args)
    actual = fn(*[a.to("webgpu") for a in args])
    for a, e in zip(torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=tolerance, atol=tolerance)
compare(torch.mm, torch.randn(70, 130), torch.randn(130, 50))
compare(lambda x: x.softmax(-1), torch.randn(6, 3000))
compare(lambda x: x.sort(), torch.randn(3, 2000))
compare(lambda x: x.cumsum(0), torch.arange(3000))
compare(lambda *ts: torch._foreach_add(ts[:20], ts[20:], alpha=2), *[torch.randn(5) for _ in range(40)])
print("right")
"""


def test_programs_run_with_no_more_than_the_strictest_has() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"TORCH_WEBGPU_TARGET": STRICTEST}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
