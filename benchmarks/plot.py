"""Plots of time against size, both logarithmic, with the ceilings of the same run."""

import io
import re
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Run, threads_suffix
from benchmarks.table import duration

STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-")

UNDRAWN = ("never_slower",)
"""Suites whose cases do not grow along a size."""


def draw(run: Run, folder: Path) -> list[Path]:
    """Draw a picture of every suite; return the paths."""
    import matplotlib

    matplotlib.use("svg")
    # reproducible files, with text instead of glyph outlines
    matplotlib.rcParams.update({"svg.hashsalt": "attnspec", "svg.fonttype": "none"})
    from matplotlib import pyplot

    written = []
    for suite in dict.fromkeys(m.suite for m in run.measurements if m.suite not in UNDRAWN):
        panels = _panels([m for m in run.measurements if m.suite == suite])
        columns = min(len(panels), 4)
        lines = -(-len(panels) // columns)
        figure, axes = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 3.6 * lines), squeeze=False)
        for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
            _panel(axis, name, points, run)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        figure.tight_layout()
        path, picture = folder / f"{suite}.svg", io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        pyplot.close(figure)
        path.write_text(compact(picture.getvalue()), encoding="utf-8")
        written.append(path)
    return written


def compact(svg: str) -> str:
    """Join the lines of an SVG, to one per panel instead of per tag."""
    joined = re.sub(r">\s+<", "><", re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL))
    return re.sub(r"\s*\n", " ", joined).strip().replace('<g id="axes_', '\n<g id="axes_') + "\n"


def _panels(measurements: list[Measurement]) -> dict[str, list[Measurement]]:
    panels: dict[str, list[Measurement]] = {}
    for m in measurements:
        panels.setdefault(f"{m.case}, {m.mode}{threads_suffix(m.threads)}", []).append(m)
    return panels


def _panel(axis: Any, name: str, points: list[Measurement], run: Run) -> None:
    subjects = list(dict.fromkeys(m.subject for m in points))
    for style, subject in zip(cycle(STYLES), subjects, strict=False):
        curve = sorted((m.size, m.seconds) for m in points if m.subject == subject and m.seconds is not None)
        if curve:
            axis.plot([n for n, _ in curve], [s for _, s in curve], style, label=subject, markersize=4)
    rate = run.ceilings.get(str(points[0].threads), {}).get(points[0].ceiling)
    if rate:
        limit = sorted({(m.size, m.work * m.per_unit / rate) for m in points})
        mark = "k--" if len(limit) > 1 else "k_"
        axis.plot([n for n, _ in limit], [s for _, s in limit], mark, label=f"{points[0].ceiling} rate", linewidth=1)
    _scales(axis, sorted({m.size for m in points}))
    axis.set_title(name, fontsize=9)
    axis.set_xlabel("m" if points[0].suite == "step" else "n")
    axis.grid(True, which="major", alpha=0.3)
    axis.legend(fontsize=7)


def _scales(axis: Any, sizes: list[int]) -> None:
    """Make both axes logarithmic, with ticks at the sizes and at round times."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.yaxis.set_major_formatter(lambda seconds, place: duration(seconds))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
