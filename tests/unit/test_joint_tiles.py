"""Products that can run as one dispatch choose one tile, and run as one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_webgpu.compiler.passes.horizontal_fusion import MAX_PARTS
from torch_webgpu.compiler.passes.joint_tiles import MOST_SUMS
from torch_webgpu.plan import Plan, Step, trace
from torch_webgpu.wgsl.merged_kernels import can_share_memory

TARGET = "h200-dawn"
Tensors = list[torch.Tensor]


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def steps(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if isinstance(step, Step)]


def projections(x: torch.Tensor, weights: Tensors, biases: Tensors) -> Tensors:
    return [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]


def qkv(dtype: torch.dtype, rows: int = 512) -> tuple[torch.Tensor, Tensors, Tensors]:
    columns = (896, 128, 128)
    x = meta(rows, 896, dtype=dtype)
    return x, [meta(n, 896, dtype=dtype) for n in columns], [meta(n, dtype=dtype) for n in columns]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_queries_keys_and_values_of_a_prompt_are_one_dispatch(dtype: torch.dtype) -> None:
    plan = trace(projections, *qkv(dtype), target=TARGET)
    (step,) = [step for step in steps(plan) if "matrices" in plan.kernels[step.kernel].name]
    tiles = plan.kernels[step.kernel].name.split("+")
    assert len(tiles) == 3
    assert len(set(tiles)) == 1
    assert step.grid[1:] == (1, 1)


def test_products_on_registers_choose_their_own() -> None:
    """Keys and values, which are equal, are one all the same."""
    plan = trace(projections, *qkv(torch.float32), target=TARGET)
    alone = trace(F.linear, meta(512, 896, dtype=torch.float32), meta(896, 896, dtype=torch.float32), target=TARGET)
    tiles = [plan.kernels[step.kernel].name.split("+") for step in steps(plan)]
    assert max(map(len, tiles)) == 2
    assert [alone.kernels[0].name] in tiles


def test_each_has_an_epilogue_of_its_own() -> None:
    """They are different kernels then, and share workgroup memory."""

    def run(x: torch.Tensor, weights: Tensors, biases: Tensors) -> Tensors:
        return [F.linear(x, weights[0], biases[0]).relu(), F.linear(x, weights[1]), F.linear(x, weights[2]).float()]

    plan = trace(run, *qkv(torch.float16), target=TARGET)
    (kernel,) = plan.kernels
    memory = [d for d in kernel.module.declarations if d.address_space == "workgroup"]
    assert len(memory) == 1
    assert can_share_memory(kernel)


def test_what_uses_another_result_stays_behind_it() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) @ w

    plan = trace(run, meta(256, 256), meta(256, 256), target=TARGET)
    alone = trace(torch.matmul, meta(256, 256), meta(256, 256), target=TARGET)
    assert [plan.kernels[step.kernel] for step in steps(plan)] == [alone.kernels[0]] * 2


def test_large_ones_stay_apart() -> None:
    rows = MOST_SUMS // 1152 + 1
    assert len(steps(trace(projections, *qkv(torch.float16, rows), target=TARGET))) > 1
    assert len(steps(trace(projections, *qkv(torch.float16, rows // 2), target=TARGET))) == 1


def test_no_more_than_a_dispatch_may_have() -> None:
    def run(x: torch.Tensor, weights: Tensors) -> Tensors:
        return [x @ w for w in weights]

    plan = trace(run, meta(64, 64), [meta(64, 64) for _ in range(MAX_PARTS + 2)], target=TARGET)
    assert all(len(plan.kernels[step.kernel].name.split("+")) <= MAX_PARTS for step in steps(plan))
    assert sum(len(plan.kernels[step.kernel].name.split("+")) for step in steps(plan)) == MAX_PARTS + 2


def test_products_of_one_vector_are_as_before() -> None:
    plan = trace(projections, *qkv(torch.float16, rows=1), target=TARGET)
    assert len(steps(plan)) == 1
