"""Plans and their kernels' WGSL as text.

Of a program's targets the first has all of its text; where a kernel comes out nearly the same for another one, only
the lines that differ are there.
"""

from __future__ import annotations

from torch_webgpu.plan import Plan
from torch_webgpu.wgsl.link import link

from .targets import TARGETS

FEW_LINES = 8


def text(plan: Plan, target: str, sources: dict[str, str]) -> str:
    """A plan and its kernels' sources. ``sources``: those of the program's earlier targets; gains these."""
    parts, earlier = [f"{plan}\n{interface(plan)}"], dict(sources)
    for kernel in plan.kernels:
        source = link(kernel, TARGETS[target]).source.strip()
        sources.setdefault(source, target)
        checks = "trusted" if kernel.trusted else "with bounds checks"
        parts.append(f"// {kernel.name}, {checks}\n{abridged(source, earlier)}\n")
    return "\n".join(parts)


def interface(plan: Plan) -> str:
    """What a plan takes and gives, and what else decides a run."""
    lines = []
    for role, specs in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [f"{role} b{t.buffer}+{t.byte_offset}: {t.dtype} {t.shape}, strides {t.strides}" for t in specs]
    lines += [f"constant b{number}: {digest}" for number, digest in plan.constants]
    lines += [f"{plan.random_blocks} blocks of the random stream"] if plan.random_blocks else []
    return "".join([f"{line}\n" for line in lines])


def abridged(source: str, earlier: dict[str, str]) -> str:
    """A source; only the lines that differ, where these are few, from one that another target has."""
    lines = source.splitlines()
    for other, target in earlier.items():
        others = other.splitlines()
        if len(lines) == len(others):
            differing = [f"{k}: {line}" for k, line in enumerate(lines, 1) if line != others[k - 1]]
            if len(differing) <= FEW_LINES:
                return "\n".join([f"// as for {target}, but for these lines:", *differing])
    return source
