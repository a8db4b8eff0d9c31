"""``torch-webgpu compat``."""

from __future__ import annotations

import json

import pytest
import torch

from torch_webgpu import cli
from torch_webgpu.translation import compat, table
from torch_webgpu.translation.rows import TARGETS


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.main(["compat", *arguments]) == status
    return capsys.readouterr().out


def test_a_name_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "torch.cuda.memory_allocated")
    assert text.startswith("torch.cuda.memory_allocated: translated, by torch.webgpu.memory_allocated")


def test_a_question_says_who_hears_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert "libraries hear the truth" in told(capsys, "torch.cuda.is_available")


def test_part_of_a_name_lists_all_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "NVTX")
    assert "torch.cuda.nvtx.range_push: emulated" in text
    assert "torch.cuda.nvtx.mark: emulated" in text


def test_another_device_answers_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert "torch.cuda.CUDAGraph: error" in told(capsys, "torch.cuda.CUDAGraph", "--target", "cpu")


def test_without_a_name_everything_is_listed_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys)
    words = set(text.split())
    assert {row.leaf for row in table.table().values()} <= words
    assert f"{len(table.table())} names: " in text
    assert sum(compat.counts(list(table.table().values()), "webgpu").values()) == len(table.table())


def test_json_has_the_rows_for_all_devices(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(told(capsys, "--json"))
    assert [row["name"] for row in rows] == list(table.table())
    assert set(rows[0]["targets"]) == set(TARGETS)
    (row,) = json.loads(told(capsys, "torch.cuda.Stream", "--json"))
    assert row["targets"]["webgpu"]["by"] == "torch.webgpu.Stream"


def test_a_name_without_a_row_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "PyTorch's own answer stands" in told(capsys, "torch.nothing", status=1)


@pytest.mark.parametrize(
    ("name", "meant"), [("Strem", "Stream"), ("torch.cuda.synchronise", "torch.cuda.synchronize"), ("quuux", "")]
)
def test_the_nearest_name_is_offered(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, name, status=1)
    assert repr(name) in text
    assert (f"(did you mean {meant!r}?)" in text) is bool(meant)


def test_the_page_says_what_is_so_of_mlx_nested_tensors_and_quantization() -> None:
    parts = (part.partition("\n") for part in compat.page().split("\n## "))
    sections = {name: " ".join(text.split()) for name, _, text in parts}
    headers = [line for line in compat.page().splitlines() if line.startswith("| | webgpu")]
    assert headers
    assert all(line.split("|")[2:-2] == [f" {target} " for target in (*TARGETS, "mlx")] for line in headers)
    assert "an operator that has no nested kernel raises" in sections["torch.nested"]
    assert "static quantization does not work" in sections["torch.quantization"]


@pytest.mark.filterwarnings("ignore")
def test_static_quantization_is_as_the_page_says() -> None:
    quantization = torch.ao.quantization
    model = torch.nn.Sequential(quantization.QuantStub(), torch.nn.Linear(4, 4), quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = quantization.prepare(model).to("webgpu")
    prepared(torch.randn(3, 4, device="webgpu"))
    with pytest.raises(NotImplementedError, match="no kernel for quantized webgpu tensors"):
        quantization.convert(prepared)(torch.randn(3, 4, device="webgpu"))
    converted = quantization.convert(prepared.cpu())
    assert converted(torch.randn(3, 4)).shape == (3, 4)


def test_the_page_has_every_name() -> None:
    page = compat.page()
    assert all(f"`{row.leaf}`" in page for row in table.table().values())
