"""Programs: functions over held tensors and named inputs, and their plans for a target.

A page gives dense arrays and reads dense arrays. So inputs are traced as contiguous tensors, and outputs are made
contiguous, each from the start of its buffer, in the traced function.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.api.plans import parameter_names, trace
from torch_webgpu.aten.dispatch.call_site import PYTORCH, module_of, public_name, top_package
from torch_webgpu.errors import ExportError, TraceError, UnsupportedDtypeError
from torch_webgpu.plan import Plan
from torch_webgpu.target import Target

from .held import Held, HeldTensors, path_key


@dataclass(frozen=True)
class Program:
    """A function and example arguments for it. ``inputs``: its tensors by name, in the order of the arguments' leaves.

    ``grad``: whether it runs with gradients enabled. ``output_names``: of its outputs, where the user chose some.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: dict[str, torch.Tensor]
    grad: bool
    output_names: tuple[str, ...] = ()

    def run(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name, of these tensors in the places of the inputs."""
        leaves, tree = pytree.tree_flatten((self.args, self.kwargs))
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, tree)
        with torch.set_grad_enabled(self.grad), uncompiled():
            result = self.function(*args, **kwargs)
        return self._outputs(result)

    def _outputs(self, result: Any) -> dict[str, torch.Tensor]:
        outputs: dict[str, torch.Tensor] = {}
        leaves, _ = pytree.tree_flatten_with_path(result)
        for path, leaf in leaves:
            name = ".".join(map(str, map(path_key, path)))
            if leaf is None:
                continue
            if not isinstance(leaf, torch.Tensor):
                raise ExportError(
                    f"program {self.name!r} returns a {type(leaf).__name__}{f' as {name}' if name else ''}: a page "
                    "gets tensors; compute it there, or return torch.tensor of it"
                )
            outputs[name or "output"] = leaf.detach()
        if not all(name.isidentifier() or "." in name for name in outputs):
            outputs = {f"output_{name}" if name[0].isdigit() else name: t for name, t in outputs.items()}
        if self.output_names:
            if len(self.output_names) != len(outputs):
                raise ExportError(
                    f"program {self.name!r} has {len(outputs)} outputs ({', '.join(outputs)}), and output_names "
                    f"{len(self.output_names)}"
                )
            outputs = dict(zip(self.output_names, outputs.values()))
        return outputs


def uncompiled() -> AbstractContextManager[object]:
    """Runs what ``torch.compile`` made of functions as the functions: exports have kernels of their own."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@dataclass(frozen=True)
class TracedProgram:
    """A program's plan. ``names``: of the tensors that are the plan's inputs, in order; the held ones first."""

    program: Program
    plan: Plan
    names: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def held(self) -> int:
        """How many of the inputs are held tensors: weights, or state if the program writes them."""
        return len(self.names) - len(self.program.inputs)


def program_of(
    name: str,
    function: Callable[..., Any],
    example: Any,
    grad: bool,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
) -> Program:
    """A program of a function or a module, and of its example inputs: a tensor, a tuple of arguments, or a dictionary
    of keyword arguments. ExportError where names clash or do not fit.
    """
    if isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    else:
        args = (example,) if isinstance(example, torch.Tensor) else tuple(example)
        kwargs = {}
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        inspect.signature(called).bind(*args, **kwargs)
    except TypeError as error:
        raise ExportError(f"the example inputs of {name!r} do not fit its arguments: {error}") from None
    except ValueError:  # a function of C has no signature, and its call will tell
        pass
    names = parameter_names(called, len(args))
    names += [f"input_{k}" for k in range(len(names), len(args))]
    inputs: dict[str, torch.Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]:
        if isinstance(leaf, torch.Tensor):
            _, first, *keys = map(path_key, path)
            own = ".".join([names[first] if isinstance(first, int) else first, *map(str, keys)])
            if own in inputs:
                raise ExportError(f"two inputs of {name!r} have the name {own!r}")
            inputs[own] = leaf
    if input_names:
        if len(input_names) != len(inputs) or len(set(input_names)) < len(inputs):
            raise ExportError(f"{name!r} has the inputs {', '.join(inputs)}: input_names needs as many, all different")
        inputs = dict(zip(input_names, inputs.values()))
    return Program(name, function, args, kwargs, inputs, grad, tuple(output_names))


def traced(program: Program, held: HeldTensors, target: Target) -> TracedProgram:
    """The plan of a program. TraceError for what cannot be one, with the operator, the line and what to do."""
    outputs: list[str] = []

    def function(own: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with held.replaced(dict(zip([h.name for h in held.all], own))):
            result = program.run(inputs)
            outputs[:] = result
            return [whole(t) for t in result.values()]

    own = [layout_of(h) for h in held.all]
    inputs = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in program.inputs.values()]
    check_dtypes(program, held, target)
    with located(program.name):
        plan = trace(function, own, inputs, target=target)
    return TracedProgram(program, plan, (*[h.name for h in held.all], *program.inputs), tuple(outputs))


def check_dtypes(program: Program, held: HeldTensors, target: Target) -> None:
    """ExportError that names what has 64-bit floats, where the target lacks them."""
    tensors = {**{h.name: h.tensor for h in held.all}, **program.inputs}
    wide = [name for name, t in tensors.items() if t.dtype in (torch.float64, torch.complex128)]
    if wide and not target.float64:
        names = ", ".join(wide[:5]) + (f" and {len(wide) - 5} more" if len(wide) > 5 else "")
        raise ExportError(
            f"{program.name!r} cannot be exported: {names} {'have' if len(wide) > 1 else 'has'} 64-bit floats, which "
            f"the target {target.name!r} lacks: convert to float32; dtype=torch.float32 converts model and inputs"
        )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of these values that is contiguous from the start of its memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.contiguous() if not tensor.storage_offset() else tensor.clone(memory_format=torch.contiguous_format)


def layout_of(held: Held) -> torch.Tensor:
    """A contiguous meta tensor in the place of a held one."""
    t = held.tensor
    meta = torch.empty(t.shape, dtype=t.dtype, device="meta")
    return torch.nn.Parameter(meta, requires_grad=t.requires_grad) if isinstance(t, torch.nn.Parameter) else meta


_BEFORE = "it waits for values: compute it before, and make the result an input or a buffer"
_INSTEAD = {
    "nonzero": "its shape depends on values: use a mask, or torch.where with three arguments",
    "index": "its shape depends on values: a mask as index selects; multiply by the mask, or use torch.where",
    "repeat_interleave": "its shape depends on values: give output_size, or repeats as a number",
    "bincount": "its shape depends on values: one_hot with a number of classes, and its sum",
    "histc": "its limits depend on values: give min and max",
    "assert_async": "a page cannot raise for values: return the condition, and check it there",
    "masked_select": "its shape depends on values: multiply by the mask, or use torch.where",
    "unique": "its shape depends on values: sort, and compare neighbours",
    "to_copy": "return the tensor: the page reads it",
    "linalg": f"call what ends in _ex, such as inv_ex, which checks nothing. Other functions: {_BEFORE}",
    "item": "keep the value in a tensor, and choose with torch.where",
}
"""Part of an operator's name → what a program can do in its place."""
_SMALLER = "target='portable-large', which asks GPUs for larger buffers; dtype=torch.float16; or quantize="
_NAMES = {"local_scalar_dense": "item", "to_copy": "to", "unique2": "unique"}
"""Operators that programs call by another name."""
_KERNELS = "torch_webgpu.aten."


@contextmanager
def located(program: str) -> Iterator[None]:
    """Turns what goes wrong in a trace into an error that says where in the user's source it does, and what to do."""
    try:
        yield
    except (TraceError, UnsupportedDtypeError, torch.OutOfMemoryError, NotImplementedError) as error:
        kind = TraceError if isinstance(error, (TraceError, NotImplementedError)) else ExportError
        origin = origin_of(error) or (origin_of(error.__cause__) if error.__cause__ else "")
        message = f"{program!r} cannot be exported: {str(error).splitlines()[0]}{origin}"
        if isinstance(error, torch.OutOfMemoryError):
            message += f"\n  instead: {_SMALLER}"
        traceback.clear_frames(error.__traceback__)
        raise kind(message) from error
    except Exception as error:  # the program's own, such as shapes that do not fit
        error.add_note("\n".join([f"while {program!r} was exported", *origin_of(error).splitlines()[1:2]]))
        raise


def origin_of(error: BaseException) -> str:
    """Where in the program an error comes from, in words, and what to write instead; empty where nobody knows."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    own = [k for k, (frame, _) in enumerate(frames) if top_package(frame) not in PYTORCH]
    if not own:
        return ""
    frame, line = frames[own[-1]]
    (summary,) = traceback.StackSummary.extract([(frame, line)])
    operator = next(filter(None, (operator_of(frame) for frame, _ in frames[own[-1] + 1 :])), "")
    name = _NAMES.get(operator, operator)
    where = f"\n  {summary.filename}:{line}, in {summary.name}: {summary.line}"
    function = f"\n  the operator is {name}, of {public_name(f'aten.{name}')}" if operator else ""
    if isinstance(error, UnsupportedDtypeError):  # says itself what to do
        return f"{where}{function}"
    checks = name == "item" and "linalg." in (summary.line or "")
    called = "linalg" if checks else f"{operator} {name}"
    advice = next((f"\n  instead: {text}" for part, text in _INSTEAD.items() if part in called), "")
    return f"{where}{function}{advice}"


def operator_of(frame: FrameType) -> str:
    """The operator whose kernel, or fallback, a frame runs; empty for other frames."""
    op = frame.f_locals.get("op")
    if isinstance(op, torch._ops.OpOverload):
        return op._opname
    module = module_of(frame)
    is_kernel = module.startswith(_KERNELS) and not module.startswith(f"{_KERNELS}dispatch")
    name = frame.f_code.co_name
    return name if is_kernel and any(hasattr(torch.ops.aten, prefix + name) for prefix in ("", "_")) else ""
