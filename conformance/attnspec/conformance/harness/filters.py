"""The questions to all rows together: the filters of the laws on ensembles, and what honest results answer to them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from attnspec.conformance.harness.scores import has_parts
from attnspec.conformance.harness.together import Ensemble
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.ensembles import along
from attnspec.conformance.laws.single_keys import along_key
from attnspec.conformance.laws.spreads import no_wider
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws import attention, pooling

SLOPE = 8.0
"""How much steeper that error may be than it is large: its sign changes with every power of two."""

SHARED = 2.0
"""How much larger what roundings have in common may be than it is in those that are tried."""

PART_OF_KEY = 0.25
"""The part of a mean weight by which that of a key must be wrong: one that is left out is off by 1."""


@dataclass(frozen=True)
class Filter:
    """One question to all rows: ``check`` raises what it sees, and what is no more than ``least`` beyond is nothing."""

    what: str
    check: Callable[[Numbers], None]
    least: float = 0.0
    signed: bool = True

    def asked(self, subject: Subject, got: Numbers) -> tuple[float, float, str]:
        """What the filter estimates, the limit of it, and in words what it sees; nothing within the limit."""
        ratio, words = subject.ratio, ""
        subject.estimates.pop(self.what, None)
        try:
            self.check(got)
        except Violation as violation:
            words = violation.message
        finally:
            subject.ratio = ratio
        found, limit = subject.estimates.get(self.what, (0.0, 0.0))
        limit += self.least
        return found, limit, words if abs(found) > limit else ""

    def tells(self, ensemble: Ensemble, estimate: float, limit: float) -> bool:
        """Whether an estimate beyond the limit cannot be that of an honest result on these inputs.

        What all rows have in common of the roundings of honest ones, such as that of an exponential which they share,
        may come to what is seen of other origin, and be twice as large in an implementation that rounds elsewhere.
        """
        honest = [self.asked(ensemble.subject, x) for x in ensemble.honest]
        rounded = honest[: len(ensemble.rounded)] if self.signed else []
        common = SHARED * max((abs(found) for found, _, _ in rounded), default=0.0)
        return abs(estimate) > limit + common and not any(words for _, _, words in honest)


def gain(ensemble: Ensemble) -> Iterator[Filter]:
    """A filter in the direction of the result itself."""
    e, what = ensemble, "the gain"
    yield Filter(what, lambda got: along(e.subject, e.arguments, got - e.expected, e.expected, what), e.exponentials)


def scale(ensemble: Ensemble) -> Iterator[Filter]:
    """A filter in the direction of the derivative with respect to the logarithm of the scale."""
    e, what = ensemble, "the scale of the scores"
    steepness, size = float(np.linalg.norm(e.steepness)), float(np.linalg.norm(e.expected))
    if not steepness:
        return
    # The less results depend on the scale, the larger is the error of it that one of the exponentials looks like.
    least = SLOPE * e.exponentials * max(1.0, size / steepness)
    # Equal terms round the sum of a score in the same direction again and again, the more often the larger it is.
    least = max(least, e.terms * e.subject.precision.accumulation)
    yield Filter(what, lambda got: along(e.subject, e.arguments, got - e.expected, e.steepness, what), least)


def keys(ensemble: Ensemble) -> Iterator[Filter]:
    """A filter along each of some keys, and of one of zeros: is it left out, or does it count which should not?"""
    e = ensemble
    for words, alone in e.single_keys():
        what = f"the weight of {words}"

        def check(got: Numbers, what: str = what, away: Numbers = alone - e.expected) -> None:
            along_key(e.subject, e.arguments, (got - e.expected, away, e.expected), what)

        yield Filter(what, check, PART_OF_KEY)


def spread(ensemble: Ensemble) -> Iterator[Filter]:
    """The root mean square of error/σ."""
    e, what = ensemble, "the root mean square of error/σ"
    yield Filter(what, lambda got: no_wider(e.subject, e.arguments, (got - e.expected) / e.sigma, what), signed=False)


FILTERS: Mapping[Callable[[Operation], bool], Callable[[Ensemble], Iterator[Filter]]] = {
    pooling.weighs_once: gain,
    attention.scales_once: scale,
    pooling.ENSEMBLE_KEYS.concerns: keys,
    pooling.ENSEMBLE_SPREAD.concerns: spread,
}
"""Filters by a predicate that selects their operations, the one of the check for the same error."""


def concerning(operation: Operation) -> bool:
    """True if any filter concerns an operation."""
    return any(_concerns(governs, operation) for governs in FILTERS)


def _concerns(governs: Callable[[Operation], bool], operation: Operation) -> bool:
    """True if a filter concerns an operation: as its check does, or because scores have parts that it changes."""
    return governs(operation) or has_parts(operation)


def untold(ensemble: Ensemble) -> str:
    """Why nothing can be told over all rows, in words; empty where it can."""
    operation = ensemble.subject.operation
    return ensemble.untold if concerning(operation) else f"for no filter concerns {operation.name}"


def extent(ensemble: Ensemble) -> str:
    """The number of groups that are asked together, or why they are not, in words."""
    reason = untold(ensemble)
    return f"not judged, {reason}" if reason else f"{len(ensemble.kept):,} {ensemble.groups}"


def filters(ensemble: Ensemble) -> Iterator[Filter]:
    """The filters that concern an operation."""
    for governs, makes in FILTERS.items():
        if _concerns(governs, ensemble.subject.operation):
            yield from makes(ensemble)


def accusation(ensemble: Ensemble, got: Numbers | None = None) -> str:
    """Say what is wrong with results over all rows; empty where nothing is, or nothing can be told.

    Of several filters it is what the one says that sees most.
    """
    if untold(ensemble):
        return ""
    subject, got = ensemble.subject, ensemble.given if got is None else got
    seen = [(asked, *asked.asked(subject, got)) for asked in filters(ensemble)]
    for asked, found, limit, words in sorted(seen, key=lambda x: -abs(x[1]) / (x[2] or np.inf)):
        if words and asked.tells(ensemble, found, limit):
            return words
    return ""
