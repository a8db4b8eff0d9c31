"""Errors of eigenvalues and singular values against float64, beside the CPU's; dispatches of plans for browsers.

    python benchmarks/eigenvalues.py

Prints the tables of docs/linalg.md. Times are benchmarks/kernels.py's matter: errors and dispatches do not depend on
the machine.
"""

from __future__ import annotations

import torch

from torch_webgpu.plan import trace
from torch_webgpu.target import named

SIZES = (8, 32, 64, 128)


def errors(a: torch.Tensor, u: torch.Tensor, values: torch.Tensor, vh: torch.Tensor) -> list[float]:
    """Of values, of the vectors' orthogonality, of the product that they give back; the largest each."""
    exact = a.double()
    u, values, vh = (t.detach().cpu().double() for t in (u, values, vh))
    true = torch.linalg.eigvalsh(exact) if torch.equal(exact, exact.mT) else torch.linalg.svdvals(exact)
    size, one = true.abs().max(), torch.eye(len(values), dtype=torch.float64)
    bases = max((u.mT @ u - one).abs().max().item(), (vh @ vh.mT - one).abs().max().item())
    return [((values - true).abs().max() / size).item(), bases, (((u * values) @ vh - exact).abs().max() / size).item()]


def eigh(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(a)
    return vectors, values, vectors.mT


def svd(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.linalg.svd(a, full_matrices=False))


def general_errors(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> list[float]:
    """Of values, of what vectors give back, as multiples of the largest eigenvalue."""
    exact = a.to(torch.complex128)
    values, vectors = values.cpu().to(torch.complex128), vectors.cpu().to(torch.complex128)
    true = torch.linalg.eigvals(exact)
    size = true.abs().max()
    nearest = (values[:, None] - true).abs().amin(0).max()
    return [(nearest / size).item(), ((exact @ vectors - vectors * values).abs().max() / size).item()]


def general() -> None:
    """The table of general matrices."""
    print("\n| function | rows | values | CPU's | residual | CPU's | dispatches |")
    print("|---|---|---|---|---|---|---|")
    torch.manual_seed(0)
    for n in SIZES:
        a = torch.randn(n, n)
        found, cpus = torch.linalg.eig(a.to("webgpu")), torch.linalg.eig(a)
        pairs = zip(general_errors(a, *found), general_errors(a, *cpus), strict=True)
        cells = [f"{value:.1e}" for pair in pairs for value in pair]
        plan = trace(torch.linalg.eig, torch.empty(n, n, device="meta"), target=named("browser"))
        print(f"| `eig` | {n} | {' | '.join(cells)} | {len(plan.steps):,} |", flush=True)


def main() -> None:
    print("| function | rows | values | CPU's | vectors | CPU's | product | CPU's | dispatches |")
    print("|---|---|---|---|---|---|---|---|---|")
    torch.manual_seed(0)
    for fn in (eigh, svd):
        for n in SIZES:
            a = torch.randn(n, n)
            a = a + a.mT if fn is eigh else a
            pairs = zip(errors(a, *fn(a.to("webgpu"))), errors(a, *fn(a)), strict=True)
            cells = [f"{value:.1e}" for pair in pairs for value in pair]
            plan = trace(fn, torch.empty(n, n, device="meta"), target=named("browser"))
            print(f"| `{fn.__name__}` | {n} | {' | '.join(cells)} | {len(plan.steps):,} |", flush=True)
    general()


if __name__ == "__main__":
    main()
