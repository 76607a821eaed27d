"""Verdicts on one law for one operation at one dtype."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

UNJUDGED = "not judged: "
"""Message prefix of laws that fail unchecked, after crashes or hangs at other laws."""

INTERRUPTED = "interrupted"
"""Reason for no verdict: the run was interrupted from outside."""

TIME_LIMIT = "time limit"
"""Reason for no verdict: the run reached its time limit."""

STOPPED = "stopped at the first violation"
"""Reason for no verdict: an earlier violation ended the run."""

OWN_ERROR = "error of attnspec"
"""Reason for no verdict: the check raised an error of attnspec itself."""

TOO_WIDE = "budgets too large"
"""Reason for no verdict on the formula: every budget is too wide to judge."""

BROKEN = "broken process"
"""Reason for no verdict: a raise, blamed on another law or operation, broke the backend's process."""

JUDGE_LOST = "the judge's own process"
"""Message prefix of laws without a verdict: the process that judged them was killed."""

CONTRADICTORY = "recorded as passed with an error ratio above 1: the record contradicts itself, and counts as a failure"
"""Message of a verdict that contradicts itself."""


class Status(StrEnum):
    """The outcome of judging a law.

    ``lost``: no verdict was reached, for a reason above or since the backend ended the process in which it was judged.
    ``not-provided``: the backend lacks the operation. ``not-applicable``: no example of the run concerns the law.
    """

    PASSED = "passed"
    FAILED = "failed"
    LOST = "lost"
    NOT_PROVIDED = "not-provided"
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True)
class Result:
    """One verdict.

    ``examples`` counts inputs that the law concerned, ``not_judged`` elements with budgets too wide to judge them.
    ``error_ratio`` is the largest |got − oracle| / budget; above 1 the law is violated. ``reason`` is the kind of a
    failure, see :class:`~attnspec.conformance.judging.violation.Reason`, or why there is no verdict. ``observed``, for
    laws on choices, is the choice that the backend made. ``counterexample`` has the keys arguments, expected, got,
    budget, index and snippet. ``note`` reports problems after the verdict, such as an error of attnspec during
    reduction; it does not change the verdict.

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
        """True if there is no verdict, and the reason is no fault of the operation."""
        return self.status is Status.LOST and self.reason in (OWN_ERROR, TOO_WIDE, BROKEN)

    def __post_init__(self) -> None:
        """Turn a pass with an error ratio above 1 into a failure."""
        if self.status is Status.PASSED and not self.error_ratio <= 1:
            # Imported here because ``running.interruption`` imports this module before anything heavy.
            from attnspec.conformance.judging.violation import Reason

            for name, x in {"status": Status.FAILED, "reason": Reason.VALUE, "message": CONTRADICTORY}.items():
                object.__setattr__(self, name, x)

    @property
    def interrupted(self) -> bool:
        """True if the run was interrupted, or its judge killed, before a verdict."""
        reasons = (INTERRUPTED, TIME_LIMIT)
        return self.status is Status.LOST and (self.reason in reasons or self.message.startswith(JUDGE_LOST))

    @property
    def violates(self) -> bool:
        """True if the backend does not conform: the law failed, or is lost because the backend ended its process."""
        lost_by_backend = self.status is Status.LOST and not self.interrupted and not self.unchecked
        return self.status is Status.FAILED or lost_by_backend

    @property
    def judged(self) -> bool:
        """True if there is a verdict on the backend: passed or ``violates``."""
        return self.status is Status.PASSED or self.violates

    def as_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        reason = None if self.reason is None else str(self.reason)
        ratio = json_number(self.error_ratio)
        return {**vars(self), "status": str(self.status), "reason": reason, "error_ratio": ratio}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """Read a result from plain JSON."""
        return cls(**{**data, "status": Status(data["status"]), "error_ratio": float(data["error_ratio"])})


def without_own_errors(results: list[Result]) -> list[Result]:
    """Return the results unchanged; ``RuntimeError`` if an error of attnspec prevented one of their verdicts."""
    for r in results:
        if r.reason == OWN_ERROR:
            raise RuntimeError(f"{r.law} by {r.operation} ({r.dtype}): {r.message}")
    return results


def json_number(x: float) -> float | str:
    """A number for JSON; non-finite numbers become ``"inf"``, ``"-inf"`` or ``"nan"``."""
    return float(x) if math.isfinite(x) else str(float(x))
