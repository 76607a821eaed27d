"""The report of a run: one document, as JSON, from which tables and pages are made."""

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from attnspec.conformance.judging.engine import Case, dtypes_of
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Contract
from attnspec.spec import SPEC_VERSION
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.semantics import QUESTIONS

if TYPE_CHECKING:
    from attnspec.conformance.plugin import Reporter
    from attnspec.conformance.running.suite import Settings

SCHEMA = "attnspec-report/1"
EXIT = {"conforms": 0, "violates": 1, "unusable": 2}
"""The exit status of each verdict."""


def all_results(
    cases: Iterable[Case], reported: Mapping[str, Iterable[Result]], causes: Mapping[str, str]
) -> list[Result]:
    """The verdicts, with what was lost on the way and why, in a fixed order."""
    results: list[Result] = []
    for case in cases:
        known = {r.law: r for r in reported.get(case.id, ())}
        lost = "the test ended without a verdict"
        why = causes.get(case.id, lost)
        results += [
            known.get(law) or Result(case.operation, law, case.dtype, Status.LOST, lost, why) for law in case.laws
        ]
    order = {name: i for i, name in enumerate(OPERATIONS)}
    return sorted(results, key=lambda r: (order[r.operation], r.law, r.dtype))


def missing_results(contract: Contract, settings: "Settings") -> list[Result]:
    """One entry for every law of every operation that the backend does not provide, if it was asked for."""
    return [
        Result(o.name, law.id, dtype, Status.NOT_PROVIDED, "the backend does not provide the operation")
        for o in OPERATIONS.values()
        if not o.reference_only and o.name not in contract.operations
        if not settings.operations or o.name in settings.operations
        for law in LAWS.values()
        if o in law.operations and (not settings.laws or law.id in settings.laws)
        for dtype in dtypes_of(o, [d for d in contract.limits.dtypes if not settings.dtypes or d in settings.dtypes])
    ]


def document(contract: Contract, results: list[Result], settings: "Settings", seconds: float) -> dict[str, Any]:
    """The report as plain JSON."""
    counts = {str(s): sum(r.status is s for r in results) for s in Status}
    judged = counts["passed"] + counts["failed"]
    bad = counts["failed"] + counts["lost"]
    verdict = "violates" if bad else ("conforms" if judged else "unusable")
    ratios = [r.error_ratio for r in results]
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "exit_status": EXIT[verdict],
        "backend": {
            "name": contract.name,
            "origin": contract.origin,
            "notes": dict(contract.notes),
            "limits": asdict(contract.limits),
            "precision": {d: contract.precision.default.get(d, "default") for d in contract.limits.dtypes},
            "differentiable": contract.differentiable,
        },
        "semantics": semantics_of(contract, results),
        "profile": settings.profile,
        "seed": settings.seed,
        "device": settings.device,
        "hang_after": settings.hang_after,
        "selection": {
            "operations": list(settings.operations),
            "laws": list(settings.laws),
            "dtypes": list(settings.dtypes),
        },
        "seconds": round(seconds, 3),
        "versions": versions(),
        "summary": {
            **counts,
            "examples": sum(r.examples for r in results),
            "not_judged": sum(r.not_judged for r in results),
            "error_ratio": _plain(max(ratios, default=0.0)),
        },
        "results": [r.as_json() for r in results],
    }


def semantics_of(contract: Contract, results: list[Result]) -> dict[str, Any]:
    """``{question: {declared, observed}}``; one word where all operations agree, else a mapping by operation."""
    answers: dict[str, Any] = {}
    for question in QUESTIONS:
        declared: dict[str, str] = {}
        observed: dict[str, str] = {}
        for r in results:
            if r.law == f"semantics.{question}" and r.status is not Status.NOT_PROVIDED:
                declared[r.operation] = getattr(contract.semantics[r.operation], question)
                if r.observed is not None:
                    seen = observed.get(r.operation)
                    both = r.observed if seen in (None, r.observed) else f"{seen} and {r.observed}"
                    observed[r.operation] = both
        if declared:
            answers[question] = {"declared": _common(declared), "observed": _common(observed)}
    return answers


def deviations(report: Mapping[str, Any]) -> dict[str, Any]:
    """The questions whose declared choice is not, or not everywhere, the normative one, with what was declared."""
    result = {}
    for question, answer in report["semantics"].items():
        declared = answer["declared"]
        chosen = set(declared.values()) if isinstance(declared, Mapping) else {declared}
        if chosen != {QUESTIONS[question].normative}:
            result[question] = declared
    return result


def _common(answers: dict[str, str]) -> Any:
    words = set(answers.values())
    if not words:
        return None
    return words.pop() if len(words) == 1 else answers


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {"spec": SPEC_VERSION, "python": platform.python_version(), "platform": platform.platform()}
    for package in ("attnspec", "numpy", "hypothesis", "pytest", "torch", "triton", "numba", "jax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _plain(x: float) -> float | str:
    return x if math.isfinite(x) else "inf"


def as_text(report: Mapping[str, Any]) -> str:
    """The report as JSON; numbers that JSON does not know are texts in it already."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def document_of_pytest(reporter: "Reporter", settings: "Settings") -> dict[str, Any]:
    """The report of a plain pytest run with ``--attn-backend`` and ``--attn-json``."""
    from attnspec.conformance.running.suite import cases_of, resolved

    name = reporter.config.getoption("--attn-backend")
    _, contract = resolved(name)
    reported = {case: [Result.from_json(r) for r in rs] for case, rs in reporter.results.items()}
    results = all_results(cases_of(name, settings), reported, reporter.causes) + missing_results(contract, settings)
    return document(contract, results, settings, 0.0)


__all__ = ["EXIT", "SCHEMA", "all_results", "as_text", "deviations", "document", "missing_results", "versions"]
