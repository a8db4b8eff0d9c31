"""Errors of eigenvalues and singular values against float64, beside the CPU's; dispatches of plans for browsers.

    python benchmarks/eigenvalues.py

Prints the table of docs/linalg.md. Times are benchmarks/kernels.py's matter: errors and dispatches do not depend on
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


if __name__ == "__main__":
    main()
