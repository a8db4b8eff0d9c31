"""PyTorch's side: what each ATen operator records. Importing the family modules registers their kernels."""

from __future__ import annotations

from importlib import import_module

from torch_webgpu.engine.random import new_generator

FAMILIES = (
    "storage",
    "pinned",
    "default_dtype",
    "views",
    "copy",
    "factories",
    "sequences",
    "arithmetic",
    "comparison",
    "elementary",
    "complex_numbers",
    "activations",
    "losses",
    "reduce",
    "softmax",
    "norm",
    "batch_norm",
    "nll",
    "margin",
    "ctc",
    "scan",
    "distance",
    "random",
    "sampling",
    "quantize",
    "amp",
    "fused_optimizers",
    "foreach",
    "foreach_reductions",
    "foreach_scope",
    "autocast",
    "flex_attention",
    "opcheck",
    "linalg",
    "conv",
    "fold",
    "grid_sample",
    "rnn",
    "attention",
    "sdpa",
    "nested",
    "padding",
    "upsample",
    "pool",
    "indexing",
    "scatter",
    "join",
    "sort",
    "search",
    "shape_ops",
    "embedding",
    "scaled_mm",
    "sparse",
    "storage_only",
)


def register() -> None:
    """Registers every operator family and the fallback for the rest."""
    from . import fallback, torch_abi, torch_late_dynamo, torch_patches

    torch_late_dynamo.register()

    for family in FAMILIES:
        module = import_module(f"{__name__}.{family}")
        if hasattr(module, "register"):
            module.register()
    fallback.install()
    torch_abi.run_backward_in_calling_thread()
    torch_patches.replace_generator_constructor(new_generator)
