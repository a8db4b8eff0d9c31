"""What becomes of a finished element of a product before it is stored: the epilogue of an ``Extern`` as WGSL.

A kernel numbers its sums (slice, m, n) and its outputs' elements by coordinates of its own. It declares

* ``fn place(slice: u32, m: u32, n: u32) -> Place``: the coordinates of the element that a sum belongs to
* ``fn is_stored(slice: u32, m: u32, n: u32) -> bool``: whether there is one

and gets, for arguments that go by ``e<number>``,

* ``struct Place``, a member per coordinate; ``struct Values``, a member per output
* ``fn result(at: Place, v: T) -> Values``: the epilogue of a finished sum, or of a vector of several
* ``fn finish_one(slice: u32, split: u32, m: u32, n: u32, v: T)``, which stores it
* ``fn finish(slice: u32, split: u32, m: u32, n: u32, v: V)``, which a blocked product calls (see
  register_tile.py): ``V`` is a vector where 2 or 4 neighbours along ``n`` are stored together

Where these are 4, and arguments that are read lie in fours, too, there are

* ``struct Given``; ``fn given(slice: u32, m: u32, n: u32) -> Given``, which reads them, from the nearest place inside
* ``fn finish_given(slice: u32, split: u32, m: u32, n: u32, v: V, read: Given)``

so that a product's kernel can read ahead: after a store compilers load nothing before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.points import PointKernel, locator
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.expr import convert, emit_stored, function, stored
from torch_webgpu.wgsl.kernel import Binding, Mode
from torch_webgpu.wgsl.launch import ParamList

from .operand import in_groups

LIGHT_EXPRESSIONS = 8
"""An epilogue of up to so many expressions (a scaled bias has 6) is written out for each sum of a thread."""

NOT_TOGETHER: Mapping[int, int] = MappingProxyType({})

SUM = "slice: u32, split: u32, m: u32, n: u32"
# Sums of a block that lies partly outside of the output, and partial sums.
FINISH = f"fn finish({SUM}, v: T) {{ if (m < P.m && n < P.n) {{ finish_one(slice, split, m, n, v); }} }}"


def store_width(y: Spec, inner: int, target: Target, most: int) -> int:
    """How many neighbours along coordinate ``inner`` of an output are always stored at once, up to ``most``: 4, 2 that
    fill a 32-bit word, or 1.
    """
    if most >= 4 and BY_NAME[y.dtype].itemsize <= 4 and in_groups(y, inner, 4):
        return 4
    packed = y.dtype == "bf16" or (y.dtype == "f16" and not target.float16)
    return 2 if most >= 2 and packed and in_groups(y, inner, 2) else 1


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of ``op`` over coordinates named ``coordinates``, those in ``absent`` always 0.

    ``alias[k]``: the first argument that shares argument ``k``'s storage. ``layout`` brings a layout over the
    outputs' shape to one dimension per coordinate. ``sums``: how many finished elements there are at each place.
    """

    op: Operation
    alias: tuple[int, ...]
    coordinates: tuple[str, ...]
    layout: Callable[[Spec], Spec]
    absent: frozenset[str] = frozenset()
    sums: int = 1
    specs: dict[int, Spec] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", {k: self.layout(self.broadcast(k)) for k in (*self.loads(), *self.outputs)})

    def broadcast(self, k: int) -> Spec:
        """Argument ``k`` as if expanded to the outputs' shape."""
        spec, shape = self.op.args[k], self.op.outputs[0].shape
        return spec._replace(shape=shape, strides=broadcast_strides(spec.shape, spec.strides, shape))

    @property
    def roots(self) -> list[Expr]:
        body = self.op.body
        assert isinstance(body, Extern)
        return [stored(root, spec.dtype) for root, spec in zip(body.epilogue, self.op.outputs, strict=True)]

    @property
    def heavy(self) -> bool:
        """Whether it makes for much code (see ``register_tile.block_text``)."""
        return sum(e.op not in ("acc", "const") for e in walk(self.roots)) > LIGHT_EXPRESSIONS

    @property
    def outputs(self) -> range:
        return range(self.op.n_inputs, len(self.op.args))

    def loads(self) -> list[int]:
        return sorted({e.args[0] for e in walk(self.roots) if e.op == "load"})

    def name(self, k: int) -> str:
        """The binding that argument ``k`` is read through: an output's, if it shares the storage of one."""
        return f"e{next((o for o in self.outputs if self.alias[o] == self.alias[k]), k)}"

    def inputs(self) -> list[tuple[Binding, int]]:
        """Bindings of the arguments that are only read."""
        return [(Binding(f"e{k}", self.op.args[k].dtype), k) for k in self.loads() if self.name(k) == f"e{k}"]

    def text(self, params: ParamList, widths: Mapping[int, int] = NOT_TOGETHER) -> list[str]:
        """``Place`` and ``result``, with the parameters they need; the latter also takes what :meth:`given` says."""
        given = self.given(widths)
        text = [f"struct Place {{ {', '.join(f'{c}: u32' for c in self.coordinates)} }}"]
        text += [self.locate(params, k) for k in self.loads()]
        leaves = [e for e in walk(self.roots) if e.op in ("param", "linear")]
        scalars = params.scalars(self.op.param_kinds, [e.args[0] for e in leaves if e.op == "param"])
        number = self.number(params) if any(e.op == "linear" for e in leaves) else ""

        def leaf(e: Expr) -> str:
            if e.op == "load":
                k = e.args[0]
                if k in given:
                    return convert(f"given{k}", self.op.args[k].dtype, e.dtype, fits=True)
                return convert(f"{self.name(k)}_load({self.element(k)})", self.op.args[k].dtype, e.dtype, fits=True)
            if e.op == "param":
                return scalars[e.args[0]]
            if e.op == "linear":
                return number
            return "v" if self.sums == 1 else f"v[{e.args[0]}]"

        lines, values = emit_stored(self.roots, [spec.dtype for spec in self.op.outputs], leaf)
        arguments = ", ".join(["at: Place", "v: T", *(f"given{k}: {self.compute_type(k)}" for k in given)])
        return [*text, *function(f"result({arguments})", "Values", lines, f"Values({', '.join(values)})")]

    def locate(self, params: ParamList, k: int) -> str:
        """``fn e<k>_at``; coordinates along which the argument stands still take no parameter."""
        spec = self.specs[k]
        still = {c for c, n, s in zip(self.coordinates, spec.shape, spec.strides, strict=True) if n == 1 or s == 0}
        inner = self.coordinates[-1:]
        return locator(params, f"e{k}", k, self.coordinates, spec.strides, self.absent | still, inner)

    def element(self, k: int, at: str = "at") -> str:
        return f"e{k}_at({', '.join(f'{at}.{c}' for c in self.coordinates)})"

    def number(self, params: ParamList) -> str:
        """The row-major number of the element at ``at``."""
        text = "0u"
        sizes = self.specs[self.outputs[0]].shape
        for c, size in zip(self.coordinates, sizes, strict=True):
            if c not in self.absent:
                text = f"({text} * {params.add(f'size_{c}', size)} + at.{c})"
        return text

    # Stores

    def give_outputs(self, kernel: PointKernel) -> None:
        """Makes the outputs those of a kernel whose ``values`` calls ``result``."""
        for k in self.outputs:
            kernel.output(f"e{k}", k, self.specs[k])

    def widths(self, inner: int, target: Target, most: int) -> dict[int, int]:
        """By output, how many neighbours along coordinate ``inner`` are stored at once (see :func:`store_width`); and 4
        for arguments that are read as many at once, if outputs are stored so.
        """
        widths = {k: store_width(self.specs[k], inner, target, most) for k in self.outputs}
        if max(widths.values()) == 4:
            for k in self.loads():
                is_dense = BY_NAME[self.op.args[k].dtype].itemsize <= 4 and in_groups(self.specs[k], inner, 4)
                if is_dense and self.name(k) == f"e{k}":
                    widths[k] = 4
        return widths

    def given(self, widths: Mapping[int, int]) -> list[int]:
        """The arguments of which four neighbours are read at once."""
        return [k for k in self.loads() if widths.get(k) == 4 and k not in self.outputs]

    def stores(self, params: ParamList, widths: Mapping[int, int]) -> tuple[list[tuple[Binding, int]], list[str]]:
        """Bindings of the outputs, and ``finish_one`` or, where a width is more than 1, ``finish`` of the widest."""
        bindings: list[tuple[Binding, int]] = []
        for k in self.outputs:
            mode: Mode = "word" if widths.get(k) == 2 else "plain"
            bindings.append((Binding(f"e{k}", self.op.args[k].dtype, "read_write", mode), k))
        members = ", ".join(f"e{k}: {self.compute_type(k)}" for k in self.outputs)
        text = [f"struct Values {{ {members} }}"]
        text += [self.locate(params, k) for k in self.outputs]
        together, given = max(widths.values(), default=1), self.given(widths)
        if together == 1:
            lines = [f"  e{k}_store({self.element(k)}, found.e{k});" for k in self.outputs]
            head = [f"fn finish_one({SUM}, v: T) {{", "  if (!is_stored(slice, m, n)) { return; }"]
            calls = ["  let at = place(slice, m, n);", "  let found = result(at, v);"]
            return bindings, [*text, *head, *calls, *lines, "}"]
        # Groups of ``together`` are whole: n is a multiple of it, and so is P.n.
        read = ", read: Given" if given else ""
        head = [f"fn {'finish_given' if given else 'finish'}({SUM}, v: vec{together}<T>{read}) {{"]
        head.append("  if (m >= P.m || n >= P.n || !is_stored(slice, m, n)) { return; }")
        calls = [f"  let at{i} = place(slice, m, n + {i}u);" for i in range(together)]
        for i, lane in enumerate("xyzw"[:together]):
            arguments = ", ".join([f"at{i}", f"v.{lane}", *(f"read.e{k}.{lane}" for k in given)])
            calls.append(f"  let found{i} = result({arguments});")
        for k in self.outputs:
            calls += [self._store(k, first, widths[k]) for first in range(0, together, widths[k])]
        return bindings, [*text, *(self._reading(given, together) if given else ()), *head, *calls, "}"]

    def _reading(self, given: Sequence[int], together: int) -> list[str]:
        """``Given``, ``given``, and ``finish`` by these."""
        loads = ", ".join(f"e{k}_load4({self.element(k)} / 4u)" for k in given)
        return [
            f"struct Given {{ {', '.join(f'e{k}: vec4<{self.compute_type(k)}>' for k in given)} }}",
            "fn given(slice: u32, m: u32, n: u32) -> Given {",
            "  let at = place(slice, min(m, P.m - 1u), min(n, P.n - 4u));",
            f"  return Given({loads});",
            "}",
            f"fn finish({SUM}, v: vec{together}<T>) {{",
            "  if (m < P.m && n < P.n && is_stored(slice, m, n)) {",
            "    finish_given(slice, split, m, n, v, given(slice, m, n));",
            "  }",
            "}",
        ]

    def _store(self, k: int, first: int, width: int) -> str:
        """Stores ``width`` neighbours of output ``k``, from ``found<first>`` on."""
        values = [f"found{first + i}.e{k}" for i in range(width)]
        element, dtype = self.element(k, f"at{first}"), self.op.args[k].dtype
        if width == 4:
            return f"  e{k}_store4({element} / 4u, vec4<{self.compute_type(k)}>({', '.join(values)}));"
        if width == 2:
            word = f"{dtype}_pack({dtype}_pack(0u, 0u, {values[0]}), 1u, {values[1]})"
            return f"  e{k}_store_word({element} / 2u, {word});"
        return f"  e{k}_store({element}, {values[0]});"

    def compute_type(self, k: int) -> str:
        return BY_NAME[self.op.args[k].dtype].compute
