"""Diagnosis: at most one known defect that reproduces a backend's numbers on all inputs, right ones too."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from attnspec.conformance.explaining.candidates import (
    Candidate,
    explains,
    near,
    of_mutants,
    steps,
    tells,
    with_finite_numbers,
)
from attnspec.conformance.explaining.choices import of_choices, of_formula
from attnspec.conformance.explaining.factors import of_factors
from attnspec.conformance.explaining.finding import Diagnosis
from attnspec.conformance.explaining.precisions import of_precisions
from attnspec.conformance.explaining.probes import Probe, judged_by
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Results, Subject

Call = Callable[[Arguments], Results | None]
"""Results of a backend on further arguments; None if they lack the right shape."""

JUDGED = 6
"""Number of further arguments judged by budgets, where candidates differ from the formula."""


def diagnosed(
    subject: Subject,
    probes: Sequence[Probe],
    *,
    further: Sequence[Arguments] = (),
    call: Call | None = None,
    until: float = np.inf,
    without: Collection[str] = (),
) -> Diagnosis | None:
    """Return the diagnosis that explains all probes; None without one, or if different candidates remain.

    Candidates that explain all probes are compared on ``further`` arguments, on which ``call`` calls the backend.
    Without ``call``, candidates that differ there give no diagnosis. ``until`` is the deadline by
    ``time.process_time``. Candidates named in ``without`` are left out.
    """
    wrong, ordered = in_order(probes)
    if not wrong:
        return None
    for kind in kinds(subject, wrong[0], without):
        left = [*kind]
        for probe in ordered:
            left = _explaining(left, probe, subject, until)
        if time.process_time() > until:
            return None
        left = [c for c in left if any(tells(c, probe) for probe in wrong)]
        left = [c for c in left if not _by_accident(c, wrong, further, subject, until)]
        if left := _told_apart(left, further, call, subject, until):
            return Diagnosis(subject.operation.name, subject.dtype, left[0].sentence, tuple(c.name for c in left))
    sentence = of_precisions(subject, ordered, call)
    return None if sentence is None else Diagnosis(subject.operation.name, subject.dtype, sentence)


def in_order(probes: Sequence[Probe]) -> tuple[list[Probe], list[Probe]]:
    """Return the wrong probes, and all probes: wrong ones first, small ones first.

    If results are wrong, gradients are left out: gradients of a wrong result are a separate question.
    """
    by_size = sorted(probes, key=lambda probe: probe.size)
    if any(probe.wrong and probe.cotangents is None for probe in by_size):
        by_size = [probe for probe in by_size if probe.cotangents is None]
    wrong = [probe for probe in by_size if probe.wrong]
    return wrong, [*wrong, *(probe for probe in by_size if not probe.wrong)]


def kinds(subject: Subject, first: Probe, without: Collection[str] = ()) -> Iterator[Iterator[Candidate]]:
    """Yield the kinds of candidates, plainest first; if two fit, the earlier kind is named.

    Candidates without parameters come before factors, which are fitted.
    """
    yield of_choices(subject)
    through = steps(subject, first)
    yield of_mutants(subject, first, through, own=True, without=without)
    yield of_factors(subject, first)
    yield of_mutants(subject, first, through, own=False, without=without)


def _explaining(candidates: Iterable[Candidate], probe: Probe, subject: Subject, until: float) -> list[Candidate]:
    """Return the candidates that explain a probe, until the deadline."""
    return [c for c in candidates if time.process_time() <= until and explains(c, probe, subject)]


def _by_accident(
    candidate: Candidate, wrong: Sequence[Probe], further: Sequence[Arguments], subject: Subject, until: float
) -> bool:
    """Return true if a candidate agrees only in NaN and infinities, but shows in finite numbers elsewhere.

    Such a defect divides 0 by 0 where many others do: that both results are NaN there is no evidence.
    """
    if any(tells(candidate, probe, finite=True) for probe in wrong):
        return False
    for arguments in further:
        if time.process_time() > until:
            break
        right = of_formula(subject).numbers(Probe(arguments, {}, {}, {}))
        found = candidate.numbers(Probe(arguments, {}, right or {}, {}))
        if right is None or found is None:
            continue
        if _differ([right, with_finite_numbers(found, right)]):
            return True
    return False


def _told_apart(
    left: list[Candidate], further: Sequence[Arguments], call: Call | None, subject: Subject, until: float
) -> list[Candidate]:
    """Return the candidates that fit further arguments; without ``call``, none if candidates differ there.

    Large differences are judged by the budget, as are a few inputs where candidates differ from the formula.
    """
    judged = 0
    for arguments in further if left else ():
        if time.process_time() > until or (call is None and len(left) < 2):
            break
        right = of_formula(subject).numbers(Probe(arguments, {}, {}, {}))
        found = None if call is None else call(arguments)
        if right is None or (found is None and call is not None):
            continue
        results = [c.numbers(Probe(arguments, {}, right, {})) for c in left]
        if found is None:
            if _differ(results):
                return []
            continue
        shown = judged < JUDGED and _differ([right, *results])
        if shown or _differ([found, *results]):
            judged += shown
            probe = judged_by(subject, arguments, found)
            left = left if probe is None else _explaining(left, probe, subject, np.inf)
    return left


def _differ(found: Sequence[Results | None]) -> bool:
    """Return whether results differ from the first by more than roundings can explain."""
    first, *others = found
    if first is None:
        return any(other is not None for other in others)
    nothing = {path: np.zeros(x.shape) for path, x in first.items()}
    return any(other is None or not near(other, first, nothing) for other in others)
