"""``torch.webgpu.export``: models as web pages."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch_webgpu.export import ExportReport


def export(
    model: torch.nn.Module | None, example_inputs: Any, folder: str | PathLike[str], **options: Any
) -> ExportReport:
    """Writes a model as a folder that runs in a web page: see :func:`torch_webgpu.export.export` for the options.

    Needs no adapter. Raises TraceError for an operator that cannot be exported, with its line and what to use instead.
    """
    from torch_webgpu.export import export as write  # not before it is called: every program would wait for the import

    return write(model, example_inputs, folder, **options)


def export_generation(model: torch.nn.Module, folder: str | PathLike[str], **options: Any) -> ExportReport:
    """Writes a causal language model of Transformers as a folder whose page generates text: see
    :func:`torch_webgpu.export.export_generation` for the options.
    """
    from torch_webgpu.export import export_generation as write

    return write(model, folder, **options)
