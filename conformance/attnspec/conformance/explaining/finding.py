"""When there may be a diagnosis, what it says, and how it travels in a report."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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


def violated_by_numbers(results: Iterable[Result]) -> list[str]:
    """The laws that numbers violate; none where the backend has crashed or hung."""
    failed = [r for r in results if r.status is Status.FAILED]
    if any(r.reason in (Reason.CRASHED, Reason.HUNG) for r in failed):
        return []
    return [r.law for r in failed if r.reason in NUMBERS]
