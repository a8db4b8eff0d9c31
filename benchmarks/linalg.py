"""Accuracy of factorizations, and what they cost: ``python benchmarks/linalg.py --device webgpu``.

For each function and size: the error against float64, relative in the Frobenius norm, on the device and on the CPU, in
float32; dispatches in a plan for ``--target``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_webgpu.plan import trace
from torch_webgpu.target import named

SIZES = (32, 128, 512)
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Row:
    """A function of a matrix, and what its results should give again: ``whole(results, matrix)`` and what that is."""

    name: str
    run: Callable[[torch.Tensor], Tensors]
    whole: Callable[[Tensors, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    positive: bool = False


def lower_solution(a: torch.Tensor) -> Tensors:
    return (torch.linalg.solve_triangular(a, a.mT, upper=False),)


def multiplied_lu(results: Tensors, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p, lower, upper = results
    return p @ lower @ upper, a


ROWS = (
    Row("cholesky", lambda a: torch.linalg.cholesky_ex(a)[:1], lambda r, a: (r[0] @ r[0].mT, a), positive=True),
    Row("solve_triangular", lower_solution, lambda r, a: (a.tril() @ r[0], a.mT), positive=True),
    Row("lu", lambda a: tuple(torch.linalg.lu(a)), multiplied_lu),
    Row("solve", lambda a: torch.linalg.solve_ex(a, a.mT)[:1], lambda r, a: (a @ r[0], a.mT)),
    Row("inv", lambda a: torch.linalg.inv_ex(a)[:1], lambda r, a: (r[0], torch.linalg.inv(a))),
    Row("slogdet", lambda a: torch.linalg.slogdet(a)[1:], lambda r, a: (r[0], torch.linalg.slogdet(a)[1])),
    Row("qr", lambda a: tuple(torch.linalg.qr(a)), lambda r, a: (r[0] @ r[1], a)),
    Row("qr: orthogonality", lambda a: tuple(torch.linalg.qr(a)), lambda r, a: (r[0].mT @ r[0], eye(a))),
)


def eye(a: torch.Tensor) -> torch.Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype)


def matrix(n: int, positive: bool) -> torch.Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    return a @ a.mT / n + torch.eye(n) if positive else a


def error(row: Row, results: Tensors, a: torch.Tensor) -> float:
    got, wanted = row.whole(tuple(t.cpu().double() for t in results), a.double())
    return ((got - wanted).norm() / wanted.norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--target", default="browser")
    options = parser.parse_args()
    print("| function | rows | error | CPU's error | dispatches |\n|---|---|---|---|---|")
    for row in ROWS:
        for n in SIZES:
            a = matrix(n, row.positive)
            own, cpu = error(row, row.run(a.to(options.device)), a), error(row, row.run(a), a)
            plan = trace(row.run, torch.empty(n, n, device="meta"), target=named(options.target))
            print(f"| {row.name} | {n} | {own:.1e} | {cpu:.1e} | {len(plan.steps)} |")


if __name__ == "__main__":
    main()
