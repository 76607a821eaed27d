"""Measurements, runs, and the ratios between subjects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DIGITS = 6
"""Significant digits that are kept of times and rates; their noise is in the second or third."""

REASON = 60
"""Characters of a reason where it is shown; the record has all of it."""


@dataclass(frozen=True)
class Measurement:
    """One subject of one case.

    ``sizes`` are the dimensions and ``size`` the one that grows; ``work`` is in ``unit``, ``seconds`` is a median.
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

    @property
    def group(self) -> tuple[Any, ...]:
        """What the subjects of one case have in common."""
        return self.suite, self.case, self.mode, tuple(sorted(self.sizes.items())), self.threads


@dataclass(frozen=True)
class Run:
    """A whole run: the machine, the rates that limit it by number of threads, the measurements."""

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

    def after(self, before: "Run") -> "Run":
        """This run with what an earlier one measured besides; ``ValueError`` if its machine or versions were others."""
        same = ("device", "versions")
        if any(self.machine[k] != before.machine[k] for k in same):
            versions = ", ".join(f"{name} {version}" for name, version in before.machine["versions"].items())
            raise ValueError(
                f"got results of another machine or other versions: {before.machine['device']}, {versions}"
            )
        anew = {m.group for m in self.measurements}
        kept = [m for m in before.measurements if m.group not in anew]
        ordered = _ordered((*kept, *self.measurements), like=(*before.measurements, *self.measurements))
        return replace(self, ceilings={**before.ceilings, **self.ceilings}, measurements=ordered)


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


def share(run: Run, m: Measurement) -> float | None:
    """The part of the limiting rate that a subject reaches; None if one of them is not known."""
    rate = run.ceilings.get(str(m.threads), {}).get(m.ceiling)
    return None if rate is None or m.seconds is None else m.work / m.seconds / rate


def in_words(threads: int) -> str:
    """What follows a case in a line; nothing on a GPU."""
    return f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def brief(reason: str, length: int = REASON) -> str:
    """The first line of a reason, cut where it is longer than ``length``."""
    line = (reason.splitlines() or [""])[0].rstrip()
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def ratio(group: Sequence[Measurement], subject: str, to: str) -> float | None:
    """How many times faster a subject is than another one; None if one of them has no time."""
    seconds = {m.subject: m.seconds for m in group}
    own, other = seconds.get(subject), seconds.get(to)
    return None if own is None or other is None else other / own


def best_of_others(group: Sequence[Measurement], subject: str) -> Measurement | None:
    """The fastest of all other subjects."""
    others = [m for m in group if m.subject != subject and m.seconds is not None]
    return min(others, key=lambda m: m.seconds or 0.0, default=None)
