"""Programs whose sizes vary: the page takes the tracing that fits, and pads where that changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from torch_webgpu.export import export

from .chromium import tensor_of


class Pairs(nn.Module):
    """Two outputs: rows of both inputs, and half as many again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x) + ids[..., None]
        return {"rows": y, "twice": torch.cat([y, y], 2).flatten(1), "short": ids.to(torch.int8)}


def example(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(batch)
    return torch.randn(batch, length, 4), torch.arange(batch * length).reshape(batch, length)


@pytest.fixture(scope="module")
def pairs(folders: Path) -> str:
    dims = (Dim("batch", max=4), Dim("length", max=16))
    export(Pairs(), example(2, 3), folders / "pairs", dynamic_shapes={"x": dims, "ids": dims},
           sizes={"batch": (1, 4), "length": (3, 8)})  # fmt: skip
    return "/exports/pairs/"


RUN = """async ([url, feeds]) => {
  const model = await Model.load(url), groups = counted.createBindGroup;
  return [packedAll(await model.run(feeds)), counted.createBindGroup - groups];
}"""


@pytest.mark.parametrize("sizes", [(1, 3), (2, 3), (3, 5), (4, 8), (1, 1)])
def test_every_size_up_to_the_largest(page: Any, pairs: str, sizes: tuple[int, int]) -> None:
    inputs = example(*sizes)
    feeds = {"x": inputs[0].tolist(), "ids": inputs[1].tolist()}
    outputs, bind_groups = page.evaluate(RUN, [pairs, feeds])
    assert bind_groups == 0
    with torch.no_grad():
        expected = Pairs()(*inputs)
    for name, t in expected.items():
        torch.testing.assert_close(tensor_of(outputs[name]), t)


def test_flat_arrays_whose_sizes_another_input_tells(page: Any, pairs: str) -> None:
    inputs = example(3, 2)
    outputs = page.evaluate(
        """async ([url, x, ids]) => packedAll(await (await Model.load(url)).run({
          x: new Tensor('float32', x, [3, 2, 4]), ids: BigInt64Array.from(ids, BigInt)}))""",
        [pairs, inputs[0].flatten().tolist(), inputs[1].flatten().tolist()],
    )
    with torch.no_grad():
        torch.testing.assert_close(tensor_of(outputs["rows"]), Pairs()(*inputs)["rows"])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ("{x: [[[1, 2, 3, 4]]], ids: [[1, 2]]}", "ids is a int64 tensor of shape [1,1], not of shape [1,2]"),
        ("{x: new Float32Array(4), ids: new Int32Array(1)}", "may vary: give new Tensor"),
        ("{x: Array(5).fill(Array(3).fill([1, 2, 3, 4])), ids: Array(5).fill([1, 2, 3])}", "batch from 0 to 4, not 5"),
        ("{x: [[]], ids: [[]]}", "x is a float32 tensor of shape [1,0,4], not of shape [1,0]"),
        ("{}", "the feeds do not say"),
    ],
)
def test_sizes_that_do_not_fit(page: Any, pairs: str, feeds: str, message: str) -> None:
    error = page.evaluate(
        f"async url => {{ const m = await Model.load(url); return failure(() => m.run({feeds})); }}", pairs
    )
    assert message in error["message"]


def test_sizes_are_exact_where_padding_changes_the_result(page: Any, folders: Path) -> None:
    export(
        nn.Softmax(1), torch.randn(2, 4), folders / "exact", dynamic_shapes=({1: Dim("n", max=8)},), sizes={"n": (8,)}
    )
    result, error, signatures = page.evaluate(
        """async url => {
          const m = await Model.load(url);
          return [packed((await m.run({input: new Float32Array(16)})).output),
            await failure(() => m.run({input: new Float32Array(12)})), m.signatures];
        }""",
        "/exports/exact/",
    )
    assert torch.equal(tensor_of(result), torch.full((2, 8), 1 / 8))
    assert "forward takes n 4, 8, not 6" in error["message"]
    assert list(signatures) == ["forward"]
    assert signatures["forward"]["inputs"][0]["shape"] == [2, "n"]


def test_the_page_of_the_export(page: Any, site: Any, pairs: str) -> None:
    page.goto(f"{site.url}{pairs}index.html")
    page.wait_for_selector("html[data-state=ready]")
    assert page.locator("form").count() == 1
    assert "[batch, length, 4]" in page.inner_text("form")
    page.click("text=Check the example")
    page.wait_for_selector("html[data-difference]")
    assert float(page.get_attribute("html", "data-difference")) < 1e-5
