"""A translation's report as one HTML page: no scripts, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .report_data import Figures, how_many

COLOURS = {"same": "#8a8f98", "translated": "#2f7d4f", "emulated": "#3b6fb6", "no-op": "#b98a1d", "error": "#b3403a"}

STYLE = """
:root { color-scheme: light dark; --line: #8883; --soft: #8881; --muted: #888; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .2rem 0; } .muted { color: var(--muted); }
.bar { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; margin: 1rem 0 .4rem; }
.bar span { min-width: 3px; } .key span { display: inline-block; margin-right: 1.2rem; }
.key i, td i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.answer { white-space: nowrap; }
code { font: 13px/1.4 ui-monospace, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 1rem 0; }
dt { color: var(--muted); } dd { margin: 0; }
"""


def page(report: Figures) -> str:
    """The whole page."""
    title = f"Translated to {report.device}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1><p class="muted">{escape(report.adapter)}</p>
{facts(report)}
{classes(report)}
{calls(report)}
{counted("Ran on the CPU", "Operators without a kernel on this device.", "operator", report.fallbacks)}
{
        counted(
            "Libraries that asked for CUDA",
            "They were told that there is none. --package NAME translates one, too.",
            "package",
            report.libraries,
        )
    }
{files(report)}
</body></html>"""


def facts(report: Figures) -> str:
    entries = [
        ("ran for", f"{report.seconds:.1f} s"),
        ("to begin", f"{1e3 * report.seconds_to_enable:.0f} ms"),
        (
            "to rewrite",
            f"{1e3 * report.seconds_rewriting:.0f} ms for {len(report.files)} file{'s' * (len(report.files) != 1)}",
        ),
    ]
    if report.peak_bytes is not None:
        entries.append(("device memory", f"at most {report.peak_bytes / (1 << 20):,.1f} MiB in tensors"))
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries) + "</dl>"


def classes(report: Figures) -> str:
    """How many calls were answered how, as a bar."""
    counts = report.counts()
    if not counts:
        return "<p>Nothing that belongs to another device was called.</p>"
    bar = "".join(
        f'<span style="flex:{calls};background:{COLOURS[name]}"></span>' for name, (_, calls) in counts.items()
    )
    key = "".join(
        f'<span><i style="background:{COLOURS[name]}"></i>{name}: {how_many(names, calls)}</span>'
        for name, (names, calls) in counts.items()
    )
    return f'<div class="bar">{bar}</div><p class="key">{key}</p>'


def calls(report: Figures) -> str:
    if not report.calls:
        return ""
    rows = (
        f"<tr><td><code>{escape(call.name)}</code></td>"
        f'<td class="answer"><i style="background:{COLOURS[call.answer]}"></i>{call.answer}</td>'
        f'<td class="number">{call.count:,}</td><td class="number">{1e3 * call.seconds:,.1f}</td>'
        f"<td><code>{escape(call.place)}</code></td><td>{escape(call.note)}</td></tr>"
        for call in report.calls
    )
    head = ["name", "answer", "calls", "ms", "first called", "what differs"]
    return f"<h2>Calls</h2>{table(head, rows, numbers=(2, 3))}"


def counted(title: str, text: str, what: str, counts: dict[str, int]) -> str:
    if not counts:
        return ""
    entries = sorted(counts.items(), key=lambda entry: -entry[1])
    rows = (f'<tr><td><code>{escape(n)}</code></td><td class="number">{count:,}</td></tr>' for n, count in entries)
    return f'<h2>{title}</h2><p class="muted">{escape(text)}</p>{table([what, "times"], rows, numbers=(1,))}'


def files(report: Figures) -> str:
    listed = "".join(f"<li><code>{escape(file)}</code></li>" for file in report.files)
    return f"<h2>Files that were translated</h2><ul>{listed}</ul>" if listed else ""


def table(head: list[str], rows: Iterable[str], numbers: tuple[int, ...]) -> str:
    cells = "".join(f"<th{' class=number' if n in numbers else ''}>{text}</th>" for n, text in enumerate(head))
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
