"""Candidates of a diagnosis that multiply results, one gradient, or scores by a wrong factor."""

from collections.abc import Callable, Iterator
from functools import partial
from math import log

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate, explains
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.ensembles import rescaled
from attnspec.reference.budget.error_array import UNKNOWN

MAX_DIGITS = 6
"""Largest number of significant digits of a factor; it gets as few as explain all numbers."""

TRIED_OCTAVES = np.arange(-8.0, 8.5, 0.5)
"""Exponents of 2 of the score factors that are tried first."""

WRONG_BASES = {log(2): " = ln 2: 2ˣ is computed in place of eˣ", 1 / log(2): " = log₂e, which belongs to 2ˣ, not to eˣ"}
"""Score factors of a wrong base of exponentials, with the end of the diagnosis."""

SEARCH_STEPS = 24
"""Number of times that the interval around the best score factor is narrowed."""


def factor_candidates(subject: Subject, first: Probe) -> Iterator[Candidate]:
    """Yield the factors that explain a wrong probe."""
    if not subject.operation.float_result:
        return

    def fits(factor: float, path: str) -> bool:
        return explains(gain_candidate(factor, path), first, subject)

    for path in [""] if first.cotangents is None else list(first.got):
        factor = with_fewest_digits(fitted_gain(first, path), partial(fits, path=path))
        if factor is not None:
            yield gain_candidate(factor, path)
    if first.cotangents is None and subject.operation.scores_scale_with:
        fitted = fitted_scale(subject, first)
        yield from (scale_candidate(subject, factor, cause) for factor, cause in WRONG_BASES.items())
        scale = fitted and with_fewest_digits(fitted, lambda x: explains(scale_candidate(subject, x), first, subject))
        if scale is not None:
            yield scale_candidate(subject, scale)


def with_fewest_digits(factor: float, fits: Callable[[float], bool]) -> float | None:
    """Return the factor with as few digits as fit; None if no number of digits fits."""
    for digits in range(1, MAX_DIGITS + 1):
        number = float(f"{factor:.{digits - 1}e}")
        if number not in (0.0, 1.0) and np.isfinite(number) and fits(number):
            return number
    return None


def gain_candidate(factor: float, path: str = "") -> Candidate:
    """Return the candidate that multiplies all results, or only the gradient at ``path``, by ``factor``."""

    def numbers(probe: Probe, arguments: Arguments) -> Results:
        multiplied = {path} if path or probe.cotangents is not None else {*probe.expected}
        return {p: x * (factor if p in multiplied else 1.0) for p, x in probe.expected.items()}

    subject = f"The gradient of {path} is" if path else "The results are"
    return Candidate(f"gain {path}", f"{subject} multiplied by {factor:g}.", numbers)


def fitted_gain(probe: Probe, path: str) -> float:
    """Return the factor of a result or gradient by least squares of error over budget."""
    products, squares = 0.0, 0.0
    for p, expected in probe.expected.items():
        if path in ("", p):
            got, allowed = probe.got[p].astype(np.float64), probe.allowed[p]
            with np.errstate(all="ignore"):
                usable = np.isfinite(got) & np.isfinite(expected) & (allowed < UNKNOWN / 2) & (allowed > 0)
                v, g = (np.where(usable, x.astype(np.float64) / allowed, 0.0) for x in (expected, got))
                products, squares = products + float((v * g).sum()), squares + float((v * v).sum())
    return products / squares if squares else 1.0


def scale_candidate(subject: Subject, factor: float, cause: str = "") -> Candidate:
    """Return the candidate that multiplies all scores by a factor; its sentence ends with the cause, if known."""

    def numbers(probe: Probe, arguments: Arguments) -> Results | None:
        return subject.oracle_values(rescaled(arguments, factor)) if probe.cotangents is None else None

    return Candidate("scale", f"The scores are multiplied by {factor:g}{cause}.", numbers)


def fitted_scale(subject: Subject, probe: Probe) -> float | None:
    """Return the score factor with the least squares of error over budget; None out of range."""

    def loss(octave: float) -> float:
        results = scale_candidate(subject, float(2.0**octave)).numbers(probe)
        return sum(_squares(results[p], probe.got[p], probe.allowed[p]) for p in probe.got) if results else np.inf

    losses = [loss(x) for x in TRIED_OCTAVES]
    best = int(np.argmin(losses))
    if best in (0, len(TRIED_OCTAVES) - 1):
        return None
    low, high = TRIED_OCTAVES[best - 1], TRIED_OCTAVES[best + 1]
    # Golden-section search: each step keeps 0.618 of the interval.
    for _ in range(SEARCH_STEPS):
        lower, upper = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, upper) if loss(lower) < loss(upper) else (lower, high)
    return float(2.0 ** ((low + high) / 2))


def _squares(results: Numbers, got: Numbers, allowed: Numbers) -> float:
    with np.errstate(all="ignore"):
        squares = ((results.astype(np.float64) - got.astype(np.float64)) / allowed) ** 2
        return float(np.where(np.isfinite(squares) & (allowed < UNKNOWN / 2), squares, 0.0).sum())
