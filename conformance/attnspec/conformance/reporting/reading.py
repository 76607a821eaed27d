"""Reports of earlier runs, read from their JSON; those of shards are merged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnspec.conformance.explaining.explanations import Explanation
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import SCHEMA, Report
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.probe import Probe
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Verdicts

RESULT_KEYS = {f.name for f in fields(Result)}
"""Keys of a report's result that are fields of :class:`Result`; reports add others."""

SETTING_TYPES = {"profile": (str,), "seed": (int,), "device": (str,), "hang_after": (int, float)}
"""Keys of a report that hold its run's settings, with their values' types."""


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
        try:
            settings, backend = _settings(document), _read(document["backend"], "origin", (str,))
            results = (Result.from_json({k: v for k, v in r.items() if k in RESULT_KEYS}) for r in document["results"])
            return cls(path, found_beside(backend, path), settings, tuple(results), document)
        except KeyError as error:
            raise BackendError(f"{path}: expected a complete report; got one without the key {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{path}: expected a report as attnspec wrote it; got {error}") from error


def _read(document: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    value = document[name]
    if not isinstance(value, kinds):
        raise ValueError(f"{name}: expected {' or '.join(kind.__name__ for kind in kinds)}; got {value!r}")
    return value


def _settings(document: Mapping[str, Any]) -> Settings:
    settings: dict[str, Any] = {name: _read(document, name, kinds) for name, kinds in SETTING_TYPES.items()}
    settings |= {name: tuple(names) for name, names in document["selection"].items()}
    settings |= {"in_process": bool(document["in_process"]), "time_limit": float(document["time_limit"] or 0)}
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

    The backend is imported for its declarations. ``seconds`` is the sum over all shards.
    """
    shards = [ReadReport.read(path) for path in paths]
    first = shards[0]
    for other in shards[1:]:
        _check_same_run(first, other)
    _check_complete(shards)
    settings = replace(first.settings, expect=first.document["expect"])
    probe = Probe(first.backend, settings.device)
    try:
        plan = Plan.of(contract_from(probe.description(), first.backend), settings)
    finally:
        probe.close()
    verdicts = Verdicts()
    for shard in shards:
        for result in shard.results:
            if result.status is not Status.NOT_PROVIDED:
                verdicts.results.setdefault(Case(result.operation, result.dtype, ()).id, []).append(result)
        # Sizes are kept by operation. Every shard that judged an operation counts for all cases of it.
        for case in plan.cases:
            for size, count in shard.document["tried"].get(case.operation, {}).items():
                extent = verdicts.extents.setdefault(case.id, {})
                extent[size] = max(count, extent.get(size, 0))
        verdicts.explanations |= {case: Explanation.from_json(x) for case, x in shard.document["explanations"].items()}
        verdicts.left += shard.document["left_behind"]
        verdicts.repeated += shard.document["notes"]
    return Report.of(plan, verdicts, settings, sum(shard.document["seconds"] for shard in shards))


def _check_same_run(first: ReadReport, other: ReadReport) -> None:
    """Raise :class:`BackendError` if two shards have different backends, settings or versions of attnspec."""
    for name in ("backend", "profile", "seed", "device", "selection", "expect"):
        if first.document[name] != other.document[name]:
            raise BackendError(
                f"{other.path}: {name}: expected that of {first.path}, {first.document[name]!r}; "
                f"got {other.document[name]!r}"
            )
    versions = [shard.document["versions"]["attnspec"] for shard in (first, other)]
    if versions[0] != versions[1]:
        raise BackendError(f"{other.path}: expected a report of attnspec {versions[0]}; got one of {versions[1]}")


def _check_complete(shards: Sequence[ReadReport]) -> None:
    """Raise :class:`BackendError` unless each shard of the run is there once."""
    got = [str(shard.document["shard"]) for shard in shards]
    parts = got[0].partition("/")[2]
    expected = [f"{i}/{parts}" for i in range(1, int(parts or 0) + 1)]
    if sorted(got) != sorted(expected):
        raise BackendError(
            f"expected reports of 'attnspec check --shard', each shard once: {', '.join(expected) or 'I/N'}; "
            f"got {', '.join(got)}"
        )
