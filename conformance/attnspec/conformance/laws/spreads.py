"""Checks of the spread and mean of errors, which single budgets do not bound.

σ is at least the standard deviation of the roundings in an element. So t_b, the mean of (error/σ)² over the numbers of
a batch element, has an expectation of at most 1. Different elements err independently, whatever errors are within one:
their mean exceeds 1 by no more than 8 of its standard errors, which are estimated from the t_b.
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
    LEAST_ITSELF,
    TILE,
    batches,
    by_element,
    exact,
    judgeable,
    shared,
)
from attnspec.reference.budget import WIDTH
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.laws import pooling as law
from attnspec.spec.laws import training

FEW, MANY = 512, 1024
"""Batch elements with more keys than a tile has, and with few keys."""

BEYOND = TILE + 5
"""Keys: a tile and the beginning of another."""


QUERIES = 2 * TILE + 5
"""Several tiles of queries, whose parts of the gradients of keys and values are summed."""

MOST = 9.0
"""Cap on (error/σ)² of a batch element."""


def beyond_a_tile(subject: Subject, arguments: Arguments) -> Arguments:
    """Batch elements with more keys than a tile; in self-attention the fewest that suffice."""
    count = LEAST_ITSELF if subject.operation.attends_to_itself else FEW
    return shared(arguments, "beyond a tile", lambda rng: batches(subject, rng, count, keys=BEYOND))


def _spread(subject: Subject, arguments: Arguments) -> tuple[tuple[str, Arguments], ...]:
    """Described batch elements: with few keys, and with more than a tile."""
    many = shared(arguments, "many elements", lambda rng: batches(subject, rng, MANY))
    return ("", many), (f" with {BEYOND} keys", beyond_a_tile(subject, arguments))


def relative_errors(subject: Subject, arguments: Arguments) -> Numbers:
    """Errors over their standard deviations, (elements, numbers of each); 0 where unknown."""
    oracle = subject.oracle(arguments)
    error, sigma = by_element(subject.call(arguments)) - by_element(oracle.value), by_element(oracle.sigma)
    return np.where(sigma < UNKNOWN / 2, error / sigma, 0.0).astype(np.float64)


@checks(law.ENSEMBLE_SPREAD, once=True, slow=True)
def ensemble_spread(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the root mean square of error/σ, for few keys and more than a tile."""
    if not judgeable(subject):
        return False
    for words, given in _spread(subject, arguments):
        no_wider(subject, given, relative_errors(subject, given), f"the root mean square of error/σ{words}")
    return True


def no_wider(subject: Subject, arguments: Arguments, errors: Numbers, what: str, most: float = np.inf) -> None:
    """Demand a root mean square of at most 1 for errors over their standard deviations.

    ``errors`` has the shape (elements, numbers of each). An element counts no more than ``most``, which only lowers its
    expectation: where all are far too large, even larger ones do not raise the limit.
    """
    squares = np.minimum((errors**2).mean(-1), most).astype(np.float64)
    limit = float(np.sqrt(1 + WIDTH * squares.std() / np.sqrt(len(squares))))
    found = float(np.sqrt(squares.mean()))
    subject.estimates[what] = found, limit
    subject.ratio = max(subject.ratio, found / limit)
    subject.holds(
        found <= limit,
        f"{what} is {found:.3g} over {len(squares)} independent elements, roundings leave at most {limit:.3g}",
        arguments,
        expected=np.float64(1.0),
        got=np.float64(found),
    )


@checks(training.GRADIENT_SPREAD, once=True, slow=True)
def gradient_spread(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the root mean square of error/σ of every batched gradient, and along itself.

    The calls have one query and more keys than a tile, then more queries than a tile and few keys. Only 16-bit dtypes
    are judged: in others, storage in fewer bits exceeds the budgets of single elements.
    """
    if not judgeable(subject) or subject.dtype not in NARROW:
        return False
    both = subject.operation.asking is not None and not subject.operation.attends_to_itself
    for given in (beyond_a_tile(subject, arguments), *([_many_queries(subject, rng)] if both else [])):
        cotangents = subject.cotangents(given, rng)
        found = subject.vjp(given, cotangents)
        words = f"with {given.queries or 1} queries and {given.keys_count} keys"
        for path, (value, budget) in subject.gradients(given, cotangents).items():
            if not given.leaves[path].batched:
                continue
            sigma = wide(budget) / WIDTH
            sigma, g = np.where(sigma < UNKNOWN / 2, sigma, 0.0), np.where(sigma < UNKNOWN / 2, wide(value), 0.0)
            error = np.where(sigma > 0, wide(found[path]) - g, 0.0)
            what = f"of the gradient of {path} {words}"
            no_wider(subject, given, by_element(_over(error, sigma)), f"the root mean square of error/σ {what}", MOST)
            # The numbers of a row may share the error of a weight, with any signs.
            along = by_element((error * g).sum(-1)).sum(-1), np.hypot.reduce(by_element((abs(g) * sigma).sum(-1)), -1)
            of_all = "the root mean square of error/σ along the whole"
            no_wider(subject, given, _over(*along)[:, None], f"{of_all} {what}", MOST)
    return True


def _over(error: Numbers, sigma: Numbers) -> Numbers:
    """Errors over their standard deviations; 0 where the deviation is 0."""
    return np.divide(error, sigma, out=np.zeros_like(error), where=sigma > 0)


def _many_queries(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Batch elements with more queries than a tile, and few keys."""
    return sample(subject, rng, (LEAST_ITSELF,), queries=QUERIES, keys=KEYS, features=FEATURES, heads=2)


@checks(law.ENSEMBLE_SPREAD, once=True, slow=True)
def ensemble_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Bound the mean of error/σ, in every feature and in all of them.

    The inputs are as probable as their negatives, which a format rounds to negated roundings. So the mean has both
    signs alike if the formula is odd, and no bias of a class is allowed for.
    """
    if not judgeable(subject):
        return False
    for words, given in _spread(subject, arguments):
        if not _odd(subject, given):
            return False
        errors = relative_errors(subject, given)
        features = errors.reshape(len(errors), -1, subject.call(given).shape[-1]).mean(1)
        means = np.column_stack([features.mean(1), features])
        limits = WIDTH * np.sqrt((means**2).sum(0)) / len(means)
        found = means.mean(0)
        worst = int(np.argmax(np.abs(found) - limits))
        what = f"the mean of error/σ{words}"
        place = f" in feature {worst - 1}" if worst else ""
        subject.estimates[what] = float(found[0]), float(limits[0])
        subject.ratio = max(subject.ratio, float(np.max(np.abs(found) / np.where(limits > 0, limits, np.inf))))
        subject.holds(
            bool(abs(found[worst]) <= limits[worst]),
            f"{what}{place} is {found[worst]:.3g} over {len(means)} independent elements, roundings leave at most "
            f"{limits[worst]:.3g}",
            given,
            expected=np.float64(0.0),
            got=np.float64(found[worst]),
        )
    return True


def _odd(subject: Subject, arguments: Arguments) -> bool:
    """Return whether negating values, or else all batched inputs, negates the result."""
    first = arguments.element((0,))
    linear = [leaf.path for leaf in subject.operation.attended if leaf.path in subject.operation.linear]
    negated = linear or [leaf.path for leaf, _ in first.batched if leaf in [x for x, _ in first.floats]]
    opposite = first.replaced({path: -first.array(path) for path in negated})
    return bool(np.array_equal(exact(subject, opposite), -exact(subject, first)))
