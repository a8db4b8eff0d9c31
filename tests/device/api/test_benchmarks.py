"""The benchmarks run, and say what they should: small versions, whose times mean nothing."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torch_webgpu.kernels.matmul.matmul import TILES

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def run(script: str, *arguments: str, timeout_s: int = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_fusion(device, tmp_path):
    """Both devices in one run: one dispatch for a chain, one an operator without fusion."""
    picture = tmp_path / "chains.png"
    found = run("fusion.py", "--quick", "--only", "chains", "--device", str(device), "--device", "cpu", "--table",
                "--plot", str(picture))  # fmt: skip
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert all(row["value"] > 0 and row["fallbacks"] == 0 for row in rows)
    assert {row["device"] for row in rows} == {str(device), "cpu"}
    counts = {
        (row["parameters"]["op"], row["device_name"].rpartition(", ")[2]): row["value"]
        for row in rows
        if row["benchmark"] == "dispatches"
    }
    wanted = {("chain of 2", "fused"): 1, ("chain of 8", "fused"): 1}
    assert counts == {**wanted, ("chain of 2", "unfused"): 2, ("chain of 8", "unfused"): 8}
    assert "GB/s" in found.stderr  # the table
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_host():
    """Counts are the same in every run, and a program in steady state makes no plans anew."""
    pytest.importorskip("wgpudawn")
    rows = []
    for _ in range(2):
        found = run("host.py", "--only", "mlp-training", "--json")
        assert found.returncode == 0, found.stderr
        rows.append(json.loads(found.stdout))
    names = ("operations", "python_calls", "c_calls", "flushes", "plan_hits", "plan_misses", "dispatches")
    first, second = ({name: row[name] for name in names} for row in rows)
    assert first == second
    assert first["plan_misses"] == 0 < first["flushes"] == first["plan_hits"]
    assert 0 < first["dispatches"] < first["operations"] < first["python_calls"]
    assert all(row["ratio"] > 0 and row["fallbacks"] == 0 for row in rows)


def test_models(monkeypatch):
    """Every model of ``compile.py`` makes a step on the CPU."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    models, harness = (importlib.import_module(name) for name in ("_models", "_harness"))
    cpu, failed = harness.Device.of("cpu"), {}
    for name, case in models.CASES.items():
        try:
            assert case(cpu, True).eager().isfinite().all()
        except ModuleNotFoundError as error:
            if error.name != "torchvision":  # which `make ecosystem` installs
                raise
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert failed == {}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_costs_of_tiles(monkeypatch, dtype):
    """Costs that are fitted to times by the model describe these, and choose the best tile of each product."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    tiles = importlib.import_module("tiles")
    kind = tiles.kind_of(dtype)
    rows = []
    for number, tile in enumerate(kind.tiles):
        for product in tiles.PRODUCTS:
            for splits in (1, 2, 4):
                row = {**product._asdict(), "dtype": dtype, "tile": number, "splits": splits, "sizes": ""}
                row["sum_us"] = 0.0
                row["product_us"] = tiles.predicted_us(row, tile, kind.step(tile), kind.rates[tile])
                rows.append(row)
    for number, tile in enumerate(kind.tiles):
        own = [row for row in rows if row["tile"] == number]
        rates, error = tiles.fitted(own, tile, kind.step(tile))
        assert error < 0.03, (tile, rates)
    (longer,) = re.findall(r"takes (\d+\.\d) % longer than by the best", tiles.report(rows)[-1])
    assert float(longer) < 1


@pytest.mark.slow
@pytest.mark.usefixtures("device")
def test_tiles():
    """Every tile computes every product, on whatever adapter there is."""
    found = run("tiles.py", "--quick", "--dtype", "float32")
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert {row["tile"] for row in rows} == set(range(len(TILES)))
    assert all(row["product_us"] > 0 for row in rows)


@pytest.mark.slow
def test_soak(device, tmp_path):
    """Two threads for half a minute: nothing differs from the CPU, nothing is left recorded or alive."""
    told = tmp_path / "soak.json"
    found = run("soak.py", "--minutes", "0.5", "--interval", "4", "--warm-up", "6", "--device", str(device),
                "--json", str(told))  # fmt: skip
    result = json.loads(told.read_text())
    # Half a minute is all warm-up to the cache of kernels, and a busy machine may compile most of it away: whether
    # memory stays flat takes a longer run to say.
    for_longer_runs = ("the process grew", "too short")
    assert [wrong for wrong in result["wrong"] if not any(text in wrong for text in for_longer_runs)] == [], (
        found.stderr
    )
    assert result["compared"] > 0
    assert found.returncode == bool(result["wrong"])
