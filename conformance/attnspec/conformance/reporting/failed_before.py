"""Failures of an earlier run, read from its report, and how they are judged now."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import SCHEMA, Report, key
from attnspec.conformance.reporting.table import violations
from attnspec.conformance.running.settings import Settings

VERDICT = {f.name for f in fields(Result)}
"""Keys of a result that belong to the verdict itself."""


ASKED: Mapping[str, tuple[type, ...]] = {
    "profile": (str,),
    "seed": (int,),
    "device": (str,),
    "hang_after": (int, float),
}
"""Keys of a report that hold its run's settings, with the types of their values."""


def _read(document: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    found = document[name]
    if not isinstance(found, kinds):
        raise ValueError(f"{name}: expected {' or '.join(kind.__name__ for kind in kinds)}; got {found!r}")
    return found


@dataclass(frozen=True)
class FailedBefore:
    """The backend and settings of an earlier run, and its violations."""

    backend: str
    settings: Settings
    failures: tuple[Result, ...]

    @classmethod
    def read(cls, path: Path) -> "FailedBefore":
        """Read a report's failures; :class:`BackendError` for a file this tool did not write."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BackendError(f"expected a report; got {str(path)!r}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{path}: expected a report, as --json writes it; got no JSON") from error
        found = document.get("schema") if isinstance(document, dict) else None
        if found != SCHEMA:
            raise BackendError(f"{path}: expected a report of the schema {SCHEMA!r}; got {found!r}")
        try:
            return cls._of(document)
        except KeyError as error:
            raise BackendError(f"{path}: expected a whole report; got one without {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{path}: expected a report as attnspec wrote it; got {error}") from error

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> "FailedBefore":
        asked: dict[str, Any] = {name: _read(document, name, kinds) for name, kinds in ASKED.items()}
        asked |= {name: tuple(names) for name, names in document["selection"].items()}
        asked |= {"in_process": bool(document["in_process"]), "time_limit": float(document["time_limit"] or 0)}
        # The judge's own process has no sandbox: a report without one does not mean that it was switched off.
        isolated = not asked["in_process"]
        asked["sandbox"] = "off" if isolated and document["sandbox"] == "none" else "auto"
        results = [Result.from_json({k: v for k, v in r.items() if k in VERDICT}) for r in document["results"]]
        return cls(
            _read(document["backend"], "origin", (str,)), Settings(**asked), tuple(r for r in results if r.violates)
        )

    def selected(self, **chosen: Sequence[str]) -> "FailedBefore":
        """Keep only the failures of these operations, laws and dtypes; an empty list keeps all."""
        return replace(
            self,
            failures=tuple(
                r
                for r in self.failures
                if all(not names or getattr(r, what) in names for what, names in chosen.items())
            ),
        )

    def as_lines(self) -> str:
        """Return the failures as lines of a file that selects them."""
        return "".join(f"{r.operation} {r.law} {r.dtype}\n" for r in self.failures)


def print_again(before: FailedBefore, report: Report, console: Console) -> int:
    """Print every failure's new verdict, and return the exit status: 1 if any is still violated."""
    now = {key(r): r for r in report.results}
    for r in before.failures:
        line = _no_longer(r, now.get(key(r)))
        if line:
            console.print(escape(line), highlight=False)
    for text in violations(report):
        console.print(text, soft_wrap=True)
    console.print(f"\n{_summary(before, report)}", highlight=False)
    return report.exit_status


def _no_longer(before: Result, now: Result | None) -> str:
    """Return the line for a law that is no longer violated; empty if it still is."""
    what = f"{before.law} by {before.operation} ({before.dtype})"
    if now is None:
        return f"not judged: {what}: the backend or its limits no longer have it"
    if now.status is Status.PASSED:
        return f"holds now: {what}"
    return "" if now.violates else f"not judged: {what}: {now.message or now.reason}"


def _summary(before: FailedBefore, report: Report) -> str:
    still, passed = len(report.violations), report.counts[Status.PASSED]
    counts = {"hold now": passed, "not judged": len(before.failures) - passed - still}
    told = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
    colour = "red" if still else "green"
    name = f"[bold {colour}]{escape(before.backend)}[/]"
    return f"{name}: {still:,} of {len(before.failures):,} failures still violate{told}"
