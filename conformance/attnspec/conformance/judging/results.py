"""Verdicts: what became of one law for one operation at one dtype."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

UNJUDGED = "not judged: "
"""How the message of a law begins that fails because the backend had crashed or hung at others."""

INTERRUPTED = "interrupted"
"""Why a law has no verdict when the run was broken off from outside."""

TIME_LIMIT = "time limit"
"""Why a law has no verdict when the time limit of the run was reached."""

STOPPED = "stopped at the first violation"
"""Why a law has no verdict behind a violation that ended the run."""

OWN_ERROR = "error of attnspec"
"""Why a law has no verdict whose check raised an error of attnspec itself."""

TOO_VAGUE = "budgets too large"
"""Why the formula has no verdict whose error budgets tell nothing of any number."""

JUDGE_LOST = "the judge's own process"
"""How the message of a law begins that has no verdict because the process that judged it was killed."""

FORGED = "inconsistent: recorded as passed with an error ratio above 1; whoever recorded it was tampered with"
"""The message of a verdict that cannot be."""


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
    keys arguments, expected, got, budget, index and snippet. ``note`` says what went wrong after the verdict, such as
    an error of attnspec while it reduced the counterexample; it changes nothing of the verdict.

    The fields, in this order, are the keys of a result in the JSON report.
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
    note: str = ""

    @property
    def unchecked(self) -> bool:
        """True if it has no verdict because its check raised an error of attnspec, or its budgets tell too little."""
        return self.status is Status.LOST and self.reason in (OWN_ERROR, TOO_VAGUE)

    def __post_init__(self) -> None:
        """Turn green into a failure where an error ratio exceeds 1, whoever says that it passed."""
        if self.status is Status.PASSED and not self.error_ratio <= 1:
            # Imported late: what holds signals imports this module before anything heavy.
            from attnspec.conformance.judging.violation import Reason

            for name, x in {"status": Status.FAILED, "reason": Reason.VALUE, "message": FORGED}.items():
                object.__setattr__(self, name, x)

    @property
    def interrupted(self) -> bool:
        """True if it has no verdict because the run was broken off, or its judge was killed."""
        reasons = (INTERRUPTED, TIME_LIMIT)
        return self.status is Status.LOST and (self.reason in reasons or self.message.startswith(JUDGE_LOST))

    @property
    def violates(self) -> bool:
        """Whether this makes the backend nonconforming: a law whose test ended by itself is not presumed to hold."""
        return self.status is Status.FAILED or (
            self.status is Status.LOST and not self.interrupted and not self.unchecked
        )

    @property
    def judged(self) -> bool:
        """Whether the operation is provided and an example exercised the law, or would have."""
        return self.status is Status.PASSED or self.violates

    def as_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        reason = None if self.reason is None else str(self.reason)
        ratio = json_number(self.error_ratio)
        return {**vars(self), "status": str(self.status), "reason": reason, "error_ratio": ratio}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """The result that plain JSON describes."""
        return cls(**{**data, "status": Status(data["status"]), "error_ratio": float(data["error_ratio"])})


def checked(results: list[Result]) -> list[Result]:
    """The results; ``RuntimeError`` if an error of attnspec has left a law without a verdict."""
    for r in results:
        if r.reason == OWN_ERROR:
            raise RuntimeError(f"{r.law} by {r.operation} ({r.dtype}): {r.message}")
    return results


def json_number(x: float) -> float | str:
    """A number as JSON can hold it: what is not finite becomes ``"inf"``, ``"-inf"`` or ``"nan"``."""
    return float(x) if math.isfinite(x) else str(float(x))
