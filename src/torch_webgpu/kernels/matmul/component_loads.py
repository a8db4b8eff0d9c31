"""Numbers of components as WGSL: several neighbours along the sum at once, packed words loaded once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft
from torch_webgpu.wgsl.expr import emit
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Source

from .operand import RUN_BYTES

LANES = "xyzw"


@dataclass(frozen=True)
class Component:
    """A tensor (n, k / elements) of ``dtype``, of any strides, one element of which serves ``elements`` neighbours
    along k; 0: (n, 1) or (n,), one element serves a row.

    ``converted``: the WGSL function that makes a number of what it loads, if any. ``pair_of``: of a component that is
    no tensor of its own the one whose tensor, of one more dimension of size 2, has both.
    """

    name: str
    dtype: str
    elements: int
    converted: str = ""
    pair_of: str = ""

    @property
    def itemsize(self) -> int:
        return BY_NAME[self.dtype].itemsize


@dataclass(frozen=True)
class Elements:
    """``number``: an expression in f32, whose ``load k`` is component ``k``, and past the last one the position in a
    block of ``block`` numbers, in i32.

    ``scale``, ``zero``: where numbers in a group are ``number * scale + zero``, the expressions, over components that
    serve a whole group or row. A sum of products needs them once a group.
    """

    number: Expr
    components: tuple[Component, ...]
    block: int
    scale: Expr | None = None
    zero: Expr | None = None

    @property
    def arguments(self) -> tuple[Component, ...]:
        """The components that are tensors of their own, as which a kernel is given them."""
        return tuple([one for one in self.components if not one.pair_of])

    def argument(self, k: int) -> int:
        """The number of the argument that has component ``k``."""
        one = self.components[k]
        return [a.name for a in self.arguments].index(one.pair_of or one.name)

    def used(self, *roots: Expr | None) -> list[int]:
        """The components that expressions load."""
        found = {e.args[0] for e in walk([r for r in roots if r is not None]) if e.op == "load"}
        return sorted(found - {len(self.components)})

    def of_rows(self) -> bool:
        """Whether scale and zero are the same in a whole row."""
        return all(not self.components[k].elements for k in self.used(self.scale, self.zero))

    def comes_in_runs(self, run: int) -> bool:
        """Whether ``run`` neighbours, from a multiple of that on, are whole elements of components, or parts of one
        each; scale and zero are one number for all of them.
        """
        sizes = [one.elements for one in self.components if one.elements]
        shared = [self.components[k].elements for k in self.used(self.scale, self.zero)]
        fit = all(size % run == 0 or run % size == 0 for size in (*sizes, self.block))
        return fit and all(size % run == 0 for size in shared)


def bind_components(
    kernel: Draft, elements: Elements, specs: Sequence[Spec], k: int, first: int = 1, x: str = "b"
) -> None:
    """Gives ``kernel`` the components, arguments from ``first`` on, and ``<x>_<name>_at(row, step)``, an element's
    number.
    """
    for number, one in enumerate(elements.components):
        argument = elements.argument(number)
        spec, name = specs[argument], f"{x}_{one.name}"
        if one.pair_of:
            beside = kernel.params.add(f"{name}_beside", spec.strides[2])
            place = f"{x}_{one.pair_of}_at(row, step) + {beside}"
            kernel.add(f"fn {name}_at(row: u32, step: u32) -> u32 {{ return {place}; }}")
            continue
        kernel.binding(Binding(name, one.dtype), first + argument)
        terms = [kernel.params.add(f"{name}_offset", Source("offset", first + argument))]
        row, step = spec.strides[0], spec.strides[1] if len(spec.strides) > 1 else 0
        if one.elements and row * one.elements == k:
            terms.append(f"row * (P.k / {one.elements}u)")
        elif row:
            terms.append("row" if row == 1 else f"row * {kernel.params.add(f'{name}_row', row)}")
        if one.elements:
            position = "step" if one.elements == 1 else f"step / {one.elements}u"
            terms.append(position if step == 1 else f"{position} * {kernel.params.add(f'{name}_step', step)}")
        kernel.add(f"fn {name}_at(row: u32, step: u32) -> u32 {{ return {' + '.join(terms)}; }}")


def load_of(k: int, dtype: str) -> Expr:
    """Component ``k`` in an expression, as a number in f32."""
    return ops.to_dtype(ops.load(k, dtype), "f32")


@dataclass(frozen=True)
class Loads:
    """How ``run`` numbers are loaded from components that are laid out as ``specs`` say."""

    elements: Elements
    specs: tuple[Spec, ...]
    run: int
    x: str = "b"

    def is_whole(self) -> bool:
        """Whether a run is one load of each component, of up to 16 bytes."""
        if not self.elements.comes_in_runs(self.run):
            return False
        used = self.elements.used(self.elements.number)
        sizes = [(k, self.count(k), self.elements.components[k].itemsize) for k in used]
        return all(n == 1 or (n % 4 == 0 and n * size <= RUN_BYTES and self.is_together(k)) for k, n, size in sizes)

    def function(self, name: str) -> str:
        """``fn <name>(row: u32, step: u32) -> array<f32, run>``: the numbers from ``step`` on."""
        lines = self.loads(self.elements.used(self.elements.number, self.elements.scale, self.elements.zero))
        more, numbers = self.numbers()
        affine, scale, zero = self.affine()
        values = [f"{x} * {scale}" if scale else x for x in numbers]
        values = [f"{x} + {zero}" if zero else x for x in values]
        signature = f"fn {name}(row: u32, step: u32) -> array<f32, {self.run}> {{"
        result = f"  return array<f32, {self.run}>({', '.join(values)});"
        return "\n".join([signature, *lines, *more, *affine, result, "}"])

    def loads(self, components: Sequence[int]) -> list[str]:
        """Statements that load what ``components`` have for a run: ``c<component>_<element>``."""
        lines = []
        for k in components:
            one = self.elements.components[k]
            name, count = f"{self.x}_{one.pair_of or one.name}", self.count(k)
            lines.append(f"  let at{k} = {self.x}_{one.name}_at(row, step);")
            if count % 4 == 0 and self.is_together(k):
                lines += [f"  let c{k}_{4 * j} = {name}_load4(at{k} / 4u + {j}u);" for j in range(count // 4)]
                continue
            further = self.spec(k).strides[-1]
            for item in range(count):
                at = f"at{k}" if not item else f"at{k} + {item * further}u"
                lines.append(f"  let c{k}_{item} = {name}_load({at});")
        return lines

    def members(self, components: Sequence[int]) -> list[tuple[str, str]]:
        """The names that :meth:`loads` declares for elements, and their types."""
        found = []
        for k in components:
            type_, count = BY_NAME[self.elements.components[k].dtype].compute, self.count(k)
            fours = count % 4 == 0 and self.is_together(k)
            found += [(f"c{k}_{i}", f"vec4<{type_}>" if fours else type_) for i in range(0, count, 4 if fours else 1)]
        return found

    def spec(self, k: int) -> Spec:
        """The layout of component ``k``."""
        return self.specs[self.elements.argument(k)]

    def count(self, k: int) -> int:
        """How many elements of component ``k`` a run needs."""
        size = self.elements.components[k].elements
        return -(-self.run // size) if size else 1

    def is_together(self, k: int) -> bool:
        """Whether the elements of a run lie in fours."""
        spec = self.spec(k)
        row, step = spec.strides[0], spec.strides[-1]
        return step == 1 and spec.aligned and (row % 4 == 0 or spec.shape[0] == 1)

    def item(self, k: int, item: int) -> str:
        """What :meth:`loads` gave the name of element ``item`` of component ``k``."""
        if self.count(k) % 4 == 0 and self.is_together(k):
            return f"{self.elements.components[k].converted}(c{k}_{item // 4 * 4}.{LANES[item % 4]})"
        return f"{self.elements.components[k].converted}(c{k}_{item})"

    def numbers(self) -> tuple[list[str], list[str]]:
        """Statements, and the texts of a run's numbers, before scale and zero."""
        roots = [self.at(self.elements.number, e) for e in range(self.run)]
        return emit(roots, self.leaf, "n")

    def affine(self) -> tuple[list[str], str, str]:
        """Statements, and the texts of a run's scale and zero; empty where there is none."""
        given = [(name, e) for name, e in (("scale", self.elements.scale), ("zero", self.elements.zero)) if e]
        lines, texts = emit([self.at(e, 0) for _, e in given], self.leaf, "s")
        found = dict(zip([name for name, _ in given], texts, strict=True))
        return lines, found.get("scale", ""), found.get("zero", "")

    def at(self, root: Expr, number: int) -> Expr:
        """An expression for number ``number`` of a run: its leaves tell the element of a component."""
        if root.op == "load":
            (k,) = root.args
            if k < len(self.elements.components):
                size = self.elements.components[k].elements
                return Expr("load", (k, number // size if size else 0), root.dtype)
            if self.run % self.elements.block == 0:
                return ops.constant(number % self.elements.block, root.dtype)
            return Expr("load", (k, number), root.dtype)
        return Expr(root.op, tuple([self.at(a, number) if isinstance(a, Expr) else a for a in root.args]), root.dtype)

    def leaf(self, load: Expr) -> str:
        k, item = load.args
        if k < len(self.elements.components):
            return self.item(k, item)
        return f"i32(step % {self.elements.block}u) + {item}"
