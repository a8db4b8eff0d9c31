"""Meta kernels that PyTorch writes in Python, without importing Dynamo.

They are decorated with ``torch._disable_dynamo``, so that Dynamo does not trace them, and for that each imports
``torch._dynamo`` at its first call: 800 modules, sympy among them, which take longer than a first step does otherwise,
in programs that compile nothing. As long as Dynamo is not there, nothing has to be hidden from it. The decorator keeps
what it made of a function in an attribute: until Dynamo is imported, that is the function itself.

PyTorch's optimizers import Dynamo by themselves, on every device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch._compile import _disable_dynamo

from torch_webgpu.on_import import when_imported

KEPT = "__dynamo_disable"
"""The attribute in which ``torch._disable_dynamo`` keeps the function that Dynamo does not trace."""


def hidden_from_dynamo() -> set[Callable[..., Any]]:
    """The functions below the decorator in PyTorch's references and decompositions, of which meta kernels are made."""
    decorated: Any = _disable_dynamo(holds_function)
    modules = ("torch._refs", "torch._refs.nn.functional", "torch._refs.special", "torch._decomp.decompositions")
    functions = {f for name in modules for f in vars(sys.modules[name]).values() if isinstance(f, FunctionType)}
    hidden, waiting = set(), list(functions)
    while waiting:
        function = waiting.pop()
        # Decorators copy ``__wrapped__`` from one another, past functions in between; what they call is in a closure.
        below = {cell.cell_contents for cell in function.__closure__ or () if holds_function(cell)}
        if function.__code__ is decorated.__code__:
            hidden |= below
        waiting += below - functions
        functions |= below
    return hidden


def holds_function(cell: CellType) -> bool:
    """Whether a variable of a closure is a function, and set."""
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:
        return False


def leave_dynamo_out(references: ModuleType) -> None:
    """Keeps the functions of PyTorch's references from importing Dynamo, unless it is there already."""
    if "torch._dynamo" in sys.modules:
        return
    functions = [function for function in hidden_from_dynamo() if not hasattr(function, KEPT)]
    for function in functions:
        setattr(function, KEPT, function)

    def hide(dynamo: Any) -> None:
        for function in functions:
            if getattr(function, KEPT, None) is function:
                delattr(function, KEPT)

    when_imported("torch._dynamo", hide)
