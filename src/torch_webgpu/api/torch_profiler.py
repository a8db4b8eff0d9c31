"""``torch.profiler`` sees what the host does for us: flushes, and in them each operation's kernels, by name.

PyTorch itself shows the recording of an operator as ``aten::…``. While a profiler runs, a flush is the range
``webgpu::flush``; in it every operation that is planned to run (a fused one by the operators it stands for) is a range
``webgpu::name``, with a ``webgpu::kernel name`` for each kernel that goes by another name. ``webgpu::submit`` is their
encoding and submission, including the compilation of new kernels. GPU times are ``torch.webgpu.profile``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch_webgpu.aten.dispatch.torch_abi import profiler_range
from torch_webgpu.engine import observed
from torch_webgpu.ir.names import operator_name
from torch_webgpu.plan import Label
from torch_webgpu.runtime.commands import Command, Dispatch
from torch_webgpu.runtime.observer import Observer


class TorchRanges(Observer):
    """Shows one flush to the profiler that runs."""

    @contextmanager
    def span(self, kind: str, detail: str = "") -> Iterator[None]:
        name = operator_name(detail) if kind == "encode" else kind
        with profiler_range(f"webgpu::{name}"), super().span(kind, detail):
            yield

    def submit(self, commands: Sequence[Command]) -> None:
        with profiler_range("webgpu::submit"):
            super().submit(commands)

    def encoded(self, label: Label, command: Command) -> None:
        if isinstance(command, Dispatch) and command.kernel.name != label.operation:
            with profiler_range(f"webgpu::kernel {operator_name(command.kernel.name)}"):
                pass
        super().encoded(label, command)


def register() -> None:
    """Shows flushes to profilers from now on."""
    observed.show_torch_profiler(TorchRanges)
