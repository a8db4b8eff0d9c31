"""The numbers that kernels of linear algebra compute with: one text for real and complex matrices."""

from __future__ import annotations

from torch_webgpu.kernels.points import wgsl_source

REAL = ("f32", "f64")
DTYPES = (*REAL, "c64")


def numbers(dtype: str) -> str:
    """WGSL over ``T``, the type of an element, and ``R``, that of a real one."""
    return wgsl_source(f"linalg/{'complex' if dtype == 'c64' else 'real'}").replace(
        "REAL", "f64" if dtype == "f64" else "f32"
    )
