"""Candidates: known defects that predict the results of a probe."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from attnspec.conformance.explaining.probes import FAR, Probe, cotangent_of, distance
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.mutants.correct import Formulas, Library
from attnspec.reference import choosing
from attnspec.reference.budget import WIDTH
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import mapped

DRAWS = 3
"""Number of random perturbations of a candidate's arguments, to estimate its own roundings."""

NEAR = 2.0**-6
"""Distance, relative to the largest number, up to which a candidate's own roundings are estimated."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A known defect: its name, a sentence about it, and the numbers that it computes.

    ``compute`` returns its results for a probe (gradients for a probe of gradients), computed from the given arguments
    instead of the probe's; None where it predicts nothing.
    """

    name: str
    sentence: str
    compute: Callable[[Probe, Arguments], Results | None]

    def numbers(self, probe: Probe, arguments: Arguments | None = None) -> Results | None:
        """Return its numbers for a probe; None also if it raises."""
        with np.errstate(all="ignore"):
            found = call_safely(lambda: self.compute(probe, probe.arguments if arguments is None else arguments))
        return None if isinstance(found, Raised) else cast("Results | None", found)


def explains(candidate: Candidate, probe: Probe, subject: Subject) -> bool:
    """Return whether a backend's numbers are the candidate's, within the errors of both.

    A candidate may err as much as the formula or, if that is more, as far as it moves by its own roundings.
    """
    found = candidate.numbers(probe)
    if found is None or set(found) != set(probe.got):
        return False
    if apart(found, probe.got, probe.allowed) <= 1:
        return True
    if not near(found, probe.got, probe.allowed):
        return False
    own = roundings(candidate, probe, subject)
    return own is not None and apart(found, probe.got, {p: x + own[p] / 2 for p, x in probe.allowed.items()}) <= 1


def apart(one: Results, other: Results, allowed: Results) -> float:
    """Return the largest difference of two results over the sum of their budgets."""
    return max((distance(one[path], other[path], 2 * allowed[path]) for path in other), default=0.0)


def near(one: Results, other: Results, allowed: Results, part: float = NEAR) -> bool:
    """Return whether two results differ by at most their budgets plus ``part`` of each array's largest number."""
    with np.errstate(all="ignore"):
        tops = {p: float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for p, x in other.items()}
    return apart(one, other, {p: x + part * tops[p] for p, x in allowed.items()}) <= 1


def tells(candidate: Candidate, probe: Probe, *, finite: bool = False) -> bool:
    """Return true if a candidate differs clearly from the formula; with ``finite``, in finite numbers."""
    found = candidate.numbers(probe)
    if found is not None and finite:
        found = with_finite_numbers(found, probe.expected)
    return found is not None and apart(found, probe.expected, probe.allowed) > FAR


def with_finite_numbers(found: Results, instead: Results) -> Results:
    """Replace NaN and infinities by the numbers of another result; arrays of other shapes are kept."""
    alike = {path for path, x in found.items() if x.shape == instead[path].shape}
    return {p: np.where(np.isfinite(x), x, instead[p]) if p in alike else x for p, x in found.items()}


def roundings(candidate: Candidate, probe: Probe, subject: Subject) -> Results | None:
    """Return the budget of a candidate's own roundings: its change under perturbed arguments, plus result rounding."""
    p = subject.precision
    dtype = np.dtype(np.float32) if subject.dtype in NARROW else None
    rng = np.random.default_rng(0)
    given = {leaf.path: x if dtype is None else x.astype(dtype) for leaf, x in probe.arguments.floats}
    # Factors of weights are perturbed by the rounding of weights too.
    weighed = max(p.weights, p.operand, p.inputs)
    units = {path: 4 * max(p.accumulation, weighed if path in subject.operation.linear else p.inputs) for path in given}
    plain = candidate.numbers(probe, probe.arguments.replaced(given))
    if plain is None:
        return None
    with np.errstate(all="ignore"):
        moved = {path: np.zeros(x.shape) for path, x in plain.items()}
        for _ in range(DRAWS):
            noise = {path: 1 + units[path] * rng.uniform(-1, 1, x.shape) for path, x in given.items()}
            changed = {path: (x * noise[path]).astype(x.dtype) for path, x in given.items()}
            found = candidate.numbers(probe, probe.arguments.replaced(changed))
            if found is None:
                return None
            shifts = {path: np.abs(found[path].astype(np.float64) - plain[path].astype(np.float64)) for path in moved}
            moved = {path: np.fmax(x, shifts[path]) for path, x in moved.items()}
        rounding = p.output + 2 * p.accumulation
        return {path: WIDTH * x + rounding * np.abs(plain[path].astype(np.float64)) for path, x in moved.items()}


# Mutants --------------------------------------------------------------------------------------------------------------


def of_mutants(
    subject: Subject, wrong: Probe, through: Collection[str], *, own: bool, without: Collection[str] = ()
) -> Iterator[Candidate]:
    """Yield mutants that alter one of these steps: the operation's if ``own``, else all others.

    Mutants known to show in the wrong kind, gradients or results, come first, then those of the dtype.
    """

    def otherwise_seen(mutant: Mutant) -> tuple[bool, bool]:
        return LAWS[mutant.breaks[0]].gradients is (wrong.cotangents is None), mutant.dtype != subject.dtype

    for mutant in sorted(MUTANTS.values(), key=otherwise_seen):
        if mutant.name in without or (subject.operation.name in mutant.operations) is not own:
            continue
        # A defect in a declaration does not apply to a backend with another declaration.
        if any(getattr(subject.semantics, q, None) != choice for q, choice in mutant.declares.items()):
            continue
        if altered_by(mutant).intersection(through):
            sentence = f"The numbers are those of a known defect, “{mutant.name}”: {mutant.statement}"
            yield Candidate(mutant.name, sentence, computed_by(subject, mutant.backend))


def altered_by(mutant: Mutant) -> set[str]:
    """Return the steps that a mutant alters."""
    made = mutant.alteration
    if not isinstance(made, type):
        return {mutant.replaces}
    return {name for c in made.__mro__ if c not in (*Formulas.__mro__, *Library.__mro__) for name in vars(c)}


def steps(subject: Subject, probe: Probe) -> set[str]:
    """Return the steps of the correct formulas that a call uses, and the library's own."""
    seen = {name for name in dir(Library) if not name.startswith("_")}

    class Watched(Formulas):
        def __getattribute__(self, name: str) -> Any:
            seen.add(name)
            return super().__getattribute__(name)

    Candidate("", "", computed_by(subject, lambda: Library("watched", Watched()))).numbers(probe)
    return seen


def computed_by(subject: Subject, make: Callable[[], Library]) -> Callable[[Probe, Arguments], Results]:
    """Return a function that computes probes with a NumPy backend, under the judged backend's declared choices.

    Each probe gets a new backend without memory of earlier calls.
    """
    operation = subject.operation

    def compute(probe: Probe, arguments: Arguments) -> Results:
        with choosing(**subject.choices):
            return chosen(probe, arguments)

    def chosen(probe: Probe, arguments: Arguments) -> Results:
        backend = make()
        if probe.views is not None and arguments is probe.arguments:
            given = {name: mapped(tree, lambda _, x: read_only(x)) for name, tree in probe.views.items()}
        else:
            # Some backends write to their arguments.
            given = arguments.passed_as(lambda path: copied(arguments[path]))
        if probe.cotangents is None:
            return {
                leaf.path: np.asarray(x) for leaf, x in results(operation, getattr(backend, operation.name)(**given))
            }
        found = backend.vjp(operation.name, given, cotangent_of(subject, probe))
        return {path: np.asarray(found[path]) for path in probe.got}

    return compute


def copied(x: Any) -> Any:
    """Return a copy of an array; other values unchanged."""
    return x.copy() if isinstance(x, np.ndarray) else x


def read_only(x: Any) -> Any:
    """Return a read-only view of an array."""
    if not isinstance(x, np.ndarray):
        return x
    view = x.view()
    view.flags.writeable = False
    return view
