"""Growth of time with work: the slope of log time over log work."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from benchmarks.results import Measurement, Run

MIN_SIZE = 512
"""Smallest size in the fit: below it the overhead of a call outweighs its work."""


@dataclass(frozen=True)
class Growth:
    """Exponent p of time ~ work^p for one subject, over sizes from ``MIN_SIZE`` on."""

    suite: str
    case: str
    mode: str
    threads: int
    subject: str
    sizes: tuple[int, ...]
    exponent: float


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Fit p of values ~ sizes^p by least squares on logarithms; needs two sizes."""
    return statistics.linear_regression([log(s) for s in sizes], [log(v) for v in values]).slope


def growths(run: Run) -> list[Growth]:
    """Return the exponents of all subjects that were timed at two sizes or more."""
    lines: dict[tuple[str, str, str, int, str], list[Measurement]] = {}
    for m in run.measurements:
        if m.seconds is not None and m.size >= MIN_SIZE:
            lines.setdefault((m.suite, m.case, m.mode, m.threads, m.subject), []).append(m)
    return [
        Growth(*line, tuple(m.size for m in group), slope([m.work for m in group], [m.seconds or 0.0 for m in group]))
        for line, group in lines.items()
        if len({m.work for m in group}) > 1
    ]
