"""Packages and compilers of CUDA code that cannot be here: the error says what to use instead.

It is raised where the user's code imports a package that is not installed, and stays a ModuleNotFoundError:
``try: import flash_attn`` goes on to its ``except ImportError``, ``importlib.util.find_spec`` finds nothing, and
libraries get the error they know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from torch_webgpu.on_import import when_imported

from . import callers
from .monitor import Answer, Monitor
from .replacements import Replacements

ATTENTION = (
    "its kernels are CUDA's; torch.nn.functional.scaled_dot_product_attention is one fused kernel here, with masks and "
    "is_causal (transformers: attn_implementation='sdpa')"
)
KERNELS = (
    "its kernels are CUDA's; write the function with PyTorch's operators and torch.compile it, which makes one kernel "
    "of what can be one"
)
OPTIMIZERS = "its kernels are CUDA's; torch.optim's optimizers are fused here (fused=True, foreach=True)"

PACKAGES = {
    "amp_C": OPTIMIZERS,
    "apex": "its kernels are CUDA's; torch.amp, torch.optim (fused=True), torch.nn.LayerNorm and RMSNorm do the same",
    "bitsandbytes": "its kernels are CUDA's; load the model in float16 or bfloat16, and use torch.optim's optimizers",
    "causal_conv1d": "its kernels are CUDA's; torch.nn.functional.conv1d with groups=channels does the same",
    "cupy": "its arrays are CUDA's; use tensors, or NumPy and torch.from_numpy",
    "cuda": "there is no CUDA driver to call; torch's own functions drive the device",
    "deep_gemm": KERNELS,
    "flash_attn": ATTENTION,
    "flash_attn_interface": ATTENTION,
    "flashinfer": ATTENTION,
    "mamba_ssm": "its kernels are CUDA's; transformers' Mamba models run without it, on PyTorch's operators",
    "pycuda": KERNELS,
    "sageattention": ATTENTION,
    "tensorrt": "its engines are CUDA's; torch.compile the model",
    "torch_tensorrt": "its engines are CUDA's; torch.compile the model",
    "transformer_engine": "its kernels are CUDA's; torch.nn's layers under torch.autocast do the same, without float8",
    "triton": KERNELS,
    "xformers": ATTENTION,
}
"""Import name → why it is not here, and what to use instead."""


class MissingExtensionError(ModuleNotFoundError):
    """A package of CUDA code that is not installed."""


class MissingFinder(MetaPathFinder):
    """The last on ``sys.meta_path``: asked for what no other finds."""

    def __init__(self, target: str, monitor: Monitor) -> None:
        self.target, self.monitor = target, monitor

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in PACKAGES or not _user_imports():
            return None
        self.monitor.note(f"import {name}", Answer.ERROR).count += 1
        text = f"No module named {name!r}. On {self.target} it cannot be had: {PACKAGES[name]}"
        raise MissingExtensionError(text, name=name)


def _user_imports() -> bool:
    """Whether it is the user's code that imports something, and not only looks whether it could."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        if frame.f_globals["__name__"] == "importlib.util":
            return False
        frame = frame.f_back
    return frame is not None and callers.is_user(frame.f_globals)


SOURCES = (".cu", ".cuh")
INSTEAD = (
    "CUDA C++ is not compiled here. Write the function with PyTorch's operators and torch.compile it, or as a "
    "torch.library.custom_op; sources in C++ alone compile, for tensors on the CPU"
)


def _refusing_cuda(name: str, plain: Callable[..., Any], monitor: Monitor) -> Callable[..., Any]:
    """``load``, ``load_inline`` or ``CUDAExtension``: an error if there are CUDA sources."""

    def asked_for(kwargs: dict[str, Any], args: tuple[Any, ...]) -> bool:
        sources = kwargs.get("sources", args[1] if len(args) > 1 else ())
        listed = [sources] if isinstance(sources, str) else list(sources or ())
        return (
            name == "CUDAExtension"
            or bool(kwargs.get("with_cuda") or kwargs.get("cuda_sources"))
            or (name == "load" and any(str(source).endswith(SOURCES) for source in listed))
        )

    @wraps(plain)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if asked_for(kwargs, args):
            monitor.note(f"torch.utils.cpp_extension.{name}", Answer.ERROR).count += 1
            raise NotImplementedError(f"torch.utils.cpp_extension.{name}: {INSTEAD}")
        return plain(*args, **kwargs)

    return compiled


class Missing:
    """The errors of one session, from :meth:`install` to :meth:`undo`."""

    def __init__(self, target: str, replacements: Replacements, monitor: Monitor) -> None:
        self.on = False
        self.finder = MissingFinder(target, monitor)
        self.replacements, self.monitor = replacements, monitor

    def install(self) -> None:
        """Looks at the imports that no other finder serves, and at what builds extensions."""
        self.on = True
        sys.meta_path.append(self.finder)
        when_imported("torch.utils.cpp_extension", self._refuse)

    def _refuse(self, module: ModuleType) -> None:
        if self.on:
            for name in ("load", "load_inline", "CUDAExtension"):
                self.replacements.set(module, name, _refusing_cuda(name, getattr(module, name), self.monitor))

    def undo(self) -> None:
        """Packages are looked for as before. What was replaced is put back by the session's replacements."""
        self.on = False
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
