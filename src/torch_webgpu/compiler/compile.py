"""The compiler's front door: ``compile(graph, target, options) -> Plan``, one list of passes and no GPU.

========================= ==============================================================================================
``match_and_fuse``        calls that have a pattern get its function; per-element calls join each other's kernels,
                          reductions take what feeds and follows them, products their epilogues, lists each other
``choose_tiles_together`` products that can run as one dispatch choose their tile together
``lower``                 each fused call becomes dispatches of kernels; buffers get roles
``fuse_horizontally``     independent dispatches that do not fill a GPU become one, where the options say so
``share_memory``          temporaries that are never needed at the same time become one
``require``               what the plan needs of a target
``verify``                nothing is wrong with it. These two are for plans of whole functions, which travel; for
                          batches, which run where they were compiled, under ``TORCH_WEBGPU_DEBUG=verify``
========================= ==============================================================================================

``TORCH_WEBGPU_DEBUG=passes`` prints what each was given and what it made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from torch_webgpu.compiler.fuse.fuser import described, fuse
from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.compiler.fuse.patterns import Matcher
from torch_webgpu.compiler.passes.horizontal_fusion import fuse_horizontally
from torch_webgpu.compiler.passes.joint_tiles import choose_tiles_together
from torch_webgpu.compiler.passes.lowering import arguments_of, lists_of, lower_graph
from torch_webgpu.compiler.passes.require import requirements
from torch_webgpu.compiler.passes.share_memory import share_memory
from torch_webgpu.config import config, is_printed, print_stage
from torch_webgpu.ir.graph import Argument, Graph
from torch_webgpu.plan import Plan, check
from torch_webgpu.target import Target

from .options import DEFAULT, Options

PassResult = TypeVar("PassResult")
PlanPass = Callable[[Plan], Plan]
Blame = Callable[[tuple[int, ...]], None]
"""Is told which of a graph's calls cannot be lowered, before the error is raised."""


class Compilation:
    """A graph on its way to a plan for a target, and what the passes made of it.

    ``fused``: the fused calls; ``lists``: the numbers of the graph's lists that lie in memory; ``patterns``: named
    chains and how often each occurred.
    """

    def __init__(self, graph: Graph, target: Target, options: Options, blame: Blame | None = None) -> None:
        self.graph, self.target, self.options, self._blame = graph, target, options, blame
        matcher = Matcher(options.patterns)
        self.fused = _shown("match_and_fuse", graph, match_and_fuse(graph, target, options, matcher))
        self.patterns = tuple(matcher.counts.items())
        whole = graph.interface is not None or not _fuses(graph, options)
        self.lists = tuple(range(len(graph.lists))) if whole else lists_of(self.fused, graph)
        self.layout = graph.laid_out(self.lists)

    @cached_property
    def plan(self) -> Plan:
        """What is fused, lowered, and put through the passes from plan to plan.

        Raises what a kernel raises that cannot be written for the target, after ``blame`` was told whose it is.
        """
        plan = _shown("lower", self.fused, self._lower())
        passes: list[tuple[str, PlanPass]] = []
        if self.options.horizontal:
            passes.append(("fuse_horizontally", partial(fuse_horizontally, target=self.target)))
        passes.append(("share_memory", share_memory))
        if self.graph.interface is not None or "verify" in config().debug:
            passes += [("require", self._require), ("verify", check)]
        for name, plan_pass in passes:
            plan = _shown(name, plan, plan_pass(plan))
        return plan

    def _lower(self) -> Plan:
        try:
            fused = self.fused
            if self.options.horizontal:
                joint = choose_tiles_together(fused, self.graph, self.layout, self.target)
                fused = _shown("choose_tiles_together", fused, joint)
            return lower_graph(self.graph, self.layout, fused, self.target)
        except Exception:
            if self._blame is not None:
                self._find_fault(self._blame)
            raise

    def _find_fault(self, blame: Blame) -> None:
        for step in self.fused:
            try:
                lower_graph(self.graph, self.layout, [step], self.target)
            except Exception:  # noqa: BLE001  it is raised by who asks
                blame(step.nodes)
                return

    def _require(self, plan: Plan) -> Plan:
        return replace(plan, requires=requirements(plan, self.target))

    def part(self, number: int) -> Compilation:
        """The compilation of one fused call by itself, in which what later ones use is live."""
        later = {n for step in self.fused[number + 1 :] for n in (*self.read(step), *self.written(step))}
        part = copy(self)
        part.__dict__.pop("plan", None)
        part.fused, part.patterns, part._blame = (self.fused[number],), (), None
        storages = [s._replace(live=True) if n in later else s for n, s in enumerate(self.layout.storages)]
        part.layout = self.layout._replace(storages=tuple(storages))
        return part

    def read(self, step: FusedNode) -> list[int]:
        """The numbers of the storages that a fused call reads."""
        return self._storages(arguments_of(step, self.graph)[: step.op.n_inputs])

    def written(self, step: FusedNode) -> list[int]:
        """The numbers of the storages that a fused call writes."""
        return self._storages(arguments_of(step, self.graph)[step.op.n_inputs :])

    def _storages(self, arguments: Sequence[Argument]) -> list[int]:
        return [argument.storage for argument in self.layout.tensors_of(arguments)]


def compile(graph: Graph, target: Target, options: Options = DEFAULT) -> Plan:
    """The plan of a graph for a target. Raises what a kernel raises that cannot be written for it."""
    return Compilation(graph, target, options).plan


def match_and_fuse(graph: Graph, target: Target, options: Options, matcher: Matcher) -> tuple[FusedNode, ...]:
    """The graph's calls as few fused ones. ``matcher`` looks for the patterns, and counts them."""
    if not _fuses(graph, options):
        return tuple([FusedNode.alone(n, call.op) for n, call in enumerate(graph.calls)])
    return tuple(fuse(graph.calls, graph.live, options.limits(target, len(graph.calls)), matcher))


def _fuses(graph: Graph, options: Options) -> bool:
    return options.fusion and (len(graph.calls) > 1 or graph.interface is not None)


def _shown(name: str, before: Any, after: PassResult) -> PassResult:
    """What a pass made, printed with what it was given where the flag asks for it."""
    if is_printed("passes"):
        print_stage("passes", f"{name}, of", _text(before))
        print_stage("passes", f"{name}, made" if before is not after else f"{name}, changed nothing", _text(after))
    return after


def _text(stage: Any) -> str:
    return "\n".join(map(described, stage)) if isinstance(stage, tuple) else str(stage)
