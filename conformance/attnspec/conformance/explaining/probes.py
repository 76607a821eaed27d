"""Probes: calls of a backend whose numbers are known, beside those of the formula and the budget of each."""

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
from attnspec.reference.budget.error_array import UNKNOWN

FAR = 4.0
"""Budgets beyond which a number is wrong whatever the budget, and one candidate is told from another."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call of a backend: its results, or with ``cotangents`` its gradients, by path.

    ``expected`` are those of the formula, ``allowed`` how far from it each number may lie: infinite for what a declared
    choice, or the error of the formula itself, leaves open. ``views`` are the arguments by name as they lay in memory,
    of a call that a law made.
    """

    arguments: Arguments
    got: Results
    expected: Results
    allowed: Results
    cotangents: Results | None = None
    views: Mapping[str, Any] | None = None

    @cached_property
    def ratio(self) -> float:
        """The largest error over its budget, of the numbers whose budget says something."""
        return max((self._ratio(path) for path in self.got), default=0.0)

    def _ratio(self, path: str) -> float:
        expected, allowed = self.expected[path], self.allowed[path]
        with np.errstate(all="ignore"):
            top = np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0)
        vague = ~(allowed <= (INFORMATIVE * float(top) if top > 0 else UNKNOWN / 2))
        return distance(self.got[path], expected, np.where(vague, np.inf, allowed))

    @property
    def wrong(self) -> bool:
        """Whether the numbers are wrong, and not only a little beyond a budget."""
        return self.ratio > FAR

    @cached_property
    def size(self) -> int:
        """Numbers of all arguments: what a call costs."""
        return sum(x.size for _, x in self.arguments.given)


def distance(one: Numbers, other: Numbers, allowed: Numbers) -> float:
    """The largest difference of two arrays over what is allowed; infinite where NaN or infinities differ.

    Where an infinite difference is allowed, anything goes.
    """
    if one.shape != other.shape:
        return np.inf
    if one.size == 0:
        return 0.0
    wide = np.result_type(np.float64, *(x.dtype for x in (one, other) if x.dtype.kind == "f"))
    a, b = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (allowed >= UNKNOWN / 2)
        ratios = np.where(same, 0.0, np.abs(a - b) / allowed)
    return float(np.max(np.where(np.isnan(ratios), np.inf, ratios)))


def called(subject: Subject, arguments: Arguments) -> Results | None:
    """The results of a call; None where the backend gives no numbers of the right shape."""
    try:
        return subject.results(arguments)
    except Violation:
        return None


def judged_by(subject: Subject, arguments: Arguments, found: Results) -> Probe | None:
    """A probe of results; None outside of the domain."""
    try:
        return given(subject, arguments, found) if subject.in_domain(arguments) else None
    except Violation:
        return None


def given(subject: Subject, arguments: Arguments, found: Results) -> Probe:
    """A probe of results that are known."""
    oracles = subject.oracles(arguments)
    expected = {path: x.value for path, x in oracles.items()}
    allowed = {path: np.where(np.isnan(x.value), np.inf, x.budget) for path, x in oracles.items()}
    return Probe(arguments, found, expected, allowed)


def of_gradients(subject: Subject, arguments: Arguments) -> Probe | None:
    """The gradients of a call, with weights that the sizes of the arguments determine; None where there are none."""
    rng = np.random.default_rng(stable_seed("diagnosis", *arguments.sizes.values()) % 2**63)
    try:
        cotangents = subject.cotangents(arguments, rng)
        if not any(x.size for x in cotangents.values()):
            return None
        found = subject.vjp(arguments, cotangents)
        return given_gradients(subject, arguments, cotangents, found)
    except Violation:
        return None


def given_gradients(subject: Subject, arguments: Arguments, cotangents: Results, found: Results) -> Probe:
    """A probe of gradients that are known."""
    oracles = subject.gradients(arguments, cotangents)
    paths = [path for path in oracles if path in found]
    allowed = {p: np.where(np.isfinite(oracles[p][0]), oracles[p][1], np.inf) for p in paths}
    return Probe(arguments, {p: found[p] for p in paths}, {p: oracles[p][0] for p in paths}, allowed, cotangents)


def gathered(subject: Subject, arguments: Arguments) -> Iterator[Probe]:
    """The results of a call and, where these are right and the backend has any, its gradients."""
    results = called(subject, arguments)
    probe = None if results is None else judged_by(subject, arguments, results)
    if probe is None:
        return
    yield probe
    operation = subject.operation
    if subject.contract.differentiable and operation.floats and operation.float_result and not probe.wrong:
        found = of_gradients(subject, arguments)
        if found is not None:
            yield found


def cotangent_of(subject: Subject, probe: Probe) -> Any:
    """The cotangents as the tree that a backend takes, of NumPy arrays."""
    copies = {path: x.copy() for path, x in (probe.cotangents or {}).items()}
    return subject.like_result(copies, probe.arguments, convert=False)
