"""Results as rows of text, and as tables on a terminal."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from benchmarks.case import OURS
from benchmarks.ceilings import LIMITS
from benchmarks.growth import FROM, growths
from benchmarks.results import Measurement, Run, best_of_others, brief, in_words, ratio, share

NUMBERS = ("median", "first", "× baseline", "× best other", "rate", "of ceiling", "peak")
SPARE = ("first", "rate")
"""Columns that a terminal narrower than ``WIDE`` does without."""
WIDE = 110
COLUMNS = ("case", "mode", "sizes", "threads", "subject", *NUMBERS)


def rows(run: Run) -> Iterator[tuple[str, ...]]:
    """A row for every measurement."""
    for group in run.groups():
        best = best_of_others(group, OURS)
        for m in group:
            first = m is group[0]
            head = (m.case, m.mode, ", ".join(f"{k}={v}" for k, v in m.sizes.items()), str(m.threads or ""))
            if m.seconds is None:
                yield (*(head if first else ("",) * 4), f"{m.subject}: {brief(m.not_timed)}", *("",) * len(NUMBERS))
                continue
            times = ratio(group, m.subject, m.baseline)
            other = ratio(group, m.subject, best.subject) if best is not None and m.subject == OURS else None
            rate = f"{quantity(m.work / m.seconds)}{m.unit}/s"
            numbers = (
                duration(m.seconds), "" if m.first_call is None else duration(m.first_call), number(times),
                number(other), rate, percent(share(run, m)), peak(m),
            )  # fmt: skip
            yield (*(head if first else ("",) * 4), m.subject, *numbers)


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def quantity(value: float) -> str:
    """A number with a prefix."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "


def number(value: float | None) -> str:
    """A ratio, or nothing."""
    return "" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share, or nothing."""
    return "" if value is None else f"{value:.0%}"


def peak(m: Measurement) -> str:
    """Bytes at the peak, or nothing."""
    return brief(m.peak_unknown) if m.peak_bytes is None else f"{m.peak_bytes / 2**20:.1f} MiB"


def printed(run: Run, width: int) -> Iterator[Table]:
    """For so many characters in a line a table for every suite, a section for every case."""
    kept = [i for i, column in enumerate(NUMBERS) if width >= WIDE or column not in SPARE]
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        limit = f"of ceiling: {LIMITS[suite]}" if suite in LIMITS else None
        table = Table(title=suite, caption=limit, caption_justify="left")
        table.add_column(", ".join(COLUMNS[:5]), overflow="fold")
        for i in kept:
            table.add_column(NUMBERS[i].replace(" ", "\n", 1), justify="right", no_wrap=True, max_width=16)
        part = Run(run.machine, run.device, run.ceilings, [m for m in run.measurements if m.suite == suite])
        for case, mode, sizes, threads, subject, *numbers in rows(part):
            if case:
                table.add_section()
                table.add_row(f"{case}, {mode}, {sizes}" + in_words(int(threads or 0)))
            name = Text(f"  {subject}", no_wrap=not any(numbers), overflow=None if any(numbers) else "ellipsis")
            table.add_row(name, *(numbers[i] for i in kept), style="bold" if subject == OURS else None)
        yield table
    if grown := growths(run):
        table = Table(title=f"growth: p of time ~ work^p, from {FROM} on")
        for column in ("case", "subject", "p"):
            table.add_column(column)
        for g in grown:
            table.add_row(f"{g.suite}: {g.case}, {g.mode}{in_words(g.threads)}", g.subject, f"{g.exponent:.2f}")
        yield table
