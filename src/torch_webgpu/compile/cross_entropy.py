"""Cross-entropy of a training step that keeps the scores instead of their log-probabilities.

PyTorch's loss is ``nll_loss(log_softmax(x))``, and ``log_softmax``, in float32, is kept for its gradient: of a language
model's scores twice as much as these in 16 bits. All of a row that the scores do not say are its largest number and
the logarithm of the sum of ``exp(x - largest)``. Here one reduction of the scores leaves those two, the loss looks up
the targets' scores, and the gradient computes the log-probabilities again as it reads them. The two numbers are kept
apart: their sum would lose what is small beside the largest score.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from torch_webgpu.aten.dispatch.torch_abi import BACKEND_KEY
from torch_webgpu.aten.reductions.softmax import log_sum_exp, log_sum_exp_shapes

from .matching import HALVES, VIEWS, aten, calls, is_cast, new_call, value_of
from .private import is_webgpu

NONE, MEAN = 0, 1
"""Numbers of reductions."""
LOSS, LOSS_SLOPE = aten.nll_loss_forward.default, aten.nll_loss_backward.default
SLOPE = aten._log_softmax_backward_data.default
PLACES: dict[Any, int] = {LOSS: 0, LOSS_SLOPE: 1, SLOPE: 1}
"""Of log-probabilities among the arguments."""

_library = torch.library.Library("torch_webgpu", "FRAGMENT")
_library.define("log_sum_exp(Tensor self) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
_library.impl("log_sum_exp", log_sum_exp, BACKEND_KEY)
torch.library.register_fake("torch_webgpu::log_sum_exp", log_sum_exp_shapes, lib=_library)
LOG_SUM_EXP = torch.ops.torch_webgpu.log_sum_exp.default


def apply(gm: GraphModule) -> dict[str, int]:
    """Rewrites the losses of a joint graph; how many, as patterns are counted."""
    changed = sum([rewrite(node) for node in list(gm.graph.nodes) if node.target is aten._log_softmax.default])
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return {"cross-entropy": changed} if changed else {}


def rewrite(node: Node) -> bool:
    """Rewrites what uses a node's log-probabilities, if that is one loss and its gradient."""
    x, dim, _ = node.args
    value = value_of(node)
    if not is_webgpu(value) or value.dim() != 2 or value.dtype != torch.float32 or not isinstance(x, Node):
        return False
    if dim not in (1, -1) or not isinstance(value.shape[1], int) or not value.shape[1]:
        return False
    losses = [user for user in node.users if user.target is LOSS]
    if len(losses) != 1 or not any(user.target is SLOPE for user in node.users):
        return False
    if not all(is_use(user, node) for user in node.users):
        return False
    scores = Scores(node, x)
    scores.replace_loss(losses[0])
    for user in list(node.users):
        if user.target is SLOPE and isinstance(user.args[0], Node) and user.args[0].target is LOSS_SLOPE:
            scores.replace_slope(user, user.args[0])
    for user in list(node.users):
        user.replace_input_with(node, scores.log_probabilities(user, scores.x))
    return True


def is_use(user: Node, node: Node) -> bool:
    """Whether it is a call of the loss or of a gradient with a node as its log-probabilities alone."""
    return [n for n, arg in enumerate(user.args) if arg is node] == [PLACES.get(user.target, -1)] and not user.kwargs


class Scores:
    """The (N, classes) scores of log-probabilities ``node``, and what is computed of them."""

    def __init__(self, node: Node, x: Node) -> None:
        source, views = x, []
        while calls(source, *VIEWS):
            views.append(source)
            source = cast("Node", source.args[0])
        self.x, self.is_half = x, is_cast(source, (torch.float32,)) and value_of(source.args[0]).dtype in HALVES
        if self.is_half:
            self.x = cast("Node", source.args[0])
            for view in reversed(views):
                self.x = new_call(node, cast("OpOverload", view.target), self.x, *view.args[1:])
        parts = new_call(node, LOG_SUM_EXP, self.x)
        self.top, self.rest = new_call(node, getitem, parts, 0), new_call(node, getitem, parts, 1)

    def log_probabilities(self, before: Node, scores: Node) -> Node:
        """Those of some of each row's scores, in float32."""
        if self.is_half:
            scores = new_call(before, aten._to_copy.default, scores, dtype=torch.float32)
        return new_call(before, aten.sub.Tensor, new_call(before, aten.sub.Tensor, scores, self.top), self.rest)

    @staticmethod
    def targets(before: Node, target: Any, ignored: Any) -> tuple[Node, Node]:
        """Which rows count, and a class for each."""
        counts = new_call(before, aten.ne.Scalar, target, ignored)
        return counts, new_call(before, aten.where.ScalarOther, counts, target, 0)

    def replace_slope(self, slope: Node, loss_slope: Node) -> None:
        """Computes ``_log_softmax_backward_data`` of ``nll_loss_backward`` element by element: a row of the latter has
        one number that is not 0, which is also its sum.
        """
        grad, _, target, weight, reduction, ignored, total = loss_slope.args
        counts, chosen = self.targets(slope, target, ignored)
        number = new_call(slope, aten.div.Tensor, grad, total) if reduction == MEAN else grad
        if weight is not None:
            weights = new_call(slope, aten.index_select.default, weight, 0, chosen)
            number = new_call(slope, aten.mul.Tensor, number, weights)
        number = new_call(slope, aten.where.ScalarOther, counts, number, 0.0)
        value, log = value_of(slope), self.log_probabilities(slope, self.x)
        at_targets = new_call(slope, LOSS_SLOPE, number, log, target, None, NONE, ignored, total)
        share = new_call(slope, aten.exp.default, log)
        share = new_call(slope, aten.mul.Tensor, share, new_call(slope, aten.unsqueeze.default, number, 1))
        result = new_call(slope, aten.add.Tensor, at_targets, share)
        if value.dtype != torch.float32:
            result = new_call(slope, aten._to_copy.default, result, dtype=value.dtype)
        slope.replace_all_uses_with(result)
        slope.graph.erase_node(slope)

    def replace_loss(self, loss: Node) -> None:
        """Computes ``nll_loss_forward`` from the targets' scores."""
        _, target, weight, reduction, ignored = loss.args
        counts, chosen = self.targets(loss, target, ignored)
        places = new_call(loss, aten.unsqueeze.default, chosen, 1)
        found = new_call(loss, aten.gather.default, self.x, 1, places)
        losses = new_call(loss, aten.neg.default, self.log_probabilities(loss, found))
        losses = new_call(loss, aten.squeeze.dim, losses, 1)
        weights = new_call(loss, aten._to_copy.default, counts, dtype=torch.float32)
        if weight is not None:
            weights = new_call(loss, aten.index_select.default, weight, 0, chosen)
            weights = new_call(loss, aten.where.ScalarOther, counts, weights, 0.0)
            losses = new_call(loss, aten.mul.Tensor, losses, weights)
        losses = new_call(loss, aten.where.ScalarOther, counts, losses, 0.0)
        total = new_call(loss, aten.sum.default, weights)
        if reduction == NONE:
            total = new_call(loss, aten.zeros_like.default, total)
            results: Sequence[Node] = (losses, total)
        else:
            value = new_call(loss, aten.sum.default, losses)
            results = (new_call(loss, aten.div.Tensor, value, total) if reduction == MEAN else value, total)
        for user in list(loss.users):
            assert user.target is getitem
            user.replace_all_uses_with(results[cast("int", user.args[1])])
            loss.graph.erase_node(user)
        loss.graph.erase_node(loss)
