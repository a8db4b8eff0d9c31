"""Products whose operand b is described, not stored: each number is an expression over elements of components.

Weights of 4 bits a number with a scale for each group are an example. The expression stands in the function that loads
operands; how blocks are multiplied, on registers and on subgroup matrices, is the text of every other product. A single
row has a kernel of its own, :mod:`.projections`: it waits for the weights, and reads them packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .blocked import lower_product
from .component_loads import Elements, Loads, bind_components
from .epilogue import Epilogue
from .matmul import MatrixProblem, lift
from .operand import COORDINATES, FOUR, Run, Side, Strided
from .projections import lower_projections


@dataclass(frozen=True)
class Described:
    """Operand b of ``n`` columns and ``k`` positions of the sum; its components, laid out as ``specs`` say, are the
    arguments from 1 on.
    """

    dtype: str
    n: int
    k: int
    elements: Elements
    specs: tuple[Spec, ...]

    x = "b"
    scale = None
    tensor = None

    @property
    def element_bytes(self) -> float:
        return sum(BY_NAME[one.dtype].itemsize / (one.elements or self.k) for one in self.elements.components)

    def side(self, run: int) -> Side:
        return Side("b", k_major=True, runs=self.k % run == 0 and self.elements.comes_in_runs(run))

    def bind(self, kernel: Draft) -> None:
        bind_components(kernel, self.elements, self.specs, self.k)
        kernel.add(  # what matmul.wgsl takes for an element's number is its row, and its position of the sum
            "fn b_at(slice: u32, m: u32, n: u32) -> u32 { return n; }",
            "fn b_delta(slice: u32, m: u32, n: u32) -> u32 { return m; }",
        )

    def load(self, side: Side, run: Run) -> list[str]:
        texts = [wgsl_source("matmul/matmul")]
        if not side.runs:
            loads = Loads(self.elements, self.specs, 1)
            texts += [loads.function("b_one"), "fn b_value(row: u32, step: u32) -> T { return b_one(row, step)[0]; }"]
        elif run == FOUR:
            loads = Loads(self.elements, self.specs, 4)
            four = "vec4<T>(" + ", ".join(f"b[{e}]" for e in range(4)) + ")"
            texts.append(loads.function("b_four"))
            texts.append(f"fn b_run(row: u32, step: u32) -> vec4<T> {{ let b = b_four(row, step); return {four}; }}")
        else:
            loads = Loads(self.elements, self.specs, run.length)
            texts += [loads.function("b_numbers"), packed_run(self.dtype, run)]
        return texts


def packed_run(dtype: str, run: Run) -> str:
    """``b_run`` of numbers as those of a 16-bit type lie in memory."""
    pack = {"f16": "pack2x16float(vec2<f32>({}, {}))", "bf16": "bf16_pair({}, {})"}[dtype]
    words = ", ".join(pack.format(f"b[{e}]", f"b[{e + 1}]") for e in range(0, run.length, 2))
    lines = ["  let b = b_numbers(row, step);", f"  return vec4<u32>({words});"]
    return "\n".join([f"fn b_run(row: u32, step: u32) -> {run.type} {{", *lines, "}"])


def lower_described(op: Operation, alias: tuple[int, ...], target: Target, elements: Elements) -> Lowered:
    """Arguments: a (m, k), the components, what the epilogue reads → (m, n)."""
    a, *specs = op.inputs[: 1 + len(elements.arguments)]
    (m, k), n = a.shape, op.outputs[0].shape[1]
    if m == 1:
        return lower_projections(op, alias, target, elements, 1, None)
    as_matrices = partial(lift, as_row=False, as_column=False)
    epilogue = Epilogue(op, alias, COORDINATES, as_matrices)
    operands = Strided("a", 0, as_matrices(a)), Described(a.dtype, n, k, elements, tuple(specs))
    lowered = lower_product(MatrixProblem(a.dtype, (1, m, n, k), operands, epilogue, target))
    assert lowered is not None, "products of floating-point numbers are computed on registers at least"
    return lowered


def described(dtype: str, elements: Elements) -> Extern:
    """``a @ bᵀ`` of a tensor (m, k) of ``dtype``, a float of up to 32 bits, and b (n, k), whose numbers ``elements``
    describes.
    """
    result = ops.to_dtype(ops.acc(0, "f32"), dtype)
    return Extern(lower_described, (elements,), operands=1 + len(elements.arguments), epilogue=(result,))
