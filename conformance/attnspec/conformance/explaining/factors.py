"""A factor that explains all numbers: of the results, one gradient, or the scores."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate, explains
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.ensembles import rescaled
from attnspec.reference.budget.error_array import UNKNOWN

DIGITS = 6
"""Largest number of significant digits of a factor; the fewest that explain all numbers are used."""

OCTAVES = np.arange(-8.0, 8.5, 0.5)
"""First grid of score factors, as powers of 2."""

STEPS = 24
"""Number of cuts of the interval of a factor."""


def of_factors(subject: Subject, first: Probe) -> Iterator[Candidate]:
    """Yield the factors that explain a wrong probe."""
    if not subject.operation.float_result:
        return

    def fits(factor: float, path: str) -> bool:
        return explains(of_gain(factor, path), first, subject)

    for path in [""] if first.cotangents is None else list(first.got):
        factor = rounded(gain(first, path), partial(fits, path=path))
        if factor is not None:
            yield of_gain(factor, path)
    if first.cotangents is None and subject.operation.sharpened:
        estimate = scale(subject, first)
        found = estimate and rounded(estimate, lambda x: explains(of_scale(subject, x), first, subject))
        if found is not None:
            yield of_scale(subject, found)


def rounded(factor: float, fits: Callable[[float], bool]) -> float | None:
    """Return a factor with as few digits as fit; None if none fits."""
    for digits in range(1, DIGITS + 1):
        number = float(f"{factor:.{digits - 1}e}")
        if number not in (0.0, 1.0) and np.isfinite(number) and fits(number):
            return number
    return None


def of_gain(factor: float, path: str = "") -> Candidate:
    """All results multiplied by a factor; with a path, only the gradient of that argument."""

    def numbers(probe: Probe, arguments: Arguments) -> Results:
        of_path = probe.cotangents is not None
        return {p: x * (factor if p == path or not (of_path or path) else 1.0) for p, x in probe.expected.items()}

    what = f"The gradient of {path} is" if path else "The results are"
    return Candidate(f"gain {path}", f"{what} multiplied by {factor:g}.", numbers)


def gain(probe: Probe, path: str) -> float:
    """Return the factor of a result or gradient that minimises the squares of error over budget."""
    products, squares = 0.0, 0.0
    for p, expected in probe.expected.items():
        if path in ("", p):
            got, allowed = probe.got[p].astype(np.float64), probe.allowed[p]
            with np.errstate(all="ignore"):
                usable = np.isfinite(got) & np.isfinite(expected) & (allowed < UNKNOWN / 2) & (allowed > 0)
                v, g = (np.where(usable, x.astype(np.float64) / allowed, 0.0) for x in (expected, got))
            products, squares = products + float((v * g).sum()), squares + float((v * v).sum())
    return products / squares if squares else 1.0


def of_scale(subject: Subject, factor: float) -> Candidate:
    """All scores multiplied by a factor."""

    def numbers(probe: Probe, arguments: Arguments) -> Results | None:
        return subject.unrounded(rescaled(arguments, factor)) if probe.cotangents is None else None

    return Candidate("scale", f"The scores are multiplied by {factor:g}.", numbers)


def scale(subject: Subject, probe: Probe) -> float | None:
    """Return the score factor that minimises the squares of error over budget; None at an end of the search."""

    def loss(octave: float) -> float:
        found = of_scale(subject, float(2.0**octave)).numbers(probe)
        return sum(_squares(found[p], probe.got[p], probe.allowed[p]) for p in probe.got) if found else np.inf

    losses = [loss(x) for x in OCTAVES]
    best = int(np.argmin(losses))
    if best in (0, len(OCTAVES) - 1):
        return None
    low, high = OCTAVES[best - 1], OCTAVES[best + 1]
    for _ in range(STEPS):
        one, other = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, other) if loss(one) < loss(other) else (one, high)
    return float(2.0 ** ((low + high) / 2))


def _squares(found: Numbers, got: Numbers, allowed: Numbers) -> float:
    with np.errstate(all="ignore"):
        squares = ((found.astype(np.float64) - got.astype(np.float64)) / allowed) ** 2
        return float(np.where(np.isfinite(squares) & (allowed < UNKNOWN / 2), squares, 0.0).sum())
