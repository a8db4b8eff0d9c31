"""Dynamic sizes: which dimensions of the inputs may vary, the sizes that are traced, and where padding is right.

A plan has fixed shapes. So a program with dynamic sizes is traced once for each listed size, over the same weights. A
page takes the smallest that holds what it is given. It pads with zeros only where that was seen to change nothing:
the function runs on the CPU with several fillings, and what is kept of its outputs has to be what it is without.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_webgpu.errors import ExportError

from .held import HeldTensors
from .programs import Program, TracedProgram

MOST_SIZES = 64
"""Programs that one function becomes, at most."""
_UNBOUNDED = 1 << 31


@dataclass(frozen=True)
class DynamicSize:
    """A size that varies. ``places``: input name → its dimensions of this size. ``sizes``: those that are traced."""

    name: str
    example: int
    smallest: int
    sizes: tuple[int, ...]
    places: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DynamicSizes:
    """The dynamic sizes of a program, and its tracings: a program for each combination of listed sizes."""

    program: Program
    sizes: tuple[DynamicSize, ...]

    @property
    def programs(self) -> Iterator[tuple[tuple[int, ...], Program]]:
        """Each combination of sizes, and the program whose example inputs have them. Their values are not used."""
        for sizes in itertools.product(*[s.sizes for s in self.sizes]):
            inputs = dict(self.program.inputs)
            for dynamic, size in zip(self.sizes, sizes):
                for name, dims in dynamic.places.items():
                    inputs[name] = with_size(inputs[name], dims, size)
            yield sizes, replace(self.program, name=f"{self.program.name}@{'x'.join(map(str, sizes))}", inputs=inputs)


def with_size(tensor: torch.Tensor, dims: Sequence[int], size: int) -> torch.Tensor:
    """A meta tensor of another size in some dimensions."""
    shape = [size if k in dims else n for k, n in enumerate(tensor.shape)]
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


def dynamic_sizes(
    program: Program, dynamic_shapes: Any, sizes: Mapping[str, Sequence[int]] | None
) -> DynamicSizes | None:
    """What ``dynamic_shapes``, in the spelling of :func:`torch.export.export`, says of a program's inputs.

    None if all sizes are fixed. ExportError for what does not fit the inputs, or has no sizes to trace.
    """
    places: dict[str, dict[str, list[int]]] = {}
    dims: dict[str, Any] = {}
    for name, by_dim in _specifications(program, dynamic_shapes):
        for dim, what in by_dim.items():
            if what is None or isinstance(what, int):
                continue
            own = getattr(what, "__name__", None)
            if own is None or not hasattr(what, "min") or hasattr(what, "root"):
                raise ExportError(
                    f"dynamic_shapes of {name!r} has {what!r}: torch.export.Dim('name', min=…, max=…) will do"
                )
            if not 0 <= dim < program.inputs[name].dim():
                raise ExportError(
                    f"dynamic_shapes names dimension {dim} of {name!r}, which has {program.inputs[name].dim()}"
                )
            dims[own] = what
            places.setdefault(own, {}).setdefault(name, []).append(dim)
    if unknown := set(sizes or {}) - set(dims):
        raise ExportError(f"sizes has {', '.join(sorted(unknown))}, which is no Dim of dynamic_shapes")
    if not dims:
        return None
    found = tuple([_size(program, dims[n], places[n], (sizes or {}).get(n)) for n in dims])
    count = 1
    for one in found:
        count *= len(one.sizes)
    if count > MOST_SIZES:
        raise ExportError(
            f"{count} combinations of sizes are {count} programs, and {MOST_SIZES} the most: list fewer in sizes"
        )
    return DynamicSizes(program, found)


def _specifications(program: Program, dynamic_shapes: Any) -> Iterator[tuple[str, dict[int, Any]]]:
    """Input name and dimension → Dim, of each input that ``dynamic_shapes`` tells of."""
    if not isinstance(dynamic_shapes, Mapping):
        if len(dynamic_shapes or ()) > len(program.inputs):
            raise ExportError(f"dynamic_shapes tells of {len(dynamic_shapes)} inputs: there are {len(program.inputs)}")
        dynamic_shapes = dict(zip(program.inputs, dynamic_shapes or ()))
    for name, given in dynamic_shapes.items():
        if name not in program.inputs:
            raise ExportError(f"dynamic_shapes has {name!r}: the inputs are {', '.join(program.inputs)}")
        if isinstance(given, Mapping):
            yield name, dict(given)
        elif given is not None:
            yield name, dict(enumerate(given))


def _size(program: Program, dim: Any, places: Mapping[str, list[int]], listed: Sequence[int] | None) -> DynamicSize:
    name = dim.__name__
    seen = {program.inputs[i].shape[d] for i, dims in places.items() for d in dims}
    if len(seen) > 1:
        raise ExportError(f"the example inputs have {name} as {' and '.join(map(str, sorted(seen)))}: it is one size")
    example = seen.pop()
    low, high = max(int(dim.min), 0), int(dim.max) if dim.max < _UNBOUNDED else _UNBOUNDED
    if listed is None:
        if high == _UNBOUNDED:
            raise ExportError(
                f"{name} has no largest size: say torch.export.Dim({name!r}, max=…), or list some in sizes"
            )
        first = max(low, 1)
        listed = [first << k for k in range(32) if first << k < high] + [high]
    chosen = tuple(sorted({*listed, example}))
    if chosen[0] < low or chosen[-1] > high:
        raise ExportError(
            f"{name} goes from {low} to {high}, and sizes or the example have {chosen[0]} and {chosen[-1]}"
        )
    return DynamicSize(name, example, low, chosen, {i: tuple(d) for i, d in places.items()})


def describe(
    dynamic: DynamicSizes, traced: Mapping[tuple[int, ...], TracedProgram], held: HeldTensors, has_values: bool
) -> dict[str, Any]:
    """The manifest's entry of a program with dynamic sizes. ``has_values``: whether the function can run here.

    ``padded`` of a size says how the outputs follow from it, ``{output: {dimension: [factor, summand]}}``; it is null
    where padding would change what is kept.
    """
    first = next(iter(traced.values()))
    fixed = not has_values or any(t.is_meta for t in dynamic.program.inputs.values())
    for one in traced.values():
        fixed |= one.plan.random_blocks > 0 or any(b.role == "state" for b in one.plan.buffers)
    padded = {s.name: None if fixed else relation(dynamic.program, s, held) for s in dynamic.sizes}
    owners = [(o, d) for r in padded.values() if r is not None for o, dims in r.items() for d in dims]
    if len(set(owners)) < len(owners) or not _holds(dynamic, traced, padded):
        padded = dict.fromkeys(padded)  # an output's dimension follows from two sizes: nobody can tell what to keep
    return {
        "inputs": list(first.program.inputs),
        "sizes": [
            {
                "name": s.name, "sizes": list(s.sizes), "smallest": s.smallest, "padded": padded[s.name],
                "places": {name: list(dims) for name, dims in s.places.items()},
            }
            for s in dynamic.sizes
        ],
        "programs": {"x".join(map(str, sizes)): one.program.name for sizes, one in traced.items()},
    }  # fmt: skip


Relation = dict[str, dict[int, list[int]]]


def relation(program: Program, dynamic: DynamicSize, held: HeldTensors) -> Relation | None:
    """How outputs follow from a size whose end may be padded; None if what is there changes what is kept."""
    large = next((n for n in dynamic.sizes if n >= dynamic.example and n > max(dynamic.smallest, 1)), 0)
    if not large:
        return None
    small = min(dynamic.example, large - 1)
    inputs = dict(program.inputs)
    for name, dims in dynamic.places.items():
        for dim in dims:
            inputs[name] = inputs[name].detach().cpu().narrow(dim, 0, small)
    try:
        with held.cloned(), torch.random.fork_rng(devices=[]):
            expected = program.run([t.detach().cpu() for t in inputs.values()])
            runs = []
            for filling in range(3):
                tensors = {
                    n: padded_by(t.detach().cpu(), dynamic.places.get(n, ()), large, filling) for n, t in inputs.items()
                }
                runs.append(program.run(list(tensors.values())))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None  # the function refuses such a filling
    found: Relation = {}
    for name, t in expected.items():
        other = runs[0][name]
        if other.dim() != t.dim():
            return None
        for dim, (a, b) in enumerate(zip(t.shape, other.shape)):
            factor, rest = divmod(b - a, large - small)
            if rest or factor < 0:
                return None
            if factor:
                found.setdefault(name, {})[dim] = [factor, a - factor * small]
        kept = [run[name][tuple([slice(0, n) for n in t.shape])] for run in runs]
        if not all(same(k, t) for k in kept):
            return None
    return found


def padded_by(tensor: torch.Tensor, dims: Sequence[int], size: int, filling: int) -> torch.Tensor:
    """A tensor with more at the end of some dimensions: NaN, values of its own in another order, zeros."""
    if not dims:
        return tensor
    shape = [size if k in dims else n for k, n in enumerate(tensor.shape)]
    if filling == 0 and tensor.is_floating_point():
        result = torch.full(shape, float("nan"), dtype=tensor.dtype)
    elif filling < 2 and tensor.numel():
        own = tensor.reshape(-1).flip(0) if filling else tensor.reshape(-1).roll(1)
        count = torch.Size(shape).numel()
        result = own.repeat(-(-count // own.numel()))[:count].reshape(shape)
    else:
        result = torch.zeros(shape, dtype=tensor.dtype)
    result[tuple([slice(0, n) for n in tensor.shape])] = tensor
    return result


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results differ by rounding only."""
    if not b.is_floating_point() and not b.is_complex():
        return torch.equal(a, b)
    return torch.allclose(
        a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(b.abs().nan_to_num().max()) if b.numel() else 1.0), equal_nan=True
    )


def _holds(
    dynamic: DynamicSizes, traced: Mapping[tuple[int, ...], TracedProgram], padded: Mapping[str, Relation | None]
) -> bool:
    """Whether the relations give the shapes of all tracings."""
    for sizes, one in traced.items():
        shapes = {name: t.shape for name, t in zip(one.outputs, one.plan.outputs)}
        for dynamic_size, size in zip(dynamic.sizes, sizes):
            for name, dims in (padded[dynamic_size.name] or {}).items():
                if any(shapes[name][dim] != factor * size + summand for dim, (factor, summand) in dims.items()):
                    return False
    return True
