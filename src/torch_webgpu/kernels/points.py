"""Kernels that compute each element of their output by itself, from wherever in the inputs they like.

The body is WGSL that declares ``fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values`` (or whatever the
coordinates are called); :class:`PointKernel` declares ``Values`` (one member per output), for each input ``x`` the
function ``x_at(n, c, d, h, w)`` giving an element's number, and the ``main`` that visits the output in memory order and
stores whole words of packed types.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from importlib.resources import files
from math import prod

from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.ir.operation import Spec
from torch_webgpu.ir.ops import TABLE
from torch_webgpu.layout import is_dense
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import Packed, packed_text, per_point, store_mode
from torch_webgpu.wgsl.indexing import split_number
from torch_webgpu.wgsl.kernel import Binding, Kernel, ParamType
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, ParamList, Source, Value, grid_for

SPATIAL = ("n", "c", "d", "h", "w")


@cache
def wgsl_source(name: str) -> str:
    """The text of ``kernels/<name>.wgsl``; ``name`` begins with the folder."""
    return (files(__package__) / f"{name}.wgsl").read_text("utf-8")


def constant(name: str, value: int | bool) -> str:
    """A prelude line: ``value`` as a module constant, u32 or bool."""
    return f"const {name} = {str(value).lower()};" if isinstance(value, bool) else f"const {name} = {value}u;"


def arithmetic(dtype: str, *rows: str, prefix: str = "t_") -> str:
    """A prelude for kernels over any dtype: ``alias T`` and a function ``t_<row>`` per named row of the op table."""
    kind = BY_NAME[dtype].kind
    compute = KINDS[kind].wgsl
    lines = [f"alias {prefix[:-1].upper()} = {compute};"]
    for name in rows:
        row = TABLE[name]
        operands = [f"v{i}" for i in range(row.arity)]
        arguments = ", ".join(f"{v}: {compute}" for v in operands)
        result = compute if row.result == "same" else BY_NAME[row.result].compute
        text = row.wgsl[kind].format(*operands) if kind in row.wgsl else "false"
        lines.append(f"fn {prefix}{name}({arguments}) -> {result} {{ return {text}; }}")
    return "\n".join(lines)


def spatial(spec: Spec, dims: int, batched: bool = True) -> Spec:
    """``spec`` of layout (N, C, *dims) or, unbatched, (C, *dims), as (N, C, D, H, W)."""
    lead = 2 if batched else 1
    fill = (1,) * (3 - dims)
    none = (0,) * (3 - dims)
    shape = (1,) * (2 - lead) + spec.shape[:lead] + fill + spec.shape[lead:]
    strides = (0,) * (2 - lead) + spec.strides[:lead] + none + spec.strides[lead:]
    return spec._replace(shape=shape, strides=strides)


def absent(dims: int, batched: bool = True) -> frozenset[str]:
    """The coordinates that :func:`spatial` made up."""
    return frozenset(SPATIAL[2 : 5 - dims]) | (frozenset() if batched else frozenset("n"))


def locator(
    params: ParamList,
    name: str,
    arg: int,
    coordinates: Sequence[str],
    strides: Sequence[int],
    absent: frozenset[str] = frozenset(),
    dense: Collection[str] = (),
) -> str:
    """WGSL ``fn name_at(…coordinates) -> u32``, the number of an element of argument ``arg``, and ``name_delta``, the
    same without the argument's offset; adds the parameters they need. A stride of 1 along ``dense`` coordinates is
    none.
    """
    offset = params.add(f"{name}_offset", Source("offset", arg))
    terms = []
    for coordinate, stride in zip(coordinates, strides, strict=True):
        if coordinate in absent:
            continue
        if stride == 1 and coordinate in dense:
            terms.append(coordinate)
        else:
            terms.append(f"{coordinate} * {params.add(f'{name}_s_{coordinate}', stride)}")
    arguments = ", ".join(f"{c}: u32" for c in coordinates)
    delta = f"fn {name}_delta({arguments}) -> u32 {{ return {' + '.join(terms) or '0u'}; }}"
    return f"{delta}\nfn {name}_at({arguments}) -> u32 {{ return {offset} + {name}_delta({', '.join(coordinates)}); }}"


class Draft:
    """A kernel under construction, over coordinates named ``coordinates``; those in ``absent`` are always 0."""

    def __init__(self, coordinates: Sequence[str] = SPATIAL, absent: frozenset[str] = frozenset()) -> None:
        self.coordinates = tuple(coordinates)
        self.absent = absent
        self.params = ParamList()
        self.bindings: list[Binding] = []
        self.order: list[int] = []
        self.prelude: list[str] = []

    def input(self, name: str, arg: int, spec: Spec, dense: Collection[str] = ()) -> None:
        """Argument ``arg`` as ``name_load``, with ``name_at(…coordinates)`` (see :func:`locator`)."""
        self.binding(Binding(name, spec.dtype), arg)
        self.locate(name, arg, spec, dense)

    def binding(self, binding: Binding, arg: int) -> None:
        """A buffer that the body indexes by itself."""
        self.bindings.append(binding)
        self.order.append(arg)

    def param(self, name: str, value: Value, type_: ParamType = "u32") -> None:
        self.params.add(name, value, type_)

    def add(self, *prelude: str) -> None:
        self.prelude += prelude

    def locate(self, name: str, arg: int, spec: Spec, dense: Collection[str] = ()) -> None:
        """Declares ``name_at(…coordinates)`` for argument ``arg``."""
        self.prelude.append(locator(self.params, name, arg, self.coordinates, spec.strides, self.absent, dense))

    def build(self, name: str, body: Sequence[str], threads: int, grid: tuple[int, int, int]) -> Launch:
        """The launch of the prelude and ``body`` in workgroups of ``threads``."""
        text, bindings = "\n".join([*self.prelude, *body]), tuple(self.bindings)
        params = tuple(self.params.params)
        kernel = Kernel(name, text, bindings, params, workgroup_size=(threads, 1, 1), trusted=True)
        return Launch(kernel, tuple(self.order), tuple(self.params.values), grid)


class PointKernel(Draft):
    """A kernel that computes each element of its outputs by itself.

    Outputs share one shape. The first is visited in memory order; if it is dense, packed types are stored word by word.
    """

    def __init__(
        self, name: str, target: Target, coordinates: Sequence[str] = SPATIAL, absent: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(coordinates, absent)
        self.name = name
        self.target = target
        self.outputs: list[tuple[str, int, Spec]] = []

    def output(self, name: str, arg: int, spec: Spec) -> None:
        """Argument ``arg`` as output ``name``; its member of ``Values`` has its compute type."""
        self.outputs.append((name, arg, spec))

    def _walk(self, spec: Spec) -> list[str]:
        """Statements that split ``i``, an element's place in the memory of ``spec``, into coordinates."""
        order = sorted(
            (k for k, c in enumerate(self.coordinates) if c not in self.absent), key=lambda k: -spec.strides[k]
        )
        lines = [f"  let {c} = 0u;" for c in self.coordinates if c in self.absent]
        names = [self.coordinates[k] for k in order]
        axes = [
            (c, f"rest_{c}", self.params.add(f"walk_{c}", spec.shape[k]))
            for k, c in zip(reversed(order[1:]), reversed(names[1:]))
        ]
        return [*lines, *split_number("i", axes, names[0])] if order else lines

    def visit(self, spec: Spec, body: str) -> Launch:
        """The launch of a body that stores by itself: ``fn visit(…coordinates)``, once for each element of ``spec``."""
        numel = self.params.add("numel", prod(spec.shape))
        point = [*self._walk(spec), f"  visit({', '.join(self.coordinates)});"]
        return self._launch([body, per_point(point, numel)], prod(spec.shape))

    def _launch(self, body: Sequence[str], threads: int) -> Launch:
        return self.build(self.name, body, WORKGROUP, grid_for(threads))

    def launch(self, body: str) -> Launch:
        """The launch of ``body``: one thread for each element, or for each word of a packed output."""
        first = self.outputs[0][2]
        dense = is_dense(first.shape, first.strides)
        numel = self.params.add("numel", prod(first.shape))
        members, stores, packed, run = [], [], [], 1
        for name, arg, spec in self.outputs:
            members.append(f"{name}: {BY_NAME[spec.dtype].compute}")
            linear = dense and spec.strides == first.strides
            mode = store_mode(spec, "linear" if linear else "strided", self.target.float16)
            self.bindings.append(Binding(name, spec.dtype, "read_write", mode))
            self.order.append(arg)
            if mode == "word":
                packed.append(Packed(name, spec.dtype, name, self.params.add(f"{name}_offset", Source("offset", arg))))
                run = max(run, packed[-1].per_word)
                stores.append(f"  packed.{name} = found.{name};")
            elif linear:
                offset = self.params.add(f"{name}_offset", Source("offset", arg))
                stores.append(f"  {name}_store({offset} + i, found.{name});")
            else:
                self.locate(name, arg, spec)
                stores.append(f"  {name}_store({name}_at({', '.join(self.coordinates)}), found.{name});")
        call = f"  let found = values({', '.join(self.coordinates)});"
        point = [*self._walk(first), call, *stores]
        main = packed_text(packed, point, numel, run) if packed else per_point(point, numel)
        members_text = f"struct Values {{ {', '.join(members)} }}"
        return self._launch([members_text, body, main], -(-prod(first.shape) // run))
