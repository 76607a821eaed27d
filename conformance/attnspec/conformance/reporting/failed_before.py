"""Failures of an earlier run, read from its JSON report, compared with their verdicts now."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.reading import ReadReport
from attnspec.conformance.reporting.report import Report, key
from attnspec.conformance.reporting.table import violations
from attnspec.conformance.running.settings import Settings


@dataclass(frozen=True)
class FailedBefore:
    """The backend and settings of an earlier run, and its violations."""

    backend: str
    settings: Settings
    failures: tuple[Result, ...]

    @classmethod
    def read(cls, path: Path) -> "FailedBefore":
        """Read the failures that were not expected; :class:`BackendError` for a file that is no report of attnspec."""
        earlier = ReadReport.read(path)
        results = zip(earlier.results, earlier.document["results"], strict=True)
        return cls(earlier.backend, earlier.settings, tuple(r for r, x in results if r.violates and not x["expected"]))

    def selected(self, **selection: Sequence[str]) -> "FailedBefore":
        """Keep only the failures of these operations, laws and dtypes; an empty list keeps all."""
        chosen = {attribute: names for attribute, names in selection.items() if names}
        failures = (r for r in self.failures if all(getattr(r, x) in names for x, names in chosen.items()))
        return replace(self, failures=tuple(failures))

    def as_lines(self) -> str:
        """Return the failures as the text of a file for ``--only``."""
        return "".join(f"{r.operation} {r.law} {r.dtype}\n" for r in self.failures)


def print_new_verdicts(before: FailedBefore, report: Report, console: Console) -> int:
    """Print the new verdict of every earlier failure, and return the report's exit status."""
    now = {key(r): r for r in report.results}
    for r in before.failures:
        line = _line_of_resolved(r, now.get(key(r)))
        if line:
            console.print(escape(line), highlight=False)
    for text in violations(report):
        console.print(text, soft_wrap=True)
    console.print(f"\n{_summary(before, report)}", highlight=False)
    return report.exit_status


def _line_of_resolved(before: Result, now: Result | None) -> str:
    """Return the line for a law that is no longer violated; empty if it still is."""
    law = f"{before.law} by {before.operation} ({before.dtype})"
    if now is None:
        return f"not judged: {law}: the backend or its limits no longer have it"
    if now.status is Status.PASSED:
        return f"holds now: {law}"
    return "" if now.violates else f"not judged: {law}: {now.message or now.reason}"


def _summary(before: FailedBefore, report: Report) -> str:
    violated, passed = len(report.violations), report.counts[Status.PASSED]
    counts = {"hold now": passed, "not judged": len(before.failures) - passed - violated}
    changes = "".join(f", {count:,} {outcome}" for outcome, count in counts.items() if count)
    colour = "red" if violated else "green"
    name = f"[bold {colour}]{escape(before.backend)}[/]"
    return f"{name}: {violated:,} of {len(before.failures):,} failures remain{changes}"
