"""The memory-sharing pass: temporaries that are never needed at the same time become one buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from torch_webgpu.plan import Plan, rebound, size_class, touched


def share_memory(plan: Plan, capacity: Callable[[int], int] = size_class) -> Plan:
    """The plan with one temporary for several that are never needed at the same time.

    ``capacity``: the size of the memory that serves a request for so many bytes; those share for which it is the same.
    """
    given = set(plan.arguments)
    own = [n for n, buffer in enumerate(plan.buffers) if buffer.role == "temporary" and n not in given]
    if len(own) < 2:
        return plan
    takes_place_of: dict[int, int] = {}
    sizes = {n: plan.buffers[n].size_bytes for n in own}
    free = defaultdict[int, list[int]](list)
    for number, step in enumerate(plan.steps):
        ended = []
        for b in dict.fromkeys(touched(step)):
            if b not in sizes:
                continue
            start, stop = plan.lifetimes[b]
            unused = free[capacity(plan.buffers[b].size_bytes)]
            if start == number:
                takes_place_of[b] = unused.pop() if unused else b
                shared = takes_place_of[b]
                sizes[shared] = max(sizes[shared], plan.buffers[b].size_bytes)
            if stop == number:
                ended.append((unused, takes_place_of[b]))
        for unused, shared in ended:
            unused.append(shared)
    kept = [n for n in range(len(plan.buffers)) if takes_place_of.get(n, n) == n]
    new = {old: number for number, old in enumerate(kept)}
    numbers = {n: new[takes_place_of.get(n, n)] for n in range(len(plan.buffers))}
    return replace(
        plan,
        buffers=tuple([replace(plan.buffers[n], size_bytes=sizes.get(n, plan.buffers[n].size_bytes)) for n in kept]),
        steps=tuple([rebound(step, numbers) for step in plan.steps]),
        arguments=tuple([numbers[n] for n in plan.arguments]),
        tensors=tuple([numbers[n] for n in plan.tensors]),
        inputs=tuple([replace(spec, buffer=numbers[spec.buffer]) for spec in plan.inputs]),
        outputs=tuple([replace(spec, buffer=numbers[spec.buffer]) for spec in plan.outputs]),
        constants=tuple([(numbers[n], digest) for n, digest in plan.constants]),
    )
