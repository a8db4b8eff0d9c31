"""A compiled graph: plans, and what runs between them operator by operator."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from torch_webgpu.aten.dispatch.precision import float32_matmul_precision
from torch_webgpu.aten.dispatch.torch_abi import compiling
from torch_webgpu.caches import Cache
from torch_webgpu.engine import flush_reason
from torch_webgpu.engine.plan_function import PlanFunction
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tracing import planning, trace
from torch_webgpu.errors import DeviceLostError, ForkError, TraceError, UnsupportedDtypeError
from torch_webgpu.layout import dense_strides
from torch_webgpu.plan import Plan

from . import error_attribution
from .cache import digest_of, file_for
from .counts import COUNTS
from .error_attribution import naming
from .in_place import any_symbols
from .inputs import addresses_of, bring, copied, in_memory, shared
from .partition import GraphPart, first_line, refuse, refuse_storage_only, split, unplanned
from .private import is_webgpu, suppresses_errors

MAX_PLANS = 128
"""Shapes that a graph keeps plans for; the most recently used stay."""

TENSOR, GIVEN = "tensor", "given"
"""Stand for a tensor that a plan makes, and for one that it was given, among results."""

SELF = "torch.compile"
_log = logging.getLogger("torch_webgpu")


class CompiledGraph:
    """A graph of ATen operators over webgpu tensors, called with its inputs: one plan, or parts one after the other."""

    def __init__(self, run: Region | _InParts) -> None:
        self._run = run

    @classmethod
    def of(cls, gm: GraphModule) -> CompiledGraph:
        parts = split(gm)
        COUNTS.between.update(unplanned(parts or ()))
        return cls(Region.of(gm) if parts is None else _InParts(gm, parts))

    @property
    def outline(self) -> Outline | None:
        """What stands for the graph where its plans are on disk; None where the graph is needed."""
        return self._run.outline if isinstance(self._run, Region) and self._run.outline.digest else None

    def __call__(self, *args: Any) -> Any:
        if not torch.is_grad_enabled():  # AOTAutograd's wrappers have seen to that
            return self._run(*args)
        with torch.no_grad():
            return self._run(*args)


class _InParts:
    """A graph of several parts."""

    def __init__(self, gm: GraphModule, parts: Sequence[GraphPart]) -> None:
        self._inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._attributes = {n: fetch(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"}
        (output,) = [node for node in gm.graph.nodes if node.op == "output"]
        self._output = output.args[0]
        self._parts = [(part, Region.of(part.gm) if part.planned else between(part)) for part in parts]

    def __call__(self, *args: Any) -> Any:
        known = dict(zip(self._inputs, args, strict=True)) | self._attributes
        for part, run in self._parts:
            results = run(*[known[node] for node in part.takes])
            for node in part.frees:
                known.pop(node, None)
            known.update(zip(part.gives, results, strict=True))
        return map_arg(self._output, known.__getitem__)


def between(part: GraphPart) -> Callable[..., Any]:
    """A part without a plan, run operator by operator."""
    run, expected = naming(part.gm), [node.meta.get("val") for node in part.gives]
    return lambda *args: laid_out(run(*args), expected)


def fetch(gm: GraphModule, target: Any) -> Any:
    """An attribute by its dotted name."""
    return attrgetter(target)(gm)


class _Planned:
    """A region's plan for inputs of one layout. ``values``: of each result of the region the number, TENSOR or
    GIVEN.
    """

    def __init__(self, bound: PlanFunction, values: Sequence[Any]) -> None:
        self._bound = bound
        self._results = list(values)
        self._positions = [k for k, value in enumerate(values) if value == TENSOR]
        plan = bound.plan
        self.written = [n for n, spec in enumerate(plan.inputs) if plan.buffers[spec.buffer].role == "state"]

    def run(self, tensors: Sequence[torch.Tensor], pointers: list[int]) -> list[Any]:
        results = self._results.copy()
        COUNTS.runs += 1
        for position, t in zip(self._positions, self._bound.run(tensors, pointers)):
            results[position] = t
        return results

    def failing_step(self, tensors: Sequence[torch.Tensor], pointers: list[int]) -> int | None:
        """The step of the plan that cannot be run; None if all can."""
        return self._bound.failing_step(tensors, pointers)


@dataclass(frozen=True)
class Outline:
    """What a region has to know of its graph to find plans on disk and to run them.

    ``tensors``, ``numbers``: which of its inputs are which; ``varying``: the tensors whose layouts have symbols in
    them. ``returned``: the results that are tensors it was given, as they are, and which of its inputs these are.
    ``device``: of its tensors; None where there are none on webgpu. ``is_single``: it returns no tuple.
    ``digest``: of the graph; None where there is none.
    """

    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    varying: tuple[int, ...]
    returned: tuple[tuple[int, int], ...]
    device: torch.device | None
    is_single: bool
    digest: str | None

    @classmethod
    def of(cls, gm: GraphModule) -> Outline:
        places = [node for node in gm.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in places]
        tensors = tuple([k for k, v in enumerate(values) if isinstance(v, torch.Tensor)])
        (output,) = [node for node in gm.graph.nodes if node.op == "output"]
        is_single = not isinstance(output.args[0], (tuple, list))
        input_of = {places[k]: k for k in tensors}
        results = enumerate(output.args if is_single else output.args[0])
        return cls(
            tensors,
            numbers=tuple([k for k in range(len(values)) if k not in tensors]),
            varying=tuple([k for k in tensors if not is_static(values[k])]),
            returned=tuple([(n, input_of[result]) for n, result in results if result in input_of]),
            device=next((v.device for v in values if is_webgpu(v)), None),
            is_single=is_single,
            digest=digest_of(gm),
        )


class Region:
    """A graph that is one plan for each set of shapes. What turns out to be no part of a plan splits it.

    Its inputs are webgpu tensors, CPU tensors without dimensions, which are brought over, and numbers. ``graph()`` is
    asked for once, when a plan has to be made, or an error to be explained.
    """

    def __init__(self, outline: Outline, graph: Callable[[], GraphModule]) -> None:
        self.outline = outline
        self._graph = graph
        self._plans: Cache[Any, _Planned] = Cache("plans of a compiled graph", MAX_PLANS)
        self._instead: Callable[..., Any] | None = None
        self._tensors, self._numbers, self._varying = outline.tensors, outline.numbers, outline.varying
        self._is_single = outline.is_single
        self._known: list[int] = []  # addresses of the last call's tensors, where a plan can take them as they are

    @classmethod
    def of(cls, gm: GraphModule) -> Region:
        return cls(Outline.of(gm), lambda: gm)

    @cached_property
    def _gm(self) -> GraphModule:
        return self._graph()

    def __call__(self, *args: Any) -> Any:
        if self._instead is not None:
            return self._instead(*args)
        tensors: Any = [args[k] for k in self._tensors] if self._numbers else args
        pointers = addresses_of(tensors)
        copies: dict[int, torch.Tensor] = {}
        last = self._known  # once: another thread may be here
        known = pointers == last
        if known:
            pointers = last  # whose numbers are compared by identity from here on
        else:
            tensors, copies = bring(tensors, pointers, self.device)
            if copies:
                pointers = addresses_of(tensors)
        layouts = tuple([(args[k].shape, args[k].stride()) for k in self._varying])
        key = tuple([args[k] for k in self._numbers]), layouts, float32_matmul_precision()
        planned = self._plans.get(key) or self._plans.promote(key) or self._plan(key, args, tensors)
        if planned is None:
            return self(*args)
        if not known:
            for n in shared(pointers, planned.written):
                copies.setdefault(n, tensors[n])
                tensors[n] = copied(tensors[n])
                pointers[n] = tensors[n].data_ptr()
            self._known = [] if copies else pointers
        try:
            results = planned.run(tensors, pointers)
        except (DeviceLostError, ForkError):
            raise
        except Exception as error:
            step = planned.failing_step(tensors, pointers)
            if step is None:  # something that happened before, and comes to light now
                raise
            error_attribution.name(error, self._nodes_of(step, self._plan_arguments(args, tensors)))
            if not suppresses_errors():
                raise
            _log.warning("%s: it runs operator by operator, since errors are suppressed: %s", SELF, error)
            return self._gm.forward(*args)
        if copies:
            for n in copies.keys() & planned.written:
                copies[n].copy_(tensors[n])
        for n, k in self.outline.returned:
            results[n] = args[k]
        return results[0] if self._is_single else results

    @property
    def device(self) -> torch.device:
        """Of the plans."""
        return self.outline.device or torch.device("webgpu", torch.webgpu.current_device())  # type: ignore[attr-defined]

    def _plan(self, key: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> _Planned | None:
        """A plan for arguments like these; None, and something instead, where there can be none."""
        engine().flush(flush_reason.PLAN)
        engine().raise_pending()  # what happened before is no reason against a plan
        try:
            planned = self._plans[key] = self._plan_for(self._plan_arguments(args, tensors))
        except TraceError as error:
            _log.info("%s: %s", SELF, error)
            parts = split(self._gm)
            if parts is None:
                COUNTS.between["graph", first_line(error)] += 1
            self._instead = naming(self._gm) if parts is None else CompiledGraph.of(self._gm)
            return None
        except Exception as error:
            if not suppresses_errors():
                raise
            _log.warning("%s: it runs operator by operator, since errors are suppressed: %s", SELF, error)
            self._instead = self._gm.forward
            return None
        COUNTS.plans += 1
        return planned

    def _plan_arguments(self, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The arguments, with the tensors as a plan takes them."""
        arguments = list(args)
        for k, t in zip(self._tensors, tensors):
            arguments[k] = t
        return arguments

    def _plan_for(self, args: Sequence[Any]) -> _Planned:
        """The plan for arguments like these, from the disk or traced."""
        index = self.device.index or 0
        file = file_for(self.outline.digest, args, (planning(engine(), index), float32_matmul_precision()))
        kept = file.read()
        if kept is None:
            kept = self._trace(args, _Recorder(self._gm, index))
            file.write(*kept)
        plan, values = kept
        return _Planned(PlanFunction(engine(), plan, index, plan.contents), values)

    def _trace(self, args: Sequence[Any], recorder: _Recorder) -> tuple[Plan, list[Any]]:
        """The plan for arguments like these, and of each of the graph's results the value, TENSOR or GIVEN."""
        outputs: list[Any] = []

        def run(*args: Any) -> list[torch.Tensor]:
            result = recorder.run(*args)
            # Whether a tensor is conjugated by a flag is no part of a plan.
            outputs[:] = [
                in_memory(t) if isinstance(t, torch.Tensor) else t for t in ([result] if self._is_single else result)
            ]
            for n, _ in self.outline.returned:
                outputs[n] = GIVEN
            return [t for t in outputs if isinstance(t, torch.Tensor)]

        blamed: list[Node] = []
        try:
            with compiling(), engine().lock:
                blame = lambda ops: blamed.extend(recorder.nodes_of(ops))  # noqa: E731
                plan = trace(engine(), recorder.index, run, args, (), blame)
        except TraceError as error:
            if recorder.current is not None:
                refuse(recorder.current, error)
            raise
        except UnsupportedDtypeError as error:
            if not refuse_storage_only(self._gm, error):
                raise
            raise TraceError(str(error)) from error
        except Exception as error:
            error_attribution.name(error, blamed)
            raise
        return plan, [TENSOR if isinstance(t, torch.Tensor) else t for t in outputs]

    def _nodes_of(self, step: int, args: Sequence[Any]) -> list[Node]:
        """What a step of the plan for arguments like these computes: found by tracing once more, into an equal plan."""
        recorder = _Recorder(self._gm, self.device.index or 0)
        plan, _ = self._trace(args, recorder)
        return recorder.nodes_of(plan.origins[step])


class _Recorder(Interpreter):
    """Runs a graph, and knows at which node it is, and which node recorded what on device ``index``."""

    def __init__(self, gm: GraphModule, index: int) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.index = index
        self.current: Node | None = None
        self._recorded: list[tuple[int, Node]] = []  # how many operations when each node had run

    def run_node(self, n: Node) -> Any:
        self.current = n
        result = super().run_node(n)
        if n.op == "call_function":
            result = laid_out(result, n.meta.get("val"))
        self.current = None
        self._recorded.append((len(engine().lane(self.index)), n))
        return result

    def nodes_of(self, operations: Iterable[int]) -> list[Node]:
        """The nodes that recorded these operations, which are numbered in order; later ones than any have none."""
        ends = [count for count, _ in self._recorded]
        found = [bisect_right(ends, number) for number in operations]
        return [self._recorded[n][1] for n in found if n < len(ends)]


def laid_out(result: Any, expected: Any) -> Any:
    """What an operator returned, in the layout that the graph's later nodes were made for: they may see it as another.

    A kernel and PyTorch's own function for fake tensors may choose differently.
    """
    if isinstance(result, (tuple, list)) and isinstance(expected, (tuple, list)):
        return type(result)([laid_out(*pair) for pair in zip(result, expected, strict=True)])
    if not isinstance(result, torch.Tensor) or not isinstance(expected, torch.Tensor) or not result.numel():
        return result
    strides = strides_of(expected, result.shape)
    if strides is None or all(n == 1 or a == b for n, a, b in zip(result.shape, result.stride(), strides)):
        return result
    _log.debug("%s: a result has the strides %s, not %s", SELF, result.stride(), strides)
    return result.new_empty_strided(result.shape, strides).copy_(result)


def strides_of(fake: torch.Tensor, shape: torch.Size) -> Sequence[int] | None:
    """Those of a result of this shape as a graph knows it. Where they have symbols: without gaps, in the order that the
    dimensions have at the sizes that the graph was first called with; None if that is no order.
    """
    if is_static(fake):
        return fake.stride() if fake.shape == shape else None
    sizes, strides = (
        [getattr(getattr(n, "node", None), "hint", n) for n in some] for some in (fake.shape, fake.stride())
    )
    if not all(isinstance(n, int) for n in (*sizes, *strides)):
        return None
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    is_dense = all(n == 1 or a == b for n, a, b in zip(sizes, strides, dense_strides(sizes, order)))
    return dense_strides(shape, order) if is_dense else None


def is_static(value: Any) -> bool:
    """Whether it is a fake tensor whose layout has no symbols."""
    return isinstance(value, torch.Tensor) and not any_symbols(value)
