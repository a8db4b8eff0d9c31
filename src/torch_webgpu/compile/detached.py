"""Tensors without their gradient, which in a joint graph are the tensors themselves.

Operators that need their own result for their gradient (``tanh``, ``exp``, ``softmax``) keep it as ``detach`` gives it.
PyTorch's partitioner does not count that among what it may compute again, and so keeps such results for the backward
pass: of a GELU that is written out under autocast the ``tanh``, in float32, beside its 16-bit input, which says it all.
"""

from __future__ import annotations

from torch.fx import GraphModule

from .matching import aten, calls


def apply(gm: GraphModule) -> None:
    """Has operators of a joint graph take what was detached, which they do not write into: the graph is functional."""
    for node in list(gm.graph.nodes):
        if calls(node, aten.detach.default):
            (source,) = node.args
            # What a graph returns twice may require a gradient once.
            node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")
            if not node.users:
                gm.graph.erase_node(node)
    gm.recompile()
