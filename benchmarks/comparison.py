"""Tables for the page: medians of all subjects side by side, and our speedups."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from benchmarks.case import OURS
from benchmarks.growth import growths
from benchmarks.results import Measurement, Run, brief, ceiling_share, fastest_other, speedup, threads_suffix
from benchmarks.table import duration, number, peak, percent

REASON = 160
"""Largest length of a reason on the page, in characters."""

Group = Sequence[Measurement]


def summary(run: Run) -> Iterator[tuple[str, ...]]:
    """Yield a header, then range and median of our speedups per suite and mode."""
    yield "suite", "mode", "cases", "× baseline", "median", "× best other", "median"
    of_mode: dict[tuple[str, str], list[Group]] = {}
    for group in run.groups():
        of_mode.setdefault((group[0].suite, group[0].mode), []).append(group)
    for (suite, mode), groups in of_mode.items():
        yield suite, mode, str(len(groups)), *_spread(_speedups(groups)), *_spread(_speedups(groups, best=True))


def _speedups(groups: Sequence[Group], *, best: bool = False) -> list[float]:
    speedups = [_speedup(group, best=best) for group in groups]
    return [value for value in speedups if value is not None]


def _speedup(group: Group, *, best: bool) -> float | None:
    if not best:
        return speedup(group, OURS, group[0].baseline)
    other = fastest_other(group, OURS)
    return None if other is None else speedup(group, OURS, other.subject)


def _over_best(group: Group) -> str:
    """Return a cell: our speedup over the fastest other subject, named if one of several."""
    best, timed = fastest_other(group, OURS), [m for m in group if m.seconds is not None and m.subject != OURS]
    times = number(_speedup(group, best=True))
    return f"{times}, {best.subject}" if times and best is not None and len(timed) > 1 else times


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return (f"{min(values):.3g} to {max(values):.3g}", number(statistics.median(values))) if values else ("", "")


def rows(run: Run) -> Iterator[tuple[str, ...]]:
    """Yield a header; then per case a row per size, and growth exponents."""
    subjects = _subjects_with(run, lambda m: m.seconds is not None)
    peaks = _subjects_with(run, lambda m: m.peak_bytes is not None or m.peak_unknown != "")
    gain_names = ["gain of threads"] if any(m.gain is not None for m in run.measurements) else []
    dimensions, _ = _dimensions(run)
    baselines = " or ".join(dict.fromkeys(m.baseline for m in run.measurements))
    yield (
        "case", ", ".join(" = ".join(names) for names in dimensions),
        *(f"**{subject}**" if subject == OURS else subject for subject in subjects),
        f"× {baselines}", "× best other", "of ceiling", *gain_names, *(f"peak of {subject}" for subject in peaks),
    )  # fmt: skip
    exponents = {(g.case, g.mode, g.threads, g.subject): g.exponent for g in growths(run)}
    of_case: dict[tuple[str, str, int], list[Group]] = {}
    for each in run.groups():
        of_case.setdefault((each[0].case, each[0].mode, each[0].threads), []).append(each)
    for (case, mode, threads), groups in of_case.items():
        name = f"{case}, {mode}{threads_suffix(threads)}"
        for group in sorted(groups, key=lambda some: some[0].size):
            by = {m.subject: m for m in group}
            own = by.get(OURS)
            yield (
                name, ", ".join(str(_length(group[0], names)) for names in dimensions),
                *(_time(by.get(subject)) for subject in subjects),
                number(_speedup(group, best=False)), _over_best(group),
                "" if own is None else percent(ceiling_share(run, own)),
                *("" if own is None else percent(own.gain) for _ in gain_names),
                *(peak(by[subject]) if subject in by else "" for subject in peaks),
            )  # fmt: skip
            name = ""
        grown = [exponents.get((case, mode, threads, subject)) for subject in subjects]
        # Growth is known of times alone: the columns after those of the subjects stay empty.
        if any(p is not None for p in grown):
            yield "", "p", *("" if p is None else f"{p:.2f}" for p in grown), *[""] * (3 + len(gain_names) + len(peaks))


def constants(run: Run) -> str:
    """Return the dimensions that all cases of a suite share, as text."""
    return ", ".join(_dimensions(run)[1])


def reasons(run: Run) -> Iterator[str]:
    """Yield subjects without a time, with the reason, and in how many cases."""
    cases = len(run.groups())
    untimed = Counter((m.subject, brief(m.not_timed, REASON)) for m in run.measurements if m.not_timed)
    subjects: dict[tuple[str, int], list[str]] = {}
    for (subject, reason), count in untimed.items():
        subjects.setdefault((reason, count), []).append(subject)
    for (reason, count), names in subjects.items():
        quoted = reason.replace("`", "'")
        yield f"{', '.join(names)}: `{quoted}`" + ("" if count == cases else f" ({count} of {cases} cases)")


def _subjects_with(run: Run, condition: Callable[[Measurement], bool]) -> list[str]:
    subjects = {m.subject for m in run.measurements if condition(m)}
    return [subject for subject in dict.fromkeys(m.subject for m in run.measurements) if subject in subjects]


def _dimensions(run: Run) -> tuple[list[list[str]], list[str]]:
    """Return varying dimensions and, as text, constant ones.

    The first entry names all dimensions that equal the growing size, such as n and m, or is "size" if none does.
    """
    names = list(dict.fromkeys(name for m in run.measurements for name in m.sizes))
    growing = [name for name in names if all(m.sizes.get(name) == m.size for m in run.measurements)]
    values = {name: {m.sizes.get(name) for m in run.measurements} for name in names if name not in growing}
    fixed = [f"{name}={next(iter(sizes))}" for name, sizes in values.items() if len(sizes) == 1]
    return [growing or ["size"], *([name] for name, sizes in values.items() if len(sizes) > 1)], fixed


def _length(m: Measurement, names: Sequence[str]) -> int | str:
    return m.size if names == ["size"] else m.sizes.get(names[0], "")


def _time(m: Measurement | None) -> str:
    """Return a cell: the median, or one word why there is none, such as ``absent``."""
    if m is None:
        return ""
    return m.not_timed.partition(":")[0] if m.seconds is None else duration(m.seconds)
