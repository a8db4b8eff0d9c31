"""Buffers above what a kernel binds at once, and above what every device has; weights in several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.errors import ExportError
from torch_webgpu.export import export, folder

from .chromium import tensor_of
from .server import Site

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size_bytes", "target", "limits"),
    [
        (160 * MIB, "portable", {}),
        pytest.param(288 * MIB, "portable-large", {"maxBufferSize": 288 * MIB}, marks=pytest.mark.slow),
    ],
)
def test_a_buffer_of_several_windows(
    page: Any, folders: Path, size_bytes: int, target: str, limits: dict[str, int]
) -> None:
    """A kernel binds 128 MiB at once. State that is zero is not downloaded, so this one costs memory alone."""
    count = size_bytes // 4
    border = (128 * MIB) // 4
    places = torch.tensor([0, border - 1, border, border + 1, count - 1])
    cache = torch.zeros(count)

    def update(at: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        cache.index_put_((at,), values)
        return {"read": cache[at.flip(0)]}

    example = (torch.zeros_like(places), torch.zeros(len(places)))
    report = export(None, None, folders / "windows", programs={"update": (update, example)}, state={"cache": cache},
                    target=target, page=False)  # fmt: skip
    assert report.needs["limits"] == limits
    read, again = page.evaluate(
        """async ([url, at]) => {
          const model = await Model.load(url), values = at.map((_, k) => k + 1);
          const results = [await model.run({at, values}), await model.run({at: [...at].reverse(), values})];
          model.dispose();
          return results.map(r => packed(r.read));
        }""",
        ["/exports/windows/", places.tolist()],
    )
    assert tensor_of(read).tolist() == tensor_of(again).tolist() == [5, 4, 3, 2, 1]


def test_a_tensor_larger_than_the_targets_buffers(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Embedding(80_000, 1024)
    with pytest.raises(ExportError, match="instead: target='portable-large'"):
        export(model, torch.zeros(1, dtype=torch.int64), tmp_path / "out", weights=False)


def test_weights_in_several_files(page: Any, site: Site, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_SHARD_BYTES", 5000)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 30)).eval(), torch.randn(2, 30)
    export(model, x, folders / "shards", page=False)
    names = sorted(p.name for p in (folders / "shards").glob("model-*.safetensors"))
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    result = page.evaluate(
        "async ([url, x]) => packed((await (await Model.load(url)).run({input: x})).output)",
        ["/exports/shards/", x.tolist()],
    )
    with torch.no_grad():
        torch.testing.assert_close(tensor_of(result), model(x), rtol=1e-5, atol=2e-6)
    assert [site.requests[f"/exports/shards/{name}"] for name in names] == [1, 1]
