"""Small arguments for operators, made of their schemas: what coverage is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

Make = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes a tensor of this shape and dtype."""
Arguments = tuple[list[Any], dict[str, Any]]

SHAPES: tuple[tuple[int, ...], ...] = ((4, 4), (2, 4, 4), (2, 4, 4, 4), (4,), (), (2, 4, 4, 4, 4))
INDICES = frozenset(
    "index indices self_indices target targets offsets offset2bag bag_size max_indices input_lengths target_lengths "
    "sorter crow_indices col_indices labels other_indices".split()
)
MASKS = frozenset("mask condition attn_mask".split())
PER_CHANNEL = frozenset("weight bias running_mean running_var save_mean save_invstd mean rstd invstd".split())
"""Tensors that have an element for each channel, where an operator has channels."""
VECTORS = frozenset("vec vec1 vec2".split())
INTEGERS = {
    "dim": 0, "dim0": 0, "dim1": 0, "start_dim": 0, "num_classes": 5, "N": 2, "C": 4, "HxW": 16, "group": 2,
    "padding_idx": -1, "mode": 0, "ignore_index": -100, "end": 4, "low": 0, "high": 4, "sections": 2, "bins": 4,
    "exponent": 2, "diagonal": 0, "interpolation_mode": 0, "padding_mode": 0, "num_weights": 4, "groups": 1,
}  # fmt: skip
BOOLEANS = {"train": True, "training": True}
TEXTS = {"reduce": "sum", "mode": "constant", "indexing": "ij", "approximate": "none"}
NUMBERS = frozenset("min max".split())
"""Numbers of which at least one has to be given."""


def samples(overload: OpOverload, dtype: torch.dtype, make: Make) -> Iterator[Arguments]:
    """Arguments to try an overload with: all tensors of one shape, but for what is there once a channel.

    The n-th are of the same shapes whatever the dtype.
    """
    has_channels = any(a.name in PER_CHANNEL for a in overload._schema.arguments)
    for shape in SHAPES:
        for per_channel in (False, True) if has_channels else (False,):
            sample = Sample(overload._schema.name.removeprefix("aten::"), dtype, shape, per_channel, make)
            arguments = sample.arguments(overload)
            if arguments is not None:
                yield arguments


@dataclass(frozen=True)
class Sample:
    """One way to make arguments."""

    operator: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    per_channel: bool
    make: Make

    @property
    def spatial(self) -> tuple[int, ...]:
        """The sizes behind those of batch and channels."""
        return self.shape[2:]

    def arguments(self, overload: OpOverload) -> Arguments | None:
        """Those of the schema that have no default; None where one has a type that no values are known of."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for a in overload._schema.arguments:
            kind = str(a.type)
            if a.has_default_value() and (a.kwarg_only or "Tensor" not in kind or kind.startswith("Optional")):
                value = a.default_value
                if a.kwarg_only:
                    continue
            else:
                value = self.value(a.name, kind)
            if a.name in NUMBERS and kind == "Optional[number]":
                value = 1
            if value is NotImplemented:
                return None
            if a.kwarg_only:
                kwargs[a.name] = value
            else:
                args.append(value)
        return args, kwargs

    def value(self, name: str, kind: str) -> Any:
        """A value for an argument; NotImplemented for types that have none."""
        if kind == "Tensor":
            return self.tensor(name)
        if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            return [self.make((2,), torch.int64)] if name == "indices" else [self.tensor(name), self.tensor(name)]
        if kind.startswith("Optional"):
            return self.tensor(name) if self.per_channel and name in PER_CHANNEL and "Tensor" in kind else None
        if kind in ("List[int]", "List[SymInt]"):
            return self.sizes(name)
        if kind == "List[bool]":
            return [True, True, True]
        simple = {"bool": BOOLEANS.get(name, False), "float": 0.5, "number": 1, "str": TEXTS.get(name, NotImplemented)}
        return INTEGERS.get(name, 1) if kind in ("int", "SymInt") else simple.get(kind, NotImplemented)

    def sizes(self, name: str) -> list[int]:
        """A list of sizes, of dimensions, or of one number for each spatial dimension."""
        count = len(self.spatial)
        if name == "padding" and "_pad" in self.operator:
            return [1] * (2 * count)
        each = {"kernel_size": 2, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}
        if name in each:
            return [each[name]] * count
        if name == "output_size":
            return list(self.spatial)
        return {"dim": [0], "dims": [0], "normalized_shape": list(self.shape[-1:])}.get(name, list(self.shape))

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor for an argument of this name."""
        dtype = torch.int64 if name in INDICES else torch.bool if name in MASKS else self.dtype
        shape = self.shape
        if "nll_loss" in self.operator and name in ("target", "total_weight"):
            shape = () if name == "total_weight" else shape[:1] + shape[2:]
        elif name in VECTORS:
            shape = shape[-1:]
        elif self.per_channel and name in PER_CHANNEL:
            shape = shape[1:2] or (1,)
        elif name == "grid":
            shape = (*shape[:1], *shape[2:], len(self.spatial))
        return self.make(shape, dtype)
