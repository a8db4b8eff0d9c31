"""What blocks of products cost, and the costs that the choice among them goes by:

    python benchmarks/tiles.py --dtype float16 > rows.jsonl      # on a GPU
    python benchmarks/tiles.py --fit rows.jsonl                  # anywhere; needs scipy

Each tile computes each product in each number of partial sums. Weights come from memory, not from a cache, as those of
a model do: a product has enough copies of its weights to fill ``--memory`` MiB, and takes them in turns. Figures are
microseconds on the GPU, one kernel after the other, as the profiler measures them. ``--fit`` prints ``RATES`` of
``kernels/matmul/matrix_tile.py`` (float16) or ``kernels/matmul/tile.py`` (float32), how well they describe what was
measured, and how much longer than the best tile takes the one that is chosen by them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from _harness import Device, is_slow

AnyTile = Any
Row = dict[str, Any]
MIB = 1 << 20
MOST_COPIES = 130
CALLS = 16
TIMESTAMPS_US = 7.0
"""What a kernel's time has in it that is not the kernel's."""
TURNS = 8
"""Workgroups of a compute unit, one after the other: more say nothing new."""
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
LEAST_CHUNK = 128
STARTS = ((1.0, 0.3, 0.9), (0.8, 2.0, 1.0), (1.5, 1.0, 1.0), (0.4, 0.7, 0.5))
"""Where a fit begins: rates as parts of the fastest that was measured."""
TOGETHER = (1, 2, 3, 4, 5)


class Product(NamedTuple):
    """Sizes of a product; which operands' lines lie across the sum: "nt" neither's, "nn" b's, "tn" both."""

    order: str
    m: int
    n: int
    k: int


PRODUCTS = (
    *(Product("nt", 512, n, k) for n, k in ((896, 896), (128, 896), (4864, 896), (896, 4864))),  # a prompt
    *(Product("nt", 1500, n, k) for n, k in ((768, 768), (3072, 768), (768, 3072))),  # Whisper
    *(Product("nt", 6304, n, k) for n, k in ((768, 768), (3072, 768), (768, 3072))),  # ViT
    *(Product("nn", 4096, n, k) for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))),  # GPT-2
    *(Product("tn", m, n, 4096) for m, n in ((768, 768), (768, 2304), (768, 3072), (3072, 768))),  # its weights
    *(Product("nt", n, n, n) for n in (1024, 2048, 4096)),
    *(Product(*sizes) for sizes in (("nt", 128, 1024, 4096), ("nt", 256, 256, 2048), ("tn", 512, 512, 8192))),
)
SMALL = (Product("nt", 64, 96, 256), Product("tn", 64, 64, 256))


class Kind(NamedTuple):
    """Tiles on subgroup matrices or on registers: all of them, their costs, a step's length, and what chooses."""

    tiles: tuple[AnyTile, ...]
    rates: dict[AnyTile, Any]
    step: Callable[[AnyTile], int]
    module: Any
    suits: Callable[[AnyTile, Product], bool]


def kind_of(dtype: str, target: Any = None) -> Kind:
    """``target``: the adapter's, which says what suits it."""
    from torch_webgpu.kernels.matmul import blocked, matmul, matrix_tile, tile
    from torch_webgpu.kernels.matmul.operand import Side
    from torch_webgpu.target import MatrixConfig

    if dtype == "float32":
        return Kind(matmul.TILES, tile.RATES, lambda tile: int(tile.k), blocked, lambda tile, product: True)
    config = (matrix_tile.config_for(target, "f16") if target else None) or MatrixConfig("f16", "f32", 16, 16, 16, 32)

    def suits(tile: AnyTile, product: Product) -> bool:
        lines = {"nt": (True, True), "nn": (True, False), "tn": (False, False)}[product.order]
        sides = Side("a", lines[0], runs=True), Side("b", lines[1], runs=True)
        return tile in matrix_tile.tiles_for(target, config, sides)

    return Kind(matrix_tile.TILES, matrix_tile.RATES, lambda tile: int(tile.step(config)), matrix_tile, suits)


@contextmanager
def choosing(kind: Kind, tile: AnyTile, splits: int) -> Iterator[None]:
    """Whatever is computed meanwhile is computed by this tile, and what was chosen before is forgotten."""
    from torch_webgpu.aten.dispatch import recipes
    from torch_webgpu.caches import Cache
    from torch_webgpu.engine.record import engine
    from torch_webgpu.ir.operation import Operation
    from torch_webgpu.kernels.matmul.tile import Blocking

    def blocking(slices: int, m: int, n: int, k: int, *rest: object) -> Blocking[AnyTile]:
        return Blocking.of(tile, splits, kind.step(tile), k)

    def forget() -> None:
        Operation._interned = WeakValueDictionary()
        engine().operations = Cache("operations of a benchmark", 1000)
        engine().plans.clear()
        recipes.clear()

    before = kind.module.blocking
    kind.module.blocking = blocking
    forget()
    try:
        yield
    finally:
        kind.module.blocking = before
        forget()


def calls_of(product: Product, device: Device, dtype: torch.dtype, memory_bytes: int) -> Callable[[int], torch.Tensor]:
    """Call ``i`` computes the product with other weights than the calls before it."""
    order, m, n, k = product

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns).to(dtype).to(device.device)

    size_bytes = dtype.itemsize * ((m + n) * k if order == "tn" else n * k)
    copies = max(2, min(MOST_COPIES, memory_bytes // size_bytes))
    if order == "tn":
        a, b = matrix(k, m), matrix(k, n)
        pairs = [(a.clone(), b.clone()) for _ in range(copies)]
        return lambda i: pairs[i % copies][0].t() @ pairs[i % copies][1]
    x, bias = matrix(m, k), matrix(1, n)[0]
    weight = matrix(n, k) if order == "nt" else matrix(k, n)
    weights = [weight.clone() for _ in range(copies)]
    if order == "nt":
        return lambda i: torch.nn.functional.linear(x, weights[i % copies], bias)
    return lambda i: torch.addmm(bias, x, weights[i % copies])


def measured(device: Device, dtype: str, products: Sequence[Product], memory_bytes: int) -> Iterator[Row]:
    from torch_webgpu.engine.record import engine
    from torch_webgpu.kernels.matmul.tile import UNITS, blocks

    kind = kind_of(dtype, engine().device(0).target)
    for product in products:
        call = calls_of(product, device, getattr(torch, dtype), memory_bytes)

        def run(call: Callable[[int], torch.Tensor] = call) -> None:
            for i in range(CALLS):
                result = call(i)
                device.submit()
            device.synchronize()
            del result

        for number, tile in enumerate(kind.tiles):
            groups = blocks(tile, product.m, product.n)
            if groups > TURNS * UNITS or not kind.suits(tile, product):
                continue
            for splits in SPLITS:
                if splits > 1 and (groups * splits > 2 * UNITS or product.k // splits < LEAST_CHUNK):
                    continue
                with choosing(kind, tile, splits):
                    run()
                    with torch.webgpu.profile() as profile:  # type: ignore[attr-defined]
                        run()
                row = {"device_name": device.name, "dtype": dtype, **product._asdict(), "tile": number}
                row |= {"sizes": f"{tile.m}x{tile.n}x{kind.step(tile)}", "splits": splits}
                row |= {"product_us": 0.0, "sum_us": 0.0}
                for kernel in profile.key_averages():
                    name = "sum_us" if "split_sum" in kernel.label else "product_us"
                    row[name] += kernel.gpu_time_us / CALLS
                yield row


def predicted_us(row: Row, tile: AnyTile, step: int, rates: Any) -> float:
    from torch_webgpu.kernels.matmul.tile import product_ns

    time_ns = product_ns(rates, tile, row["splits"], step, 1, row["m"], row["n"], row["k"])
    return TIMESTAMPS_US + time_ns / 1e3


def fitted(rows: Sequence[Row], tile: AnyTile, step: int) -> tuple[Any, float]:
    """The rates that describe a tile's rows best, and the root mean square of what they are off by."""
    from scipy.optimize import least_squares

    from torch_webgpu.kernels.matmul.tile import UNITS

    ns = [1e3 * max(row["product_us"] - TIMESTAMPS_US, 1) for row in rows]
    fastest = max(row["m"] * row["n"] * row["k"] / (UNITS * each) for row, each in zip(rows, ns, strict=True))
    best: tuple[float, Any, float] | None = None
    for together in TOGETHER:

        def off(logs: Any, together: int = together) -> list[float]:
            rates = (*(math.exp(x) for x in logs), together)
            return [math.log(predicted_us(row, tile, step, rates) / row["product_us"]) for row in rows]

        for rate, idle, full in STARTS:
            start = [math.log(x) for x in (rate * fastest, idle, full * fastest)]
            found = least_squares(off, start, loss="soft_l1", f_scale=0.1)
            if best is None or found.cost < best[0]:
                rate, idle, full = map(math.exp, found.x)
                error = math.sqrt(statistics.fmean(x * x for x in off(found.x)))
                best = found.cost, (min(rate, 99 * full), idle, full, together), error
    assert best is not None
    return best[1:]


def report(rows: Sequence[Row]) -> list[str]:
    """The fitted rates, and what choosing by them costs."""
    (dtype,) = {row["dtype"] for row in rows}
    kind = kind_of(dtype)
    lines, rates = [], {}
    for number, tile in enumerate(kind.tiles):
        own = [row for row in rows if row["tile"] == number]
        if own:
            rates[number], error = fitted(own, tile, kind.step(tile))
            rate, idle, full, together = rates[number]
            about = f"# {own[0]['sizes']}: {len(own)} figures, off by {100 * error:.0f} %"
            lines.append(f"({rate:.0f}, {idle:.2f}, {full:.0f}, {together}),  {about}")
    products: dict[Product, list[Row]] = {}
    for row in rows:
        products.setdefault(Product(*(row[name] for name in Product._fields)), []).append(row)
    longer = []
    for product, found in products.items():

        def estimate(row: Row) -> float:
            tile = kind.tiles[row["tile"]]
            return predicted_us(row, tile, kind.step(tile), rates[row["tile"]]) + row["sum_us"]

        def real(row: Row) -> float:
            return float(row["product_us"] + row["sum_us"])

        chosen, best = min(found, key=estimate), min(found, key=real)
        longer.append(real(chosen) / real(best) - 1)
        if longer[-1] > 0.05:
            what = [f"{row['sizes']} in {row['splits']}: {real(row):.1f} us" for row in (chosen, best)]
            lines.append(f"# {'x'.join(map(str, product[1:]))} {product.order}: {what[0]}; best {what[1]}")
    lines.append(f"# chosen by these a product takes {100 * statistics.fmean(longer):.1f} % longer than by the best")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fit", nargs="+", type=Path, metavar="ROWS", help="print costs that describe these rows")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--memory", type=int, default=220, metavar="MIB", help="weights of a product, all copies")
    parser.add_argument("--quick", action="store_true", help="small products, also on a software adapter: does it run")
    options = parser.parse_args()
    if options.fit:
        print("\n".join(report([json.loads(line) for file in options.fit for line in file.open(encoding="utf-8")])))
        return 0
    device = Device.of("webgpu")
    from torch_webgpu.engine.record import engine

    opened = engine().device(0)
    if is_slow(device):
        if not options.quick:
            print("tiles.py measures a GPU; the adapter is software (--quick tries it out)", file=sys.stderr)
            return 1
        opened.target = replace(opened.target, software=False)
    if options.dtype == "float16" and not opened.target.matrices:
        print("the adapter lists no subgroup matrices: only --dtype float32 has tiles here", file=sys.stderr)
        return 1
    device.wake()
    products = SMALL if options.quick else PRODUCTS
    for row in measured(device, options.dtype, products, options.memory * MIB):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
