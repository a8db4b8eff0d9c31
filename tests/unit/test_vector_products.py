"""How lanes share the sums of products with one vector."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from torch_webgpu.plan import Plan, trace


def product(n: int, k: int, target: str, dtype: torch.dtype = torch.float16) -> str:
    """The text of the kernel."""
    plan: Plan = trace(
        F.linear, *[torch.empty(shape, dtype=dtype, device="meta") for shape in ((1, k), (n, k))], target=target
    )
    (kernel,) = plan.kernels
    return kernel.body


def columns(k: int, n: int, target: str) -> Plan:
    """Of a product whose matrix has its neighbours along the result."""
    shapes = (1, k), (k, n)
    return trace(torch.mm, *[torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes], target=target)


@pytest.mark.parametrize(("k", "lanes", "loads"), [(64, 32, 1), (896, 32, 7), (4864, 256, 5), (11008, 256, 6)])
def test_loads_of_a_row_are_underway_at_once(k: int, lanes: int, loads: int) -> None:
    """Of 4,864 numbers by 256 lanes, which load four at once: five each. Of 11,008 it is eleven, in two steps."""
    text = product(900, k, "h200-dawn")
    assert f"const LANES = {lanes}u;" in text
    assert len(re.findall(r"let a_0_\d+ = a_run", text)) == loads


def test_on_a_cpu_few_lanes_share_rows() -> None:
    text = product(900, 896, "lavapipe")
    assert "const LANES = 8u;" in text
    assert len(re.findall(r"let a_\d+_0 = a_run", text)) == 4


@pytest.mark.parametrize(
    ("k", "n", "quads", "threads", "loads"),
    [
        (768, 768, 4, 512, 6),
        (768, 3072, 4, 512, 6),
        (3072, 768, 4, 1024, 6),
        (4096, 4096, 8, 1024, 8),
        (4096, 11008, 16, 1024, 8),
    ],
)
def test_lanes_of_columns(k: int, n: int, quads: int, threads: int, loads: int) -> None:
    """Few neighbours a workgroup while there are less than 128; so many lanes that eight loads of each suffice."""
    (kernel,) = columns(k, n, "h200-dawn").kernels
    assert f"const QUADS = {quads}u;" in kernel.body
    assert f"const LANES = {threads // quads}u;" in kernel.body
    assert len(re.findall(r"let a_\d+ = a_run", kernel.body)) == loads


@pytest.mark.parametrize("target", ["h200-dawn", "chrome", "lavapipe"])
def test_columns_meet_in_subgroups_where_their_size_is_known(target: str) -> None:
    (kernel,) = columns(768, 768, target).kernels
    assert ("subgroupShuffleXor" in kernel.body) == (target == "h200-dawn")


def test_long_sums_of_few_columns_are_split() -> None:
    assert len(columns(100_000, 64, "h200-dawn").kernels) == 2
    assert len(columns(6400, 1600, "h200-dawn").kernels) == 1


@pytest.mark.parametrize("target", ["h200-dawn", "chrome", "lavapipe"])
def test_sums_meet_in_subgroups_where_their_size_is_known(target: str) -> None:
    text = product(900, 896, target)
    assert ("subgroupAdd" in text) == (target == "h200-dawn")
    assert ("var<workgroup> sums" in text) == (target != "h200-dawn")
