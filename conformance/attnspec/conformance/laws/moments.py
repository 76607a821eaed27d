"""Checks of the moments of scores, exactly on a four-wise independent design."""

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
"""The sizes at which the suite runs the design; tests of this project reach 64."""


def designed(subject: Subject, mean: Numbers, sigma: float) -> Arguments:
    """Queries and keys μ ± σ, one sample of the design per batch element."""
    d = len(mean)
    signs = two_point_design(2 * d).astype(np.float64)
    query, key = mean + sigma * signs[:, :d], mean + sigma * signs[:, d:]
    return _pairs(subject, query, key)


def _pairs(subject: Subject, query: Numbers, key: Numbers) -> Arguments:
    """One query and one key per batch element."""
    paths = (*subject.operation.queries, *subject.operation.attended)
    values = {leaf.path: subject.exact(x)[:, None, :] for leaf, x in zip(paths, (query, key), strict=True)}
    return Arguments(subject.operation, values)


def _scale(subject: Subject, d: int) -> float:
    """The divisor of the scores."""
    return float(np.sqrt(d)) if subject.operation.protocol is ScaledDotScores else 1.0


def _moments(subject: Subject, given: Arguments) -> tuple[float, float, float, float]:
    """Mean and variance of the scores, each with its possible error from roundings."""
    scores = wide(subject.call(given))[:, 0, 0]
    budget = subject.budget(given)[:, 0, 0]
    centred = scores - scores.mean()
    moved = 2 * float(np.mean(np.abs(centred) * budget)) + float(np.mean(budget**2))
    summation = 2.0**-46
    return (
        float(scores.mean()),
        float(np.mean(centred**2)),
        float(budget.mean()) + summation * float(np.abs(scores).max()),
        moved + summation * float(np.mean(scores**2)),
    )


def _sizes(subject: Subject) -> list[int]:
    sizes = {_fitting(subject, d) for d in DIMENSIONS}
    return sorted(d for d in sizes if d <= 64)


def _fitting(subject: Subject, d: int) -> int:
    (feature,) = subject.operation.sizes_of(Axis.FEATURE)
    return subject.fitting(feature, d)


def _within(subject: Subject, what: str, got: float, expected: float, slack: float, given: Arguments) -> None:
    if slack > 0:
        subject.ratio = max(subject.ratio, abs(got - expected) / slack)
    subject.holds(
        abs(got - expected) <= slack,
        f"{what} is {got:.12g}, expected {expected:.12g} ± {slack:.3g}",
        given,
        expected=np.float64(expected),
        got=np.float64(got),
        budget=np.float64(slack),
    )


def _grid(rng: np.random.Generator, d: int) -> Numbers:
    """Means for which μ, μ + σ and μ − σ are exact in every dtype."""
    return rng.integers(-4, 5, d) / 4


@checks(law.MEAN_AND_VARIANCE, once=True)
def mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the mean of the scores over the design with its formula."""
    for d in _sizes(subject):
        mu = _grid(rng, d)
        given = designed(subject, mu, 0.5)
        got, _, slack, _ = _moments(subject, given)
        _within(subject, f"the mean at d = {d}", got, float(dot_product_mean(mu)) / _scale(subject, d), slack, given)
    return True


@checks(law.MEAN_AND_VARIANCE, once=True)
def variance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the variance over the design, with different means per coordinate and a common one."""
    for d in _sizes(subject):
        for mu, what in ((_grid(rng, d), "different means"), (np.full(d, _grid(rng, 1)[0]), "a common mean")):
            sigma = float(rng.choice([0.5, 1.0]))
            given = designed(subject, mu, sigma)
            _, got, _, slack = _moments(subject, given)
            expected = float(dot_product_variance(mu, np.array(sigma))) / _scale(subject, d) ** 2
            _within(subject, f"the variance at d = {d} with {what}", got, expected, slack, given)
    return True
