"""What PyTorch's results depend on besides the arguments: no cache may answer for a state that it was not asked in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_webgpu.aten.dispatch import default_dtype, recipes

Tensor = torch.Tensor
Layout = Callable[[Tensor], Tensor]

LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "sliced": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape),
    "empty": lambda t: t[:0],
}
DTYPES = [torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "times a float": lambda x: x * 1.5,
    "plus a float": lambda x: x + 0.5,
    "plus an int": lambda x: x + 1,
    "divided": lambda x: x / 2,
    "divided by itself": lambda x: x / (x.abs() + 1),
    "times a complex number": lambda x: x * 1j,
    "square root": lambda x: x.abs().sqrt(),
    "exponential": lambda x: (-x.abs()).exp() if x.dtype != torch.bool else x.exp(),
    "sigmoid": torch.sigmoid,
    "list times a float": lambda x: torch._foreach_mul([x, x], 1.5),
    "where of numbers": lambda x: torch.where(x > 0, 1.5, 2),
    "where of a tensor": lambda x: torch.where(x > 0, x, 2.5),
    "power": lambda x: x**2.5 if x.dtype != torch.bool else x.float(),
    "lerp": lambda x: torch.lerp(x, x + 1, 0.5),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "mean in float32": lambda x: x.mean((2, 3), dtype=torch.float32),
    "cumulated": lambda x: x.cumsum(2),
    "softmax": lambda x: x.softmax(1),
    "sorted": lambda x: x.sort(-1),
    "maximum": lambda x: x.amax(1),
    "clone": lambda x: x.clone(),
    "like": torch.zeros_like,
    "new": lambda x: x.new_ones(3),
    "full": lambda x: torch.full((2,), 1.5, device=x.device),
    "full of ints": lambda x: torch.full((2,), 2, device=x.device),
    "range": lambda x: torch.arange(0, 2, 0.5, device=x.device),
    "steps": lambda x: torch.linspace(0, 1, 5, device=x.device),
    "zeros": lambda x: torch.zeros(2, 3, device=x.device),
    "list of numbers": lambda x: torch.tensor([1.5, 2.5], device=x.device),
    "eye": lambda x: torch.eye(3, device=x.device),
    "joined": lambda x: torch.cat([x, x], 1),
    "one-hot": lambda x: F.one_hot(x.long().abs() % 5, 5),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, size=(5, 3), mode="bilinear"),
    "smaller": lambda x: F.interpolate(x, size=(2, 2), mode="bilinear", antialias=True),
    "pooled": lambda x: F.max_pool2d(x, 2),
    "averages": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
    "convolved": lambda x: F.conv2d(x.float(), torch.ones(4, 4, 1, 1, device=x.device, dtype=torch.float32)),
    "patches": lambda x: F.unfold(x, 2),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x, 2),
    "padded": lambda x: F.pad(x, (1, 1)),
    "product": lambda x: x @ x.transpose(-1, -2),
    "in place": lambda x: x.clone().add_(1),
    "filled": lambda x: torch.empty_like(x).fill_(1),
    "cast": lambda x: x.to(torch.float32),
    "double": lambda x: x.double(),
}

STATES: dict[str, Callable[[], Any]] = {
    "plain": ExitStack,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "on cpu": lambda: torch.device("cpu"),
    "on meta": lambda: torch.device("meta"),
    "webgpu autocast": lambda: torch.autocast("webgpu", dtype=torch.float16),
    "cpu autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def described(value: Any) -> Any:
    """What is compared of a result: its dtype and layout, and its values on the CPU."""
    if isinstance(value, (tuple, list)):
        return [described(v) for v in value]
    strides = tuple(s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1) if value.numel() else ()
    return value.dtype, tuple(value.shape), strides, value.is_inference(), value.cpu()


def outcome(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return described(call(x))
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError) as error:
        return type(error)


def assert_same(ours: Any, theirs: Any, what: Any) -> None:
    if isinstance(theirs, list):
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, what)
        return
    assert isinstance(ours, tuple), (what, ours, theirs)
    assert ours[:-1] == theirs[:-1], what
    torch.testing.assert_close(ours[-1].to(torch.complex64), theirs[-1].to(torch.complex64), rtol=2e-3, atol=2e-3)


@pytest.fixture(autouse=True)
def defaults_restored() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


@st.composite
def histories(draw: Any) -> list[tuple[Any, ...]]:
    """Few operators and one dtype, so that caches answer; many states and layouts, so that they should not."""
    calls = draw(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4, unique=True))
    layouts = draw(st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=3, unique=True))
    dtype = draw(st.sampled_from(DTYPES))
    steps = st.tuples(
        st.sampled_from(calls), st.sampled_from(layouts), st.just(dtype), st.sampled_from(sorted(STATES)),
        st.sampled_from([torch.float32, torch.float64, torch.float16]), st.booleans(),
    )  # fmt: skip
    return draw(st.lists(steps, min_size=4, max_size=12))


@pytest.mark.float64
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories())
def test_results_are_those_of_the_cpu_after_any_history(history: Any, device: torch.device) -> None:
    values = torch.arange(2 * 4 * 4 * 4).view(2, 4, 4, 4) % 7
    for step in history:
        name, layout, dtype, state, default, deterministic = step
        torch.set_default_dtype(default)
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        try:
            with STATES["plain" if state == "cpu autocast" else state]():
                theirs = outcome(CALLS[name], LAYOUTS[layout](values.to(dtype)))
            with STATES[state]():
                ours = outcome(CALLS[name], LAYOUTS[layout](values.to(dtype).to(device)))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
        # The CPU lacks operators and other devices' autocast; of halves it rounds other steps.
        if not isinstance(theirs, type) and default != torch.float16 and state != "webgpu autocast":
            assert_same(ours, theirs, step)


@pytest.mark.float64
def test_the_default_dtype_decides_anew(device: torch.device) -> None:
    def dtypes(x: Tensor) -> list[torch.dtype]:
        found = [
            x * 1.5,
            x / 2,
            x * 1j,
            x.sqrt(),
            x.sigmoid(),
            torch.where(x > 0, 1.5, 2),
            torch.ones(1, device=x.device),
        ]
        return [t.dtype for t in (*found, *torch._foreach_mul([x, x], 1.5), x.clone().float().mul_(1.5))]

    x = torch.ones(2, dtype=torch.int64)
    for default in (torch.float32, torch.float64, torch.float32, torch.float16, torch.float64):
        torch.set_default_dtype(default)
        assert dtypes(x.to(device)) == dtypes(x)
    with pytest.warns(UserWarning, match="set_default_tensor_type"):
        torch.set_default_tensor_type(torch.FloatTensor)
    assert dtypes(x.to(device)) == dtypes(x)


@pytest.mark.float64
def test_what_was_found_out_is_kept_for_when_a_dtype_comes_back(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, dtype=torch.int64, device=device)
    for default in (torch.float64, torch.float32) * 2:
        torch.set_default_dtype(default)
        assert (x * 2.25).dtype == default
    from torch_webgpu.aten.dispatch.register_pointwise import PointwiseKernel

    monkeypatch.setattr(PointwiseKernel, "compute", None)
    for default in (torch.float64, torch.float32):
        torch.set_default_dtype(default)
        assert (x * 2.25).dtype == default
    before = len(default_dtype._caches)
    assert before == len({id(cache) for cache in default_dtype._caches})


def test_a_failed_change_changes_nothing(device: torch.device) -> None:
    x = torch.ones(2, dtype=torch.int64, device=device)
    for wrong in (torch.int32, "float32", None):
        with pytest.raises((TypeError, RuntimeError)):
            torch.set_default_dtype(wrong)
        assert (x * 1.5).dtype == torch.float32


def test_bytes_interpolated_in_one_layout_and_then_another(device: torch.device) -> None:
    image = (torch.arange(2 * 3 * 6 * 8) % 251).view(2, 3, 6, 8).to(torch.uint8)
    for antialias in (False, True):
        for layout in ("channels_last", "contiguous", "channels_last"):
            x = LAYOUTS[layout](image)
            expected = F.interpolate(x, size=(4, 5), mode="bilinear", antialias=antialias)
            result = F.interpolate(x.to(device), size=(4, 5), mode="bilinear", antialias=antialias)
            assert result.stride() == expected.stride()
            assert torch.equal(result.cpu(), expected)


def test_products_are_refused_for_what_they_do_not_read(device: torch.device) -> None:
    """The dtype of a tensor that beta=0 leaves unread still counts, whatever came before."""
    a = torch.ones(3, 3, device=device)
    torch.addmm(a, a, a, beta=0)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.addmm(a.half(), a, a, beta=0)


def test_recipes_give_what_a_first_call_gives(device: torch.device) -> None:
    """Whatever layouts a kernel met before: each answer from the cache is compared with that of an empty one."""
    calls = [
        (name, LAYOUTS[layout]((torch.arange(128).view(2, 4, 4, 4) % 7).to(dtype)).to(device))
        for dtype in (torch.float32, torch.uint8, torch.float16)
        for name in (
            "nearest",
            "bilinear",
            "smaller",
            "pooled",
            "averages",
            "adaptive",
            "convolved",
            "patches",
            "product",
        )
        for layout in ("contiguous", "channels_last", "transposed", "sliced", "contiguous")
    ]
    for name, x in calls:
        found = [outcome(CALLS[name], x) for _ in range(2)]
        recipes.clear()
        first = outcome(CALLS[name], x)
        for one in found:
            if isinstance(first, type):
                assert one is first
            else:
                assert_same(one, first, (name, x.dtype, x.stride()))


@pytest.mark.parametrize("first", [True, False])
def test_traces_made_in_autocast_serve_outside(first: bool, device: torch.device) -> None:
    norm = torch.nn.BatchNorm2d(3).to(device)
    x = torch.randn(4, 3, 5 + first, 5, device=device)
    results = []
    for enabled in (first, not first, first):
        norm.reset_running_stats()
        with torch.autocast(device.type, dtype=torch.float16, enabled=enabled):
            results.append(
                (
                    norm(x),
                    F.gelu(x),
                    torch.std(x, 1),
                    torch.cdist(x[0], x[1]),
                    F.glu(x.transpose(1, 2), 1) if x.shape[2] % 2 == 0 else x,
                )
            )
    for one, other in zip(results[0], results[1], strict=True):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(one, other)


def test_memory_that_is_not_written_is_filled_in_deterministic_mode(device: torch.device) -> None:
    def made(where: torch.device | str) -> list[Tensor]:
        x = torch.ones(2, 3, device=where)
        return [
            torch.empty(3, device=where), torch.empty(2, dtype=torch.int32, device=where), torch.empty_like(x),
            torch.empty(2, dtype=torch.bool, device=where), torch.empty(2, dtype=torch.complex64, device=where),
            torch.empty(2, dtype=torch.float16, device=where), torch.empty_strided((2, 2), (1, 2), device=where),
            x.new_empty(2), torch.empty(2, dtype=torch.uint8, device=where), torch.empty(0, device=where),
        ]  # fmt: skip

    torch.use_deterministic_algorithms(True)
    try:
        for ours, theirs in zip(made(device), made("cpu"), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        assert torch.empty(3, device=device).shape == (3,)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
