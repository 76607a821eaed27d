"""Failures of an earlier run, read from its JSON report, compared with their verdicts now."""

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

RESULT_KEYS = {f.name for f in fields(Result)}
"""Keys of a report's result that are fields of :class:`Result`; reports add others."""

SETTING_TYPES = {"profile": (str,), "seed": (int,), "device": (str,), "hang_after": (int, float)}
"""Keys of a report that hold its run's settings, with their values' types."""


def _read(document: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    value = document[name]
    if not isinstance(value, kinds):
        raise ValueError(f"{name}: expected {' or '.join(kind.__name__ for kind in kinds)}; got {value!r}")
    return value


@dataclass(frozen=True)
class FailedBefore:
    """The backend and settings of an earlier run, and its violations."""

    backend: str
    settings: Settings
    failures: tuple[Result, ...]

    @classmethod
    def read(cls, path: Path) -> "FailedBefore":
        """Read a report's failures; :class:`BackendError` for a file that is no report of attnspec."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BackendError(f"expected a report; got {str(path)!r}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{path}: expected a report, as --json writes it; got no JSON") from error
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise BackendError(f"{path}: expected a report with schema {SCHEMA!r}; got {schema!r}")
        try:
            return cls._of(document)
        except KeyError as error:
            raise BackendError(f"{path}: expected a complete report; got one without the key {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{path}: expected a report as attnspec wrote it; got {error}") from error

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> "FailedBefore":
        settings: dict[str, Any] = {name: _read(document, name, kinds) for name, kinds in SETTING_TYPES.items()}
        settings |= {name: tuple(names) for name, names in document["selection"].items()}
        settings |= {"in_process": bool(document["in_process"]), "time_limit": float(document["time_limit"] or 0)}
        # A run in the judge's own process never has a sandbox, so that "none" does not mean --sandbox=off.
        isolated = not settings["in_process"]
        settings["sandbox"] = "off" if isolated and document["sandbox"] == "none" else "auto"
        results = [Result.from_json({k: v for k, v in r.items() if k in RESULT_KEYS}) for r in document["results"]]
        failures = tuple(r for r in results if r.violates)
        return cls(_read(document["backend"], "origin", (str,)), Settings(**settings), failures)

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
