"""Accuracy of elementary functions: ``python benchmarks/accuracy.py --device webgpu --dtype float64``.

The largest error among random arguments against mpmath's values, in units of the dtype's epsilon of the value (2⁻⁵² in
float64, 2⁻²³ in float32), on the device and on the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import mpmath
import torch

COUNT = 1000
EXACT: dict[str, tuple[Callable[..., mpmath.mpf], tuple[float, float]]] = {
    "exp": (mpmath.exp, (-700, 700)),
    "exp2": (lambda x: mpmath.mpf(2) ** x, (-1000, 1000)),
    "expm1": (mpmath.expm1, (-2, 40)),
    "log": (mpmath.log, (1e-3, 1e3)),
    "log2": (lambda x: mpmath.log(x, 2), (1e-3, 1e3)),
    "log10": (mpmath.log10, (1e-3, 1e3)),
    "log1p": (mpmath.log1p, (-0.9, 10)),
    "sin": (mpmath.sin, (-1e4, 1e4)),
    "cos": (mpmath.cos, (-1e4, 1e4)),
    "tan": (mpmath.tan, (-1e4, 1e4)),
    "asin": (mpmath.asin, (-1, 1)),
    "acos": (mpmath.acos, (-1, 1)),
    "atan": (mpmath.atan, (-30, 30)),
    "sinh": (mpmath.sinh, (-50, 50)),
    "cosh": (mpmath.cosh, (-50, 50)),
    "tanh": (mpmath.tanh, (-10, 10)),
    "asinh": (mpmath.asinh, (-50, 50)),
    "acosh": (mpmath.acosh, (1, 50)),
    "atanh": (mpmath.atanh, (-1, 1)),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), (-40, 40)),
    "erf": (mpmath.erf, (-4, 4)),
    "erfc": (mpmath.erfc, (-4, 20)),
    "erfinv": (mpmath.erfinv, (-1, 1)),
    "lgamma": (mpmath.loggamma, (0.1, 100)),
    "digamma": (mpmath.digamma, (2, 50)),
    "pow": (lambda x, y: x**y, (0.01, 20)),
}
"""By the name in torch: mpmath's function, and the interval of the (first) argument."""
NARROW: dict[str, tuple[float, float]] = {"exp": (-80, 80), "exp2": (-120, 120), "erfc": (-4, 8)}
"""Intervals of float32, where those of float64 go beyond its range."""
EXPONENTS = {torch.float64: (-50.0, 50.0), torch.float32: (-15.0, 15.0)}


def uniform(interval: tuple[float, float], dtype: torch.dtype) -> torch.Tensor:
    low, high = interval
    return (torch.rand(COUNT, dtype=torch.float64) * (high - low) + low).to(dtype)


def largest_error(values: torch.Tensor, exact: Sequence[mpmath.mpf]) -> float:
    pairs = zip(values.tolist(), exact, strict=True)
    return max(float(abs(mpmath.mpf(v) - e) / abs(e)) for v, e in pairs if e != 0) / torch.finfo(values.dtype).eps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    options = parser.parse_args()
    device, dtype = options.device, getattr(torch, options.dtype)
    torch.manual_seed(0)
    mpmath.mp.prec = 200
    print("| function | arguments | error | CPU's error |\n|---|---|---|---|")
    for name, (function, interval) in EXACT.items():
        if dtype == torch.float32:
            interval = NARROW.get(name, interval)
        arguments = [uniform(interval, dtype)] + ([uniform(EXPONENTS[dtype], dtype)] if name == "pow" else [])
        exact = [function(*map(mpmath.mpf, point)) for point in zip(*(a.tolist() for a in arguments), strict=True)]
        fn = getattr(torch, name)
        own = largest_error(fn(*(a.to(device) for a in arguments)).cpu(), exact)
        cpu = largest_error(fn(*arguments), exact)
        print(f"| `{name}` | {interval[0]:g} … {interval[1]:g} | {own:.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
