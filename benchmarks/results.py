"""Measurements, runs, and the ratios between subjects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DIGITS = 6
"""Significant digits that are kept of times and rates; their noise is in the second or third of them."""

REASON = 60
"""Characters of a reason where it is shown; the record has all of it."""


@dataclass(frozen=True)
class Measurement:
    """One subject of one case.

    ``sizes`` are the dimensions and ``size`` the one that grows; ``work`` is in ``unit``, ``seconds`` is a median.
    ``per_unit`` is how much of what the ceiling counts a unit of work takes at least.
    ``limit`` is the limiting rate as it was in the rounds of the case, where it was measured in them, and ``gain`` what
    several threads gained over one, as a part of what they gained in a loop of multiply-adds.
    ``not_timed`` is empty, or says why there is no time: absent, wrong or failed, with the whole message.
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
        """What all measurements of one case share."""
        return self.suite, self.case, self.mode, tuple(sorted(self.sizes.items())), self.threads


@dataclass(frozen=True)
class Run:
    """A run: the machine, its ceilings by number of threads (rates in units per second), the measurements."""

    machine: Mapping[str, Any]
    device: str
    ceilings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()

    def groups(self) -> list[list[Measurement]]:
        """The measurements case by case, in the order of the run."""
        found: dict[tuple[Any, ...], list[Measurement]] = {}
        for m in self.measurements:
            found.setdefault(m.group, []).append(m)
        return list(found.values())

    def merged_with(self, earlier: "Run") -> "Run":
        """This run and the cases that only an earlier one measured; ``ValueError`` if machine or versions differ."""
        same = ("device", "versions")
        if any(self.machine[k] != earlier.machine[k] for k in same):
            versions = ", ".join(f"{name} {version}" for name, version in earlier.machine["versions"].items())
            raise ValueError(
                f"got results of another machine or other versions: {earlier.machine['device']}, {versions}"
            )
        anew = {m.group for m in self.measurements}
        kept = [m for m in earlier.measurements if m.group not in anew]
        ordered = _ordered((*kept, *self.measurements), like=(*earlier.measurements, *self.measurements))
        return replace(self, ceilings={**earlier.ceilings, **self.ceilings}, measurements=ordered)


def _ordered(measurements: Sequence[Measurement], like: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Smaller sizes first; suites and cases in the order in which they come first in ``like``."""
    suites = {key: i for i, key in enumerate(dict.fromkeys((m.threads, m.suite) for m in like))}
    cases = {key: i for i, key in enumerate(dict.fromkeys((m.suite, m.case, m.mode) for m in like))}
    return tuple(
        sorted(measurements, key=lambda m: (suites[m.threads, m.suite], m.size, cases[m.suite, m.case, m.mode]))
    )


def significant(value: float) -> float:
    """A number rounded to ``DIGITS`` significant digits, as it is kept and shown."""
    return float(f"{value:.{DIGITS}g}")


def ceiling_share(run: Run, m: Measurement) -> float | None:
    """The fraction of the limiting rate that a subject reaches; None if either is not known."""
    rate = m.limit or run.ceilings.get(str(m.threads), {}).get(m.ceiling)
    return None if rate is None or m.seconds is None else m.work * m.per_unit / m.seconds / rate


def threads_suffix(threads: int) -> str:
    """The number of threads, as it follows the name of a case; empty on a GPU."""
    return f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def brief(reason: str, length: int = REASON) -> str:
    """The first line of a reason, cut where it is longer than ``length``."""
    line = (reason.splitlines() or [""])[0].rstrip()
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def speedup(group: Sequence[Measurement], subject: str, over: str) -> float | None:
    """How many times faster a subject is than the one it is compared with; None if either was not timed."""
    seconds = {m.subject: m.seconds for m in group}
    own, other = seconds.get(subject), seconds.get(over)
    return None if own is None or other is None else other / own


def fastest_other(group: Sequence[Measurement], subject: str) -> Measurement | None:
    """The fastest of the subjects other than this one."""
    others = [m for m in group if m.subject != subject and m.seconds is not None]
    return min(others, key=lambda m: m.seconds or 0.0, default=None)
