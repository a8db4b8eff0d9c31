"""Operators that are a program's own WGSL kernel, with a rule for the layouts of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_webgpu.errors import did_you_mean

from .elementwise import single
from .kernel_call import recorder
from .shader_source import EntryPoint, ShaderSource
from .signature import Signature, SignatureError

Size = int | Sequence[int]


@dataclass(frozen=True)
class Kernel:
    """What the function under ``@torch.webgpu.op`` returns for a kernel: WGSL as ``compile_shader`` has it.

    The module's variables are found by name: those that are called like a parameter of the function are its argument,
    other storage buffers that are ``read_write`` are the results, in the order of their bindings.

    ``shape``: the rule for the results: a function of the operator's arguments that returns new tensors
    (``lambda x: x.new_empty(x.shape[0])``), which the kernel fills; or the name of the argument that they are like, by
    default the first tensor. ``threads``: how many threads run, or a function of the arguments that says so; by default
    one for each element of the first result, or of the first tensor that is written. ``entry`` names the kernel, where
    the module has several. ``group_size`` and ``constants`` are those of a call of ``compile_shader``'s. ``reference``:
    a function of the arguments that computes the same by PyTorch's operators, for other devices and for tests; without
    it the operator runs on webgpu alone.
    """

    source: str
    shape: str | Callable[..., Any] | None = None
    threads: Size | Callable[..., Size] | None = None
    entry: str | None = None
    group_size: Size | None = None
    constants: Mapping[str, Any] | None = None
    reference: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Shader:
    """A kernel as an operator. ``arguments``: for each of its variables the parameter's number, or ``-1 - k`` for
    result ``k``.
    """

    name: str
    signature: Signature
    kernel: Kernel
    entry: EntryPoint
    arguments: tuple[int, ...]
    record: Callable[..., Any] = field(compare=False)

    @property
    def outputs(self) -> int:
        return sum(k < 0 for k in self.arguments)

    def results(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """New tensors for what the kernel writes beside its arguments; what they have in them means nothing."""
        if not self.outputs:
            return []
        shape, signature = self.kernel.shape, self.signature
        found: Any = None
        if callable(shape):
            found = shape(*args, **kwargs)
            tensors = list(found) if isinstance(found, (tuple, list)) else [found]
        else:
            like = signature.names.index(shape) if shape else signature.names.index(signature.tensors[0].name)
            model = signature.bind(args, kwargs)[like]
            tensors = [torch.empty_like(model, memory_format=torch.contiguous_format) for _ in range(self.outputs)]
        if len(tensors) != self.outputs or not all(isinstance(t, torch.Tensor) for t in tensors):
            raise TypeError(
                f"{self.name}: shape returned {found!r}, and the kernel writes {self.outputs} results: return a new "
                "tensor for each, as in x.new_empty(n)"
            )
        return tensors

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Results without contents: the meta kernel."""
        return single(self.results(*args, **kwargs)) if self.outputs else None

    def on_host(self, *args: Any, **kwargs: Any) -> Any:
        """The reference, which every other device runs."""
        if self.kernel.reference is None:
            device = next(t.device for t in self.signature.bind(args, kwargs) if isinstance(t, torch.Tensor))
            raise NotImplementedError(
                f"{self.name} is a kernel of WGSL, and runs on webgpu, not on {device}: a Kernel's reference= is what "
                "other devices run"
            )
        found = self.kernel.reference(*args, **kwargs)
        if not self.outputs:
            return None
        given = list(found) if isinstance(found, (tuple, list)) else [found]
        pairs = zip(given, self.results(*args, **kwargs), strict=True)
        return single([fake.copy_(t) for t, fake in pairs])

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Records the kernel."""
        results = self.results(*args, **kwargs)
        values = self.signature.bind(args, kwargs)
        threads = self.kernel.threads
        if callable(threads):
            threads = threads(*args, **kwargs)
        if threads is None:
            threads = (results[0] if results else values[self.signature.mutated[0]]).numel()
        given = [results[-1 - k] if k < 0 else values[k] for k in self.arguments]
        self.record(*given, threads=[threads] if isinstance(threads, int) else list(threads))
        return single(results) if results else None


def read_kernel(name: str, signature: Signature, kernel: Kernel) -> Shader:
    """A kernel whose variables are all known. ShaderCompileError for WGSL that cannot be read."""
    source = ShaderSource.parse(kernel.source)
    names = source.entry_points
    if kernel.entry is None and len(names) != 1:
        raise SignatureError(f"{name}: the module has the kernels {', '.join(names) or '(none)'}: entry= names one")
    if kernel.entry is not None and kernel.entry not in names:
        raise SignatureError(f"{name}: there is no kernel {kernel.entry!r}{did_you_mean(kernel.entry, names)}")
    entry = source.entry(kernel.entry or names[0])
    arguments: list[int] = []
    parameters, outputs = list(signature.names), 0
    for resource in entry.resources:
        if resource.name in parameters:
            k = parameters.index(resource.name)
            parameter = signature.parameters[k]
            if parameter.is_tensor != resource.is_tensor:
                kind = "a tensor" if parameter.is_tensor else "a number"
                raise SignatureError(f"{name}: {resource.name} is {kind}, and in WGSL var<{resource.space}>")
            if parameter.is_tensor and resource.is_written != parameter.mutated:
                problem = "does not" if parameter.mutated else "does"
                raise SignatureError(
                    f"{name}: mutates says what the kernel writes, and it {problem} write {resource.name}: declare it "
                    f"{'read_write' if parameter.mutated else 'read, or name it in mutates'}"
                )
            arguments.append(k)
        elif resource.is_written:
            outputs += 1
            arguments.append(-outputs)
        else:
            meant = did_you_mean(resource.name, parameters)
            raise SignatureError(f"{name}: the WGSL reads {resource.name!r}, which is no parameter{meant}")
    used = {parameters[k] for k in arguments if k >= 0}
    for unused in [p.name for p in signature.tensors if p.name not in used]:
        if not callable(kernel.shape) and kernel.shape != unused:
            raise SignatureError(f"{name}: the WGSL does not use the tensor {unused!r}")
    if isinstance(kernel.shape, str) and kernel.shape not in [p.name for p in signature.tensors]:
        meant = did_you_mean(kernel.shape, parameters)
        raise SignatureError(f"{name}: shape names {kernel.shape!r}, which is no tensor{meant}")
    if not outputs and not signature.mutated:
        raise SignatureError(f"{name}: the kernel writes nothing: declare what it returns as var<storage, read_write>")
    record = recorder(entry, group_size=kernel.group_size, constants=kernel.constants, name=name)
    return Shader(name, signature, kernel, entry, tuple(arguments), record)
