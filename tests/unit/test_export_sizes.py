"""Exports with sizes that vary: what is traced, where padding is right, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from torch_webgpu.errors import ExportError
from torch_webgpu.export import export

pytest.importorskip("safetensors", reason="exports need safetensors")

BATCH, LENGTH = Dim("batch", max=64), Dim("length", min=2, max=64)


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def causal(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def dynamic_of(model: nn.Module, x: torch.Tensor, folder: Path, **options: Any) -> Any:
    export(model, (x,), folder, **options)
    return json.loads((folder / "plan.json").read_text())["dynamic"]["forward"]


def test_powers_of_two_and_the_example_s_size(tmp_path: Path) -> None:
    found = dynamic_of(nn.Linear(4, 2), torch.randn(3, 4), tmp_path / "out", dynamic_shapes=({0: Dim("n", max=10)},))
    (size,) = found["sizes"]
    assert size["sizes"] == [1, 2, 3, 4, 8, 10]
    assert size["places"] == {"input": [0]}
    assert size["padded"] == {"output": {"0": [1, 0]}}
    assert list(found["programs"]) == ["1", "2", "3", "4", "8", "10"]


@pytest.mark.parametrize(
    ("function", "dim", "is_right"),
    [
        (lambda x: x * 2, 0, True),
        (lambda x: x.softmax(1), 0, True),
        (lambda x: x.softmax(1), 1, False),
        (lambda x: x - x.mean(1, keepdim=True), 1, False),
        (lambda x: x.amax(1), 1, False),
        (lambda x: x.flip(1), 1, False),
        (lambda x: x.cumsum(1), 1, True),
        (lambda x: x.flatten(), 0, True),
        (lambda x: x.flatten(), 1, False),
        (lambda x: x + torch.rand_like(x), 0, False),
        (lambda x: (x, x.clamp(min=0).sum()), 0, False),
        (lambda x: torch.full((), float(x.shape[0]), device=x.device), 0, False),
    ],
)
def test_where_padding_is_right(function: Any, dim: int, is_right: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = dynamic_of(
        Function(function), torch.randn(4, 4), tmp_path / "out", dynamic_shapes={"x": {dim: LENGTH}},
        sizes={"length": (2, 8)},
    )  # fmt: skip
    assert (found["sizes"][0]["padded"] is not None) == is_right


def test_causal_attention_may_be_padded_once_it_is_masked_by_selection(tmp_path: Path) -> None:
    """NaN is multiplied by zero there, so that nobody can tell: the page takes listed sizes only."""
    x = torch.randn(1, 4, 8)
    found = dynamic_of(Function(causal), x, tmp_path / "out", dynamic_shapes={"x": {1: LENGTH}}, sizes={"length": (8,)})
    assert found["sizes"][0]["padded"] is None


def test_a_program_that_writes_state_is_not_padded(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(4)
    found = dynamic_of(
        model, torch.randn(4, 4), tmp_path / "out", dynamic_shapes={"input": {0: LENGTH}}, sizes={"length": (8,)}
    )
    assert found["sizes"][0]["padded"] is None


def test_two_sizes_are_every_combination_over_one_set_of_weights(tmp_path: Path) -> None:
    model = nn.Embedding(9, 4)
    x = torch.tensor([[1, 2, 3], [4, 5, 6]])
    sizes = {"batch": (1, 4), "length": (8,)}
    found = dynamic_of(model, x, tmp_path / "out", dynamic_shapes={"input": (BATCH, LENGTH)}, sizes=sizes)
    assert list(found["programs"]) == ["1x3", "1x8", "2x3", "2x8", "4x3", "4x8"]
    assert [s["padded"] for s in found["sizes"]] == [{"output": {"0": [1, 0]}}, {"output": {"1": [1, 0]}}]
    data = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert [b["name"] for b in data["buffers"] if b["role"] == "weight"] == ["weight"]
    assert set(data["programs"]) == set(found["programs"].values())


def test_meta_weights_take_the_listed_sizes(tmp_path: Path) -> None:
    model = nn.Linear(4, 2, device="meta")
    x = torch.empty(2, 4, device="meta")
    found = dynamic_of(model, x, tmp_path / "out", dynamic_shapes=({0: BATCH},), sizes={"batch": (8,)}, weights=False)
    assert found["sizes"][0]["padded"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic_shapes": {"y": {0: BATCH}}}, "has 'y': the inputs are input"),
        ({"dynamic_shapes": ({2: BATCH},)}, "names dimension 2 of 'input', which has 2"),
        ({"dynamic_shapes": ({0: Dim("n")},)}, "has no largest size"),
        ({"dynamic_shapes": ({0: BATCH},), "sizes": {"batch": (100,)}}, "goes from 0 to 64"),
        ({"dynamic_shapes": ({0: BATCH},), "sizes": {"n": (1,)}}, "which is no Dim"),
        ({"dynamic_shapes": ({0: BATCH, 1: BATCH},)}, "3 and 4: it is one size"),
        ({"dynamic_shapes": ({0: BATCH},), "sizes": {"batch": range(1, 65)}}, ""),
        ({"dynamic_shapes": ({0: Dim("n", max=100)},), "sizes": {"n": range(1, 101)}}, "100 programs, and 64 the most"),
        ({"dynamic_shapes": ({0: "batch"},)}, "torch.export.Dim"),
    ],
)
def test_what_is_refused(options: Any, message: str, tmp_path: Path) -> None:
    if not message:
        export(nn.Linear(4, 2), torch.zeros(3, 4), tmp_path / "out", **options)
        return
    with pytest.raises(ExportError, match=message):
        export(nn.Linear(4, 2), torch.zeros(3, 4), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
