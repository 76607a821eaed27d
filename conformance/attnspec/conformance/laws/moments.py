"""Checks of mean and variance of scores over a four-wise independent design. Options of ``@checks``: see ``Check``.

The design is a finite sample of signs, any four of them independent. The variance of a dot product involves no more
than four at a time, so its formula holds exactly on the sample.
"""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.reference.defining.two_point import two_point_design
from attnspec.reference.moments import dot_product_mean, dot_product_variance
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import moments as law
from attnspec.spec.scoring import ScaledDotScores

DIMENSIONS = (1, 2, 7, 15, 31)
"""Feature sizes of the design. Declared head sizes may replace them; those above 64 are skipped."""


def call_of_design(subject: Subject, mean: Numbers, sigma: float) -> Arguments:
    """Queries and keys μ ± σ; each batch element is one sample of the design."""
    d = len(mean)
    signs = two_point_design(2 * d).astype(np.float64)
    query, key = mean + sigma * signs[:, :d], mean + sigma * signs[:, d:]
    return _pairs(subject, query, key)


def _pairs(subject: Subject, query: Numbers, key: Numbers) -> Arguments:
    paths = (*subject.operation.queries, *subject.operation.attended)
    values = {leaf.path: subject.exact(x)[:, None, :] for leaf, x in zip(paths, (query, key), strict=True)}
    return Arguments(subject.operation, values)


def _divisor(subject: Subject, d: int) -> float:
    return float(np.sqrt(d)) if subject.operation.protocol is ScaledDotScores else 1.0


def _moments(subject: Subject, arguments: Arguments) -> tuple[float, float, float, float]:
    """Mean and variance of the scores, then the rounding errors of both."""
    scores = wide(subject.call(arguments))[:, 0, 0]
    budget = subject.budget(arguments)[:, 0, 0]
    centred = scores - scores.mean()
    variance_slack = 2 * float(np.mean(np.abs(centred) * budget)) + float(np.mean(budget**2))
    summation = 2.0**-46  # relative error of the two means below, in double precision
    return (
        float(scores.mean()),
        float(np.mean(centred**2)),
        float(budget.mean()) + summation * float(np.abs(scores).max()),
        variance_slack + summation * float(np.mean(scores**2)),
    )


def _sizes(subject: Subject) -> list[int]:
    sizes = {_fitting_size(subject, d) for d in DIMENSIONS}
    return sorted(d for d in sizes if d <= 64)


def _fitting_size(subject: Subject, d: int) -> int:
    (feature,) = subject.operation.sizes_of(Axis.FEATURE)
    return subject.allowed_size(feature, d)


def _demand_close(
    subject: Subject, title: str, got: float, expected: float, slack: float, arguments: Arguments
) -> None:
    if slack > 0:
        subject.ratio = max(subject.ratio, abs(got - expected) / slack)
    subject.demand(
        abs(got - expected) <= slack,
        f"{title} is {got:.12g}, expected {expected:.12g} ± {slack:.3g}",
        arguments,
        expected=np.float64(expected),
        got=np.float64(got),
        budget=np.float64(slack),
    )


def _grid(rng: np.random.Generator, d: int) -> Numbers:
    """Means μ for which μ ± σ is exact in every dtype."""
    return rng.integers(-4, 5, d) / 4


@checks(law.MEAN_AND_VARIANCE, once=True)
def mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the mean of the scores over the design with its formula."""
    for d in _sizes(subject):
        mu = _grid(rng, d)
        call = call_of_design(subject, mu, 0.5)
        got, _, slack, _ = _moments(subject, call)
        expected = float(dot_product_mean(mu)) / _divisor(subject, d)
        _demand_close(subject, f"the mean at d = {d}", got, expected, slack, call)
    return True


@checks(law.MEAN_AND_VARIANCE, once=True)
def variance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the variance over the design: with different means, and with a common mean."""
    for d in _sizes(subject):
        for mu, label in ((_grid(rng, d), "different means"), (np.full(d, _grid(rng, 1)[0]), "a common mean")):
            sigma = float(rng.choice([0.5, 1.0]))
            designed = call_of_design(subject, mu, sigma)
            _, got, _, slack = _moments(subject, designed)
            expected = float(dot_product_variance(mu, np.array(sigma))) / _divisor(subject, d) ** 2
            _demand_close(subject, f"the variance at d = {d} with {label}", got, expected, slack, designed)
    return True
