"""Candidates that make another choice where the specification leaves one."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import before_features, live_rows
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.rows_without_keys import evenly
from attnspec.spec.contract.semantics import QUESTIONS, asked_by_formula

SEEN = {
    ("causal_alignment", "top-left"): "The causal mask is aligned at the top left",
    ("causal_alignment", "bottom-right"): "The causal mask is aligned at the bottom right",
    ("fully_masked", "uniform"): "Rows without attendable keys are the mean over all keys",
    ("fully_masked", "nan"): "Rows without attendable keys are NaN",
    ("no_keys", "nan"): "Without keys the result is NaN",
    ("gru_reset", "before"): "The reset gate multiplies the state before the recurrent product",
    ("gru_reset", "after"): "The reset gate multiplies the recurrent product",
    ("rotary_pairs", "interleaved"): "Features 2i and 2i + 1 are turned together",
    ("rotary_pairs", "halves"): "Features i and i + d/2 are turned together",
}
"""Visible effects of choices; the other choices change no finite numbers, or are errors."""

Formula = Callable[[Arguments], Results]


def of_choices(subject: Subject) -> Iterator[Candidate]:
    """Yield the undeclared choices, for questions that concern the operation."""
    for question, choice, formula in _formulas(subject):
        declared = getattr(subject.semantics, question)
        if choice != declared:
            sentence = f"{SEEN[question, choice]}: {question} is {choice}, where {declared} is declared."
            yield Candidate(f"{question} {choice}", sentence, _of_results(formula))


def of_formula(subject: Subject) -> Candidate:
    """The formula itself, under the declared choices."""
    return Candidate("", "", _of_results(lambda given: subject.unrounded(given)))


def _of_results(formula: Formula) -> Callable[[Probe, Arguments], Results | None]:
    """Return a computation of results by a formula; it returns None for gradients."""
    return lambda probe, arguments: None if probe.cotangents is not None else formula(arguments)


def _formulas(subject: Subject) -> Iterator[tuple[str, str, Formula]]:
    """Yield questions and choices, with the operation's formula under each."""
    operation = subject.operation
    for question in asked_by_formula(operation):
        for choice in QUESTIONS[question].choices:
            yield question, choice, partial(_chosen, subject, question, choice)
    if QUESTIONS["attendable_nan"].concerns(operation) and operation.masks and len(operation.outputs) == 1:
        yield (
            "fully_masked",
            "uniform",
            partial(_without_keys, subject, lambda given, x: evenly(given, x.shape, subject)),
        )
        yield "fully_masked", "nan", partial(_without_keys, subject, lambda given, x: np.full(x.shape, np.nan))
    if QUESTIONS["no_keys"].concerns(operation):
        yield "no_keys", "nan", partial(_no_keys, subject)


def _chosen(subject: Subject, question: str, choice: str, given: Arguments) -> Results:
    return subject.unrounded(given, **{question: choice})


def _without_keys(subject: Subject, instead: Callable[[Arguments, Numbers], Numbers], given: Arguments) -> Results:
    """Return the formula with other numbers in rows without attendable keys; unchanged without any key."""
    leaf, asking = subject.operation.leading, subject.operation.asking
    found = subject.unrounded(given)
    result, live = found[leaf.path], live_rows(given, bottom_right=subject.semantics.bottom_right)
    if not given.keys_count or live.all():
        return found
    return {leaf.path: np.where(before_features(live, leaf, asking), result, instead(given.plain(), result))}


def _no_keys(subject: Subject, given: Arguments) -> Results:
    found = subject.unrounded(given)
    return found if given.keys_count else {path: np.full(x.shape, np.nan) for path, x in found.items()}
