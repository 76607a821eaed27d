"""Candidates of a diagnosis: known defects that predict a backend's results."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from attnspec.conformance.explaining.probes import CLEARLY_WRONG, Probe, cotangent_of, distance
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.mutants.correct import Formulas, Library
from attnspec.reference import choosing
from attnspec.reference.budget import WIDTH
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import map_tree

DRAWS = 3
"""Number of random perturbations of the arguments by which a candidate's own roundings are estimated."""

NEAR = 2.0**-6
"""Distance from a backend's results, relative to their maximum, up to which roundings are estimated."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A known defect: its name, a sentence for the reader, and the numbers that it predicts.

    ``compute`` takes a probe, and arguments that replace the probe's. It returns results, or gradients for a probe of
    gradients; None if the defect predicts nothing. ``operands`` names the arguments that are read wrongly.
    """

    name: str
    sentence: str
    compute: Callable[[Probe, Arguments], Results | None]
    operands: tuple[str, ...] = ()

    def numbers(self, probe: Probe, arguments: Arguments | None = None) -> Results | None:
        """Return the predicted numbers for a probe; None also if computing them raises an exception."""
        with np.errstate(all="ignore"):
            results = call_safely(lambda: self.compute(probe, probe.arguments if arguments is None else arguments))
        return None if isinstance(results, Raised) else cast("Results | None", results)


def explains(candidate: Candidate, probe: Probe, subject: Subject) -> bool:
    """Return True if a backend's numbers are the candidate's, within the errors of both.

    The candidate's errors are those that the formula may have or, if larger, those of its own roundings.
    """
    predicted = candidate.numbers(probe)
    if predicted is None or set(predicted) != set(probe.got):
        return False
    if largest_distance(predicted, probe.got, probe.allowed) <= 1:
        return True
    if not nearly_equal(predicted, probe.got, probe.allowed):
        return False
    own = roundings(candidate, probe, subject)
    if own is None:
        return False
    # ``largest_distance`` doubles budgets; the candidate's own roundings count once.
    return largest_distance(predicted, probe.got, {p: x + own[p] / 2 for p, x in probe.allowed.items()}) <= 1


def largest_distance(results: Results, others: Results, allowed: Results) -> float:
    """Return the largest difference of two results, divided by the sum of their budgets."""
    return max((distance(results[path], others[path], 2 * allowed[path]) for path in others), default=0.0)


def nearly_equal(results: Results, others: Results, allowed: Results, tolerance: float = NEAR) -> bool:
    """Return True if results differ by at most ``allowed`` plus ``tolerance`` times each array's maximum."""
    with np.errstate(all="ignore"):
        largest = {p: float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for p, x in others.items()}
    return largest_distance(results, others, {p: x + tolerance * largest[p] for p, x in allowed.items()}) <= 1


def differs_from_formula(candidate: Candidate, probe: Probe, *, finite: bool = False) -> bool:
    """Return True if a candidate clearly differs from the formula; with ``finite``, in finite numbers."""
    predicted = candidate.numbers(probe)
    if predicted is not None and finite:
        predicted = with_finite_numbers(predicted, probe.expected)
    return predicted is not None and largest_distance(predicted, probe.expected, probe.allowed) > CLEARLY_WRONG


def with_finite_numbers(results: Results, instead: Results) -> Results:
    """Replace NaN and infinities by the numbers of ``instead``; arrays of other shapes stay unchanged."""
    same_shape = {path for path, x in results.items() if x.shape == instead[path].shape}
    return {p: np.where(np.isfinite(x), x, instead[p]) if p in same_shape else x for p, x in results.items()}


def roundings(candidate: Candidate, probe: Probe, subject: Subject) -> Results | None:
    """Return the budget of a candidate's own roundings.

    It is the change of its results under perturbed arguments, plus the rounding of its results and of the backend's.
    """
    p = subject.precision
    # A 16-bit dtype would round small perturbations away.
    dtype = np.dtype(np.float32) if subject.dtype in NARROW else None
    rng = np.random.default_rng(0)
    floats = {leaf.path: x if dtype is None else x.astype(dtype) for leaf, x in probe.arguments.floats}
    # Arrays that the weights multiply, such as values, are also perturbed by as much as weights are rounded.
    weight = max(p.weights, p.operand, p.inputs)
    units = {path: 4 * max(p.accumulation, weight if path in subject.operation.linear else p.inputs) for path in floats}
    plain = candidate.numbers(probe, probe.arguments.replaced(floats))
    if plain is None:
        return None
    with np.errstate(all="ignore"):
        moved = {path: np.zeros(x.shape) for path, x in plain.items()}
        for _ in range(DRAWS):
            noise = {path: 1 + units[path] * rng.uniform(-1, 1, x.shape) for path, x in floats.items()}
            changed = {path: (x * noise[path]).astype(x.dtype) for path, x in floats.items()}
            shifted = candidate.numbers(probe, probe.arguments.replaced(changed))
            if shifted is None:
                return None
            shifts = {path: np.abs(shifted[path].astype(np.float64) - plain[path].astype(np.float64)) for path in moved}
            moved = {path: np.fmax(x, shifts[path]) for path, x in moved.items()}
        moved = {path: _at_least_average(x) for path, x in moved.items()}
        rounding = 2 * (p.output + p.accumulation)
        return {path: WIDTH * x + rounding * np.abs(plain[path].astype(np.float64)) for path, x in moved.items()}


def _at_least_average(moved: Numbers) -> Numbers:
    """Return how far numbers move, at least the root mean square of their row: all draws may be small at one number."""
    if not moved.size or not moved.ndim:
        return moved
    average: Numbers = np.sqrt((moved**2).mean(-1, keepdims=True))
    return np.maximum(moved, average)


# Mutants --------------------------------------------------------------------------------------------------------------


def mutant_candidates(
    subject: Subject,
    wrong: Probe,
    used_steps: Collection[str],
    *,
    of_operation: bool,
    without: Collection[str] = (),
    instead: Mapping[str, str] | None = None,
) -> Iterator[Candidate]:
    """Yield mutants that alter one of the used steps: those of the operation, or all others.

    Mutants whose wrong numbers are of the same kind, gradients or results, come first; among these, those of the dtype.
    They make the choices ``instead`` in place of the declared ones.
    """
    declared, other = vars(subject.semantics), instead or {}
    choices = {**declared, **other}
    beside = "".join(f" This is with {q} = {x}, where {declared[q]} is declared." for q, x in other.items())

    # A sort key: False comes before True.
    def otherwise_seen(mutant: Mutant) -> tuple[bool, bool]:
        return LAWS[mutant.breaks[0]].gradients is (wrong.cotangents is None), mutant.dtype != subject.dtype

    for mutant in sorted(MUTANTS.values(), key=otherwise_seen):
        if mutant.name in without or (subject.operation.name in mutant.operations) is not of_operation:
            continue
        # Without codes and scales, the formats of quantised operands cannot be misread.
        if mutant.operand_formats:
            continue
        # A mutant that declares a choice is wrong only under this declaration.
        if any(choices.get(q) != choice for q, choice in mutant.declares.items()):
            continue
        altered = altered_steps(mutant)
        # A part of another operation's defect may have another effect here.
        if altered <= set(used_steps) or (of_operation and altered.intersection(used_steps)):
            sentence = f"The numbers are those of a known defect, “{mutant.name}”: {mutant.statement}{beside}"
            yield Candidate(mutant.name, sentence, computation_by(subject, mutant.backend, instead))


class _Rounding(Library):
    """The formulas with every intermediate result in the dtype of the arguments."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are, not in float32."""
        return dict(arguments)


class _SummingInSingle(Formulas):
    """The formulas with sums over a dimension in float32, rounded at their end."""

    def total(self, x: Numbers) -> Numbers:
        """Sum over the last dimension, which is kept."""
        total: Numbers = Formulas.total(self, x.astype(np.float32)).astype(x.dtype)
        return total


def rounded_candidates(subject: Subject) -> Iterator[Candidate]:
    """Yield the formula with every intermediate result rounded, for dtypes of 16 bits."""
    for formulas in (_SummingInSingle, Formulas) if subject.dtype in NARROW else ():
        sentence = f"Every intermediate result is rounded to {subject.dtype}, as by operations without fusion."
        compute = computation_by(subject, partial(_Rounding, "every operation rounded", formulas()))
        yield Candidate("every operation rounded", sentence, compute)


def altered_steps(mutant: Mutant) -> set[str]:
    """Return the names of the formulas' steps that a mutant replaces."""
    alteration = mutant.alteration
    if not isinstance(alteration, type):
        return {mutant.replaces}
    return {name for c in alteration.__mro__ if c not in (*Formulas.__mro__, *Library.__mro__) for name in vars(c)}


def used_steps(subject: Subject, probe: Probe) -> set[str]:
    """Return the names of the formulas' steps and library's methods that a call may use."""
    used = {name for name in dir(Library) if not name.startswith("_")}

    class Watched(Formulas):
        def __getattribute__(self, name: str) -> Any:
            used.add(name)
            return super().__getattribute__(name)

    Candidate("", "", computation_by(subject, lambda: Library("watched", Watched()))).numbers(probe)
    return used


def computation_by(
    subject: Subject, make: Callable[[], Library], instead: Mapping[str, str] | None = None
) -> Callable[[Probe, Arguments], Results]:
    """Return a function that computes probes with a NumPy backend, under the judged backend's choices.

    ``instead`` are choices in place of the declared ones. Each probe gets a new backend, since some mutants remember
    earlier calls.
    """
    operation, choices = subject.operation, {**subject.choices, **(instead or {})}

    def compute(probe: Probe, arguments: Arguments) -> Results:
        if probe.views is not None and arguments is probe.arguments:
            inputs = {name: map_tree(tree, lambda _, x: read_only(x)) for name, tree in probe.views.items()}
        else:
            # Some mutants write to their arguments.
            inputs = arguments.passed_as(lambda path: copy_of(arguments[path]))
        with choosing(**choices):
            backend = make()
            if probe.cotangents is None:
                result = getattr(backend, operation.name)(**inputs)
                return {leaf.path: np.asarray(x) for leaf, x in results(operation, result)}
            gradients = backend.vjp(operation.name, inputs, cotangent_of(subject, probe))
            return {path: np.asarray(gradients[path]) for path in probe.got}

    return compute


def copy_of(x: Any) -> Any:
    """Return a copy of an array; other values unchanged."""
    return x.copy() if isinstance(x, np.ndarray) else x


def read_only(x: Any) -> Any:
    """Return a read-only view of an array."""
    if not isinstance(x, np.ndarray):
        return x
    view = x.view()
    view.flags.writeable = False
    return view
