"""What an export is: sizes, programs, and what a GPU needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportReport:
    """An exported folder.

    ``programs``: how many dispatches and clears a run of each is. ``runtime_bytes``, ``plan_bytes``: of the runtime,
    and of the manifest, the kernels and their parameters, each as they are and compressed with gzip. ``gpu_bytes``: of
    all the buffers that a page makes. ``needs``: the features and limits, in WebGPU's words, beyond what every device
    has. ``seconds``: the export took. ``warnings``: what may surprise.
    """

    folder: Path
    target: str
    programs: dict[str, int]
    kernels: int
    runtime_bytes: tuple[int, int]
    plan_bytes: tuple[int, int]
    weight_bytes: int
    gpu_bytes: int
    needs: dict[str, Any]
    seconds: float
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        programs = ", ".join(f"{name} ({steps} steps)" for name, steps in self.programs.items())
        features = [*self.needs["features"], *[f"{k} {v}" for k, v in self.needs["limits"].items()]]
        lines = [
            f"{self.folder}: for {self.target}, in {self.seconds:.1f} s",
            f"  programs  {programs}",
            f"  kernels   {self.kernels}",
            f"  runtime   {_size(self.runtime_bytes[0])}, compressed {_size(self.runtime_bytes[1])}",
            f"  plan      {_size(self.plan_bytes[0])}, compressed {_size(self.plan_bytes[1])}",
            f"  weights   {_size(self.weight_bytes)}",
            f"  GPU       {_size(self.gpu_bytes)} of buffers; needs {', '.join(features) or 'WebGPU, no more'}",
            *[f"  note: {text}" for text in self.warnings],
        ]
        return "\n".join(lines)


def _size(size_bytes: int) -> str:
    """A number of bytes for people, in decimal units as downloads are told."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"
