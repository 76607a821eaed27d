"""Filters over all rows, taken from the laws on ensembles, and how honest results pass them."""

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
"""Factor by which the exponentials' error may be steeper than large: its sign alternates between powers of two."""

SHARED = 2.0
"""Factor by which shared roundings may exceed those of the tried honest results."""

PART_OF_KEY = 0.25
"""Smallest relative error of a key's mean weight that counts; omitting the key is an error of 1."""


@dataclass(frozen=True)
class Filter:
    """One filter over all rows: ``check`` raises on an error; errors within ``least`` of its limit are ignored."""

    what: str
    check: Callable[[Numbers], None]
    least: float = 0.0
    signed: bool = True

    def asked(self, subject: Subject, got: Numbers) -> tuple[float, float, str]:
        """Return the filter's estimate, its limit, and a message if the limit is exceeded."""
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
        """Return whether an estimate beyond the limit is impossible for honest results on these inputs.

        Honest results share roundings between rows, such as that of a common exponential. These may look like a defect,
        and be twice as large in an implementation that rounds elsewhere.
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
    # The less results depend on the scale, the larger the scale error that an error of exponentials can imitate.
    least = SLOPE * e.exponentials * max(1.0, size / steepness)
    # Equal terms round the sum of a score in the same direction repeatedly, more often the larger it is.
    least = max(least, e.terms * e.subject.precision.accumulation)
    yield Filter(what, lambda got: along(e.subject, e.arguments, got - e.expected, e.steepness, what), least)


def keys(ensemble: Ensemble) -> Iterator[Filter]:
    """Filters along some keys and a key of zeros, to detect omitted and additional keys."""
    e = ensemble
    for words, alone in e.single_keys():
        what = f"the weight of {words}"

        def check(got: Numbers, what: str = what, away: Numbers = alone - e.expected) -> None:
            along_key(e.subject, e.arguments, (got - e.expected, away, e.expected), what)

        yield Filter(what, check, PART_OF_KEY)


def spread(ensemble: Ensemble) -> Iterator[Filter]:
    """A filter on the root mean square of error/σ."""
    e, what = ensemble, "the root mean square of error/σ"
    yield Filter(what, lambda got: no_wider(e.subject, e.arguments, (got - e.expected) / e.sigma, what), signed=False)


FILTERS: Mapping[Callable[[Operation], bool], Callable[[Ensemble], Iterator[Filter]]] = {
    pooling.weighs_once: gain,
    attention.scales_once: scale,
    pooling.ENSEMBLE_KEYS.concerns: keys,
    pooling.ENSEMBLE_SPREAD.concerns: spread,
}
"""Filters by a predicate that selects their operations, taken from the check for the same error."""


def concerning(operation: Operation) -> bool:
    """Return true if any filter concerns an operation."""
    return any(_concerns(governs, operation) for governs in FILTERS)


def _concerns(governs: Callable[[Operation], bool], operation: Operation) -> bool:
    """Return true if a filter's check concerns the operation, or if it has options that change scores."""
    return governs(operation) or has_parts(operation)


def untold(ensemble: Ensemble) -> str:
    """Return why no filter over all rows applies; empty if one does."""
    operation = ensemble.subject.operation
    return ensemble.untold if concerning(operation) else f"for no filter concerns {operation.name}"


def extent(ensemble: Ensemble) -> str:
    """Return the number of groups that are judged together, or why they are not, as text."""
    reason = untold(ensemble)
    return f"not judged, {reason}" if reason else f"{len(ensemble.kept):,} {ensemble.groups}"


def filters(ensemble: Ensemble) -> Iterator[Filter]:
    """Yield the filters that concern the operation."""
    for governs, makes in FILTERS.items():
        if _concerns(governs, ensemble.subject.operation):
            yield from makes(ensemble)


def accusation(ensemble: Ensemble, got: Numbers | None = None) -> str:
    """Return what is wrong with results over all rows; empty if nothing is, or no filter applies.

    Of several filters, the one that most exceeds its limit gives the message.
    """
    if untold(ensemble):
        return ""
    subject, got = ensemble.subject, ensemble.given if got is None else got
    seen = [(asked, *asked.asked(subject, got)) for asked in filters(ensemble)]
    for asked, found, limit, words in sorted(seen, key=lambda x: -abs(x[1]) / (x[2] or np.inf)):
        if words and asked.tells(ensemble, found, limit):
            return words
    return ""
