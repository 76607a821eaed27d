"""Check of one law on one example, and the seed of its random draws."""

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import LeftOut, Violation

Outcome: TypeAlias = tuple[Violation | None, bool, float, int]
"""The violation or None, whether the law applied, the error ratio, elements not judged."""


def stable_seed(*parts: object) -> int:
    """A seed computed from the texts of ``parts`` alone, equal on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def attempt(subject: Subject, check: Check, arguments: Arguments, seed: int) -> Outcome:
    """Check one law on one example.

    An element over its budget is judged again with a sampled budget, which is slow. If it is then within budget, the
    usual check runs a third time: the result counts only if the first violation repeats exactly.
    """
    found = attempt_once(subject, check, arguments, seed)
    violation, *_ = found
    if violation is None or not _of_a_budget(violation):
        return found
    subject.sampled = True
    try:
        sampled = attempt_once(subject, check, arguments, seed)
    finally:
        subject.sampled = False
    if sampled[0] is not None:
        return sampled
    again, *_ = attempt_once(subject, check, arguments, seed)
    return sampled if again is not None and again.message == violation.message else found


def first_violated(
    subject: Subject, law_checks: Iterable[Check], arguments: Arguments, seed: int
) -> tuple[Check, Violation] | None:
    """The first check of a law that the example violates, with the violation; else None."""
    for check in law_checks:
        if check.concerns(subject.operation):
            violation, *_ = attempt(subject, check, arguments, seed)
            if violation is not None:
                return check, violation
    return None


def _of_a_budget(violation: Violation) -> bool:
    """Return whether the violation concerns elements whose budget is not 0."""
    return violation.budget is not None and bool(np.any(violation.budget))


def attempt_once(subject: Subject, check: Check, arguments: Arguments, seed: int) -> Outcome:
    """Check one law on one example with the usual budgets only."""
    subject.ratio, subject.not_judged, subject.vague, subject.informative = 0.0, 0, 0, 0
    rng = np.random.Generator(np.random.PCG64(stable_seed(seed, check.name)))
    try:
        concerned = check.function(subject, arguments, rng)
    except Violation as violation:
        if violation.arguments is None:
            violation.arguments = arguments
        return violation, True, subject.ratio, subject.not_judged
    except LeftOut as left_out:
        subject.left_out.setdefault(check.law.id, str(left_out))
        return None, False, subject.ratio, subject.not_judged
    return None, concerned, subject.ratio, subject.not_judged
