"""Coverage: what the report says of operators and dtypes is what happens when they are called."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from itertools import islice

import pytest
import torch
from tests.conformance.target import DEVICE

from torch.webgpu import registry  # isort: skip
from torch_webgpu.aten.dispatch.fallback import fallback_stats
from torch_webgpu.engine.record import engine
from torch_webgpu.extend.registry.coverage import DTYPES, FIRST_TRIED
from torch_webgpu.extend.registry.samples import samples

CALLS = 120
"""Of all pairs of an operator and a dtype, how many are called."""


def ones(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=DEVICE)


def outcome(overload: torch._ops.OpOverload, args: list[object], kwargs: dict[str, object]) -> str | None:
    """What happens in a call: "native", "CPU", or None where it is refused."""
    before = sum(fallback_stats().values())
    try:
        overload(*args, **kwargs)
    except Exception:
        return None
    return "CPU" if sum(fallback_stats().values()) > before else "native"


@pytest.mark.skipif(DEVICE.type != "webgpu", reason="what runs where is a matter of webgpu")
def test_what_is_reported_is_what_happens() -> None:
    """Per-element operators, whose arguments are easily made, with ones."""
    names = [name for kind in ("unary", "binary") for name in registry.list_ops(kind, way="native")]
    dtypes = [dtype for dtype in DTYPES if dtype != torch.float64 or engine().device(0).target.float64]
    pairs = random.Random(0).sample([(name, dtype) for name in names for dtype in dtypes], CALLS)
    report = registry.coverage_report(sorted({name for name, _ in pairs}))
    told = {one.name: one.dtypes for one in report.operators}
    wrong, found_all = [], Counter[str | None]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, dtype in pairs:
            overload = getattr(torch.ops.aten, name.removeprefix("aten::"))
            overload = next(getattr(overload, one) for one in overload.overloads() if "out" not in one)
            if not told[name]:
                continue
            number = next(
                k
                for first in FIRST_TRIED
                for k, one in enumerate(samples(overload, first, ones))
                if outcome(overload, *one)
            )
            found = outcome(overload, *next(islice(samples(overload, dtype, ones), number, None)))
            found_all[found] += 1
            if found != told[name][str(dtype).removeprefix("torch.")]:
                wrong.append((name, dtype, told[name][str(dtype).removeprefix("torch.")], found))
    assert not wrong
    assert all(found_all[one] for one in ("native", "CPU", None))


def test_the_report_as_text_and_json() -> None:
    report = registry.coverage_report(["exp", "digamma", "_dirichlet_grad", "aten::einsum"])
    by_name = {one.name: one for one in report.operators}
    assert by_name["aten::exp"].dtypes["float16"] == "native"
    assert by_name["aten::digamma"].dtypes["complex64"] != "native"
    assert by_name["aten::_dirichlet_grad"].way == "CPU"
    assert by_name["aten::_dirichlet_grad"].dtypes["float32"] == "CPU"
    assert by_name["aten::einsum"].way == "composed"
    told = json.loads(report.to_json())
    assert told["counts"] == {"native": 2, "CPU": 1, "composed": 1}
    assert {one["name"] for one in told["operators"]} == set(by_name)
    assert str(report).startswith("4 operators for the target 'lavapipe': 1 CPU, 1 composed, 2 native")
    (row,) = report.table(["aten::exp"]).splitlines()[2:]
    assert row.startswith("| `exp` | n | n | n |")


def test_nothing_runs_and_nothing_is_counted() -> None:
    before, devices = fallback_stats(), torch.webgpu.device_count()
    registry.coverage_report(["_dirichlet_grad", "exp"])
    assert fallback_stats() == before
    assert torch.webgpu.device_count() == devices
    assert torch.ones(3, device=DEVICE).exp().sum().item() == pytest.approx(3 * 2.718282, rel=1e-5)


def test_a_kernel_for_a_dtype() -> None:
    assert registry.get_kernel("exp", dtype=torch.float16).name == "aten::exp"
    with pytest.raises(
        registry.DTypeNotSupportedError, match=r"aten::digamma has no kernel for torch\.complex64"
    ) as caught:
        registry.get_kernel("digamma", dtype=torch.complex64)
    assert isinstance(caught.value, TypeError)
