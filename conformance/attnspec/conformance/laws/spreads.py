"""Checks of spread and mean of rounding errors, which single budgets do not bound.

σ is at least the standard deviation of the roundings in a number. So t_b, the mean of (error/σ)² over the numbers of
batch element b, has an expectation of at most 1. Different elements err independently. So the mean of all t_b exceeds 1
by no more than 8 of its standard errors, which are estimated from the t_b. Options of ``@checks``: see ``Check``.
"""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.conformance.laws.ensembles import (
    FEATURES,
    KEYS,
    MIN_OF_SELF_ATTENTION,
    TILE,
    by_element,
    elements,
    independent_elements,
    once,
    unrounded,
)
from attnspec.reference.budget import WIDTH
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.laws import pooling as law
from attnspec.spec.laws import training

FEW_ELEMENTS, MANY_ELEMENTS = 512, 1024
"""Numbers of batch elements: with more keys than a tile, and with few keys."""

MANY_KEYS = TILE + 5
"""Number of keys: a tile, and the beginning of another."""


QUERIES = 2 * TILE + 5
"""Number of queries: several tiles, over which gradients of keys and values are summed."""

CAP = 9.0
"""Cap on the mean (error/σ)² of a batch element."""


def sample_beyond_a_tile(subject: Subject, arguments: Arguments) -> Arguments:
    """Batch elements with more keys than a tile; in self-attention, fewer elements."""
    count = MIN_OF_SELF_ATTENTION if subject.operation.attends_to_itself else FEW_ELEMENTS
    return once(arguments, "beyond a tile", lambda rng: elements(subject, rng, count, keys=MANY_KEYS))


def _described_samples(subject: Subject, arguments: Arguments) -> tuple[tuple[str, Arguments], ...]:
    """Labels and batch elements: with few keys, and with more keys than a tile."""
    many = once(arguments, "many elements", lambda rng: elements(subject, rng, MANY_ELEMENTS))
    return ("", many), (f" with {MANY_KEYS} keys", sample_beyond_a_tile(subject, arguments))


def relative_errors(subject: Subject, arguments: Arguments) -> Numbers:
    """Errors over standard deviations, (elements, numbers of each); 0 if unknown."""
    oracle = subject.oracle(arguments)
    error, sigma = by_element(subject.call(arguments)) - by_element(oracle.value), by_element(oracle.sigma)
    return np.where(sigma < UNKNOWN / 2, error / sigma, 0.0).astype(np.float64)


@checks(law.ROUNDING_SPREAD, once=True, slow=True)
def rounding_spread(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the root mean square of error/σ, for few and for many keys."""
    if not independent_elements(subject):
        return False
    for label, sampled in _described_samples(subject, arguments):
        demand_spread(subject, sampled, relative_errors(subject, sampled), f"the root mean square of error/σ{label}")
    return True


def demand_spread(subject: Subject, arguments: Arguments, errors: Numbers, title: str, cap: float = np.inf) -> None:
    """Demand a root mean square of at most 1 for errors in standard deviations.

    ``errors`` has the shape (elements, numbers of each). The mean square of an element is capped at ``cap``, which only
    lowers expectations and keeps huge errors from raising the limit.
    """
    squares = np.minimum((errors**2).mean(-1), cap).astype(np.float64)
    limit = float(np.sqrt(1 + WIDTH * squares.std() / np.sqrt(len(squares))))
    rms = float(np.sqrt(squares.mean()))
    subject.estimates[title] = rms, limit
    subject.ratio = max(subject.ratio, rms / limit)
    subject.demand(
        rms <= limit,
        f"{title} is {rms:.3g} over {len(squares)} independent elements; rounding explains at most {limit:.3g}",
        arguments,
        expected=np.float64(1.0),
        got=np.float64(rms),
    )


@checks(training.GRADIENT_ROUNDING_SPREAD, once=True, slow=True)
def gradient_rounding_spread(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the root mean square of error/σ of every batched gradient, also along itself.

    One call has one query and more keys than a tile, the other more queries than a tile and few keys. Only 16-bit
    dtypes are judged: in wider ones, storage in fewer bits already exceeds budgets of single numbers.
    """
    if not independent_elements(subject) or subject.dtype not in NARROW:
        return False
    both = subject.operation.query_size is not None and not subject.operation.attends_to_itself
    for sampled in (sample_beyond_a_tile(subject, arguments), *([_sample_many_queries(subject, rng)] if both else [])):
        cotangents = subject.cotangents(sampled, rng)
        gradients = subject.vjp(sampled, cotangents)
        numbers = f"with {sampled.queries or 1} queries and {sampled.keys_count} keys"
        for path, (value, budget) in subject.gradients(sampled, cotangents).items():
            if not sampled.leaves[path].batched:
                continue
            sigma = wide(budget) / WIDTH
            sigma, g = np.where(sigma < UNKNOWN / 2, sigma, 0.0), np.where(sigma < UNKNOWN / 2, wide(value), 0.0)
            error = np.where(sigma > 0, wide(gradients[path]) - g, 0.0)
            label = f"of the gradient of {path} {numbers}"
            relative = by_element(_relative(error, sigma))
            demand_spread(subject, sampled, relative, f"the root mean square of error/σ {label}", CAP)
            # Per element: the part of its error along its gradient, and the standard deviation of this part. Numbers of
            # a row may share the error of a weight, so deviations add linearly within a row.
            parts = (by_element((error * g).sum(-1)).sum(-1), np.hypot.reduce(by_element((abs(g) * sigma).sum(-1)), -1))
            along = "the root mean square of error/σ along the whole"
            demand_spread(subject, sampled, _relative(*parts)[:, None], f"{along} {label}", CAP)
    return True


def _relative(error: Numbers, sigma: Numbers) -> Numbers:
    """Errors over their standard deviations; 0 where the deviation is 0."""
    return np.divide(error, sigma, out=np.zeros_like(error), where=sigma > 0)


def _sample_many_queries(subject: Subject, rng: np.random.Generator) -> Arguments:
    return sample(subject, rng, (MIN_OF_SELF_ATTENTION,), queries=QUERIES, keys=KEYS, features=FEATURES, heads=2)


@checks(law.ROUNDING_SPREAD, once=True, slow=True)
def ensemble_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the mean of error/σ, in every feature and over all features.

    Inputs are as probable as their negatives, and negated numbers round to negated roundings. So the mean is 0 for odd
    formulas, and the limit allows for no bias of the class.
    """
    if not independent_elements(subject):
        return False
    for label, sampled in _described_samples(subject, arguments):
        if not _is_odd(subject, sampled):
            return False
        errors = relative_errors(subject, sampled)
        features = errors.reshape(len(errors), -1, subject.call(sampled).shape[-1]).mean(1)
        means = np.column_stack([features.mean(1), features])
        limits = WIDTH * np.sqrt((means**2).sum(0)) / len(means)
        averages = means.mean(0)
        worst = int(np.argmax(np.abs(averages) - limits))
        title = f"the mean of error/σ{label}"
        place = f" in feature {worst - 1}" if worst else ""
        subject.estimates[title] = float(averages[0]), float(limits[0])
        subject.ratio = max(subject.ratio, float(np.max(np.abs(averages) / np.where(limits > 0, limits, np.inf))))
        subject.demand(
            bool(abs(averages[worst]) <= limits[worst]),
            f"{title}{place} is {averages[worst]:.3g} over {len(means)} independent elements; rounding explains "
            f"at most {limits[worst]:.3g}",
            sampled,
            expected=np.float64(0.0),
            got=np.float64(averages[worst]),
        )
    return True


def _is_odd(subject: Subject, arguments: Arguments) -> bool:
    """Return whether negating values, or else all batched inputs, negates the result."""
    first = arguments.element((0,))
    linear_values = [leaf.path for leaf in subject.operation.attended if leaf.path in subject.operation.linear]
    negated = linear_values or [leaf.path for leaf, _ in first.batched if leaf in [x for x, _ in first.floats]]
    opposite = first.replaced({path: -first.array(path) for path in negated})
    return bool(np.array_equal(unrounded(subject, opposite), -unrounded(subject, first)))
