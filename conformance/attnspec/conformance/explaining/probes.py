"""Probes: calls of a backend with its numbers, the formula's numbers, and their budgets.

Diagnoses compare probes with known defects. Budgets from ``UNKNOWN`` / 2 on mean that the error is not known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.comparison import INFORMATIVE
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.common import live_rows
from attnspec.reference.budget.error_array import UNKNOWN

CLEARLY_WRONG = 4.0
"""Multiple of the budget above which numbers are clearly wrong and candidates clearly differ."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call of a backend: its results by path, or its gradients if ``cotangents`` are set.

    ``expected`` holds the formula's numbers, ``allowed`` the largest allowed error of each number. An infinite error is
    allowed where a declared choice or the formula's own error leaves the number open. ``views`` are the arguments of a
    law's own call, with their layout in memory.
    """

    arguments: Arguments
    got: Results
    expected: Results
    allowed: Results
    cotangents: Results | None = None
    views: Mapping[str, Any] | None = None

    @cached_property
    def ratio(self) -> float:
        """Largest error over budget, among numbers whose budget is narrow enough to judge."""
        return max((self._ratio(path) for path in self.got), default=0.0)

    def _ratio(self, path: str) -> float:
        expected, allowed = self.expected[path], self.allowed[path]
        with np.errstate(all="ignore"):
            top = np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0)
        narrow = allowed <= (INFORMATIVE * float(top) if top > 0 else UNKNOWN / 2)
        return distance(self.got[path], expected, np.where(narrow, allowed, np.inf))

    @property
    def wrong(self) -> bool:
        """True if an error clearly exceeds its budget."""
        return self.ratio > CLEARLY_WRONG

    @cached_property
    def size(self) -> int:
        """Number of elements of all arguments, as a measure of a call's cost."""
        return sum(x.size for _, x in self.arguments.leaf_arrays)


def distance(numbers: Numbers, others: Numbers, allowed: Numbers) -> float:
    """Return the largest difference divided by the allowed one; infinite if NaN, infinities or shapes differ.

    An infinite allowed difference accepts every number.
    """
    if numbers.shape != others.shape:
        return np.inf
    if numbers.size == 0:
        return 0.0
    wide_dtype = np.result_type(np.float64, *(x.dtype for x in (numbers, others) if x.dtype.kind == "f"))
    a, b = numbers.astype(wide_dtype), others.astype(wide_dtype)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (allowed >= UNKNOWN / 2)
        ratios = np.where(same, 0.0, np.abs(a - b) / allowed)
    return float(np.max(np.where(np.isnan(ratios), np.inf, ratios)))


def results_or_none(subject: Subject, arguments: Arguments) -> Results | None:
    """Return the results of a call; None if the backend returns no arrays of the right shapes."""
    try:
        return subject.results(arguments)
    except Violation:
        return None


def probe_in_domain(subject: Subject, arguments: Arguments, results: Results) -> Probe | None:
    """Return a probe of known results; None if the arguments are outside the operation's domain."""
    try:
        if not subject.in_domain(arguments):
            return None
        oracles = subject.oracles(arguments)
    except Violation:
        return None
    expected = {path: x.value for path, x in oracles.items()}
    # NaN marks numbers that a choice leaves open; an expected infinity keeps its budget, 0 where it must be met.
    allowed = {path: np.where(np.isnan(x.value), np.inf, x.budget) for path, x in oracles.items()}
    return Probe(arguments, results, expected, allowed)


def gradient_probe(subject: Subject, arguments: Arguments) -> Probe | None:
    """Return a probe of a call's gradients for random cotangents; None without gradients.

    None also where a row is declared to be NaN: then other gradients may be NaN, too.
    """
    if "nan" in subject.semantics.without_keys.values() and not live_rows(subject, arguments).all():
        return None
    rng = np.random.default_rng(stable_seed("diagnosis", *arguments.sizes.values()) % 2**63)
    try:
        cotangents = subject.cotangents(arguments, rng)
        if not any(x.size for x in cotangents.values()):
            return None
        gradients = subject.vjp(arguments, cotangents)
        oracles = subject.gradients(arguments, cotangents)
    except Violation:
        return None
    paths = [path for path in oracles if path in gradients]
    expected, budgets = ({p: oracles[p][i] for p in paths} for i in (0, 1))
    # Unlike infinite results, infinite gradients are left open, too.
    allowed = {p: np.where(np.isfinite(expected[p]), budgets[p], np.inf) for p in paths}
    return Probe(arguments, {p: gradients[p] for p in paths}, expected, allowed, cotangents)


def probes_of_call(subject: Subject, arguments: Arguments) -> Iterator[Probe]:
    """Yield a probe of a call's results, then of its gradients if results are right."""
    results = results_or_none(subject, arguments)
    probe = None if results is None else probe_in_domain(subject, arguments, results)
    if probe is None:
        return
    yield probe
    operation = subject.operation
    if subject.contract.differentiable and operation.floats and operation.float_result and not probe.wrong:
        of_gradients = gradient_probe(subject, arguments)
        if of_gradients is not None:
            yield of_gradients


def cotangent_of(subject: Subject, probe: Probe) -> Any:
    """Return the cotangents as a tree of NumPy arrays, in the structure of the result."""
    copies = {path: x.copy() for path, x in (probe.cotangents or {}).items()}
    return subject.like_result(copies, probe.arguments, convert=False)
