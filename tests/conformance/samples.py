"""Which inputs an operator is tried on: a small cover of PyTorch's own samples, and the layouts those leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any
from zlib import crc32

import torch
from torch.utils import _pytree as pytree

# Some generators run into thousands of samples, or millions of elements: the choice is among the first, small ones.
MAX_CANDIDATES = 300
MAX_ELEMENTS = 20_000


# PyTorch asks for the tensors among their arguments on the CPU, whatever the device of the first.
HOST_ARGS = frozenset({"tensor_split"})

_CRASHES = "CPU PyTorch crashes"
_OVERRUNS = "CPU PyTorch writes past the end of a strided batch of matrices"
_CONTIGUOUS = "the CPU's kernel takes contiguous inputs only, which is no promise of the operator"
_WRITES = "it writes to its weight, and what that leaves in elements that share memory is not defined"
_ACCESSOR = "the CPU's kernel does not resize, and fails in its own arithmetic"
_MKL = "MKL refuses empty batches as an inconsistent configuration; PyTorch's other libraries give empty results"
_TRANSFORMS = [f"{kind}{dims}" for kind in "fft ifft rfft irfft hfft ihfft".split() for dims in ("", "2", "n")]

# Where the CPU cannot be asked: for an operator, layouts of the inputs or of ``out=``, and why.
NO_REFERENCE: dict[str, dict[str, str]] = {
    "native_batch_norm": {"empty": _CRASHES, "wrong shape": _ACCESSOR},
    "_native_batch_norm_legit": {"empty": _CRASHES, "wrong shape": _ACCESSOR},
    "normal.number_mean": {"empty": _ACCESSOR, "wrong shape": _ACCESSOR},
    "native_group_norm": {"transposed": _CONTIGUOUS, "sliced": _CONTIGUOUS, "expanded": _CONTIGUOUS},
    "nn.functional.embedding": {"expanded": _WRITES},
    "_chunk_cat": {"scalar": _CRASHES},
    "tril": {"transposed": _OVERRUNS, "sliced": _OVERRUNS},
    "triu": {"transposed": _OVERRUNS, "sliced": _OVERRUNS},
    "lu_unpack": {"transposed": _OVERRUNS, "sliced": _OVERRUNS},
    "linalg.lu": {"transposed": _OVERRUNS, "sliced": _OVERRUNS},
    **{f"fft.{name}": {"empty": _MKL} for name in _TRANSFORMS},
}


@dataclass(frozen=True)
class Sample:
    """One call: ``op(input, *args, **kwargs)`` on CPU tensors.

    ``derived`` samples have other values or shapes than PyTorch's own: where the CPU refuses one, how is left open.
    With ``host_args`` only ``input`` goes to the device: PyTorch wants the other tensors on the CPU.
    """

    label: str
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process_output: Callable[[Any], Any]
    derived: bool = False
    host_args: bool = False

    @property
    def tree(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        return self.input, self.args, self.kwargs

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in pytree.tree_leaves(self.tree) if isinstance(leaf, torch.Tensor)]

    def describe(self) -> str:
        """The call in one line, tensors as ``float32[2, 3]``, strides added where they are not the usual ones."""
        args = [_short(arg) for arg in (self.input, *self.args)] + [f"{k}={_short(v)}" for k, v in self.kwargs.items()]
        return f"sample {self.label}: ({', '.join(args)})"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return text if value.layout != torch.strided or value.is_contiguous() else f"{text}~{value.stride()}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)


def choose(op: Any, dtype: torch.dtype, count: int, *, requires_grad: bool = False) -> list[Sample]:
    """``count`` of PyTorch's samples for ``op``, those that differ most from each other first."""
    candidates = [
        Sample(
            str(index),
            *_on_cpu((s.input, s.args, s.kwargs)),
            s.output_process_fn_grad,
            host_args=op.name in HOST_ARGS,
        )
        for index, s in enumerate(islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), MAX_CANDIDATES))
    ]
    small = [s for s in candidates if sum(t.numel() for t in s.tensors) <= MAX_ELEMENTS]
    if requires_grad and op.name in DEFINED_GRADIENT:
        small = [s for s in small if DEFINED_GRADIENT[op.name](s)]
    return _cover(small or candidates[:1], count)


def _no_ties(sample: Sample) -> bool:
    """Whether ``topk`` has no equal values to choose from: which of them get the gradient is open."""
    x, k, dim = sample.input, *sample.args[:1], *(sample.args[1:2] or (-1,))
    largest = sample.args[2] if len(sample.args) > 2 else True
    if not x.dim():
        return True
    ranked = x.detach().sort(dim, descending=largest).values.narrow(dim, 0, min(k + 1, x.shape[dim]))
    return not (ranked.diff(dim=dim) == 0).any()


# For which samples of an operator PyTorch says what the gradient is, where that is not all of them.
DEFINED_GRADIENT: dict[str, Callable[[Sample], bool]] = {"topk": _no_ties}


def _on_cpu(tree: Any) -> Any:
    """The arguments with the CPU in the place of devices that PyTorch adds where the machine has them (``to``)."""
    return pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), tree)


def _cover(candidates: list[Sample], count: int) -> list[Sample]:
    """Greedy set cover over the features of the samples, then the remaining ones in order."""
    features = {s.label: _features(s) for s in candidates}
    chosen: list[Sample] = []
    seen: set[Any] = set()
    remaining = list(candidates)
    while remaining and len(chosen) < count:
        best = max(remaining, key=lambda s: len(features[s.label] - seen))
        seen |= features[best.label]
        chosen.append(best)
        remaining.remove(best)
    return chosen


def _features(sample: Sample) -> set[Any]:
    leaves, spec = pytree.tree_flatten(sample.tree)
    features: set[Any] = {str(spec)}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            features |= {(index, leaf.dtype, leaf.dim()), (index, "empty", leaf.numel() == 0)}
            features |= {(index, "shape", tuple(leaf.shape)), (index, "requires_grad", leaf.requires_grad)}
            features.add((index, "strided", leaf.layout == torch.strided and not leaf.is_contiguous()))
        else:
            features.add((index, repr(leaf)))
    return features


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same values, with the strides of the reversed dimensions."""
    order = tuple(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


def sliced(t: torch.Tensor) -> torch.Tensor:
    """The same values at every second element of a larger storage, starting at an odd offset."""
    shape = (*t.shape[:-1], 2 * t.shape[-1] + 1) if t.dim() else (3,)
    base = torch.full(shape, 1, dtype=t.dtype)
    view = base[..., 1::2] if t.dim() else base[1]
    return view.copy_(t)


def expanded(t: torch.Tensor) -> torch.Tensor:
    """The first slice, repeated with stride 0 along the first dimension that is longer than 1."""
    for dim, size in enumerate(t.shape):
        if size > 1:
            return t.narrow(dim, 0, 1).contiguous().expand(t.shape)
    return t


def offset(t: torch.Tensor) -> torch.Tensor:
    """The same values side by side, from the third element of a storage on."""
    return torch.zeros(t.numel() + 3, dtype=t.dtype)[3:].view(t.shape).copy_(t)


def part(t: torch.Tensor) -> torch.Tensor:
    """The same values as a part of longer rows."""
    return torch.zeros((*t.shape[:-1], t.shape[-1] + 3), dtype=t.dtype)[..., 1:-2].copy_(t) if t.dim() else offset(t)


def lazy(t: torch.Tensor) -> torch.Tensor:
    """The same values, whose conjugation or negation is a bit that is not carried out."""
    if t.is_complex():
        return t.conj().resolve_conj().conj()
    return torch._neg_view(-t) if t.is_floating_point() else t


def scalar(t: torch.Tensor) -> torch.Tensor:
    """The first element, 0-dim."""
    return t[(0,) * t.dim()].clone() if t.numel() else t


def empty(t: torch.Tensor) -> torch.Tensor:
    """No rows."""
    return t[:0].clone() if t.dim() else t


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed,
    "sliced": sliced,
    "expanded": expanded,
    "scalar": scalar,
    "empty": empty,
}
MIXED = "mixed"
"""A layout in which each tensor has one of its own: kernels take one for the other only where they differ."""
_MIXTURE = (transposed, part, lazy, offset, sliced, expanded)
_KEEPS_VALUES = frozenset({"transposed", "sliced"})


def relayout(sample: Sample, layout: str, dtype: torch.dtype) -> Sample | None:
    """``sample`` in another layout, or None where that makes no difference.

    ``expanded`` repeats values, so it leaves index tensors alone: repeated indices make scatters ambiguous.
    """
    first = crc32(sample.describe().encode())
    changes = cycle(_MIXTURE[(first + k) % len(_MIXTURE)] for k in range(len(_MIXTURE)))
    changed = False

    def leaf(value: Any) -> Any:
        nonlocal changed
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        change = next(changes) if layout == MIXED else LAYOUTS[layout]
        if change is expanded and (value.dtype != dtype or (not dtype.is_floating_point and value is not sample.input)):
            return value
        result = change(value.detach())
        if _geometry(result) == _geometry(value):
            return value
        changed = True
        return result.requires_grad_(value.requires_grad)

    tree = pytree.tree_map(leaf, sample.tree)
    if not changed:
        return None
    label = f"{sample.label} {layout}"
    return replace(
        sample, label=label, input=tree[0], args=tree[1], kwargs=tree[2], derived=layout not in _KEEPS_VALUES
    )


def _geometry(t: torch.Tensor) -> tuple[Any, ...]:
    return t.size(), t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()


def with_layouts(op: Any, chosen: list[Sample], dtype: torch.dtype, layouts: tuple[str, ...]) -> Iterator[Sample]:
    """The chosen samples, then for each layout the first of them that it changes."""
    yield from chosen
    for layout in layouts:
        missing = NO_REFERENCE.get(op.full_name, {})
        unasked = layout in missing or (layout == MIXED and not missing.keys().isdisjoint(("transposed", "expanded")))
        if unasked or (layout in ("scalar", "empty") and any(_has(s, layout) for s in chosen)):
            continue
        candidates = (relayout(s, layout, dtype) for s in sorted(chosen, key=_richness, reverse=True))
        yield from islice((s for s in candidates if s is not None), 1)


def _has(sample: Sample, layout: str) -> bool:
    if not isinstance(sample.input, torch.Tensor):
        return False
    return sample.input.dim() == 0 if layout == "scalar" else sample.input.numel() == 0


def _richness(sample: Sample) -> int:
    """Dimensions of the first tensor, if it has elements: a layout shows most on the sample with the most of them."""
    first = next(iter(sample.tensors), None)
    return first.dim() if first is not None and first.numel() > 1 else -1
