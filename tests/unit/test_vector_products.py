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


@pytest.mark.parametrize("target", ["h200-dawn", "chrome", "lavapipe"])
def test_sums_meet_in_subgroups_where_their_size_is_known(target: str) -> None:
    text = product(900, 896, target)
    assert ("subgroupAdd" in text) == (target == "h200-dawn")
    assert ("var<workgroup> sums" in text) == (target != "h200-dawn")
