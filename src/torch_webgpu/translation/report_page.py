"""A translation's report as one HTML page, of the template ``report.html.jinja``."""

from __future__ import annotations

from importlib.resources import files

from .report_data import Figures, how_many


def page(report: Figures) -> str:
    """The whole page. What it shows of the program is escaped."""
    from jinja2 import Environment, StrictUndefined  # torch requires it; no program pays for it that wants no page

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string((files(__package__) / "report.html.jinja").read_text("utf-8"))
    return template.render(report=report, counts=report.counts(), how_many=how_many)
