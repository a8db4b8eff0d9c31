"""Fusion: a recording's operations, in program order, become as few as mean the same.

Per-element operations over one iteration shape become one operation with several outputs. A reduction takes the
per-element operations before it as its prologue and those after it as its maps and epilogue; a matrix product or a
convolution takes those after it as its epilogue. What is written and never read again outside its group is not written
at all.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from torch_webgpu.config import is_printed, print_stage
from torch_webgpu.ir.combine import accumulators
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.graph import Argument, Call
from torch_webgpu.ir.names import operator_name
from torch_webgpu.ir.operation import Extern, ForEach, Pointwise, Reduction
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import Shape, is_dense
from torch_webgpu.wgsl.code_size import MAX_CODE, MAX_UNROLLED, code_size
from torch_webgpu.wgsl.scan import RUN as SCAN_RUN

from .assemble import assemble
from .constants import Constants
from .group import ORDERED_NUMEL, Group, GroupLoad, GroupValue, PointMap, innermost, uses
from .list_group import ListGroup
from .nodes import FusedNode, FusionLimits, allocations, bindings, numel, product, touched
from .patterns import Matcher
from .substitution import substitute
from .traffic import LARGE_NUMEL, feeds_reduction, waits, widens

MAX_EXPRESSIONS = 300
"""Distinct expressions in one kernel: more make drivers spill registers and compile slowly."""
MAX_EPILOGUE_EXPRESSIONS = 60
"""Distinct expressions in the epilogue of a product, which its kernel repeats for each sum of a thread."""
MAX_EPILOGUE_TENSORS, MAX_LARGE_EPILOGUE_TENSORS = 3, 1
"""Tensors of the product's size that its epilogue reads, and of a large product's: a kernel of its own reads them
faster, with more threads at work. (GELU's gradient on an H200: 60 to 80 µs, and 40 to 65.)
"""

LIGHT_CODE = 128
"""Code (as ``wgsl.code_size`` counts) that joins any kernel: an exponential or a logarithm, say."""
EPILOGUE_COPIES = 4
"""How often a product's kernel has the code of its epilogue."""


class Fuser:
    """One pass over a recording. ``live``: the allocations whose contents can be seen afterwards."""

    def __init__(
        self, recorded: Sequence[Call], live: frozenset[int], limits: FusionLimits, matcher: Matcher | None = None
    ) -> None:
        self.matcher = matcher
        self.recorded = recorded
        self.live = live
        self.limits = limits
        self.groups: list[Group] = []
        self.current = 0  # the node being placed
        self.owners = {use.tensor: use.storage for node in recorded for use in node.arguments}
        self.users: dict[int, set[int]] = {}
        for i, node in enumerate(recorded):
            for allocation in touched(node.arguments):
                self.users.setdefault(allocation, set()).add(i)
        self.constants = Constants()
        self.bindings = {} if limits.binding_bytes == 0 else bindings(recorded, limits.binding_bytes)

    def run(self) -> list[FusedNode]:
        for i, node in enumerate(self.recorded):
            self.current, body = i, node.op.body
            if isinstance(body, Pointwise):
                self.place_pointwise(i, node)
            elif isinstance(body, Reduction):
                self.place_reduction(i, node, body)
            elif isinstance(body, ForEach):
                self.place_lists(i, node, body)
            elif (extern := product(node.op)) is not None:
                self.place_product(i, node, extern)
            else:
                self.place_alone(i, node, "its kernel is hand-written")
            self.constants.note(i, node)
        seen, steps = set(self.live), []
        for group in reversed(self.groups):
            step = self.finish(group, seen)
            if step is not None:
                steps.append(step)
            if group.lists is None:
                seen |= group.reads
            elif step is not None:
                seen |= touched([self.use(source) for source in step.sources[: step.op.n_inputs]])
        return steps[::-1]

    # Placing a node

    def place_alone(self, i: int, node: Call, reason: str) -> None:
        group = Group((), closed=True, reason=reason)
        note(group, i, node)
        self.groups.append(group)

    def place_pointwise(self, i: int, node: Call) -> None:
        reads, writes = allocations(node, self.constants.inputs(node))
        reason = ""
        for back in range(1, len(self.groups) + 1):
            if back > self.limits.window:
                reason = reason or "the fusion window ends here"
                break
            group, mapping, refusal = self.find_room(self.groups[-back], node)
            if mapping is not None:
                self.groups[-back] = group
                self.join(group, i, node, mapping)
                return
            reason = reason or refusal
            if group.conflicts(reads, writes):
                break
        group = Group(node.op.outputs[0].shape, reason=reason)
        mapping = next(group.mappings(node.op), None)
        if mapping is None or numel(node) < self.limits.min_numel:
            self.place_alone(i, node, reason)
            return
        self.join(group, i, node, mapping)
        self.groups.append(group)

    def find_room(self, group: Group, node: Call) -> tuple[Group, PointMap | None, str]:
        """The group, perhaps over the node's shape, and how ``node`` becomes part of it; or it as it is and why not."""
        if group.closed:
            return group, None, "the operation before it has a kernel of its own"
        if numel(node) < self.limits.min_numel:
            return group, None, f"it has fewer than {self.limits.min_numel} elements"
        shape = node.op.outputs[0].shape
        reason = ""
        for candidate in alternatives(group, node):
            for mapping in candidate.mappings(node.op):
                refusal = self.refusal(candidate, node, mapping)
                if not refusal:
                    return candidate, mapping, ""
                reason = reason or refusal
        return group, None, reason or f"its shape {shape} is not the group's {group.shape}"

    def refusal(self, group: Group, node: Call, mapping: PointMap) -> str:
        """Why ``node`` cannot become part of ``group`` with this mapping; empty if it can."""
        body = node.op.body
        assert isinstance(body, Pointwise)
        if mapping.row and uses(node.op, "index", "linear"):
            return "it depends on positions, which a reduction numbers its own way"
        inputs, known = node.op.n_inputs, self.constants.inputs(node)
        for k, (spec, use, strides) in enumerate(zip(node.op.args, node.arguments, mapping.strides, strict=True)):
            if k in known:
                continue
            value = group.values.get(use.tensor)
            if value is not None:
                row = k >= inputs and value.row != mapping.row
                if value.strides != strides or value.expr.dtype != spec.dtype or row:
                    return "it uses a tensor of the group in another order"
            elif use.storage in group.writes:
                return "it uses other elements of a tensor that the group writes"
            if k >= inputs and self.read_otherwise(group, node, use, GroupLoad(use.tensor, strides, spec.dtype)):
                return "it writes a tensor that the group reads in another order"
        if self.strays(group, node, mapping):
            return "it goes through memory in another order"
        if waits(group, self.current, node):
            return "it would be computed long before it is read"
        if group.reduction is not None and self.too_late(group, node, mapping.row):
            return "the reduction's rows overwrite what its points still need"
        if group.product is not None and (refusal := self.not_an_epilogue(group, node, mapping)):
            return refusal
        if self.buffers(group, node, mapping.strides) > self.limits.buffers:
            return f"a kernel has at most {self.limits.buffers} buffers here"
        size = sum(1 for _ in walk([v.expr for v in group.values.values()])) + sum(1 for _ in walk(body.roots))
        most = MAX_EXPRESSIONS if group.product is None else MAX_EPILOGUE_EXPRESSIONS
        if size > most:
            return "the kernel would grow too large"
        return self.too_much_code(group, body.roots)

    def strays(self, group: Group, node: Call, mapping: PointMap) -> bool:
        """Whether the node's neighbours would be far apart in memory for the group's threads, for little in common.

        A reduction visits its points in one order, and so do kernels that share nothing but their size.
        """
        if mapping.row or numel(node) < ORDERED_NUMEL or (own := group.innermost()) is None:
            return False
        read = {use.tensor for use in node.arguments[: node.op.n_inputs]}
        if group.reduction is None and not read.isdisjoint([*group.values, *[a.tensor for a in group.inputs]]):
            return False
        steps = [s for use, s in zip(node.arguments, mapping.strides, strict=True) if use.tensor not in group.values]
        return any(group.is_whole(strides) and innermost(strides) != own for strides in steps)

    def too_much_code(self, group: Group, roots: Sequence[Expr]) -> str:
        """Why a kernel of what ``group`` computes and ``roots`` would be a burden to the compiler; empty if not.

        Expressions of little code join whatever there is, as any join what is little: a kernel of their own saves
        nothing, unless the group's kernel has several copies of them.
        """
        size = code_size(roots)
        if size <= LIGHT_CODE:
            return ""
        both = size + code_size([value.expr for value in group.values.values()])
        if group.product is not None:
            return "a product's kernel with it would take long to compile" if EPILOGUE_COPIES * both > MAX_CODE else ""
        return "together they would take long to compile" if both > MAX_CODE and both - size > LIGHT_CODE else ""

    def not_an_epilogue(self, group: Group, node: Call, mapping: PointMap) -> str:
        """Why ``node`` cannot be part of the epilogue of the group's product; empty if it can."""
        inputs, known = node.op.n_inputs, self.constants.inputs(node)
        read = {(node.arguments[k].tensor, mapping.strides[k]) for k in range(inputs) if k not in known}
        if all(tensor not in group.values for tensor, _ in read):
            return "it does not use the product before it"
        if uses(node.op, "index"):
            return "it depends on coordinates, which a product numbers its own way"
        if not all(is_dense(spec.shape, spec.strides) for spec in mapping.outputs):
            return "it writes a tensor with gaps"
        if widens(group, node, self.later_users(node.arguments[inputs].storage)):
            return "it would store a wider type than what it is of"
        if feeds_reduction(group, node, self.live, self.later_users, self.owners):
            return "a reduction computes it from what is stored anyway"
        operands = {self.use(source).storage for source in group.operands}
        if not operands.isdisjoint(use.storage for use in node.arguments[inputs:]):
            return "it writes an operand of the product"
        read |= {(access.tensor, access.strides) for access in group.inputs}
        whole = [tensor for tensor, strides in read if tensor not in group.values and group.is_whole(strides)]
        most = MAX_EPILOGUE_TENSORS if numel(node) < LARGE_NUMEL else MAX_LARGE_EPILOGUE_TENSORS
        if len(whole) > most:
            return f"a product's epilogue reads at most {most} tensors of its size here"
        return ""

    def later_users(self, allocation: int) -> list[Call]:
        """The calls after the one that is being placed that use an allocation."""
        return [self.recorded[j] for j in self.users[allocation] if j > self.current]

    def buffers(self, group: Group, node: Call, strides: Sequence[Shape]) -> int:
        """How many buffers the group would bind with ``node``, whose inputs step through its points by ``strides``.

        What is read in two orders is bound twice, what is written once. A reduction whose rows are split leaves states.
        """
        known = self.constants.inputs(node)
        read = {*group.inputs}
        for k, spec in enumerate(node.op.inputs):
            if k not in known and node.arguments[k].tensor not in group.values:
                read.add(GroupLoad(node.arguments[k].tensor, strides[k], spec.dtype))
        written = group.values.keys() | {use.tensor for use in node.arguments[node.op.n_inputs :]}
        bound = [access.tensor for access in read if access.tensor not in written]
        bound += [self.use(source).tensor for source in group.operands]
        body = node.op.body if isinstance(node.op.body, Reduction) else group.reduction
        states = 0 if body is None else len(accumulators(body.values, body.combine))
        count = states + sum(self.bindings.get(tensor, 1) for tensor in (*bound, *written))
        if count > self.limits.buffers:
            count -= sum(self.bindings.get(tensor, 1) for tensor in self.unseen(group))
        return count

    def unseen(self, group: Group) -> set[int]:
        """The tensors that nobody but the group and the node being placed will ever read: they are not stored."""
        members, loaded = {*group.nodes, self.current}, {access.tensor for access in group.inputs}
        return {
            tensor
            for tensor in group.values.keys() - loaded
            if self.owners[tensor] not in self.live and self.users[self.owners[tensor]] <= members
        }

    def read_otherwise(self, group: Group, node: Call, use: Argument, written: GroupLoad) -> bool:
        """Whether the group, or the node itself, reads the allocation of an output other than element on element."""
        if any(self.use(s).storage == use.storage and a != written for a, s in group.inputs.items()):
            return True
        return any(u.storage == use.storage and u.tensor != use.tensor for u in node.arguments)

    def too_late(self, group: Group, node: Call, row: bool) -> bool:
        """Whether the maps would load a tensor that the rows overwrite: rows are stored before maps are computed."""
        tensors = [access.tensor for access in group.inputs]

        def loaded(expr: Expr) -> set[int]:
            return {tensors[e.args[0]] for e in walk([expr]) if e.op == "load"}

        used, written = node.arguments[: node.op.n_inputs], {u.tensor for u in node.arguments[node.op.n_inputs :]}
        rows = {tensor for tensor, value in group.values.items() if value.row}
        if row:
            return any(not v.row and not written.isdisjoint(loaded(v.expr)) for v in group.values.values())
        values = [group.values.get(use.tensor) for use in used]
        return any(value is not None and not rows.isdisjoint(loaded(value.expr)) for value in values)

    def place_lists(self, i: int, node: Call, body: ForEach) -> None:
        """A group that stands before others it has nothing to do with may move behind them."""
        reads, writes = allocations(node)
        reason, is_free = "", True  # whether nothing between conflicts with the node
        for position in range(len(self.groups) - 1, -1, -1):
            if len(self.groups) - position > self.limits.window:
                reason = reason or "the fusion window ends here"
                break
            group, later = self.groups[position], self.groups[position + 1 :]
            if group.lists is None:
                refusal = "the operation before it is not over lists"
            elif is_free or not any(other.conflicts(group.reads, group.writes) for other in later):
                refusal = group.lists.refusal(node, self.recorded, self.limits.buffers)
            else:
                refusal = "another operation stands between it and one that it could join"
            if not refusal and group.lists is not None:
                if not is_free:
                    self.groups.append(self.groups.pop(position))
                group.lists.add(i, node)
                note(group, i, node)
                return
            reason = reason or refusal
            is_free = is_free and not group.conflicts(reads, writes)
        group = Group((), lists=ListGroup(body), closed=True, reason=reason)
        assert group.lists is not None
        group.lists.add(i, node)
        note(group, i, node)
        self.groups.append(group)

    def place_reduction(self, i: int, node: Call, body: Reduction) -> None:
        group, reason = self.absorbed(node, body)
        if group is None:
            group = Group(body.shape, reason=reason)
        loads = self.loads(group, i, node, [group.strides(spec, row=False) for spec in node.op.inputs])
        first = len(group.kinds)
        memo: dict[Expr, Expr] = {}
        values, roots, maps = (
            tuple([substitute(e, loads, first, memo) for e in part]) for part in (body.values, body.roots, body.maps)
        )
        note(group, i, node, self.constants.inputs(node))
        group.reduction = replace(body, values=values, roots=roots, maps=maps)
        first_out = node.op.n_inputs
        if roots:
            group.row_shape = node.op.args[first_out].shape
        for k, expr in enumerate((*roots, *maps), first_out):
            row = k < first_out + len(roots)
            spec = node.op.args[k]
            strides = group.strides(spec, row)
            group.values[node.arguments[k].tensor] = GroupValue(
                ops.to_dtype(expr, spec.dtype), strides, (i, k), row, spec
            )
        self.groups.append(group)

    def absorbed(self, node: Call, body: Reduction) -> tuple[Group | None, str]:
        """The group that computes the reduction's inputs point by point, taken out of its place; or why not."""
        known = self.constants.inputs(node)
        inputs = [(spec, node.arguments[k]) for k, spec in enumerate(node.op.inputs) if k not in known]
        written = {u.storage for u in node.arguments[node.op.n_inputs :]}
        for position in range(len(self.groups) - 1, -1, -1):
            producer = self.groups[position]
            feeds = [(spec, use) for spec, use in inputs if use.storage in producer.writes]
            if not feeds:
                continue
            if producer.product is not None:
                return None, "what feeds it is a product"
            group = None if producer.closed or producer.reduction is not None else producer.viewed(body.shape)
            if group is None:
                return None, "what feeds it has a kernel of another shape"
            for spec, use in feeds:
                value = group.values.get(use.tensor)
                if value is None or value.strides != group.strides(spec, row=False) or value.expr.dtype != spec.dtype:
                    return None, "it reads what feeds it in another order"
                if body.maps and group.reads_across(innermost(value.strides)):
                    return None, "what feeds it goes through memory in another order"
            if any(self.use(value.writer).storage in self.live for value in group.values.values()):
                return None, "what feeds it is needed by itself"
            loaded = {self.use(source).storage for source in group.inputs.values()}
            if not written.isdisjoint(group.reads | group.writes) or not group.writes.isdisjoint(loaded):
                return None, "it writes what feeds it"
            if refusal := self.too_much_code(group, (*body.values, *body.roots, *body.maps)):
                return None, refusal
            before = code_size([value.expr for value in group.values.values()])
            if body.running and SCAN_RUN * before > MAX_UNROLLED:
                return None, "a scan's kernel with it would take long to compile"
            strides = [group.strides(spec, row=False) for spec in node.op.inputs]
            if self.buffers(group, node, strides) > self.limits.buffers:
                return None, f"a kernel has at most {self.limits.buffers} buffers here"
            if any(other.conflicts(group.reads, group.writes) for other in self.groups[position + 1 :]):
                return None, "another operation stands between it and what feeds it"
            del self.groups[position]
            return group, ""
        return None, ""

    def place_product(self, i: int, node: Call, body: Extern) -> None:
        group = Group(node.op.outputs[0].shape, product=body, reason="its kernel is hand-written")
        group.operands = [(i, k) for k in range(body.operands)]
        # The operands have shapes of their own.
        strides = [group.strides(spec, row=False) for spec in node.op.args[body.operands :]]
        mapping = PointMap(False, ((),) * body.operands + tuple(strides), node.op.outputs)
        loads = self.loads(group, i, node, mapping.strides, body.operands)
        memo: dict[Expr, Expr] = {}
        results = [substitute(root, loads, len(group.kinds), memo) for root in body.epilogue]
        note(group, i, node, [k for k in self.constants.inputs(node) if k >= body.operands])
        self.add_values(group, i, node, mapping, results)
        self.groups.append(group)

    # Joining

    def join(self, group: Group, i: int, node: Call, mapping: PointMap) -> None:
        body = node.op.body
        assert isinstance(body, Pointwise)
        loads = self.loads(group, i, node, mapping.strides)
        first = len(group.kinds)
        memo: dict[Expr, Expr] = {}
        results = [substitute(root, loads, first, memo) for root in body.roots]
        if self.matcher is not None:
            results = self.matcher.join(group, i, node, loads, first, results)
        note(group, i, node, self.constants.inputs(node))
        self.add_values(group, i, node, mapping, results)

    def loads(self, group: Group, i: int, node: Call, strides: Sequence[Shape], first: int = 0) -> dict[int, Expr]:
        """What each input from ``first`` on is inside the group: a value that it has, or a load."""
        loads: dict[int, Expr] = {}
        known = self.constants.inputs(node)
        for k, spec in enumerate(node.op.inputs[first:], first):
            use = node.arguments[k]
            if (constant := known.get(k)) is not None:
                loads[k] = substitute(constant.expr, {}, len(group.kinds), {})
                group.folded = True
                add_scalars(group, constant.node, self.recorded[constant.node])
                continue
            value = group.values.get(use.tensor)
            if value is not None:
                loads[k] = value.expr
                continue
            access = GroupLoad(use.tensor, strides[k], spec.dtype)
            group.inputs.setdefault(access, (i, k))
            loads[k] = ops.load(list(group.inputs).index(access), spec.dtype)
        return loads

    @staticmethod
    def add_values(group: Group, i: int, node: Call, mapping: PointMap, results: Sequence[Expr]) -> None:
        inputs = node.op.n_inputs
        for k, result in enumerate(results, inputs):
            value = ops.to_dtype(result, node.op.args[k].dtype)
            spec = mapping.outputs[k - inputs]
            group.values[node.arguments[k].tensor] = GroupValue(value, mapping.strides[k], (i, k), mapping.row, spec)

    # Finishing

    def finish(self, group: Group, seen: Container[int]) -> FusedNode | None:
        """The group as one operation; None if nobody sees what it does. ``seen``: what others see when it has run."""
        if group.lists is not None:
            return group.lists.finish(self.recorded, group.nodes, group.scalars, group.reason, seen)
        values = [value for value in group.values.values() if self.use(value.writer).storage in seen]
        return assemble(self.recorded, group, values) if values or group.closed else None

    def use(self, source: tuple[int, int]) -> Argument:
        """Where an argument of a node lies."""
        n, k = source
        return self.recorded[n].arguments[k]


def alternatives(group: Group, node: Call) -> Iterator[Group]:
    """The group, and the ways to see its points in which ``node`` may fit in better.

    Only what uses the group's values turns it: nodes on the same transposed tensors are yet to come.
    """
    shape = node.op.outputs[0].shape
    yield group
    if group.shape != shape and (viewed := group.viewed(shape)) is not None:
        yield viewed
    if any(use.tensor in group.values for use in node.arguments) and (arranged := group.in_memory_order()) is not None:
        yield arranged


def note(group: Group, i: int, node: Call, known: Container[int] = ()) -> None:
    """Adds a node to a group's books; what the inputs in ``known`` are is known without reading them."""
    reads, writes = allocations(node, known)
    group.nodes.append(i)
    group.reads |= reads
    group.writes |= writes
    add_scalars(group, i, node)


def add_scalars(group: Group, i: int, node: Call) -> None:
    group.kinds += node.op.param_kinds
    if node.op.param_kinds:
        group.scalars.append(i)


def fuse(
    calls: Sequence[Call], live: frozenset[int], limits: FusionLimits, matcher: Matcher | None = None
) -> list[FusedNode]:
    """The operations that do what ``calls`` do, as far as the storages in ``live`` can show.

    ``matcher`` looks for chains that have a name.
    """
    steps = Fuser(calls, live, limits, matcher).run()
    if is_printed("fuse"):
        print_stage("fuse", f"{len(calls)} operations become {len(steps)}", *map(described, steps))
    return steps


def described(step: FusedNode) -> str:
    """A fused call, for people."""
    apart = f", does not join what came before: {step.reason}" if step.reason else ""
    return f"  {operator_name(step.op.name)} ← {', '.join(map(str, step.nodes))}{apart}"
