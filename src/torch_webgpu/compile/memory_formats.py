"""Layouts that are chosen over a graph: convolutions with their channels last, where the adapter's tensor cores
multiply, and rows that norms read side by side.

A convolution is a product over channels and taps. With channels last what it sums over lies side by side for every
image size and kernel, and travels in whole runs to the tensor cores, and so do its results; with channels first an
operand is gathered number by number. ``torch._inductor`` does the same under the same option (``layout_optimization``)
for the same reason. What follows a convolution keeps its layout, as operators do, so that a network's inputs and
weights are copied and little else.

An operator lays its result out as its operands lie. So what a transformer adds up lies column by column in all its
layers if convolutions begin it, and each norm copies it first (Whisper: a fifth of its time). It is copied once.

Attention reads heads where they lie: what a program copies for it (``.transpose(1, 2).contiguous()``) is not copied,
nor is then its result, which lies like the query.

What a program can see is laid out as it was: the graph's results, and the operands of operators that depend on their
layout.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from torch_webgpu import dtypes
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.conv.conv_layout import multiplications, multiplies_runs

from . import row_order
from .in_place import any_symbols, is_visible
from .matching import ATTENTION, BY_LAYOUT, aten, called, calls, is_permuted
from .partition import values
from .private import is_webgpu
from .row_order import Rows
from .strided_heads import Chain, as_view, heads

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
# Where the two tensors are among the arguments.
CONVOLUTIONS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (1, 2)}


class _LayoutError(Exception):
    """The value of ``node`` cannot be brought back to its layout: it has gaps, as a part of a tensor."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class _Choice(NamedTuple):
    """Convolutions that get channels last, results that get their rows side by side, copies that become views, and
    results of products whose rows may be in another order.
    """

    convolutions: set[Node]
    rows: set[Node]
    views: dict[Node, Chain]
    products: dict[Node, Rows]


def apply(gm: GraphModule) -> GraphModule:
    """Lays out what is better laid out otherwise in a functional graph of ATen operators with static shapes."""
    if any(any_symbols(v) for node in gm.graph.nodes for v in values(node.meta.get("val")) if is_webgpu(v)):
        return gm
    chosen = _Choice(
        set(convolutions(gm) if pays(gm) else ()), set(columns_read_as_rows(gm)), heads(gm), row_order.products(gm)
    )
    if not any(chosen):
        return gm
    kept: set[Node] = set()
    while True:
        try:
            gm.graph = _Relaid(gm, chosen, kept).graph
            break
        except _LayoutError as error:
            sources = kept.union(error.node.all_input_nodes)
            if sources == kept:
                return gm
            kept = sources
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return gm


def pays(gm: GraphModule) -> bool:
    """Whether most multiplications of the convolutions become those of tensor cores with operands in runs."""
    amounts = [(on_tensor_cores(node), work(node)) for node in convolutions(gm)]
    return 2 * sum(n for gains, n in amounts if gains) > sum(n for _, n in amounts)


def convolutions(gm: GraphModule) -> Iterator[Node]:
    """Those over two or three dimensions on webgpu."""
    for node in gm.graph.nodes:
        found = node.op == "call_function" and node.target in CONVOLUTIONS
        if found and all(is_webgpu(t) and t.dim() in FORMATS for t in operands(node)):
            yield node


def columns_read_as_rows(gm: GraphModule) -> Iterator[Node]:
    """Results of pointwise operators whose rows a norm reads, but which lie column by column."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        is_pointwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
        if not is_pointwise or not isinstance(value, torch.Tensor) or not is_webgpu(value):
            continue
        lies_in_columns = value.dim() > 1 and value.stride(-1) != 1 and is_permuted(value)
        if lies_in_columns and any(calls(u, aten.native_layer_norm.default) and u.args[0] is node for u in node.users):
            yield node


def operands(node: Node) -> list[Any]:
    """The input and the weight of a convolution, as fake tensors."""
    return [node.args[k].meta.get("val") for k in CONVOLUTIONS[node.target]]  # type: ignore[union-attr,index]


def on_tensor_cores(node: Node) -> bool:
    """Whether a convolution's operands have whole runs of channels, which tensor cores multiply."""
    x, w = operands(node)
    target = engine().device(x.device.index or 0).target
    return multiplies_runs(target, dtypes.of(x.dtype).name, w.shape, work(node))


def work(node: Node) -> int:
    """The multiplications of a convolution or of its backward pass, of strided ones a multiple."""
    x, w = operands(node)
    return multiplications((x.shape[0], w.shape[0], *x.shape[2:]), w.shape)


class _Relaid:
    """A copy of a graph, with what is ``chosen`` laid out, and the layouts of what follows from it; but those of the
    nodes ``kept``.
    """

    def __init__(self, gm: GraphModule, chosen: _Choice, kept: Container[Node]) -> None:
        self.graph = Graph(gm)
        self.graph._codegen = gm.graph._codegen
        self._copies: dict[Node, Node] = {}
        self._clones: dict[tuple[Node, torch.memory_format], Node] = {}
        self._products: dict[Node, Node] = {}
        self._chosen = chosen
        for node in gm.graph.nodes:
            self._copies[node] = copy = self._copied(node)
            if node in chosen.rows:
                self._copies[node] = self._cloned(copy, torch.contiguous_format, node)
            if node in kept:
                self._copies[node] = self._restored(node, node)

    def _copied(self, node: Node) -> Node:
        if (chain := self._chosen.views.get(node)) is not None:
            base = self._copies[chain.base]
            view = None if base.meta["val"].storage_offset() else as_view(chain, base.meta["val"])
            if view is not None:
                return self._call(aten.as_strided.default, (base, *view), node)
        if depends_on_layout(node):
            return self._restoring(node)
        if (rows := self._chosen.products.get(node)) is not None and (result := self._multiplied(node, rows)):
            return result
        inputs = {operand: self._copies[operand] for operand in node.all_input_nodes}
        if self._is_needless(node):
            return inputs[node.all_input_nodes[0]]
        for k in CONVOLUTIONS[node.target] if node in self._chosen.convolutions else ():  # type: ignore[index]
            operand = node.args[k]
            assert isinstance(operand, Node)
            inputs[operand] = self._cloned(inputs[operand], FORMATS[operand.meta["val"].dim()], node)
        copy = self.graph.node_copy(node, inputs.__getitem__)
        if any(lies_otherwise(new, old) for old, new in inputs.items()):
            try:
                copy.meta["val"] = called(copy)
            except Exception:  # noqa: BLE001 - such as of a view that there cannot be
                self.graph.erase_node(copy)
                return self._restoring(node)
        return copy

    def _multiplied(self, node: Node, rows: Rows) -> Node | None:
        """What ``node`` is of a product, multiplied in the order in which rows lie; None if that is theirs."""
        source, product = self._copies[rows.source], rows.product
        if not row_order.are_swapped(source.meta["val"]):
            return None
        if product not in self._products:
            operand = product.args[row_order.OPERAND[product.target]]  # type: ignore[index]
            assert isinstance(operand, Node)
            swapped = self._call(aten.transpose.int, (source, 0, 1), product)
            try:
                matrix = self._call(aten.view.default, (swapped, list(operand.meta["val"].shape)), product)
            except RuntimeError:  # such as of heads that lie apart
                return None
            copies = {x: self._copies[x] for x in product.all_input_nodes} | {operand: matrix}
            self._products[product] = self.graph.node_copy(product, copies.__getitem__)
        one, other, *rest = node.meta["val"].shape
        result = self._call(aten.view.default, (self._products[product], [other, one, *rest]), node)
        return self._call(aten.transpose.int, (result, 0, 1), node)

    def _is_needless(self, node: Node) -> bool:
        """Whether a copy, which no program can see, makes contiguous what has become so."""
        if node.target is not aten.clone.default or node.kwargs.get("memory_format") != torch.contiguous_format:
            return False
        (source,) = node.all_input_nodes
        copy = self._copies[source]
        return lies_otherwise(copy, source) and copy.meta["val"].is_contiguous() and not is_visible(node)

    def _restoring(self, node: Node) -> Node:
        """A copy of ``node`` whose operands lie as they did."""
        inputs = {operand: self._restored(operand, node) for operand in node.all_input_nodes}
        return self.graph.node_copy(node, inputs.__getitem__)

    def _restored(self, operand: Node, user: Node) -> Node:
        """What became of ``operand``, in its old layout."""
        copy, value = self._copies[operand], operand.meta.get("val")
        if not lies_otherwise(copy, operand):
            return copy
        if not isinstance(value, torch.Tensor) or not is_permuted(value):
            raise _LayoutError(operand)
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        if value.is_contiguous() or order == sorted(order):
            return self._cloned(copy, torch.contiguous_format, user)
        permuted = self._call(aten.permute.default, (copy, order), user)
        back = [order.index(d) for d in range(value.dim())]
        return self._call(aten.permute.default, (self._cloned(permuted, torch.contiguous_format, user), back), user)

    def _cloned(self, source: Node, format: torch.memory_format, user: Node) -> Node:
        """``source`` in a memory format; of a copy the original, if it lies so."""
        if source.meta["val"].is_contiguous(memory_format=format):
            return source
        key = source, format
        if key not in self._clones:
            self._clones[key] = self._call(aten.clone.default, (source,), user, memory_format=format)
        return self._clones[key]

    def _call(self, target: Any, args: tuple[Any, ...], user: Node, **kwargs: Any) -> Node:
        """A call that is needed for what ``user`` was."""
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {name: value for name, value in user.meta.items() if name not in ("val", "tensor_meta")}
        made.meta["val"] = called(made)
        return made


def depends_on_layout(node: Node) -> bool:
    """Whether what a node gives depends on how its operands lie in memory, or may: so it is with random numbers, but
    for attention's, and with what is no ATen operator.
    """
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op == "output"
    if not isinstance(node.target, OpOverload) or node.target in BY_LAYOUT:
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags and node.target not in ATTENTION


def lies_otherwise(copy: Node, operand: Node) -> bool:
    """Whether a node of the new graph has another layout than that of the old one."""
    pairs = zip(values(copy.meta.get("val")), values(operand.meta.get("val")), strict=True)
    return any(isinstance(a, torch.Tensor) and a.stride() != b.stride() for a, b in pairs)
