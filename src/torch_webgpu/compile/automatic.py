"""``torch.webgpu.auto_compile``: modules that a program calls again and again are compiled without being told.

Only outermost calls count: what a module calls is part of it. A module is compiled for *signatures*, what its inputs
look like and in which modes it is called, each once it has come several times in a row. All other calls are eager, so
that a batch that is smaller, or a sequence that grows, compiles nothing. A module is compiled as one graph, or not at
all: Dynamo then fails before anything has run, and the call can be made eagerly.
"""

from __future__ import annotations

import builtins
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.aten.dispatch.torch_dispatcher import differs_from_a_plain_call
from torch_webgpu.config import print_stage
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine, started_in

from .counts import COUNTS
from .private import compiler_failures, is_webgpu
from .register import TRACED_FILE, observe_module_calls, with_guarded_hooks

Module = torch.nn.Module
MOST_SIGNATURES = 8
"""That a module is compiled for. With others it is eager."""
MOST_RECOMPILATIONS = 4
"""For signatures that it was compiled for, before a module is eager for good. Below Dynamo's limit, which warns."""
MOST_LOOKED_AT = 32
"""Objects, in an argument that is no tensor."""
SPREADING = ("torch.distributed.", "torch.nn.parallel.")
"""Modules of PyTorch's whose classes spread a model over devices or ranks: DataParallel, DDP, FSDP, pipelines."""
PLAIN = (torch.Tensor, torch.nn.Parameter)

_log = logging.getLogger("torch_webgpu")


def say(text: str) -> None:
    """Logs what became of a module, and prints it where the stage ``compile`` is asked for."""
    _log.info("auto_compile: %s", text)
    print_stage("compile", text)


@dataclass
class Entry:
    """What is known of a module. ``left``: why it is eager for good; ``opened``: so that its parts count instead."""

    name: str
    compiled: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)
    last: Hashable = None
    in_a_row: int = 0
    recompilations: int = 0
    compiled_calls: int = 0
    left: str | None = None
    opened: bool = False

    def count_recompilation(self) -> None:
        self.recompilations += 1
        if self.recompilations >= MOST_RECOMPILATIONS:
            self.leave(f"compiled {self.recompilations} times again for inputs that look the same")

    def leave(self, reason: str, opened: bool = False) -> None:
        """Makes the module eager for good, and says so."""
        self.left, self.opened = reason, opened
        self.compiled.clear()
        say(f"{self.name} stays eager{', its parts are looked at instead' if opened else ''}: {reason}")


class AutoCompiler:
    """Compiles modules after so many calls ``after`` of one signature."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.entries: dict[int, tuple[weakref.ref[Module], Entry]] = {}
        self._thread = threading.local()
        self._compiling = threading.Lock()

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module's call, in place of ``Module._call_impl``."""
        if getattr(self._thread, "inside", False) or is_beside(module):
            return module._call_impl(*args, **kwargs)
        signature = signature_of(module, args, kwargs)
        if signature is None:
            return module._call_impl(*args, **kwargs)
        entry = self.entry(module)
        if entry.left is not None:
            return self.eager(entry, module, args, kwargs)
        if (function := entry.compiled.get(signature)) is not None:
            made = COUNTS.graphs + COUNTS.plans
            result = self.run(entry, function, module, args, kwargs)
            if COUNTS.graphs + COUNTS.plans != made:
                entry.count_recompilation()
            return result
        entry.in_a_row = entry.in_a_row + 1 if signature == entry.last else 1
        entry.last = signature
        if entry.in_a_row <= self.after:
            result = self.eager(entry, module, args, kwargs)
            watch_gradients(entry, result)
            return result
        # Where another thread compiles at the moment, this one goes on.
        if len(entry.compiled) >= MOST_SIGNATURES or not self._compiling.acquire(blocking=False):
            return self.eager(entry, module, args, kwargs)
        try:
            function = compiled_call()
            result = self.run(entry, function, module, args, kwargs)
            if entry.left is None:
                if not entry.compiled:
                    say(f"{entry.name} is compiled after {entry.in_a_row - 1} calls alike")
                entry.compiled[signature] = function
            return result
        finally:
            self._compiling.release()

    def entry(self, module: Module) -> Entry:
        """What is known of a module; a new entry for one that is new."""
        key = id(module)
        found = self.entries.get(key)
        if found is None:
            entry = Entry(type(module).__name__)
            if (reason := unfit(module)) is not None:
                entry.leave(reason)
            found = self.entries[key] = (weakref.ref(module, lambda _: self.entries.pop(key, None)), entry)
        return found[1]

    def eager(self, entry: Entry, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as it is without us."""
        if entry.opened:
            return module._call_impl(*args, **kwargs)
        self._thread.inside = True
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            self._thread.inside = False

    def run(
        self, entry: Entry, function: Callable[..., Any], module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The compiled call; an eager one where the compiler fails, which it does before anything has run."""
        failures = compiler_failures()
        self._thread.inside = True
        try:
            with with_guarded_hooks():
                result = function(module, *args, **kwargs)
        except failures as error:
            result = module._call_impl(*args, **kwargs)  # raises what is the program's own fault
            reason = str(error).strip().partition("\n")[0]
            entry.leave(f"{type(error).__name__}: {reason}", opened=True)
            return result
        finally:
            self._thread.inside = False
        entry.compiled_calls += 1
        return result


def call(module: Module, *args: Any, **kwargs: Any) -> Any:
    """What is compiled. It gets the module as an argument, so that nothing keeps it alive."""
    return module._call_impl(*args, **kwargs)


def compiled_call() -> Callable[..., Any]:
    """:func:`call`, compiled, with code of its own: Dynamo keeps and counts what it compiles by code."""
    code = call.__code__.replace(co_filename=TRACED_FILE)
    own = FunctionType(code, {"__name__": TRACED_FILE, "__builtins__": builtins})
    return torch.compile(own, fullgraph=True, dynamic=False)


def unfit(module: Module) -> str | None:
    """Why a module is not to be compiled, if so: PyTorch's own way of spreading it has hooks between its parts."""
    if type(module).__module__.startswith("torch._dynamo."):  # ``OptimizedModule``
        return "it is compiled already"
    for part in module.modules():
        if any(base.__module__.startswith(SPREADING) for base in type(part).__mro__):
            return f"{type(part).__name__} spreads it over devices or ranks"
    if any(type(tensor) not in PLAIN for tensor in (*module.parameters(), *module.buffers())):
        return "it has tensors of a class of their own"
    return None


def is_beside(module: Module) -> bool:
    """Whether this call is no ordinary one: traced, captured, transformed, or of a module that others look after."""
    return (
        differs_from_a_plain_call()
        or getattr(module, "_is_replica", False)
        or isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule))
        or (started_in() is not None and engine().intake(current_device()) is not None)
    )


def signature_of(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What a module was called with, and how. None for what is not to be compiled: nothing is on webgpu, or a tensor is
    of a class of its own.
    """
    parts: list[Any] = []
    ours = False
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in PLAIN:
                return None
            ours = ours or is_webgpu(leaf)
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
        elif isinstance(leaf, (bool, int, float, str, type(None))):
            parts.append(leaf)
        elif isinstance(leaf, torch.fx.Proxy):
            return None
        else:
            parts.append((type(leaf), size_in(leaf)))
    if not ours and not is_webgpu(next(module.parameters(), None)):
        return None
    autocast = torch.is_autocast_enabled("webgpu") and torch.get_autocast_dtype("webgpu")
    modes = (module.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)
    return (*parts, str(spec), *modes)


def size_in(holder: Any) -> torch.Size | None:
    """The size of the first tensor that an object holds, such as a cache of keys and values: it tells one that grows.

    Only a few objects are looked at: a call is not to wait for it.
    """
    waiting: list[Any] = [holder]
    for _ in range(MOST_LOOKED_AT):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            return value.shape
        if isinstance(value, (list, tuple)):
            waiting.extend(value[:1])
        elif not isinstance(value, (type, Module)):
            waiting.extend(reversed((value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()))
    return None


def watch_gradients(entry: Entry, result: Any) -> None:
    """Leaves a module whose gradients are differentiated, which AOTAutograd refuses: seen in its eager calls."""

    def note(gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled() and entry.left is None:
            entry.leave("its gradients are differentiated")

    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(note)


_current: AutoCompiler | None = None


def current() -> AutoCompiler | None:
    """The one that is on, if any."""
    return _current


def switch(compiler: AutoCompiler | None) -> None:
    """Has modules' calls go to ``compiler``; None leaves them alone."""
    global _current
    _current = compiler
    observe_module_calls(None if compiler is None else compiler.call)


def entries() -> Iterator[Entry]:
    """What is known of the modules that are alive."""
    if _current is not None:
        yield from (entry for _, entry in list(_current.entries.values()))
