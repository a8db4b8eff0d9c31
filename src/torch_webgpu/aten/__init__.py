"""PyTorch's side: what each ATen operator records.

``dispatch/`` is what all operators use: registration, guards, recipes, fallbacks, replacements of PyTorch's functions.
Every other folder is a family of operators, whose modules register their kernels when they are imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

# In this order: tensors exist before anything computes with them.
FAMILIES = (
    "tensors",
    "pointwise",
    "reductions",
    "linalg",
    "spectral",
    "indexing",
    "nn",
    "attention",
    "foreach",
    "random",
    "quantized",
    "sparse",
)


def register() -> None:
    """Registers every operator family and the fallback for the rest."""
    from .dispatch import autocast, fallback

    autocast.register()
    for family in FAMILIES:
        package = import_module(f"{__name__}.{family}")
        late: frozenset[str] = getattr(package, "LATE", frozenset())
        for found in iter_modules(package.__path__):
            if found.name in late:
                continue
            module = import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "register"):
                module.register()
    fallback.install()
