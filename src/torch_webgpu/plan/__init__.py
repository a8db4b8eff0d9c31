"""Plans: compiled work as plain data, and what makes, checks and carries it.

:func:`trace` makes the plan of a function, :func:`bind` a function of a plan; :meth:`Plan.save` and :meth:`Plan.load`
carry one to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .plan import FORMAT, Plan, check
from .requirements import Requirements, features_of
from .steps import (
    ERROR_FLAG_BYTES,
    INITIALISED,
    READ_ONLY,
    STREAM_MASK,
    WORD_BYTES,
    BufferSpec,
    Clear,
    Label,
    Offset,
    Random,
    Role,
    Scalar,
    Step,
    TensorSpec,
    Word,
    bits,
    rebound,
    restarted,
    size_class,
    touched,
    whole_words,
)
from .structure import Structure, arranged, structure_of
from .verify import verify, wrong_contents

__all__ = [
    "ERROR_FLAG_BYTES", "FORMAT", "INITIALISED", "READ_ONLY", "STREAM_MASK", "WORD_BYTES", "BufferSpec", "Clear",
    "Label", "Offset", "Plan", "Random", "Requirements", "Role", "Scalar", "Step", "Structure", "TensorSpec", "Word",
    "arranged", "bind", "bits", "check", "features_of", "rebound", "restarted", "size_class", "structure_of", "touched",
    "trace", "verify", "whole_words", "wrong_contents",
]  # fmt: skip

trace: Callable[..., Plan]
"""``trace(fn, *inputs, target=None)``: see :func:`torch_webgpu.api.plans.trace`, which the package puts here."""
bind: Callable[..., Any]
"""``bind(plan, device=None, contents=None)``: see :func:`torch_webgpu.api.plans.bind`, likewise."""
