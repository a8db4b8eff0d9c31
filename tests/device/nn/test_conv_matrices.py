"""Convolutions on subgroup matrices, emulated: every mode and layout, forward and backward, against the CPU.

Operands are small whole numbers, so that sums are exact and results have to be equal.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.linalg.matrices_emulated import pretend

from torch_webgpu.aten.nn import conv as aten_conv
from torch_webgpu.kernels.conv import conv
from torch_webgpu.kernels.matmul import scaled
from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.operand import Sides
from torch_webgpu.kernels.matmul.tile import Blocking
from torch_webgpu.target import MatrixConfig

Shape = tuple[int, ...]

# Function, input, weight, arguments; and which operands travel in runs, forward, channels first and (if there is such
# a format) last. Of those with one position the products are of matrices.
CASES = {
    "2d": (F.conv2d, (2, 16, 9, 8), (24, 16, 3, 3), {"padding": 1}, (True, False), (True, True)),
    "2d odd": (F.conv2d, (2, 7, 9, 7), (13, 7, 3, 2), {"padding": 1, "stride": 2}, (False, False), (False, False)),
    "2d strided": (F.conv2d, (2, 8, 9, 8), (16, 8, 3, 3), {"padding": 1, "stride": 2}, (True, False), (True, True)),
    "2d dilated": (F.conv2d, (1, 8, 12, 9), (8, 8, 3, 3), {"dilation": 2}, (True, False), (True, True)),
    "2d grouped": (F.conv2d, (2, 32, 9, 8), (32, 16, 3, 3), {"groups": 2}, (True, False), (True, True)),
    "2d pointwise": (F.conv2d, (2, 24, 6, 12), (40, 24, 1, 1), {}, (True, True), (True, True)),
    "2d pointwise odd": (F.conv2d, (2, 24, 5, 7), (40, 24, 1, 1), {}, (True, False), (True, True)),
    "1d": (F.conv1d, (2, 16, 33), (24, 16, 3), {"padding": 1}, (True, False), None),
    "transposed": (F.conv_transpose2d, (2, 16, 9, 8), (16, 24, 3, 3), {"padding": 1}, (False, False), (True, True)),
    "transposed strided": (
        F.conv_transpose2d,
        (2, 8, 5, 8),
        (8, 16, 3, 4),
        {"padding": 1, "stride": 2},
        (False, False),
        (True, True),
    ),
    "transposed pointwise": (F.conv_transpose2d, (2, 16, 4, 8), (16, 24, 1, 1), {}, (True, True), (True, True)),
}


@pytest.fixture
def chosen(monkeypatch) -> list[Blocking[MatrixTile]]:
    monkeypatch.setattr(conv, "GATHERING", ())
    return pretend(monkeypatch, MatrixConfig("f16", "f32", 16, 16, 16, 32))


@pytest.fixture
def travelled(monkeypatch) -> list[tuple[bool, bool]]:
    """Whether each operand of each product travelled in runs."""
    found: list[tuple[bool, bool]] = []
    sides = conv.ConvProblem.sides

    def noted(p: conv.ConvProblem, run: int) -> Sides:
        a, b = sides(p, run)
        found.append((a.runs, b.runs))
        return a, b

    monkeypatch.setattr(conv.ConvProblem, "sides", noted)
    return found


def numbers(shape: Shape, last: bool) -> torch.Tensor:
    given = torch.randint(-2, 3, shape).half()
    return given.to(memory_format=torch.channels_last) if last else given


@pytest.mark.parametrize(
    ("name", "last"), [(name, last) for name, case in CASES.items() for last in (False, True) if case[4 + last]]
)
def test_modes(device, chosen, travelled, name, last):
    fn, x, w, options, first_runs, last_runs = CASES[name]
    runs = last_runs if last else first_runs
    bias = torch.randint(-2, 3, (w[0] if fn is not F.conv_transpose2d else w[1],)).half()
    check(device, lambda x, w, b: fn(x, w, b, **options), numbers(x, last), numbers(w, last), bias, tol=0)
    assert travelled == ([] if "pointwise" in name else [runs])
    check(device, lambda x, w: fn(x, w, **options), numbers(x, last), numbers(w, last), backward=True, tol=2e-2)
    assert len(chosen) == 4  # two forward, two backward


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("2d odd", "2d pointwise", "transposed pointwise")]
)
def test_much_work_is_done_on_copies_with_channels_last(device, chosen, travelled, monkeypatch, name):
    """What programs see is laid out as it would be."""
    monkeypatch.setattr(aten_conv, "COPIED_RUNS_WORK", 0)
    fn, x, w, options, *_ = CASES[name]
    check(device, lambda x, w: fn(x, w, **options), numbers(x, False), numbers(w, False), backward=True, tol=2e-2)
    if "pointwise" not in name:
        assert travelled[0] == (True, True)
    results = [fn(numbers(x, False).to(where), numbers(w, False).to(where), **options) for where in ("cpu", device)]
    assert results[0].stride() == results[1].stride()


@pytest.mark.parametrize("name", ["2d odd", "2d pointwise"])
def test_operands_that_tensor_cores_read_as_well_are_not_copied(device, chosen, monkeypatch, name):
    monkeypatch.setattr(aten_conv, "COPIED_RUNS_WORK", 0)
    fn, x, w, options, *_ = CASES[name]
    operands = [numbers(shape, False).to(device) for shape in (x, w)]
    torch.webgpu.flush_batch()
    with torch.webgpu.profile() as seen:
        result = fn(*operands, **options)
        torch.webgpu.synchronize()
    assert result.numel()
    assert not [event.name for event in seen.events if "copy" in event.name]


@pytest.mark.parametrize("width", [8, 9])
def test_epilogues_and_slices(device, chosen, width):
    x, w, b = numbers((2, 17, 9, width), False), numbers((24, 16, 3, 3), False), numbers((24,), False)
    check(device, lambda x, w, b: F.relu(F.conv2d(x[:, 1:], w, b, padding=1)), x, w, b, tol=0)
    check(device, lambda x, w, b: F.conv2d(x[:, :16], w, b, padding=1).float() + 1, x, w, b, tol=0)
    check(device, lambda x, w, b: F.conv2d(x[:, :16], w, b, padding=1).bfloat16(), x, w, b, tol=0)
    assert len(chosen) == 3


def test_split_sums(device, chosen):
    check(device, F.conv2d, numbers((1, 256, 5, 5), False), numbers((16, 256, 3, 3), False), tol=0)
    assert [found.splits > 1 for found in chosen] == [True]


@pytest.mark.parametrize(
    ("name", "last"),
    [(name, last) for name in ("2d", "2d odd", "2d grouped", "1d", "transposed strided") for last in (False, True)],
)
def test_bfloat16(device, chosen, monkeypatch, name, last):
    """Scaled into float16's range; what has gaps in memory takes the other road."""
    monkeypatch.setattr(scaled, "MIN_WORK", 1)
    fn, x, w, options, _, last_runs = CASES[name]
    if last and last_runs is None:
        pytest.skip("no such format")
    inputs, weight = (numbers(shape, last).bfloat16() for shape in (x, w))
    check(device, lambda x, w: fn(x, w, **options) * 2, inputs, weight, tol=0)
    check(
        device,
        lambda x, w: fn(x, w, **options),
        inputs * 1e30,
        weight,
        backward=True,
        tol=2e-2,
        float32_reference=True,
    )
    assert len(chosen) >= 3  # a group of channels may have gaps
    chosen.clear()
    gaps = torch.cat([inputs, inputs], -1)[..., : x[-1]]
    check(device, lambda x, w: fn(x, w, **options), gaps, weight, tol=0)
    assert not chosen
