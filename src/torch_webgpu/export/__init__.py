"""Models as web pages: :func:`export` writes a folder with a plan, its kernels, weights and a runtime in JavaScript."""

from .export import export
from .generation import export_generation
from .report import ExportReport

__all__ = ["ExportReport", "export", "export_generation"]
