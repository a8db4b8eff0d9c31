"""The requirements pass: what a plan needs of a target, read off its kernels."""

from __future__ import annotations

import re

from torch_webgpu.plan import Plan, Requirements
from torch_webgpu.target import Target

_SUBGROUP_SIZE = re.compile(r"@subgroup_size\((\d+)\)")


def requirements(plan: Plan, target: Target) -> Requirements:
    """Features and limits without which the plan cannot run; ``target``: what it was compiled for."""
    return Requirements()
