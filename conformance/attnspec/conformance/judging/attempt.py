"""One check of a law on one example, and the seed of its random draws."""

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import OutsideDeclaration, Reason, Violation

CheckOutcome: TypeAlias = tuple[Violation | None, bool, float, int]
"""Violation or None, whether the law applies, error ratio, number of elements not judged."""


def stable_seed(*parts: object) -> int:
    """A seed computed from the texts of ``parts`` alone, equal on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def attempt(subject: Subject, check: Check, arguments: Arguments, seed: int) -> CheckOutcome:
    """Check one law on one example.

    If an element exceeds its budget, the check runs again with budgets that also use partial sums and random samples.
    They are wider where the usual estimate of σ was too small, but take 16 times the work. If the law then holds, the
    usual check runs a third time. The sampled pass counts only if the first violation repeats exactly: otherwise the
    backend, not the budget, has changed the outcome.
    """
    outcome = attempt_once(subject, check, arguments, seed)
    violation, *_ = outcome
    if violation is None or violation.budget is None or not np.any(violation.budget):
        return outcome
    subject.sampled = True
    try:
        sampled = attempt_once(subject, check, arguments, seed)
    finally:
        subject.sampled = False
    if sampled[0] is not None:
        return sampled
    repeated_violation, *_ = attempt_once(subject, check, arguments, seed)
    return sampled if repeated_violation is not None and repeated_violation.message == violation.message else outcome


def first_violated(
    subject: Subject, law_checks: Iterable[Check], arguments: Arguments, seed: int
) -> tuple[Check, Violation] | None:
    """The first check with a violation, and the violation; None if there is none."""
    for check in law_checks:
        if check.concerns(subject.operation):
            violation, *_ = attempt(subject, check, arguments, seed)
            if violation is not None:
                return check, violation
    return None


LASTING = "; afterwards a call that had worked raised, too, "
"""Ending of messages on a raise that broke the backend's process."""


def attempt_once(subject: Subject, check: Check, arguments: Arguments, seed: int) -> CheckOutcome:
    """Check one law on one example once, with the budgets chosen by ``subject.sampled``.

    After a raise that broke the backend's process, the check fails by that raise, even one that the law expects.
    """
    if subject.health.broken:
        return None, False, 0.0, 0
    outcome = _outcome(subject, check, arguments, seed)
    lasting = _lasting(subject, arguments, expected=outcome[0] is None)
    if lasting is not None and outcome[0] is None and not subject.health.broken:
        # The law holds: perhaps not its raise is to blame, but the call that had worked before.
        outcome = _outcome(subject, check, arguments, seed)
        again = _lasting(subject, arguments, expected=outcome[0] is None)
        if again is None:
            subject.health.distrust()
        lasting = again
    return outcome if lasting is None else (lasting, True, subject.ratio, subject.not_judged)


def _lasting(subject: Subject, arguments: Arguments, *, expected: bool) -> Violation | None:
    """Return the violation by a raise that broke the backend's process; None without one."""
    health = subject.health
    raised, lasts = health.raised, health.broke(subject.smallest_calls, subject.operation.name, expected=expected)
    health.raised = None
    if raised is None or not lasts:
        return None
    message, raised_at, _ = raised
    end = f"and {health.unmended}" if health.broken else "until the process was restarted"
    return Violation(message + LASTING + end, reason=Reason.RAISED, arguments=raised_at or arguments, lasting=True)


def _outcome(subject: Subject, check: Check, arguments: Arguments, seed: int) -> CheckOutcome:
    subject.ratio, subject.not_judged, subject.too_wide, subject.informative = 0.0, 0, 0, 0
    subject.health.raised = subject.passed = None
    rng = np.random.Generator(np.random.PCG64(stable_seed(seed, check.name)))
    try:
        applies = check.function(subject, arguments, rng)
    except Violation as violation:
        if violation.arguments is None:
            violation.arguments = arguments
        return violation, True, subject.ratio, subject.not_judged
    except OutsideDeclaration as left_out:
        subject.left_out.setdefault(check.law.id, str(left_out))
        return None, False, subject.ratio, subject.not_judged
    return None, applies, subject.ratio, subject.not_judged
