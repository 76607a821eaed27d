"""Diagnosis: search for the known defect that reproduces a backend's numbers on all inputs.

These include inputs on which the backend's numbers are right. At most one defect is named.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from attnspec.conformance.explaining.candidates import (
    Candidate,
    differs_from_formula,
    explains,
    mutant_candidates,
    nearly_equal,
    rounded_candidates,
    used_steps,
    with_finite_numbers,
)
from attnspec.conformance.explaining.choices import choice_candidates, formula_candidate
from attnspec.conformance.explaining.dropped_keys import dropped_keys_candidates
from attnspec.conformance.explaining.explanations import Diagnosis
from attnspec.conformance.explaining.factors import factor_candidates
from attnspec.conformance.explaining.misread_operands import misreading_candidates
from attnspec.conformance.explaining.probes import Probe, probe_in_domain
from attnspec.conformance.explaining.undeclarable_precisions import undeclarable_precision
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.semantics import choices_of_formula

CallBackend = Callable[[Arguments], Results | None]
"""Calls the backend on further arguments; returns None for results of a wrong shape."""

MAX_JUDGED = 6
"""Largest number of further arguments judged by budgets because candidates differ from the formula there."""


def diagnosis_of_probes(
    subject: Subject,
    probes: Sequence[Probe],
    *,
    further: Sequence[Arguments] = (),
    call: CallBackend | None = None,
    deadline: float = np.inf,
    without: Collection[str] = (),
) -> Diagnosis | None:
    """Return the diagnosis that explains all probes; None if no candidate does, or different ones do.

    Candidates that explain all probes are compared on ``further`` arguments, on which ``call`` calls the backend.
    Without ``call`` there is no diagnosis if candidates differ there. ``deadline`` is a ``time.process_time``.
    Candidates named in ``without`` are left out.
    """
    wrong, ordered = ordered_probes(probes)
    if not wrong:
        return None
    for kind in candidate_kinds(subject, wrong[0], without):
        fitting = [*kind]
        for probe in ordered:
            fitting = _explaining(fitting, probe, subject, deadline)
        if time.process_time() > deadline:
            return None
        fitting = [c for c in fitting if any(differs_from_formula(c, probe) for probe in wrong)]
        fitting = [c for c in fitting if not _agrees_only_in_nan(c, wrong, further, subject, deadline)]
        if fitting := _fitting_further_inputs(fitting, further, call, subject, deadline):
            names = tuple(dict.fromkeys(c.name for c in fitting))
            return Diagnosis(subject.operation.name, subject.dtype, _sentence(fitting), names)
    sentence = undeclarable_precision(subject, ordered, call)
    return None if sentence is None else Diagnosis(subject.operation.name, subject.dtype, sentence)


def _sentence(fitting: Sequence[Candidate]) -> str:
    """Return the sentence of the first candidate, with the fewest operands that explain all probes."""
    first = fitting[0]
    if not first.operands:
        return first.sentence
    groups = [c.operands for c in fitting if c.name == first.name]
    fewest = [", ".join(group) for group in groups if len(group) == min(map(len, groups))]
    return f"{first.sentence} This concerns {'; or '.join(fewest)}."


def ordered_probes(probes: Sequence[Probe]) -> tuple[list[Probe], list[Probe]]:
    """Return the wrong probes, and all probes with wrong ones first; both by increasing size.

    If any result is wrong, gradients are left out, since the gradients of a wrong result may be wrong for its reason.
    """
    by_size = sorted(probes, key=lambda probe: probe.size)
    if any(probe.wrong and probe.cotangents is None for probe in by_size):
        by_size = [probe for probe in by_size if probe.cotangents is None]
    wrong = [probe for probe in by_size if probe.wrong]
    return wrong, [*wrong, *(probe for probe in by_size if not probe.wrong)]


def candidate_kinds(subject: Subject, first: Probe, without: Collection[str] = ()) -> Iterator[Iterator[Candidate]]:
    """Yield the kinds of candidates in the order in which they are tried.

    Choices and the operation's own mutants come before factors, which are fitted and so may fit by chance. The mutants
    are tried under the declared choices first, then under each other choice of one question: a backend may make it
    undeclared, and be wrong in another way.
    """
    yield choice_candidates(subject)
    yield misreading_candidates(subject, first)
    yield rounded_candidates(subject)
    steps_in_use = used_steps(subject, first)
    yield mutant_candidates(subject, first, steps_in_use, of_operation=True, without=without)
    yield dropped_keys_candidates(subject, first)
    yield factor_candidates(subject, first)
    yield mutant_candidates(subject, first, steps_in_use, of_operation=False, without=without)
    for question, choices in choices_of_formula(subject.operation).items():
        for choice in choices:
            if choice != getattr(subject.semantics, question):
                instead = {question: choice}
                yield mutant_candidates(
                    subject, first, steps_in_use, of_operation=True, without=without, instead=instead
                )


def _explaining(candidates: Iterable[Candidate], probe: Probe, subject: Subject, deadline: float) -> list[Candidate]:
    """Return the candidates that explain a probe; none that would be tried after the deadline."""
    return [c for c in candidates if time.process_time() <= deadline and explains(c, probe, subject)]


def _agrees_only_in_nan(
    candidate: Candidate, wrong: Sequence[Probe], further: Sequence[Arguments], subject: Subject, deadline: float
) -> bool:
    """Return True if a candidate agrees with the probes only in NaN and infinities.

    Many defects divide 0 by 0 on the same inputs, so that a NaN is no evidence for one of them. The candidate is
    nevertheless accepted if it differs from the formula in no finite number of the further arguments.
    """
    if any(differs_from_formula(candidate, probe, finite=True) for probe in wrong):
        return False
    for arguments in further:
        if time.process_time() > deadline:
            break
        right = formula_candidate(subject).numbers(Probe(arguments, {}, {}, {}))
        predicted = candidate.numbers(Probe(arguments, {}, right or {}, {}))
        if right is None or predicted is None:
            continue
        if _differ([right, with_finite_numbers(predicted, right)]):
            return True
    return False


def _fitting_further_inputs(
    remaining: list[Candidate],
    further: Sequence[Arguments],
    call: CallBackend | None,
    subject: Subject,
    deadline: float,
) -> list[Candidate]:
    """Return the candidates that also fit further arguments; without ``call``, none if they differ there.

    A candidate is judged by budgets on arguments where its results are not near the backend's, and on up to
    ``MAX_JUDGED`` others where candidates differ from the formula.
    """
    judged = 0
    for arguments in further if remaining else ():
        if time.process_time() > deadline or (call is None and len(remaining) < 2):
            break
        right = formula_candidate(subject).numbers(Probe(arguments, {}, {}, {}))
        result = None if call is None else call(arguments)
        if right is None or (result is None and call is not None):
            continue
        results = [c.numbers(Probe(arguments, {}, right, {})) for c in remaining]
        if result is None:
            if _differ(results):
                return []
            continue
        visible = judged < MAX_JUDGED and _differ([right, *results])
        if visible or _differ([result, *results]):
            judged += visible
            probe = probe_in_domain(subject, arguments, result)
            remaining = remaining if probe is None else _explaining(remaining, probe, subject, np.inf)
    return remaining


def _differ(results: Sequence[Results | None]) -> bool:
    """Return True if any results differ from the first by more than roundings can explain."""
    first, *others = results
    if first is None:
        return any(other is not None for other in others)
    no_budget = {path: np.zeros(x.shape) for path, x in first.items()}
    return any(other is None or not nearly_equal(other, first, no_budget) for other in others)
