"""Matrix products in 16 bits whose lines do not fill runs of 16 bytes, padded with zeros: scores over 50,257 words.

Tensor cores take their operands in whole runs. Where lines of an operand or of the result start anywhere, its numbers
travel one by one, which takes twice as long as the products themselves. So operands are padded with zeros up to the
next run as they are computed, and the result is a part of what is computed. PyTorch's Inductor does the same for the
same reason (``torch/_inductor/fx_passes/pad_mm.py``).

What a program can see lies as it did: a product that a graph returns is not padded for its own lines.

What is computed element by element of a padded product, and padded for the next one, is computed at the padded size
(:mod:`.padded_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_webgpu import dtypes
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul.matrix_tile import config_for
from torch_webgpu.kernels.matmul.operand import run_of
from torch_webgpu.kernels.matmul.scaled import operand_for

from . import padded_columns
from .matching import BY_LAYOUT, HALVES, VIEWS, aten, calls, new_call, value_of
from .private import is_webgpu

MIN_WORK = 1 << 32
"""Multiplications from which it is worth copying operands to pad them: 30 µs of a large GPU."""
TRANSPOSES = (aten.t.default, aten.permute.default, aten.transpose.int)
Copies = dict[tuple[Node, str, str], Node]
"""Padded tensors by what they are of and by their sizes."""


def apply(gm: GraphModule) -> dict[str, int]:
    """Pads the products of a joint or an inference graph where that pays; how many, as patterns are counted."""
    copies: Copies = {}
    products = [node for node in gm.graph.nodes if calls(node, aten.mm.default) and is_worth(node)]
    changed = sum([pad(node, copies) for node in products])
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return {"padded product": changed} if changed else {}


def is_worth(node: Node) -> bool:
    """Whether a product is large, in 16 bits, and on tensor cores."""
    values = [value_of(x) for x in (node, *node.args)]
    if not all(is_webgpu(value) and value.dim() == 2 and value.dtype in HALVES for value in values):
        return False
    result, a, _ = values
    work = prod(hint_of(size) for size in (*result.shape, a.shape[1]))
    target = engine().device(result.device.index or 0).target
    return work >= MIN_WORK and config_for(target, operand_for(dtypes.of(result.dtype).name, work)) is not None


def hint_of(size: Any) -> int:
    """A size, or what a symbol is at the first call; 0 where that is not known."""
    found = getattr(getattr(size, "node", None), "hint", size)
    return found if isinstance(found, int) else 0


def pad(node: Node, copies: Copies) -> bool:
    """Pads a product whose lines do not fill runs. ``copies``: of operands, that are padded already."""
    a, b = map(Operand.of, node.args)
    if a is None or b is None:
        return False
    value = value_of(node)
    run = run_of(dtypes.of(value.dtype).name)
    sizes = {"m": a.rows, "n": b.columns, "k": a.columns}
    padded = sizes | {x: whole_runs(sizes[x], run) for x in ("m" if a.is_turned else "k", "k" if b.is_turned else "n")}
    columns = whole_runs(b.columns, run)
    views = views_of(node, value.new_empty_strided(value.shape, (columns, 1)))
    padded["n"] = columns if views is not None else b.columns
    if all(padded[x] is size or padded[x] == size for x, size in sizes.items()):
        return False
    first, second = a.padded(padded["m"], padded["k"], node, copies), b.padded(padded["k"], padded["n"], node, copies)
    product = new_call(node, aten.mm.default, first, second)
    for dim, x in enumerate("mn"):
        if isinstance(sizes[x], int) and padded[x] != sizes[x]:
            product = new_call(node, aten.slice.Tensor, product, dim, 0, sizes[x])
    node.replace_all_uses_with(product)
    node.graph.erase_node(node)
    for view, result in (views or {}).items():
        view.meta["val"] = result
        view.meta.pop("tensor_meta", None)
    padded_columns.sum_whole_lines(product)
    return True


def whole_runs(size: Any, run: int) -> Any:
    """A size, rounded up to runs; symbols, and what has no whole run, as they are."""
    return -(-size // run) * run if isinstance(size, int) and size >= run else size


def views_of(node: Node, value: torch.Tensor) -> dict[Node, torch.Tensor] | None:
    """What the views of a node are once that lies as ``value`` does; None where one cannot be, or a program sees it."""
    found: dict[Node, torch.Tensor] = {}
    for user in node.users:
        if user.op == "output" or user.target in BY_LAYOUT:
            return None
        if not isinstance(user.target, OpOverload) or not (user.target.is_view or user.target in VIEWS):
            continue
        args, kwargs = map_arg((user.args, user.kwargs), lambda x: value if x is node else value_of(x))
        try:
            found[user] = user.target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - of a view that there cannot be
            return None
        further = views_of(user, found[user])
        if further is None:
            return None
        found.update(further)
    return found


@dataclass(frozen=True)
class Operand:
    """A matrix of ``rows`` x ``columns`` that is row-major tensor ``source``, or that transposed (``is_turned``)."""

    source: Node
    rows: Any
    columns: Any
    is_turned: bool

    @staticmethod
    def of(node: Any) -> Operand | None:
        """None of a matrix that lies otherwise."""
        rows, columns = value_of(node).shape
        while node.target in TRANSPOSES and node.args[0].target in TRANSPOSES:  # of matrices: one undoes the other
            node = node.args[0].args[0]
        is_turned = node.target in TRANSPOSES and not value_of(node).is_contiguous()
        source = node.args[0] if is_turned else node
        is_whole = value_of(source).dim() == 2 and value_of(source).is_contiguous()
        return Operand(source, rows, columns, is_turned) if is_whole else None

    def padded(self, rows: Any, columns: Any, before: Node, copies: Copies) -> Node:
        """It with zeros up to so many rows and columns."""
        down, across = (columns, rows) if self.is_turned else (rows, columns)
        key = self.source, str(down), str(across)
        if key not in copies:
            copy = self.source
            columns = value_of(copy).shape[1]
            if across != columns:
                copy = padded_columns.with_zeros(copy, across, before) or copy
            for dim, size in ((1, across), (0, down)):
                known = value_of(copy).shape[dim]
                if isinstance(known, int) and size != known:
                    part = new_call(before, aten.slice.Tensor, copy, dim, 0, size - known)
                    zeros = new_call(before, aten.zeros_like.default, part)
                    copy = new_call(before, aten.cat.default, [copy, zeros], dim)
            copies[key] = copy
        return new_call(before, aten.permute.default, copies[key], [1, 0]) if self.is_turned else copies[key]
