"""What runs where: operators × dtypes, each by a kernel, composed of other operators, or on the CPU.

Nothing is kept in a list: each operator is called with small tensors of a device that is only described, which records
and runs nothing, and forbids the CPU.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.refusals import cpu_forbidden
from torch_webgpu.aten.dispatch.torch_abi import is_out
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tracing import trace
from torch_webgpu.errors import DTypeNotSupportedError, FallbackError, TraceError, UnsupportedDtypeError
from torch_webgpu.target import named

from .operators import Way, functional, get_op_info, list_ops, way_of
from .samples import Make, samples

DTYPES: tuple[torch.dtype, ...] = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
TARGET = "lavapipe"
"""A target with 16- and 64-bit floats and 64-bit integers."""
FIRST_TRIED = (torch.float32, torch.int64, torch.bool, torch.complex64)
SHOWN: dict[Way | None, str] = {"native": "n", "composed": "c", "CPU": "cpu", None: "–"}


class TriedError(Exception):
    """Ends a trace once everything was tried."""


@dataclass(frozen=True)
class OpCoverage:
    """How an operator runs: in general, and for each dtype, None for one that is refused.

    Of per-element operators it is known which dtypes PyTorch's CPU refuses, too. What others would run on the CPU, it
    may refuse.

    ``dtypes`` is empty for an operator that could not be tried: its arguments are not told by its schema.
    """

    name: str
    kind: str
    module: str
    way: Way
    dtypes: dict[str, Way | None]


@dataclass(frozen=True)
class CoverageReport:
    """The coverage of operators. ``str()`` is a summary, :meth:`table` Markdown, :meth:`to_json` everything."""

    target: str
    operators: tuple[OpCoverage, ...]

    def count(self) -> dict[str, int]:
        """How many operators run in each way."""
        return dict(Counter(one.way for one in self.operators))

    def __str__(self) -> str:
        tried = [one for one in self.operators if one.dtypes]
        ways = ", ".join(f"{number} {way}" for way, number in sorted(self.count().items()))
        lines = [f"{len(self.operators)} operators for the target {self.target!r}: {ways}; {len(tried)} tried"]
        for name in dict.fromkeys(name for one in tried for name in one.dtypes):
            seen = Counter(one.dtypes[name] for one in tried)
            lines.append(f"  {name:<10}" + "  ".join(f"{way or 'refused'} {seen[way]}" for way in SHOWN if seen[way]))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "target": self.target,
            "counts": self.count(),
            "operators": [dict(vars(one), dtypes=dict(one.dtypes)) for one in self.operators],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Everything, as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def table(self, names: Iterable[str] | None = None) -> str:
        """A table in Markdown: an operator a row, a dtype a column."""
        wanted = None if names is None else set(names)
        columns = list(dict.fromkeys(name for one in self.operators for name in one.dtypes))
        lines = [f"| operator | {' | '.join(map(short, columns))} |", "|---" * (len(columns) + 1) + "|"]
        for one in self.operators:
            if wanted is None or one.name in wanted:
                cells = [SHOWN[one.dtypes[name]] if one.dtypes else SHOWN_UNTRIED[one.way] for name in columns]
                lines.append(f"| `{one.name.removeprefix('aten::')}` | {' | '.join(cells)} |")
        return "\n".join(lines)


SHOWN_UNTRIED: dict[Way, str] = {way: f"{SHOWN[way]}?" for way in ("native", "composed", "CPU")}


def short(dtype: str) -> str:
    """A dtype's name in a narrow column."""
    return {"bfloat16": "bf16", "complex64": "c64"}.get(dtype, dtype.replace("float", "f").replace("uint", "u").replace(
        "int", "i"
    ))  # fmt: skip


def coverage_report(
    names: Sequence[str] | None = None, *, dtypes: Sequence[torch.dtype] = DTYPES, target: str = TARGET
) -> CoverageReport:
    """How operators run on a GPU, for each dtype: "native", "composed" of other operators, or "CPU".

    Args:
        names: operators; by default those of ``aten`` that have kernels of their own, and all of the program's.
        dtypes: of the tensors they are called with; none are tried for an empty sequence.
        target: a described GPU (``torch-webgpu doctor --target``).

    Nothing runs. It takes some seconds for all operators.
    """
    if names is None:
        own = [name for name in list_ops(namespace=None) if not name.startswith("aten::")]
        names = [*list_ops(way="native"), *(name for name in own if get_op_info(name).definition is not None)]
    infos = [get_op_info(name) for name in names]
    overloads = [functional(info.overloads.values()) for info in infos]
    ways = _tried(overloads, dtypes, target) if dtypes else [{} for _ in infos]
    rows = [OpCoverage(i.name, i.kind, i.module, i.way, found) for i, found in zip(infos, ways, strict=True)]
    return CoverageReport(target, tuple(sorted(rows, key=lambda row: row.name)))


def check_dtype(overload: OpOverload, dtype: torch.dtype, target: str = TARGET) -> None:
    """DTypeNotSupportedError, a TypeError, where an overload has no kernel for a dtype, as far as it can be tried."""
    (found,) = _tried([[overload]], [*FIRST_TRIED, dtype], target)
    if found and found.get(_name(dtype)) != "native":
        for_these = [one for one, way in found.items() if way == "native"]
        raise DTypeNotSupportedError(
            f"{overload.name()} has no kernel for {dtype}, only for others such as {', '.join(for_these)}"
        )


def _tried(
    operators: Sequence[Sequence[OpOverload]], dtypes: Sequence[torch.dtype], target: str
) -> list[dict[str, Way | None]]:
    """For each operator, given as its overloads, how it runs for each dtype."""
    index = engine().describe(named(target))
    found: list[dict[str, Way | None]] = []

    def run() -> None:
        with cpu_forbidden(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make = partial(_make, torch.device("webgpu", index))
            found.extend(_try_operator(overloads, dtypes, make) for overloads in operators)
        raise TriedError

    with suppress(TriedError):
        trace(engine(), index, run, ())
    return found


def _make(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    fill = torch.ones if dtype.is_floating_point or dtype.is_complex else torch.zeros
    return fill(shape, dtype=dtype, device=device)


def _try_operator(overloads: Sequence[OpOverload], dtypes: Sequence[torch.dtype], make: Make) -> dict[str, Way | None]:
    """How an operator runs for each dtype; empty where no arguments for it are known."""
    for overload in [one for one in overloads if not is_out(one)][:3]:
        for first in FIRST_TRIED:
            for number, sample in enumerate(samples(overload, first, make)):
                if _try(overload, *sample) is not None:
                    return {_name(dtype): _try_dtype(overload, dtype, number, make) for dtype in dtypes}
    return {}


def _try_dtype(overload: OpOverload, dtype: torch.dtype, number: int, make: Make) -> Way | None:
    try:
        args, kwargs = next(islice(samples(overload, dtype, make), number, None))
        way = _try(overload, args, kwargs)
    except (UnsupportedDtypeError, FallbackError):
        return None
    if way == "CPU" and torch.Tag.pointwise in overload.tags:
        on_cpu = next(islice(samples(overload, dtype, _ones_on_cpu), number, None))
        return way if _runs(overload, *on_cpu) else None
    return way


def _ones_on_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cpu")


def _try(overload: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Way | None:
    """How a call runs; None where it is refused."""
    try:
        overload(*args, **kwargs)
    except FallbackError:
        return "CPU"
    except TraceError:  # it reads values, as operators do whose results' sizes depend on them
        pass
    except Exception:  # noqa: BLE001 whatever it is, these arguments are refused
        return None
    return way_of(overload)


def _runs(overload: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> bool:
    try:
        overload(*args, **kwargs)
    except Exception:  # noqa: BLE001 as above
        return False
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
