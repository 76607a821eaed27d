"""Explanations and diagnoses of a case's violations, as data and JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason

NUMERICAL_REASONS = (Reason.VALUE, Reason.DECLARED)
"""Reasons of violations that wrong numbers may cause."""


@dataclass(frozen=True)
class Diagnosis:
    """The probable defect of an operation at a dtype, in a ``sentence``.

    ``same`` names all known defects with the backend's numbers on all compared inputs, that of ``sentence`` first. It
    is empty if the sentence is about a precision, which predicts no numbers.
    """

    operation: str
    dtype: str
    sentence: str
    same: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON."""
        return {**asdict(self), "same": list(self.same)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Diagnosis":
        """Return the diagnosis that plain JSON describes."""
        return cls(**{**data, "same": tuple(data["same"])})


@dataclass(frozen=True)
class Explanation:
    """Explanation of the violations of a case.

    ``undeclared`` holds missing declarations as plain JSON, ``diagnosis`` the known defect behind the remaining
    violations. ``note`` says what prevented either: an error of attnspec, or the end of the backend's process.
    """

    undeclared: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON, without ``note``, which is stored with the verdicts."""
        diagnosis = None if self.diagnosis is None else self.diagnosis.as_json()
        return {"undeclared": dict(self.undeclared), "diagnosis": diagnosis}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Explanation":
        """Return the explanation that plain JSON describes."""
        diagnosis = None if data["diagnosis"] is None else Diagnosis.from_json(data["diagnosis"])
        return cls(data["undeclared"], diagnosis)


def violated_by_numbers(results: Iterable[Result]) -> list[str]:
    """Return the laws violated by wrong numbers; none if the backend has crashed or hung."""
    failed = [r for r in results if r.status is Status.FAILED]
    if any(r.reason in (Reason.CRASHED, Reason.HUNG) for r in failed):
        return []
    return [r.law for r in failed if r.reason in NUMERICAL_REASONS]
