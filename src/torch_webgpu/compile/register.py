"""``torch.compile(model)`` without a backend means ``"inductor"``. Inductor has no code generator for webgpu, so that a
graph with a webgpu tensor in it is ours whichever of the two names is given; all others go where they went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from . import artifacts
from .private import on_webgpu

TRACED = frozenset(
    {
        "aten.attention.flex_attention",
        "quantized_linear",
        "translation.device_names",
        "translation.runtime_support",
        "translation.traced_answers",
    }
)
"""The modules that Dynamo traces through: what programs call in the middle of what is to be one graph."""
TRACED_FILE = "<torch.webgpu.auto_compile>"
"""Where Dynamo, which leaves this package's files out, believes that a function is written which it is to trace."""


def register() -> None:
    """Adds plan files to PyTorch's cache artifacts. Loads nothing of the compiler's."""
    artifacts.register(load_plan)


def load_plan(name: str, data: bytes) -> None:
    """Keeps a plan file of ``torch.compiler.load_cache_artifacts()``."""
    from .cache import write_loaded  # which loads FX

    write_loaded(name, data)


def observe_module_calls(call: Callable[[Any, Any, Any], Any] | None) -> None:
    """From now on modules call ``call(module, args, kwargs)``, but for those that a program compiles; None ends it.

    ``Module.__call__`` stays what it is, which Dynamo tests for: it looks for what ``module.compile()`` leaves in an
    instance, and so finds this in the class.
    """

    def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
        if call is None or torch.compiler.is_compiling():  # Dynamo comes here for a module with hooks
            return module._call_impl(*args, **kwargs)
        return call(module, args, kwargs)

    observed.__code__ = observed.__code__.replace(co_filename=TRACED_FILE)
    torch.nn.Module._compiled_call_impl = None if call is None else observed


@contextmanager
def with_guarded_hooks() -> Iterator[None]:
    """What Dynamo compiles meanwhile is compiled anew once a module has got a hook, which it skips by default."""
    config: Any = import_module("torch._dynamo.config")
    skips = config.skip_nnmodule_hook_guards  # its own ``patch`` would take 100 µs
    config.skip_nnmodule_hook_guards = False
    try:
        yield
    finally:
        config.skip_nnmodule_hook_guards = skips


def choose_by_name(module: Any) -> None:
    """The same of ``torch._dynamo.lookup_backend("inductor")``, which other backends use, such as ``explain``'s."""
    functions = import_module("torch._dynamo.backends.registry")._COMPILER_FNS
    functions["inductor"] = module.inductor = choosing(functions["inductor"])


def choosing(inductor: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor as a function of a graph and its inputs, or as the method of what holds its options, but for webgpu."""

    @wraps(inductor)
    def choose(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        *holder, model, inputs = args
        if on_webgpu(model, inputs):
            options = holder[0].config if holder else None
            from .backend import webgpu  # which loads the compiler

            return webgpu(model, inputs, options=options)
        return inductor(*args, **kwargs)

    return choose


def skip_own_modules(rules: Any) -> None:
    """After a graph break Dynamo would trace the kernels of eager operators, which are Python, and what these call."""
    for library in ("cffi", "wgpu", "wgpudawn"):
        rules.add(library)
    skip_modules(rules, Path(__file__).parent.parent, "")


def skip_modules(rules: Any, folder: Path, prefix: str) -> None:
    """Those of a folder, and of what is in it, but for ``TRACED``."""
    for module in iter_modules([str(folder)]):
        name = prefix + module.name
        if any(traced.startswith(f"{name}.") for traced in TRACED):
            skip_modules(rules, folder / module.name, f"{name}.")
        elif name not in TRACED:
            rules.add(f"torch_webgpu.{name}")
