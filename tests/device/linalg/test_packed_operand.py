"""An operand of a kind that no product knows of: a weight of 4 bits a number, with a scale for each group of 32.

It is a class here, with what :class:`torch_webgpu.kernels.matmul.operand.Operand` asks for; how blocks are multiplied,
on registers and on subgroup matrices, is the text of every other product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.device.choices import forget

from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul import blocked, matmul
from torch_webgpu.kernels.matmul.blocked import lower_product
from torch_webgpu.kernels.matmul.epilogue import Epilogue
from torch_webgpu.kernels.matmul.matmul import MatrixProblem, lift
from torch_webgpu.kernels.matmul.operand import COORDINATES, FOUR, Run, Side, Strided
from torch_webgpu.kernels.matmul.tile import HUGE, MEDIUM, NARROW_SLICED, SMALL, Blocking, Tile
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

from .matrices_emulated import NVIDIA, laid_out, pretend

GROUP = 32
PER_WORD = 8


@dataclass(frozen=True)
class Packed:
    """Operand b of ``n`` columns and ``k`` positions of the sum: argument ``words`` (n, k / 8) has each column's
    numbers from -8 to 7, in words from the lowest bits up, argument ``scales`` (n, k / 32) what groups are multiplied
    by.
    """

    dtype: str
    n: int
    k: int
    words: int
    scales: int

    x = "b"
    element_bytes = 4 / PER_WORD + 4 / GROUP
    scale = None
    tensor = None

    def side(self, run: int) -> Side:
        return Side("b", k_major=True, runs=self.k % run == 0 and PER_WORD % run == 0)

    def bind(self, kernel: Draft) -> None:
        kernel.binding(Binding("b_words", "i32"), self.words)
        kernel.binding(Binding("b_scales", "f32"), self.scales)
        kernel.param("b_words_offset", Source("offset", self.words))
        kernel.param("b_scales_offset", Source("offset", self.scales))
        kernel.param("b_k", self.k)
        kernel.add(
            "fn b_delta(slice: u32, m: u32, n: u32) -> u32 { return n * P.b_k + m; }",
            "fn b_at(slice: u32, m: u32, n: u32) -> u32 { return b_delta(slice, m, n); }",
        )

    def load(self, side: Side, run: Run) -> list[str]:
        four = f"""fn b_four(at: u32) -> vec4<f32> {{
  let word = u32(b_words_load(P.b_words_offset + at / {PER_WORD}u)) >> (at % {PER_WORD}u * 4u);
  let numbers = vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)) - 8;
  return vec4<f32>(numbers) * b_scales_load(P.b_scales_offset + at / {GROUP}u);
}}"""
        if not side.runs:
            load = "fn b_value(row: u32, step: u32) -> T { return b_four(row + step).x; }"
        elif run == FOUR:
            load = "fn b_run(row: u32, step: u32) -> vec4<T> { return b_four(row + step); }"
        else:
            load = f"""fn b_run(row: u32, step: u32) -> {run.type} {{
  let low = b_four(row + step);
  let high = b_four(row + step + 4u);
  return vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}}"""
        return [wgsl_source("matmul/matmul"), four, load]


def lower_packed(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: a (m, k), words, scales, what the epilogue reads → (m, n)."""
    a, words = op.inputs[:2]
    (m, k), n = a.shape, words.shape[0]
    as_matrices = partial(lift, as_row=False, as_column=False)
    operands = Strided("a", 0, as_matrices(a)), Packed(a.dtype, n, k, 1, 2)
    epilogue = Epilogue(op, alias, COORDINATES, as_matrices)
    problem = MatrixProblem(a.dtype, (1, m, n, k), operands, epilogue, target)
    lowered = matmul.matvec(problem) if n == 1 else lower_product(problem)
    assert lowered is not None
    return lowered


def body_of(dtype: str) -> Extern:
    return Extern(lower_packed, operands=3, epilogue=(ops.to_dtype(ops.acc(0, "f32"), dtype),))


def linear(a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    dtype = {torch.float32: "f32", torch.float16: "f16"}[a.dtype]
    shape = (a.shape[0], words.shape[0])
    (out,) = kernel_outputs("packed_linear", (a, words, scales), [(shape, (shape[1], 1), a.dtype)], body_of(dtype))
    return out


def weight(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Words, scales, and the weight (n, k) that they are."""
    random = np.random.default_rng(n * k)
    numbers, scales = random.integers(-8, 8, (n, k)), random.choice([0.25, 0.5, 1.5, 3.0], (n, k // GROUP))
    nibbles = (numbers + 8).astype(np.uint32).reshape(n, k // PER_WORD, PER_WORD)
    words = np.bitwise_or.reduce(nibbles << (4 * np.arange(PER_WORD, dtype=np.uint32)), axis=2)
    dense = numbers * np.repeat(scales, GROUP, axis=1)
    return torch.from_numpy(words.view(np.int32)), torch.from_numpy(scales.astype(np.float32)), dense


def check(
    device: torch.device, m: int, n: int, k: int, dtype: torch.dtype = torch.float32, order: str = "rows"
) -> None:
    """Numbers are small and scales have few bits, so that results are exact."""
    words, scales, dense = weight(n, k)
    a = laid_out(order, m, k, dtype=dtype)
    bias = torch.randint(-4, 5, (n,)).to(dtype)
    result = torch.relu(linear(a.to(device), words.to(device), scales.to(device)) + bias.to(device))
    expected = np.maximum(a.double().numpy() @ dense.T + bias.double().numpy(), 0)
    assert np.array_equal(result.cpu().double().numpy(), expected)


def test_bytes_of_elements():
    """All that a weight takes, by its numbers; of a tensor its type's."""
    words, scales, dense = weight(40, 64)
    assert words.nbytes + scales.nbytes == Packed.element_bytes * dense.size
    assert Strided("a", 0, Spec("bf16", (1, 2, 3), (6, 3, 1))).element_bytes == 2


@pytest.fixture
def without_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "matrices_for", lambda _: None)
    forget(monkeypatch)


@pytest.mark.parametrize(("m", "n", "k"), [(4, 5, 32), (33, 34, 64), (70, 68, 96), (65, 130, 512)])
def test_products_on_registers(device, without_matrices, m, n, k):
    check(device, m, n, k)


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize(("m", "k"), [(5, 32), (4, 96), (68, 512)])
def test_matrix_times_vector(device, monkeypatch, m, k, order):
    """As on a GPU, where sums are split: in runs, or number by number."""
    chip = engine().device(0)
    monkeypatch.setattr(chip, "target", replace(chip.target, software=False))
    check(device, m, 1, k, order=order)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("tile", [SMALL, MEDIUM, NARROW_SLICED, HUGE], ids=str)
def test_tiles_as_on_a_gpu(device, monkeypatch, without_matrices, tile, splits):
    """By numbers or, of small tiles whose other operand lies across the sum, in runs."""

    def plan(slices: int, m: int, n: int, k: int, *_: object) -> Blocking[Tile]:
        return Blocking(tile, splits, -(-k // splits // tile.k) * tile.k)

    chip = engine().device(0)
    monkeypatch.setattr(chip, "target", replace(chip.target, software=False))
    monkeypatch.setattr(blocked, "blocking", plan)
    for order in ("rows", "columns"):
        check(device, 66, 67, 128, order=order)


def test_parts_of_tensors(device, without_matrices):
    """Words and scales that start within their buffers."""
    words, scales, dense = weight(40, 64)
    a = torch.randint(-2, 3, (33, 64)).float()
    result = linear(a.to(device), words.to(device)[3:], scales.to(device)[3:])
    assert np.array_equal(result.cpu().double().numpy(), a.double().numpy() @ dense[3:].T)


def test_products_on_matrices(device, monkeypatch):
    """Emulated, of float16."""
    chosen = pretend(monkeypatch, NVIDIA)
    check(device, 40, 72, 96, torch.float16)
    assert chosen


def test_the_text_of_products_is_the_same():
    """All but the functions that load: as of a product whose b is a tensor (k, n) that is contiguous along k."""
    host = Target(int64=False, float16=True, float64=False, immediates_bytes=64, max_binding_bytes=1 << 30)
    matrices = replace(host, matrices=(NVIDIA,), subgroups=True, workgroup_bytes=49152)
    for dtype, target in (("f32", host), ("f32", replace(host, software=True)), ("f16", matrices)):
        m, n, k = 100, 96, 64
        a, y, scales = Spec(dtype, (m, k), (k, 1)), Spec(dtype, (m, n), (n, 1)), Spec("f32", (n, k // 32), (k // 32, 1))
        words, b = Spec("i32", (n, k // 8), (k // 8, 1)), Spec(dtype, (k, n), (1, k))
        packed = lower_packed(Operation("packed", (a, words, scales, y), 1, body_of(dtype)), (0, 1, 2, 3), target)
        dense = matmul.lower_matmul(Operation("mm", (a, b, y), 1, matmul.extern(dtype)), (0, 1, 2), target)
        mains = [
            launch.kernel.body[launch.kernel.body.index("@compute") :]
            for (launch,) in (packed.launches, dense.launches)
        ]
        assert mains[0] == mains[1]
        assert packed.launches[0].grid == dense.launches[0].grid
