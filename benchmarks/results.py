"""Measurements, runs, and the ratios between subjects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DIGITS = 6
"""Significant digits of stored times and rates; noise begins in the second or third digit."""

REASON = 60
"""Largest length of a displayed reason, in characters; the record keeps all of it."""


@dataclass(frozen=True)
class Measurement:
    """Measurement of one subject of one case.

    ``sizes`` are the dimensions and ``size`` the one that grows; ``work`` is in ``unit``, ``seconds`` is a median.
    ``per_unit`` is the smallest number of the ceiling's units that a unit of work needs.
    ``limit`` is the limiting rate in the rounds of the case, if it was measured in them. ``gain`` is the speedup of
    several threads over one, divided by that of a loop of multiply-adds.
    ``not_timed`` is empty, or the reason why there is no time: absent, wrong or failed, with the whole message.
    """

    suite: str
    case: str
    mode: str
    sizes: Mapping[str, int]
    size: int
    threads: int
    subject: str
    baseline: str
    work: float
    unit: str
    ceiling: str
    not_timed: str = ""
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    first_call: float | None = None
    rounds: int = 0
    error: float | None = None
    peak_bytes: int | None = None
    peak_unknown: str = ""
    per_unit: float = 1.0
    limit: float | None = None
    gain: float | None = None

    @property
    def group(self) -> tuple[Any, ...]:
        """Key that all measurements of one case share."""
        return self.suite, self.case, self.mode, tuple(sorted(self.sizes.items())), self.threads


@dataclass(frozen=True)
class Run:
    """A run: machine, ceilings by number of threads (rates in units per second), measurements."""

    machine: Mapping[str, Any]
    device: str
    ceilings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()

    def groups(self) -> list[list[Measurement]]:
        """Return the measurements grouped by case, in the order of the run."""
        by_case: dict[tuple[Any, ...], list[Measurement]] = {}
        for m in self.measurements:
            by_case.setdefault(m.group, []).append(m)
        return list(by_case.values())

    def merged_with(self, earlier: "Run") -> "Run":
        """Add the cases that only an earlier run measured; ``ValueError`` if machine or versions differ."""
        identity = ("device", "versions")
        if any(self.machine[k] != earlier.machine[k] for k in identity):
            versions = ", ".join(f"{name} {version}" for name, version in earlier.machine["versions"].items())
            raise ValueError(
                f"got results of another machine or other versions: {earlier.machine['device']}, {versions}"
            )
        measured_groups = {m.group for m in self.measurements}
        earlier_only = [m for m in earlier.measurements if m.group not in measured_groups]
        ordered = _ordered((*earlier_only, *self.measurements), like=(*earlier.measurements, *self.measurements))
        return replace(self, ceilings={**earlier.ceilings, **self.ceilings}, measurements=ordered)


def _ordered(measurements: Sequence[Measurement], like: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Sort measurements by suite, size and case, with suites and cases ordered as in ``like``."""
    suites = {key: i for i, key in enumerate(dict.fromkeys((m.threads, m.suite) for m in like))}
    cases = {key: i for i, key in enumerate(dict.fromkeys((m.suite, m.case, m.mode) for m in like))}
    return tuple(
        sorted(measurements, key=lambda m: (suites[m.threads, m.suite], m.size, cases[m.suite, m.case, m.mode]))
    )


def significant(value: float) -> float:
    """Round to ``DIGITS`` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def ceiling_share(run: Run, m: Measurement) -> float | None:
    """Return the fraction of the limiting rate that a subject reaches; None if unknown."""
    rate = m.limit or run.ceilings.get(str(m.threads), {}).get(m.ceiling)
    return None if rate is None or m.seconds is None else m.work * m.per_unit / m.seconds / rate


def threads_suffix(threads: int) -> str:
    """Return a suffix for names of cases with the number of threads; empty on GPUs."""
    return f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def brief(reason: str, length: int = REASON) -> str:
    """Return the first line of a reason, cut to ``length`` characters."""
    line = (reason.splitlines() or [""])[0].rstrip()
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def speedup(group: Sequence[Measurement], subject: str, other_subject: str) -> float | None:
    """Speedup of a subject over another one; None if either was not timed."""
    seconds = {m.subject: m.seconds for m in group}
    seconds_of_subject, seconds_of_other = seconds.get(subject), seconds.get(other_subject)
    return None if seconds_of_subject is None or seconds_of_other is None else seconds_of_other / seconds_of_subject


def fastest_other(group: Sequence[Measurement], subject: str) -> Measurement | None:
    """Return the fastest of the other subjects; None if no other was timed."""
    others = [m for m in group if m.subject != subject and m.seconds is not None]
    return min(others, key=lambda m: m.seconds or 0.0, default=None)
