"""One law checked on one example."""

import hashlib

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.registry import Check


def stable_seed(*parts: object) -> int:
    """A seed that depends on these words alone, on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def attempt(
    subject: Subject, check: Check, arguments: Arguments, seed: int
) -> tuple[Violation | None, bool, float, int]:
    """Check one law on one example: what violates it, whether it was concerned, error ratio, elements not judged."""
    subject.ratio, subject.not_judged = 0.0, 0
    rng = np.random.Generator(np.random.PCG64(stable_seed(seed, check.law.id)))
    try:
        concerned = check.function(subject, arguments, rng)
    except Violation as violation:
        if violation.arguments is None:
            violation.arguments = arguments
        return violation, True, subject.ratio, subject.not_judged
    return None, concerned, subject.ratio, subject.not_judged
