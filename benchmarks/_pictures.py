"""A picture of what ``distributed.py`` found."""

from __future__ import annotations

from typing import Any

from _ranks import Row

STEPS = {"called": "read", "read": "issued", "issued": "reduced", "reduced": "uploaded"}


def draw(rows: list[Row], path: str) -> None:
    """All_reduces by size, the buckets of a training step in time, and the efficiency that was computed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 9), layout="constrained")
    (by_size, in_time), (host, efficiency) = figure.subplots(2, 2)
    _by_size(by_size, [row for row in rows if row["part"] == "collectives"])
    _in_time(in_time, [row for row in rows if row.get("buckets")])
    _host(host, [row for row in rows if row["part"] == "host"])
    _efficiency(efficiency, [row for row in rows if row["part"] == "model"])
    figure.savefig(path, dpi=130)


def _by_size(axes: Any, rows: list[Row]) -> None:
    for carrier in dict.fromkeys(row["carrier"] for row in rows):
        points = [(row["bytes"], row["ms"]) for row in rows if row["carrier"] == carrier]
        axes.plot(*zip(*points), marker="o", label="gloo on the CPU" if carrier == "CPU" else f"webgpu, {carrier}")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms", title="all_reduce")
    _finish(axes, rows)


def _in_time(axes: Any, rows: list[Row]) -> None:
    buckets = rows[0]["buckets"] if rows else []
    for n, bucket in enumerate(buckets):
        for color, (first, last) in enumerate(STEPS.items()):
            first, last = sorted((bucket[first], bucket[last]))
            label = f"until {list(STEPS.values())[color]}" if not n else None
            axes.broken_barh([(first, last - first)], (n - 0.4, 0.8), facecolors=f"C{color}", label=label)
    axes.invert_yaxis()
    axes.set(xlabel="ms since the step began", ylabel="bucket",
             title=f"A training step of {rows[0]['ranks']} ranks: {rows[0]['variant']}" if rows else "")  # fmt: skip
    _finish(axes, rows)


def _host(axes: Any, rows: list[Row]) -> None:
    for program in dict.fromkeys(row["program"] for row in rows):
        points = [(row["ranks"], row["thread_ms"]) for row in rows if row["program"] == program]
        axes.plot(*zip(*points), marker="o", label=program)
    axes.set(
        xscale="log",
        xlabel="ranks, of which one is there",
        ylabel="ms",
        ylim=(0, None),
        title="The host's thread, a step",
    )
    _finish(axes, rows)


def _efficiency(axes: Any, rows: list[Row]) -> None:
    for n, row in enumerate(rows):
        if row["hook"] in ("none", "PowerSGD"):
            points = [(int(ranks), value) for ranks, value in row["efficiency"].items()]
            style = "-" if row["ring"] == "flat" else "--"
            axes.plot(
                *zip(*points),
                style,
                marker=".",
                color=f"C{n % 10}",
                label=f"{row['model']}, {row['ring']}, {row['hook']}",
            )
    axes.set(xscale="log", xlabel="ranks", ylim=(0, 1.05), title="Efficiency, computed (hook)")
    _finish(axes, rows)


def _finish(axes: Any, rows: list[Row]) -> None:
    axes.grid(alpha=0.3)
    if rows:
        axes.legend(fontsize="small")
