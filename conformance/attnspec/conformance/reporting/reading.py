"""Reports of earlier runs, read from their JSON; those of shards are merged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnspec.conformance.explaining.explanations import Explanation
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import SCHEMA, Report
from attnspec.conformance.reporting.schema import schema_fault
from attnspec.conformance.running.planning import Plan, shard_of
from attnspec.conformance.running.probe import Probe
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Verdicts

RESULT_KEYS = {f.name for f in fields(Result)}
"""Keys of a report's result that are fields of :class:`Result`; reports add others."""

SETTING_KEYS = ("profile", "seed", "device", "hang_after", "in_process")
"""Keys of a report that hold its run's settings, as they are."""

MAX_NAMED = 16
"""Most shards that a message names."""

ABSENT = "nothing"
"""Text for a key that only one of two shards has."""

SAME = ("backend", "profile", "seed", "device", "selection", "expect", "sandbox", "in_process", "hang_after")
"""Keys of a report that all shards of a run share: other limits or less isolation would weaken the verdict."""


@dataclass(frozen=True)
class ReadReport:
    """The report of an earlier run: its backend, its settings, its results, and the whole JSON."""

    path: Path
    backend: str
    settings: Settings
    results: tuple[Result, ...]
    document: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "ReadReport":
        """Read a report; :class:`BackendError` for a file that is no report of attnspec."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BackendError(f"expected a report; got {str(path)!r}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{path}: expected a report, as --json writes it; got no JSON") from error
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise BackendError(f"{path}: expected a report with schema {SCHEMA!r}; got {schema!r}")
        if fault := schema_fault(document, Path(__file__).with_name("report.schema.json")):
            raise BackendError(f"{path}: expected a report as attnspec wrote it: {fault}")
        results = (Result.from_json({k: v for k, v in r.items() if k in RESULT_KEYS}) for r in document["results"])
        backend = found_beside(document["backend"]["origin"], path)
        return cls(path, backend, _settings(document), tuple(results), document)

    @property
    def title(self) -> str:
        """The shard and its file, for messages."""
        return f"shard {self.document['shard']} ({self.path})"


def _settings(document: Mapping[str, Any]) -> Settings:
    settings: dict[str, Any] = {name: document[name] for name in SETTING_KEYS}
    settings |= {name: tuple(names) for name, names in document["selection"].items()}
    settings |= {"time_limit": float(document["time_limit"] or 0)}
    # A run in the judge's own process never has a sandbox, so that "none" does not mean --sandbox=off.
    isolated = not settings["in_process"]
    settings["sandbox"] = "off" if isolated and document["sandbox"] == "none" else "auto"
    return Settings(**settings)


def found_beside(origin: str, report: Path) -> str:
    """Return the name of a backend's file as seen from here: a relative one may be relative to the report's folder."""
    file, colon, attribute = origin.partition(":")
    beside = report.parent / file
    if file.endswith(".py") and not Path(file).exists() and beside.exists():
        return f"{beside}{colon}{attribute}"
    return origin


def merged(paths: Sequence[Path]) -> Report:
    """Return the report of a whole run from those of its shards; :class:`BackendError` if they are not all of one run.

    A shard that broke off or lacks results makes the report unusable, unless a law is violated. The backend is imported
    for its declarations. ``seconds`` is the sum over all shards.
    """
    shards = [ReadReport.read(path) for path in paths]
    _check_complete(shards)
    # A shard that judged nothing may not even know the backend's name: only its reason counts.
    judged = [shard for shard in shards if shard.results]
    first = (judged or shards)[0]
    for other in judged[1:]:
        _check_same_run(first, other)
    sandbox = "on" if first.document["sandbox"] == "bubblewrap" else "off"
    settings = replace(first.settings, expect=first.document["expect"], sandbox=sandbox)
    seconds = sum(shard.document["seconds"] for shard in shards)
    if not judged:
        reason = "; ".join(f"{shard.title}: {shard.document['reason'] or 'it has no results'}" for shard in shards)
        return Report.without_verdicts(first.backend, settings, seconds, reason)
    probe = Probe(first.backend, settings.device)
    try:
        plan = Plan.of(contract_from(probe.description(), first.backend), settings)
    finally:
        probe.close()
    verdicts, reasons = Verdicts(), list[str]()
    for shard in shards:
        own = shard_of(plan.cases, shard.document["shard"])
        expected = {(case.operation, case.dtype, law): case for case in own for law in case.laws}
        results = {(r.operation, r.dtype, r.law): r for r in shard.results if r.status is not Status.NOT_PROVIDED}
        if others := [f"{law} by {operation} ({dtype})" for operation, dtype, law in results.keys() - expected.keys()]:
            raise BackendError(f"{shard.path}: expected only results of {shard.title}; got {min(others)}")
        for checked, result in results.items():
            verdicts.results.setdefault(expected[checked].id, []).append(result)
        if shard.document["reason"]:
            reasons.append(f"{shard.title}: {shard.document['reason']}")
        elif absent := len(expected.keys() - results.keys()):
            reasons.append(f"{shard.title}: {absent} of its {len(expected)} laws have no result")
        # Sizes are kept by operation. Every shard that judged an operation counts for all cases of it.
        for case in plan.cases:
            for size, count in shard.document["tried"].get(case.operation, {}).items():
                extent = verdicts.extents.setdefault(case.id, {})
                extent[size] = max(count, extent.get(size, 0))
        verdicts.explanations |= {case: Explanation.from_json(x) for case, x in shard.document["explanations"].items()}
        verdicts.left += shard.document["left_behind"]
        verdicts.repeated += shard.document["notes"]
    early_end = "; ".join(reasons) or None
    report = Report.of(plan, verdicts, settings, seconds, early_end=early_end)
    return report if early_end is None else replace(report, reason=early_end)


def _check_same_run(first: ReadReport, other: ReadReport) -> None:
    """Raise :class:`BackendError` if two shards have different backends, settings or versions of attnspec."""
    for name in SAME:
        expected, got, place = first.document[name], other.document[name], name
        while isinstance(expected, dict) and isinstance(got, dict) and expected != got:
            key = next(key for key in [*expected, *got] if expected.get(key, ABSENT) != got.get(key, ABSENT))
            expected, got, place = expected.get(key, ABSENT), got.get(key, ABSENT), f"{place}.{key}"
        if expected != got:
            raise BackendError(f"{other.path}: {place}: expected that of {first.path}, {expected!r}; got {got!r}")
    versions = [shard.document["versions"].get("attnspec") for shard in (first, other)]
    if versions[0] != versions[1]:
        raise BackendError(f"{other.path}: expected a report of attnspec {versions[0]}; got one of {versions[1]}")


def _check_complete(shards: Sequence[ReadReport]) -> None:
    """Raise :class:`BackendError` unless each shard of the run is there once."""
    got = [str(shard.document["shard"]) for shard in shards]
    parts = int(got[0].partition("/")[2] or 0)
    expected = [f"{i}/{parts}" for i in range(1, parts + 1)]
    if sorted(got) != sorted(expected):
        names = ", ".join([*expected[:MAX_NAMED], *(["…"] if parts > MAX_NAMED else [])]) or "I/N"
        raise BackendError(
            f"expected reports of 'attnspec check --shard', each shard once: {names}; got {', '.join(got)}"
        )
