"""Products whose operand b is described, not stored: each number is an expression over elements of components.

Weights of 4 bits a number with a scale for each group are an example. The expression stands in the function that loads
operands; how blocks are multiplied, on registers and on subgroup matrices, is the text of every other product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.expr import emit
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

from .blocked import lower_product
from .epilogue import Epilogue
from .matmul import MatrixProblem, lift
from .operand import COORDINATES, FOUR, Run, Side, Strided


@dataclass(frozen=True)
class Component:
    """A tensor (n, k / elements) of ``dtype``, one element of which serves ``elements`` neighbours along k.

    ``converted``: the WGSL function that makes a number of what it loads, if any.
    """

    name: str
    dtype: str
    elements: int
    converted: str = ""


@dataclass(frozen=True)
class Elements:
    """``number``: an expression in f32, whose ``load k`` is component ``k``, and past the last one the position in a
    block of ``block`` numbers, in i32.
    """

    number: Expr
    components: tuple[Component, ...]
    block: int


@dataclass(frozen=True)
class Described:
    """Operand b of ``n`` columns and ``k`` positions of the sum; its components are the arguments from 1 on."""

    dtype: str
    n: int
    k: int
    elements: Elements

    x = "b"
    scale = None
    tensor = None

    @property
    def element_bytes(self) -> float:
        return sum(BY_NAME[one.dtype].itemsize / one.elements for one in self.elements.components)

    def side(self, run: int) -> Side:
        return Side("b", k_major=True, runs=self.k % run == 0)

    def bind(self, kernel: Draft) -> None:
        for argument, one in enumerate(self.elements.components, 1):
            kernel.binding(Binding(f"b_{one.name}", one.dtype), argument)
            kernel.param(f"b_{one.name}_offset", Source("offset", argument))
        kernel.param("b_k", self.k)
        kernel.add(
            "fn b_delta(slice: u32, m: u32, n: u32) -> u32 { return n * P.b_k + m; }",
            "fn b_at(slice: u32, m: u32, n: u32) -> u32 { return b_delta(slice, m, n); }",
        )

    def load(self, side: Side, run: Run) -> list[str]:
        four = ", ".join(f"b_element(at + {e}u)" for e in range(4))
        texts = [self.element(), f"fn b_four(at: u32) -> vec4<f32> {{ return vec4<f32>({four}); }}"]
        if not side.runs:
            texts.append("fn b_value(row: u32, step: u32) -> T { return T(b_element(row + step)); }")
        elif run == FOUR:
            texts.append("fn b_run(row: u32, step: u32) -> vec4<T> { return vec4<T>(b_four(row + step)); }")
        else:
            texts.append(
                f"""fn b_run(row: u32, step: u32) -> {run.type} {{
  let low = b_four(row + step);
  let high = b_four(row + step + 4u);
  return vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}}"""
            )
        return [wgsl_source("matmul/matmul"), *texts]

    def element(self) -> str:
        statements, (number,) = emit([self.elements.number], self.leaf)
        return "\n".join(["fn b_element(at: u32) -> f32 {", *statements, f"  return {number};", "}"])

    def leaf(self, load: Expr) -> str:
        """The WGSL of a load at element ``at`` of b."""
        (k,), components = load.args, self.elements.components
        if k == len(components):
            return f"i32(at % {self.elements.block}u)"
        one = components[k]
        return f"{one.converted}(b_{one.name}_load(P.b_{one.name}_offset + at / {one.elements}u))"


def lower_described(op: Operation, alias: tuple[int, ...], target: Target, elements: Elements) -> Lowered:
    """Arguments: a (m, k), the components, what the epilogue reads → (m, n)."""
    a, first = op.inputs[:2]
    (m, k), n = a.shape, first.shape[0]
    as_matrices = partial(lift, as_row=False, as_column=False)
    operands = Strided("a", 0, as_matrices(a)), Described(a.dtype, n, k, elements)
    epilogue = Epilogue(op, alias, COORDINATES, as_matrices)
    lowered = lower_product(MatrixProblem(a.dtype, (1, m, n, k), operands, epilogue, target))
    assert lowered is not None, "products of floating-point numbers are computed on registers at least"
    return lowered


def described(dtype: str, elements: Elements) -> Extern:
    """``a @ bᵀ`` of a tensor (m, k) of ``dtype``, f32 or f16, and b (n, k), whose numbers ``elements`` describes."""
    result = ops.to_dtype(ops.acc(0, "f32"), dtype)
    return Extern(lower_described, (elements,), operands=1 + len(elements.components), epilogue=(result,))
