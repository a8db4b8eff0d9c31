"""What programs take from others: §4 of the audit of 23 November 2026, the rows that have no tests elsewhere.

Files of plans: test_strangers.py. The cache's folder and artifacts: tests/compile/test_cache.py, test_artifacts.py.
"""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.errors import ShaderCompileError


@pytest.mark.parametrize("name", ["x_buf[70000u]", "x_load(70000u)", "y_buf[0]", "P.n"])
def test_row_patterns_27_a_program_s_wgsl_names_no_memory(name: str) -> None:
    with pytest.raises(ShaderCompileError):
        torch.webgpu.add_fusion_pattern(
            "reads", ["add", "tanh"], wgsl=f"fn reads(a: f32, b: f32) -> f32 {{ return a + b + f32({name}); }}"
        )
