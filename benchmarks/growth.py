"""How time grows with work: the slope of the logarithms, 1 where time is proportional to work."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from benchmarks.results import Measurement, Run

FROM = 512
"""Below this size calls cost more than work."""


@dataclass(frozen=True)
class Growth:
    """The exponent p of time ~ work^p for one subject of a case, over sizes from ``FROM`` on."""

    suite: str
    case: str
    mode: str
    threads: int
    subject: str
    sizes: tuple[int, ...]
    exponent: float


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent p of values ~ sizes^p, by least squares of the logarithms; at least two sizes."""
    return statistics.linear_regression([log(s) for s in sizes], [log(v) for v in values]).slope


def growths(run: Run) -> list[Growth]:
    """For every subject that was timed at two or more sizes."""
    lines: dict[tuple[str, str, str, int, str], list[Measurement]] = {}
    for m in run.measurements:
        if m.seconds is not None and m.size >= FROM:
            lines.setdefault((m.suite, m.case, m.mode, m.threads, m.subject), []).append(m)
    return [
        Growth(*line, tuple(m.size for m in found), slope([m.work for m in found], [m.seconds or 0.0 for m in found]))
        for line, found in lines.items()
        if len({m.work for m in found}) > 1
    ]
