"""Programs written for CUDA, kept as people publish them, run to their ends on the device.

Each prints a line of JSON at its end: ``losses``, which fall, and numbers that are those of the CPU's unless they come
from the device's own random numbers.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
WAYS = ("run", "environment", "import")
SECONDS = 280


@dataclass(frozen=True)
class Program:
    """A script, or ``-m`` and a module, and its arguments.

    ``alike``: its numbers are the CPU's. ``on_cpu``: why it cannot be run for the CPU, if so. ``needs``: a library.
    ``quick``: part of every run. ``ways``: of :data:`WAYS`. ``unlike``: numbers of it that are not the CPU's.
    """

    command: str
    alike: bool = True
    on_cpu: str = ""
    needs: str = ""
    quick: bool = False
    ways: tuple[str, ...] = ("run",)
    unlike: tuple[str, ...] = ()


APART = "it tells the device from the CPU"

LIST = (
    Program("mnist.py --epochs 1", ways=WAYS),
    Program("nano/train.py train_tiny.py --compile=False", ways=WAYS),
    Program("-m project.train --device cuda", ways=("run", "environment"), quick=True),
    Program("activation_checkpointing.py"),
    Program("accelerate_train.py", needs="accelerate", ways=WAYS),
    Program("amp_new.py", on_cpu="the CPU's index is None"),
    Program("amp_old.py", unlike=("half",)),
    Program("checkpoint.py", on_cpu=APART),
    Program("compile_cuda.py", on_cpu="compiling takes a C++ compiler there"),
    Program("cuda_graphs.py", on_cpu="no graphs are captured there"),
    Program("data_parallel.py"),
    Program("dcgan.py --cuda --manualSeed 3", alike=False),
    Program("default_device.py", on_cpu=APART),
    Program("default_tensor_type.py", on_cpu=APART),
    Program("device_checks.py", on_cpu=APART, quick=True),
    Program("diffusers_ddpm.py", needs="diffusers"),
    Program("diffusion.py", alike=False),
    Program("dqn.py", alike=False),
    Program("extensions.py"),
    Program("hf_generate.py", needs="transformers"),
    Program("hf_trainer.py", needs="transformers"),
    Program("imagenet.py --seed 1 --gpu 0"),
    Program("loaders.py", on_cpu=APART),
    Program("measure.py", on_cpu=APART),
    Program("memory_log.py", on_cpu=APART),
    Program("nano/train.py train_tiny.py --device=cuda:0"),
    Program("old_style.py", on_cpu=APART),
    Program("profiling.py"),
    Program("reinforce.py", alike=False),
    Program("several_gpus.py", on_cpu=APART),
    Program("spawned.py"),
    Program("streams_events.py", on_cpu=APART),
    Program("super_resolution/main.py --cuda"),
    Program("vae.py", alike=False),
    Program("word_language_model.py --cuda"),
    Program("word_language_model.py --cuda --model Transformer --lr 1"),
    Program("yaml_config.py", needs="yaml"),
)


def cases() -> list[Any]:
    return [
        pytest.param(
            program,
            way,
            marks=[] if program.quick and way == "run" else pytest.mark.slow,
            id=f"{way}-{program.command}",
        )
        for program in LIST
        for way in program.ways
    ]


def result_of(command: list[str], **environment: str) -> dict[str, Any]:
    """The numbers that a program prints at its end, which is to be a good one."""
    done = subprocess.run(
        command,
        cwd=PROGRAMS,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "HF_HUB_OFFLINE": "1"}
        | os.environ
        | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    numbers: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return numbers


def run_on(device: str, words: list[str], **environment: str) -> dict[str, Any]:
    launch = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", device]
    return result_of([*launch, *words], **environment)


def with_first_line(words: list[str], folder: Path) -> list[str]:
    """A copy of the script that begins with the import, beside links to its neighbours."""
    script = PROGRAMS / words[0]
    for neighbour in script.parent.iterdir():
        if neighbour != script:
            (folder / neighbour.name).symlink_to(neighbour)
    copy = folder / script.name
    lines = script.read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines + ["import"]) if line.startswith(("import ", "from ")))
    first += lines[first].startswith("from __future__")
    copy.write_text("".join([*lines[:first], "import torch_webgpu.translate\n", *lines[first:]]))
    return [str(copy), *words[1:]]


@pytest.mark.parametrize(("program", "way"), cases())
def test_program(program: Program, way: str, tmp_path: Path) -> None:
    if program.needs and importlib.util.find_spec(program.needs) is None:
        pytest.skip(f"{program.needs} is not installed")
    words, path = program.command.split(), tmp_path / "report.json"
    wanted = {"TORCH_WEBGPU_TRANSLATE_REPORT": str(path)}
    if way == "run":
        got = run_on("webgpu", words, **wanted)
    elif way == "environment":
        got = result_of([sys.executable, *words], TORCH_WEBGPU_TRANSLATE="webgpu", **wanted)
    else:
        (folder := tmp_path / "copy").mkdir()
        got = result_of([sys.executable, *with_first_line(words, folder)], **wanted)

    report = json.loads(path.read_text())
    assert report["device"] == "webgpu"
    assert report["peak_bytes"] > 0, "the work was not done on the device"
    assert not report["fallbacks"], "operators ran on the CPU"
    assert got.get("gpu", True) is True
    assert all(math.isfinite(number) for value in got.values() for number in numbers(value))
    if losses := got.get("losses"):
        ends = max(1, len(losses) // 4)
        assert sum(losses[-ends:]) < sum(losses[:ends]), losses
    if program.alike and not program.on_cpu:
        # Uncompiled: a C++ compiler takes its time.
        expected = run_on("cpu", words, TORCH_COMPILE_DISABLE="1")
        for name in got.keys() - set(program.unlike):
            assert numbers(got[name]) == pytest.approx(numbers(expected[name]), rel=2e-2, abs=2e-3), name


def numbers(value: Any) -> list[float]:
    """All those in a value."""
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [float(value)]
