"""Probes: calls of a backend with their numbers, the formula's, and the budget of each."""

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
"""Multiple of the budget from which a number is clearly wrong, or two candidates differ."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call of a backend: its results, or with ``cotangents`` its gradients, by path.

    ``expected`` are the formula's, ``allowed`` the allowed distance of each number: infinite where a declared choice or
    the formula's own error leaves the number open. ``views`` are the arguments of a law's own call, as they lay in
    memory.
    """

    arguments: Arguments
    got: Results
    expected: Results
    allowed: Results
    cotangents: Results | None = None
    views: Mapping[str, Any] | None = None

    @cached_property
    def ratio(self) -> float:
        """The largest error over its budget, where the budget is narrow enough to judge."""
        return max((self._ratio(path) for path in self.got), default=0.0)

    def _ratio(self, path: str) -> float:
        expected, allowed = self.expected[path], self.allowed[path]
        with np.errstate(all="ignore"):
            top = np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0)
        vague = ~(allowed <= (INFORMATIVE * float(top) if top > 0 else UNKNOWN / 2))
        return distance(self.got[path], expected, np.where(vague, np.inf, allowed))

    @property
    def wrong(self) -> bool:
        """True if an error clearly exceeds its budget."""
        return self.ratio > FAR

    @cached_property
    def size(self) -> int:
        """Numbers in all arguments, as a measure of a call's cost."""
        return sum(x.size for _, x in self.arguments.given)


def distance(one: Numbers, other: Numbers, allowed: Numbers) -> float:
    """Return the largest difference over what is allowed; infinite if NaN or infinities differ.

    Where an infinite difference is allowed, every number is accepted.
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
    """Return the results of a call; None if the backend gives no numbers of the right shape."""
    try:
        return subject.results(arguments)
    except Violation:
        return None


def judged_by(subject: Subject, arguments: Arguments, found: Results) -> Probe | None:
    """Return a probe of results; None outside of the operation's domain."""
    try:
        return given(subject, arguments, found) if subject.in_domain(arguments) else None
    except Violation:
        return None


def given(subject: Subject, arguments: Arguments, found: Results) -> Probe:
    """Return a probe of known results."""
    oracles = subject.oracles(arguments)
    expected = {path: x.value for path, x in oracles.items()}
    allowed = {path: np.where(np.isnan(x.value), np.inf, x.budget) for path, x in oracles.items()}
    return Probe(arguments, found, expected, allowed)


def of_gradients(subject: Subject, arguments: Arguments) -> Probe | None:
    """Return a probe of a call's gradients, with cotangents seeded by the sizes; None without gradients."""
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
    """Return a probe of known gradients."""
    oracles = subject.gradients(arguments, cotangents)
    paths = [path for path in oracles if path in found]
    allowed = {p: np.where(np.isfinite(oracles[p][0]), oracles[p][1], np.inf) for p in paths}
    return Probe(arguments, {p: found[p] for p in paths}, {p: oracles[p][0] for p in paths}, allowed, cotangents)


def gathered(subject: Subject, arguments: Arguments) -> Iterator[Probe]:
    """Yield a probe of a call's results and, if these are right, one of its gradients."""
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
    """Return the cotangents as a tree of NumPy arrays, as a backend takes them."""
    copies = {path: x.copy() for path, x in (probe.cotangents or {}).items()}
    return subject.like_result(copies, probe.arguments, convert=False)
