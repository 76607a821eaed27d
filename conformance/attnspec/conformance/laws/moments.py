"""Checks of the moments of scores: exactly, on a four-wise independent design, and by Monte Carlo."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import fitting, wide
from attnspec.conformance.laws.registry import proves
from attnspec.reference import dot_product_mean, dot_product_variance, two_point_design
from attnspec.spec.laws import moments as law

DIMENSIONS = (1, 2, 7, 15, 31)
"""The sizes at which the design is run; the tests of this project go on to 64."""

STANDARD_ERRORS = 5.0
"""Of the Monte Carlo version: a chance of 6·10⁻⁷ of a false alarm, if the estimate is normal."""


def designed(subject: Subject, mean: Numbers, sigma: float) -> Arguments:
    """Queries and keys μ ± σ, one of each in a batch element, over all samples of the design."""
    d = len(mean)
    signs = two_point_design(2 * d).astype(np.float64)
    query, key = mean + sigma * signs[:, :d], mean + sigma * signs[:, d:]
    return Arguments(
        subject.operation, {"query": subject.exact(query)[:, None, :], "key": subject.exact(key)[:, None, :]}
    )


def _scale(subject: Subject, d: int) -> float:
    """What the scores are divided by."""
    return float(np.sqrt(d)) if subject.operation.name == "scaled_dot_scores" else 1.0


def _moments(subject: Subject, given: Arguments) -> tuple[float, float, float, float]:
    """Mean and variance of the scores, and how far roundings within budget can move each."""
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
    return sorted({fitting(subject, "d", d) for d in DIMENSIONS if fitting(subject, "d", d) <= 64})


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
    """Means that every dtype represents exactly, with σ added or taken away too."""
    return rng.integers(-4, 5, d) / 4


@proves(law.MEAN, once=True)
def mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The mean over the design."""
    for d in _sizes(subject):
        mu = _grid(rng, d)
        given = designed(subject, mu, 0.5)
        got, _, slack, _ = _moments(subject, given)
        _within(subject, f"the mean at d = {d}", got, float(dot_product_mean(mu)) / _scale(subject, d), slack, given)
    return True


@proves(law.VARIANCE_VECTOR_MEAN, once=True)
def variance_vector_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The variance over the design, with another mean for every coordinate."""
    for d in _sizes(subject):
        mu, sigma = _grid(rng, d), float(rng.choice([0.5, 1.0]))
        given = designed(subject, mu, sigma)
        _, got, _, slack = _moments(subject, given)
        expected = float(dot_product_variance(mu, np.array(sigma))) / _scale(subject, d) ** 2
        _within(subject, f"the variance at d = {d}", got, expected, slack, given)
    return True


@proves(law.VARIANCE_COMMON_MEAN, once=True)
def variance_common_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The variance over the design, with one mean for all coordinates."""
    for d in _sizes(subject):
        m, sigma = float(rng.integers(-4, 5)) / 4, float(rng.choice([0.5, 1.0]))
        given = designed(subject, np.full(d, m), sigma)
        _, got, _, slack = _moments(subject, given)
        expected = float(dot_product_variance(np.array(m), np.array(sigma), d=d)) / _scale(subject, d) ** 2
        _within(subject, f"the variance at d = {d}", got, expected, slack, given)
    return True


@proves(law.VARIANCE_MONTE_CARLO, once=True)
def variance_monte_carlo(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The variance over normal samples; its standard error comes from their fourth moment."""
    d, samples, sigma = fitting(subject, "d", 8), 1 << 15, 0.75
    mu = _grid(rng, d)
    query, key = (subject.exact(mu + sigma * rng.standard_normal((samples, d)))[:, None, :] for _ in range(2))
    given = Arguments(subject.operation, {"query": query, "key": key})
    scores = wide(subject.call(given))[:, 0, 0]
    centred = scores - scores.mean()
    got = float(np.mean(centred**2))
    error = float(np.sqrt((np.mean(centred**4) - got**2) / samples))
    expected = float(dot_product_variance(mu, np.array(sigma))) / _scale(subject, d) ** 2
    _within(subject, f"the sampled variance at d = {d}", got, expected, STANDARD_ERRORS * error, given)
    return True
