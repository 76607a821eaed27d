"""Explanations and diagnoses of the violations of a case, and their JSON form."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason

NUMBERS = (Reason.VALUE, Reason.DECLARED)
"""The reasons of failures that wrong numbers may have."""


@dataclass(frozen=True)
class Diagnosis:
    """One guess at what is wrong with an operation at a dtype.

    ``same`` names all known defects that give the same numbers as the backend on all inputs that were compared, the one
    that ``sentence`` is about first. It is empty for a precision, which gives no numbers of its own.
    """

    operation: str
    dtype: str
    sentence: str
    same: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {**asdict(self), "same": list(self.same)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Diagnosis":
        """The diagnosis that plain JSON describes."""
        return cls(**{**data, "same": tuple(data["same"])})


@dataclass(frozen=True)
class Explanation:
    """Explanation of the violations of a case.

    ``undeclared`` is what only has to be declared, as plain JSON, and ``diagnosis`` the known defect behind the rest.
    ``note`` says what kept either from being found: an error of attnspec, or the end of the backend's process.
    """

    undeclared: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The explanation as plain JSON, without the note, which the verdicts have."""
        diagnosis = None if self.diagnosis is None else self.diagnosis.as_json()
        return {"undeclared": dict(self.undeclared), "diagnosis": diagnosis}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Explanation":
        """The explanation that plain JSON describes."""
        diagnosis = None if data["diagnosis"] is None else Diagnosis.from_json(data["diagnosis"])
        return cls(data["undeclared"], diagnosis)


def violated_by_numbers(results: Iterable[Result]) -> list[str]:
    """The laws that numbers violate; none where the backend has crashed or hung."""
    failed = [r for r in results if r.status is Status.FAILED]
    if any(r.reason in (Reason.CRASHED, Reason.HUNG) for r in failed):
        return []
    return [r.law for r in failed if r.reason in NUMBERS]
