"""Tables of results for a terminal, and texts of numbers."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from benchmarks.case import OURS
from benchmarks.ceilings import CEILING_NOTES
from benchmarks.growth import MIN_SIZE, growths
from benchmarks.results import Measurement, Run, brief, ceiling_share, fastest_other, speedup, threads_suffix

NUMBERS = ("median", "first", "× baseline", "× best other", "rate", "of ceiling", "peak")
OPTIONAL = ("first", "rate")
"""Columns omitted on a terminal narrower than ``FULL_WIDTH`` columns of text."""
FULL_WIDTH = 110
COLUMNS = ("case", "mode", "sizes", "threads", "subject", *NUMBERS)


def rows(run: Run) -> Iterator[tuple[str, ...]]:
    """Yield a row per measurement; only the first of a case names it."""
    for group in run.groups():
        best = fastest_other(group, OURS)
        for m in group:
            first = m is group[0]
            head = (m.case, m.mode, ", ".join(f"{k}={v}" for k, v in m.sizes.items()), str(m.threads or ""))
            if m.seconds is None:
                yield (*(head if first else ("",) * 4), f"{m.subject}: {brief(m.not_timed)}", *("",) * len(NUMBERS))
                continue
            times = speedup(group, m.subject, m.baseline)
            other = speedup(group, m.subject, best.subject) if best is not None and m.subject == OURS else None
            rate = f"{quantity(m.work / m.seconds)}{m.unit}/s"
            numbers = (
                duration(m.seconds), "" if m.first_call is None else duration(m.first_call), number(times),
                number(other), rate, percent(ceiling_share(run, m)), peak(m),
            )  # fmt: skip
            yield (*(head if first else ("",) * 4), m.subject, *numbers)


def duration(seconds: float) -> str:
    """Text of a duration in s, ms, µs or ns."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def quantity(value: float) -> str:
    """Text of a number with the prefix T, G, M or k for its unit."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "


def number(value: float | None) -> str:
    """Text of a ratio; empty if it is unknown."""
    return "" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Text of a share in per cent; empty if it is unknown."""
    return "" if value is None else f"{value:.0%}"


def peak(m: Measurement) -> str:
    """Text of the peak memory, or why it is unknown; empty if not measured."""
    return brief(m.peak_unknown) if m.peak_bytes is None else f"{m.peak_bytes / 2**20:.1f} MiB"


def tables(run: Run, width: int) -> Iterator[Table]:
    """Yield tables for a terminal of ``width`` columns: one per suite, then the growth."""
    shown_columns = [i for i, column in enumerate(NUMBERS) if width >= FULL_WIDTH or column not in OPTIONAL]
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        limit = f"of ceiling: {CEILING_NOTES[suite]}" if suite in CEILING_NOTES else None
        table = Table(title=suite, caption=limit, caption_justify="left")
        table.add_column(", ".join(COLUMNS[:5]), overflow="fold")
        for i in shown_columns:
            table.add_column(NUMBERS[i].replace(" ", "\n", 1), justify="right", no_wrap=True, max_width=16)
        part = Run(run.machine, run.device, run.ceilings, [m for m in run.measurements if m.suite == suite])
        for case, mode, sizes, threads, subject, *numbers in rows(part):
            if case:
                table.add_section()
                table.add_row(f"{case}, {mode}, {sizes}" + threads_suffix(int(threads or 0)))
            name = Text(f"  {subject}", no_wrap=not any(numbers), overflow=None if any(numbers) else "ellipsis")
            table.add_row(name, *(numbers[i] for i in shown_columns), style="bold" if subject == OURS else None)
        yield table
    if grown := growths(run):
        table = Table(title=f"growth: p of time ~ work^p, from {MIN_SIZE} on")
        for column in ("case", "subject", "p"):
            table.add_column(column)
        for g in grown:
            table.add_row(f"{g.suite}: {g.case}, {g.mode}{threads_suffix(g.threads)}", g.subject, f"{g.exponent:.2f}")
        yield table
