"""Verdicts: what became of one law for one operation at one dtype."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What became of a law."""

    PASSED = "passed"
    FAILED = "failed"
    LOST = "lost"
    NOT_PROVIDED = "not-provided"
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True)
class Result:
    """One verdict. ``error_ratio`` is |got − oracle| / budget at its largest; above 1 is a violation.

    ``reason`` says of a failure what kind it is (`value`, `shape`, `dtype`, `type`, `raised`, `accepted`,
    `mutated-input`, `declared`, `crashed`, `hung`), and of a law that was not judged, why. ``counterexample`` has the
    keys arguments, expected, got, budget, index and snippet.
    """

    operation: str
    law: str
    dtype: str
    status: Status
    reason: str | None = None
    message: str = ""
    examples: int = 0
    not_judged: int = 0
    error_ratio: float = 0.0
    observed: str | None = None
    counterexample: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The result as an object of the report; infinities are the string ``"inf"``."""
        return {
            "operation": self.operation,
            "law": self.law,
            "dtype": self.dtype,
            "status": str(self.status),
            "reason": self.reason,
            "message": self.message,
            "examples": self.examples,
            "not_judged": self.not_judged,
            "error_ratio": _number(self.error_ratio),
            "observed": self.observed,
            "counterexample": self.counterexample,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """The result that an object of a report describes."""
        values = {**data, "status": Status(data["status"]), "error_ratio": float(data["error_ratio"])}
        return cls(**values)


def _number(x: float) -> float | str:
    return float(x) if math.isfinite(x) else ("nan" if math.isnan(x) else "inf")
