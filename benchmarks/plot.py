"""Time against size, both logarithmic, with the limits that were measured in the same run."""

from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Run, in_words

STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-")


def drawn(run: Run, folder: Path) -> list[Path]:
    """A picture for every suite; the paths written."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "attnspec"
    from matplotlib import pyplot

    written = []
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        panels = _panels([m for m in run.measurements if m.suite == suite])
        columns = min(len(panels), 4)
        lines = -(-len(panels) // columns)
        figure, axes = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 3.6 * lines), squeeze=False)
        for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
            _panel(axis, name, points, run)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        path = folder / f"{suite}.svg"
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        written.append(path)
    return written


def _panels(measurements: list[Measurement]) -> dict[str, list[Measurement]]:
    panels: dict[str, list[Measurement]] = {}
    for m in measurements:
        panels.setdefault(f"{m.case}, {m.mode}{in_words(m.threads)}", []).append(m)
    return panels


def _panel(axis: Any, name: str, points: list[Measurement], run: Run) -> None:
    subjects = list(dict.fromkeys(m.subject for m in points))
    for style, subject in zip(cycle(STYLES), subjects, strict=False):
        own = sorted((m.size, m.seconds) for m in points if m.subject == subject and m.seconds is not None)
        if own:
            axis.plot([n for n, _ in own], [s for _, s in own], style, label=subject, markersize=4)
    rate = run.ceilings.get(str(points[0].threads), {}).get(points[0].ceiling)
    if rate:
        limit = sorted({(m.size, m.work / rate) for m in points})
        mark = "k--" if len(limit) > 1 else "k_"
        axis.plot([n for n, _ in limit], [s for _, s in limit], mark, label=f"{points[0].ceiling} rate", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(name, fontsize=9)
    axis.set_xlabel("m" if points[0].suite == "step" else "n")
    axis.set_ylabel("seconds")
    axis.grid(True, which="major", alpha=0.3)
    axis.legend(fontsize=7)
