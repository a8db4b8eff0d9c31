"""How a fold (a reduction or a scan) reads and writes its arguments: the functions of its kernel that touch memory.

Names in the text: ``o`` is the number of an output and ``c0…`` its coordinates, ``r`` that of a reduced point and
``d0…`` its coordinates. A ``Row`` holds what is the same for all points of an output: each argument's element number
there (``b3``) and the values of the arguments that do not vary along the row (``w3``). A ``Run`` holds the elements of
``width`` consecutive points, of the arguments that the contributions need; ``More``, of those that only the maps need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_webgpu.ir.combine import COMBINES, Combine
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Operation, Reduction
from torch_webgpu.layout import Shape

from .builder import bind
from .expr import compute_type, convert, emit, emit_stored, stored, struct_function
from .indexing import LANES, QUAD, ahead, in_fours, split_number, stride_terms
from .kernel import Binding
from .launch import ParamList, Source
from .tiling import Space


def runs_in_fours(op: Operation, space: Space, k: int) -> bool:
    """Whether argument ``k``'s elements along the innermost reduced dimension can be moved four at a time."""
    strides = space.reduced_strides[k]
    others = [*zip(space.kept_strides[k], space.kept), *zip(strides[:-1], space.reduced)]
    return space.reduced[-1] % QUAD == 0 and in_fours(op.args[k], strides[-1], others)


def leaves_of(exprs: Sequence[Expr]) -> list[Expr]:
    return [e for e in walk(exprs) if not any(isinstance(a, Expr) for a in e.args)]


class Operands:
    """The arguments of one kernel of a fold that evaluates ``values`` and, if it ``stores``, the roots and maps."""

    def __init__(
        self, op: Operation, alias: tuple[int, ...], space: Space, width: int, values: Sequence[Expr], stores: bool
    ) -> None:
        assert isinstance(op.body, Reduction)
        self.op, self.body, self.space, self.width = op, op.body, space, width
        self.params = ParamList()
        first_map = op.n_inputs + len(op.body.roots)
        self.roots = range(op.n_inputs, first_map) if stores else range(0)
        self.maps = range(first_map, len(op.args)) if stores else range(0)
        self.values = tuple(values)
        self.map_roots = [stored(e, op.args[k].dtype) for e, k in zip(op.body.maps, self.maps)]
        self.hoisted: list[Expr] = []
        if not op.body.running:
            self.hoisted, self.map_roots = hoist(self.map_roots, self.varies)
        self.row_roots = op.body.roots if stores else ()
        leaves = leaves_of((*self.values, *self.hoisted, *self.map_roots, *self.row_roots))
        self.numbered = any(e.op in ("index", "linear") for e in leaves)
        in_values, in_maps = self.loads(self.values), self.loads((*self.hoisted, *self.map_roots))
        self.run = [k for k in in_values if self.varies(k)]
        self.more = [k for k in in_maps if self.varies(k) and k not in self.run]
        self.fixed = sorted({k for k in (*in_values, *in_maps) if not self.varies(k)})
        self.used = sorted({*in_values, *in_maps, *self.loads(self.row_roots), *self.roots, *self.maps})
        bindings, self.names, order = bind(op.args, alias, op.n_inputs)
        used = {self.names[k] for k in self.used}
        self.bindings = [b for b in bindings if b.name in used]
        self.order = [k for b, k in zip(bindings, order) if b.name in used]
        self.scalars = self.params.scalars(op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])

    @staticmethod
    def loads(exprs: Sequence[Expr]) -> list[int]:
        return sorted({e.args[0] for e in leaves_of(exprs) if e.op == "load"})

    def varies(self, k: int) -> bool:
        """Whether argument ``k`` varies along a row."""
        return any(s and n > 1 for s, n in zip(self.space.reduced_strides[k], self.space.reduced))

    def fours(self, k: int) -> bool:
        return self.width == QUAD and runs_in_fours(self.op, self.space, k)

    def bind(self, binding: Binding, temporary: int) -> None:
        self.bindings.append(binding)
        self.order.append(len(self.op.args) + temporary)

    # Parameters and element numbers

    def coordinates(self, number: str, sizes: Shape, letter: str) -> list[str]:
        """Statements that split ``number`` into coordinates ``{letter}0…``, the last the fastest."""
        fastest_first = range(len(sizes) - 1, 0, -1)
        axes = [(f"{letter}{d}", f"{letter}q{d}", self.params.add(f"n{letter}{d}", sizes[d])) for d in fastest_first]
        return split_number(number, axes, f"{letter}0")

    def reduced_coordinates(self) -> list[str]:
        return self.coordinates("r", self.space.reduced, "d")

    def terms(self, k: int, strides: Shape, coordinates: Sequence[str], letter: str) -> list[str]:
        """The terms that coordinates add to argument ``k``'s element number."""

        def stride(d: int) -> str:
            return self.params.add(f"s{letter}{k}_{d}", strides[d])

        return stride_terms(dict(enumerate(coordinates)), strides, stride, range(len(strides)))

    def base(self, k: int) -> str:
        offset, strides = self.params.add(f"o{k}", Source("offset", k)), self.space.kept_strides[k]
        return " + ".join([offset, *self.terms(k, strides, [f"c{d}" for d in range(len(strides))], "c")])

    def element(self, k: int, further: int = 0) -> str:
        """Argument ``k``'s element number ``further`` points along the innermost reduced dimension."""
        strides = self.space.reduced_strides[k]
        coordinates = [f"d{d}" for d in range(len(strides))]
        if further:
            coordinates[-1] = f"({ahead(coordinates[-1], further)})"
        return " + ".join([f"row.b{k}", *self.terms(k, strides, coordinates, "d")])

    def leaf(self, e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            text = f"x{k}" if self.varies(k) else f"row.w{k}"
            return convert(text, self.op.args[k].dtype, e.dtype, fits=True)
        if e.op == "param":
            return self.scalars[e.args[0]]
        if e.op == "acc":
            return f"acc.a{e.args[0]}"
        if e.op == "hoisted":
            return f"once.h{e.args[0]}"
        if e.op == "reduced":
            return "r"
        if e.op == "index":
            return f"i32({self.coordinate(e.args[0])})"
        assert e.op == "linear", e
        number = "0u"
        for d, size in enumerate(self.body.shape):
            number = f"({number} * {self.params.add(f'm{d}', size)} + {self.coordinate(d)})"
        return number

    def coordinate(self, dim: int) -> str:
        kept, reduced = self.space.kept_dims, self.space.reduced_dims
        return f"row.c{kept.index(dim)}" if dim in kept else f"d{reduced.index(dim)}"

    # Declarations

    def functions(self) -> list[str]:
        """The structs, and ``load_run``, ``load_more``, ``contribution`` and ``store_run``, of what this kernel has."""
        text = self.row_struct()
        text += self.load_function("Run", "load_run", self.run) if self.run else []
        text += self.value_function() if self.values else []
        if self.maps:
            text += self.load_function("More", "load_more", self.more) if self.more else []
            text += self.once_function() if self.hoisted else []
            text += [*self.map_function(), *self.store_function()]
        return text

    def row_struct(self) -> list[str]:
        fields = [f"b{k}: u32" for k in self.used]
        fields += [f"w{k}: {compute_type(self.op.args[k].dtype)}" for k in self.fixed]
        fields += [f"c{d}: u32" for d in range(len(self.space.kept))] if self.numbered else []
        return [f"struct Row {{ {', '.join(fields or ['none: u32'])} }}"]

    def row(self) -> list[str]:
        """Statements that make ``row`` from an output's coordinates."""
        text = [f"  let b{k} = {self.base(k)};" for k in self.used]
        fields = [f"b{k}" for k in self.used] + [f"{self.names[k]}_load(b{k})" for k in self.fixed]
        fields += [f"c{d}" for d in range(len(self.space.kept))] if self.numbered else []
        return [*text, f"  let row = Row({', '.join(fields or ['0u'])});"]

    def load_function(self, struct: str, name: str, args: Sequence[int]) -> list[str]:
        """Loads the elements of ``args`` at ``width`` points from ``r`` on: ``x3_0…`` are argument 3's."""
        fields = [f"x{k}_{e}: {compute_type(self.op.args[k].dtype)}" for k in args for e in range(self.width)]
        lines, values = self.reduced_coordinates(), []
        for k in args:
            if self.fours(k):
                lines.append(f"  let q{k} = {self.names[k]}_load4(({self.element(k)}) / {QUAD}u);")
                values += [f"q{k}.{lane}" for lane in LANES]
            else:
                values += [f"{self.names[k]}_load({self.element(k, e)})" for e in range(self.width)]
        return struct_function(f"{name}(row: Row, r: u32)", struct, fields, lines, values)

    def value_function(self) -> list[str]:
        """What one point contributes, and its number."""
        lines, names = emit(self.values, self.leaf)
        fields = [f"v{j}: {compute_type(e.dtype)}" for j, e in enumerate(self.values)]
        arguments = [f"x{k}: {compute_type(self.op.args[k].dtype)}" for k in self.run]
        signature = f"contribution({', '.join(['row: Row', 'r: u32', *arguments])})"
        coordinates = self.reduced_coordinates() if self.numbered else []
        return struct_function(signature, "Contribution", [*fields, "r: u32"], [*coordinates, *lines], [*names, "r"])

    def once_function(self) -> list[str]:
        """What the maps have in common at all points of a row."""
        lines, names = emit(self.hoisted, self.leaf)
        fields = [f"h{j}: {compute_type(e.dtype)}" for j, e in enumerate(self.hoisted)]
        return struct_function("once_a_row(row: Row, acc: Acc)", "Once", fields, lines, names)

    def map_function(self) -> list[str]:
        """The maps at one point."""
        kinds = {k: compute_type(self.op.args[k].dtype) for k in (*self.run, *self.more, *self.maps)}
        lines, values = emit_stored(self.map_roots, [self.op.args[k].dtype for k in self.maps], self.leaf)
        elements = [f"x{k}: {kinds[k]}" for k in (*self.run, *self.more)]
        arguments = ["row: Row", "r: u32", *elements, "acc: Acc", *(["once: Once"] if self.hoisted else [])]
        coordinates = self.reduced_coordinates() if self.numbered else []
        fields = [f"m{k}: {kinds[k]}" for k in self.maps]
        return struct_function(f"mapped({', '.join(arguments)})", "Mapped", fields, [*coordinates, *lines], values)

    def store_function(self) -> list[str]:
        """Stores the maps of ``width`` points from ``r`` on."""
        arguments = ", ".join(f"p{e}: Mapped" for e in range(self.width))
        text = [f"fn store_run(row: Row, r: u32, {arguments}) {{", *self.reduced_coordinates()]
        for k in self.maps:
            name, mapped = self.names[k], [f"p{e}.m{k}" for e in range(self.width)]
            if self.fours(k):
                vector = f"vec4<{compute_type(self.op.args[k].dtype)}>({', '.join(mapped)})"
                text.append(f"  {name}_store4(({self.element(k)}) / {QUAD}u, {vector});")
            else:
                text += [f"  {name}_store({self.element(k, e)}, {value});" for e, value in enumerate(mapped)]
        return [*text, "}"]

    # Calls

    def load(self, run: str, at: str) -> str:
        return f"let {run} = load_run(row, {at});" if self.run else ""

    def contributions(self, run: str, at: str) -> list[str]:
        """What the points of a run, which starts at point ``at``, contribute."""
        return [
            f"contribution({', '.join(['row', ahead(at, e), *(f'{run}.x{k}_{e}' for k in self.run)])})"
            for e in range(self.width)
        ]

    def once(self) -> list[str]:
        """A statement that must come before the maps, once a row's ``acc`` is known."""
        return ["  let once = once_a_row(row, acc);"] if self.hoisted else []

    def load_for_maps(self, run: str, at: str, indent: str) -> list[str]:
        """Statements that load what the maps alone need of a run."""
        return [f"{indent}let {run}m = load_more(row, {at});"] if self.more else []

    def store(self, run: str, at: str, states: Sequence[str], indent: str) -> list[str]:
        """Statements that store the maps of a run, which is loaded, and whose points have these ``states``."""
        mapped = []
        for e, state in enumerate(states):
            elements = [f"{run}.x{k}_{e}" for k in self.run] + [f"{run}m.x{k}_{e}" for k in self.more]
            once = ["once"] if self.hoisted else []
            mapped.append(f"mapped({', '.join(['row', ahead(at, e), *elements, state, *once])})")
        return [f"{indent}store_run({', '.join(['row', at, *mapped])});"]

    def store_roots(self, indent: str) -> list[str]:
        """Statements that evaluate and store the roots. What they load, they load at the row's first point."""

        def leaf(e: Expr) -> str:
            if e.op == "load":
                k = e.args[0]
                return convert(f"{self.names[k]}_load(row.b{k})", self.op.args[k].dtype, e.dtype, fits=True)
            return self.leaf(e)

        dtypes = [self.op.args[k].dtype for k in self.roots]
        lines, values = emit_stored(self.row_roots, dtypes, leaf, prefix="e", indent=indent)
        text = [f"{indent}let d{d} = 0u;" for d in range(len(self.space.reduced))] if self.numbered else []
        stores = [f"{indent}{self.names[k]}_store(row.b{k}, {value});" for k, value in zip(self.roots, values)]
        return [*text, *lines, *stores]


def hoist(roots: Sequence[Expr], varies: Callable[[int], bool]) -> tuple[list[Expr], list[Expr]]:
    """The parts of the maps ``roots`` that are the same at all points of a row, and the roots with leaves for them.

    Compilers would find them, too, but for branches inside, and would copy them to every point until they do.
    """
    same: dict[Expr, bool] = {}
    rebuilt: dict[Expr, Expr] = {}
    hoisted: list[Expr] = []

    def taken(e: Expr) -> Expr:
        if e not in rebuilt:
            rebuilt[e] = Expr("hoisted", (len(hoisted),), e.dtype)
            hoisted.append(e)
        return rebuilt[e]

    for e in walk(roots):
        operands = [a for a in e.args if isinstance(a, Expr)]
        if not operands:
            same[e] = e.op in ("acc", "param", "const") or (e.op == "load" and not varies(e.args[0]))
            rebuilt[e] = e
            continue
        same[e] = all(same[a] for a in operands)
        if not same[e]:
            rebuilt[e] = Expr(e.op, tuple([taken(a) if isinstance(a, Expr) else a for a in e.args]), e.dtype)
    return hoisted, [taken(root) for root in roots]


def combines(body: Reduction) -> list[tuple[Combine, str]]:
    """Each contribution's combine and dtype."""
    return [(COMBINES[name], value.dtype) for value, name in zip(body.values, body.combine, strict=True)]
