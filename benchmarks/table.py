"""Results as a table, on a terminal and as Markdown."""

from collections.abc import Iterator

from rich.table import Table

from benchmarks.case import OURS
from benchmarks.growth import FROM, growths
from benchmarks.results import Measurement, Run, best_of_others, in_words, ratio, share

NUMBERS = ("median", "first", "× baseline", "× best other", "rate", "of ceiling", "peak")
COLUMNS = ("case", "mode", "sizes", "threads", "subject", *NUMBERS)


def rows(run: Run) -> Iterator[tuple[str, ...]]:
    """A row for every measurement."""
    for group in run.groups():
        best = best_of_others(group, OURS)
        for m in group:
            first = m is group[0]
            head = (m.case, m.mode, ", ".join(f"{k}={v}" for k, v in m.sizes.items()), str(m.threads or ""))
            if m.seconds is None:
                yield (*(head if first else ("",) * 4), f"{m.subject}: {m.why_not}", *("",) * len(NUMBERS))
                continue
            times = ratio(group, m.subject, m.baseline)
            other = ratio(group, m.subject, best.subject) if best is not None and m.subject == OURS else None
            rate = f"{quantity(m.work / m.seconds)}{m.unit}/s"
            numbers = (
                duration(m.seconds), "" if m.first is None else duration(m.first), number(times), number(other),
                rate, percent(share(run, m)), peak(m),
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
    return m.peak_unknown if m.peak_bytes is None else f"{m.peak_bytes / 2**20:.1f} MiB"


def printed(run: Run) -> Iterator[Table]:
    """A table for every suite, a section for every case."""
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        table = Table(title=suite)
        table.add_column(", ".join(COLUMNS[:5]), min_width=30, overflow="fold")
        for column in NUMBERS:
            table.add_column(column, justify="right", no_wrap=True)
        part = Run(run.machine, run.device, run.ceilings, [m for m in run.measurements if m.suite == suite])
        for case, mode, sizes, threads, subject, *numbers in rows(part):
            if case:
                table.add_section()
                table.add_row(f"{case}, {mode}, {sizes}" + in_words(int(threads or 0)))
            table.add_row(f"  {subject}", *numbers, style="bold" if subject == OURS else None)
        yield table
    if grown := growths(run):
        table = Table(title=f"growth: p of time ~ work^p, from {FROM} on")
        for column in ("case", "subject", "p"):
            table.add_column(column)
        for g in grown:
            table.add_row(f"{g.suite}: {g.case}, {g.mode}{in_words(g.threads)}", g.subject, f"{g.exponent:.2f}")
        yield table


def markdown(run: Run) -> str:
    """The page beside the results: machine, ceilings, a plot and a table for every suite."""
    from benchmarks.ceilings import RATES

    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"# Measured on {machine['device']}",
        "",
        f"{machine['cores']} cores, {machine['instructions']}, {machine['system']}, Python {machine['python']},",
        f"{versions}.",
        f"Begun {machine['time']}, load {machine.get('load_before')} before and {machine.get('load_after')} after.",
        "Medians of interleaved rounds; ratios are within one run: `× baseline` against the first subject of a case,",
        "`× best other` against the fastest other one. `first` is the first call, with compilation and preparation;",
        "`of ceiling` is the part of the rate that limits the case; peaks are memory beyond the inputs.",
        "[How it is measured](../../../docs/benchmarks.md).",
        "",
        "| threads | " + " | ".join(RATES) + " |",
        "|---|" + "---|" * len(RATES),
    ]
    for threads, rates in run.ceilings.items():
        lines.append(f"| {threads} | " + " | ".join(f"{quantity(rates[r])}{u}" for r, u in RATES.items()) + " |")
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        part = Run(run.machine, run.device, run.ceilings, [m for m in run.measurements if m.suite == suite])
        lines += ["", f"## {suite}", "", f"![{suite}]({suite}.svg)", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(row) + " |" for row in rows(part)]
        if grown := growths(part):
            lines += ["", f"Time grows as workᵖ, from {FROM} on:", ""]
            lines += ["| case | mode | threads | subject | sizes | p |", "|" + "---|" * 6]
            lines += [
                f"| {g.case} | {g.mode} | {g.threads or ''} | {g.subject} | {', '.join(map(str, g.sizes))} "
                f"| {g.exponent:.2f} |"
                for g in grown
            ]
    return "\n".join(lines) + "\n"
