"""Tests for errors shared by many rows, calibrated on honest results of the same inputs.

Such an error may be far below the budget of every single number. The checks are those of the laws on ensembles.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from attnspec.conformance.harness.ensemble import Ensemble
from attnspec.conformance.harness.score_changes import has_score_options
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.ensembles import demand_unbiased
from attnspec.conformance.laws.single_keys import filter_key
from attnspec.conformance.laws.spreads import demand_spread
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws import attention, pooling

MAX_SLOPE = 8.0
"""Largest slope of an approximated exponential's error, as a multiple of it. The error changes its sign within a factor
of 2, a step of 0.69 in the score; its slope looks like a wrong scale."""

HONEST_FACTOR = 2.0
"""Factor by which an honest implementation's estimate may exceed those of the simulated honest results."""

MIN_KEY_ERROR = 0.25
"""Smallest relative error of a key's mean weight that is reported; omitting the key is an error of 1."""


@dataclass(frozen=True)
class EnsembleFilter:
    """A test for one error shared by all rows, such as a wrong scale.

    ``check`` estimates the error of ``quantity`` and raises ``Violation`` above its limit, to which ``tolerance`` is
    added here. ``signed`` is False if the estimate is a size without a sign.
    """

    quantity: str
    check: Callable[[Numbers], None]
    tolerance: float = 0.0
    signed: bool = True

    def test_on(self, subject: Subject, got: Numbers) -> tuple[float, float, str]:
        """Return the estimated error of ``got``, its limit, and a message if that is exceeded."""
        # ``check`` stores its estimate and limit, and a ratio that is no error ratio of the judged numbers.
        ratio_before, message = subject.ratio, ""
        subject.estimates.pop(self.quantity, None)
        try:
            self.check(got)
        except Violation as violation:
            message = violation.message
        finally:
            subject.ratio = ratio_before
        estimate, limit = subject.estimates.get(self.quantity, (0.0, 0.0))
        limit += self.tolerance
        return estimate, limit, message if abs(estimate) > limit else ""

    def is_evidence(self, ensemble: Ensemble, estimate: float, limit: float) -> bool:
        """Return True if no honest result on these inputs can have an estimate this large.

        Rows of honest results share some roundings, such as that of a common exponential, which the filter may mistake
        for a defect. Implementations that round at other places may have up to ``HONEST_FACTOR`` times the estimate.
        A filter that rejects an honest result, as it may if every row has a weight of almost 1, is no evidence.
        """
        honest = [self.test_on(ensemble.subject, x) for x in ensemble.honest_results]
        # The results in ``ensemble.rounded`` come first among the honest ones.
        rounded = honest[: len(ensemble.rounded)] if self.signed else []
        honest_estimate = HONEST_FACTOR * max((abs(other) for other, _, _ in rounded), default=0.0)
        return abs(estimate) > limit + honest_estimate and not any(message for _, _, message in honest)


def gain_filters(ensemble: Ensemble) -> Iterator[EnsembleFilter]:
    """Yield a filter for results multiplied by a wrong factor."""
    e, name = ensemble, "the gain"
    yield EnsembleFilter(
        name, lambda got: demand_unbiased(e.subject, e.arguments, got - e.expected, e.expected, name), e.exponentials
    )


def scale_filters(ensemble: Ensemble) -> Iterator[EnsembleFilter]:
    """Yield a filter for wrongly scaled scores, if results depend on their scale."""
    e, name = ensemble, "the scale of the scores"
    slope, size = float(np.linalg.norm(e.scale_derivative)), float(np.linalg.norm(e.expected))
    if not slope:
        return
    # An error of exponentials looks like an error of the scale: the larger one, the less results depend on the scale.
    tolerance = MAX_SLOPE * e.exponentials * max(1.0, size / slope)
    # In sums of equal terms every addition may round in the same direction, which looks like a wrong scale.
    tolerance = max(tolerance, e.terms * e.subject.precision.accumulation)
    yield EnsembleFilter(
        name, lambda got: demand_unbiased(e.subject, e.arguments, got - e.expected, e.scale_derivative, name), tolerance
    )


def key_filters(ensemble: Ensemble) -> Iterator[EnsembleFilter]:
    """Yield filters for wrong mean weights of sampled keys, which reveal omitted and additional keys."""
    e = ensemble
    for key, key_result in e.results_of_single_keys():
        quantity = f"the weight of {key}"

        # Default values bind the key of this turn.
        def check(got: Numbers, quantity: str = quantity, direction: Numbers = key_result - e.expected) -> None:
            filter_key(e.subject, e.arguments, (got - e.expected, direction, e.expected), quantity)

        yield EnsembleFilter(quantity, check, MIN_KEY_ERROR)


def spread_filters(ensemble: Ensemble) -> Iterator[EnsembleFilter]:
    """Yield a filter for errors that are larger as a whole than roundings are."""
    e, name = ensemble, "the root mean square of error/σ"

    def check(got: Numbers) -> None:
        try:
            demand_spread(e.subject, e.arguments, (got - e.expected) / e.sigma, name)
        except Violation:
            # Sums of terms with a pattern, such as a ramp, err by more than those of random signs.
            demand_spread(e.subject, e.arguments, (got - e.expected) / e.ordered_sigma, name)

    yield EnsembleFilter(name, check, signed=False)


FILTERS: Mapping[Callable[[Operation], bool], Callable[[Ensemble], Iterator[EnsembleFilter]]] = {
    pooling.weighs_once: gain_filters,
    attention.scales_scores_once: scale_filters,
    pooling.NO_LOST_OR_EXTRA_KEYS.concerns: key_filters,
    pooling.ROUNDING_SPREAD.concerns: spread_filters,
}
"""Filters by the predicate of the operations for which they are made: that of the law against the same error."""


def has_filters(operation: Operation) -> bool:
    """Return True if any filter concerns an operation."""
    return any(_concerns(is_governed, operation) for is_governed in FILTERS)


def _concerns(is_governed: Callable[[Operation], bool], operation: Operation) -> bool:
    """Return True if a filter's law governs the operation, or if it is like `grouped_query_attention`."""
    return is_governed(operation) or has_score_options(operation)


def reason_not_tested(ensemble: Ensemble) -> str:
    """Return the reason why no filter can be applied; empty if one can."""
    operation = ensemble.subject.operation
    return ensemble.reason_not_tested if has_filters(operation) else f"because no test exists for {operation.name}"


def extent(ensemble: Ensemble) -> str:
    """Return the number of groups tested together, or why none are, as text."""
    reason = reason_not_tested(ensemble)
    return f"not tested, {reason}" if reason else f"tested on {len(ensemble.independent_groups):,} {ensemble.groups}"


def filters(ensemble: Ensemble) -> Iterator[EnsembleFilter]:
    """Yield the filters that concern the operation."""
    for is_governed, make_filters in FILTERS.items():
        if _concerns(is_governed, ensemble.subject.operation):
            yield from make_filters(ensemble)


def shared_error(ensemble: Ensemble, got: Numbers | None = None) -> str:
    """Return the message of the filter that most exceeds its limit; empty without any."""
    if reason_not_tested(ensemble):
        return ""
    subject, got = ensemble.subject, ensemble.judged_results if got is None else got
    outcomes = [(x, *x.test_on(subject, got)) for x in filters(ensemble)]
    # Largest estimate over limit first; a limit of 0 belongs to a filter that estimated nothing.
    for ensemble_filter, estimate, limit, message in sorted(outcomes, key=lambda x: -abs(x[1]) / (x[2] or np.inf)):
        if message and ensemble_filter.is_evidence(ensemble, estimate, limit):
            return message
    return ""
