"""Candidates of a diagnosis that make another choice than the declared one."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import live_rows, with_feature_axes
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.rows_without_keys import result_of_equal_weights
from attnspec.spec.contract.semantics import QUESTIONS, asked_by_formula

VISIBLE_EFFECTS = {
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
"""Sentences on the choices that a diagnosis may name; others change no finite numbers, or raise errors."""

Formula = Callable[[Arguments], Results]
Fill = Callable[[Arguments, tuple[int, ...]], Numbers]


def choice_candidates(subject: Subject) -> Iterator[Candidate]:
    """Yield a candidate for every undeclared choice of the questions that concern the operation."""
    for question, choice, formula in _formulas(subject):
        declared = getattr(subject.semantics, question)
        if choice != declared:
            sentence = f"{VISIBLE_EFFECTS[question, choice]}: {question} is {choice}, where {declared} is declared."
            yield Candidate(f"{question} {choice}", sentence, _of_results(formula))


def formula_candidate(subject: Subject) -> Candidate:
    """Return a candidate without a defect: the formula under the declared choices."""
    return Candidate("", "", _of_results(subject.oracle_values))


def _of_results(formula: Formula) -> Callable[[Probe, Arguments], Results | None]:
    """Return a candidate's computation by a formula, which predicts no gradients."""
    return lambda probe, arguments: None if probe.cotangents is not None else formula(arguments)


def _formulas(subject: Subject) -> Iterator[tuple[str, str, Formula]]:
    operation = subject.operation
    for question in asked_by_formula(operation):
        for choice in QUESTIONS[question].choices:
            choices: dict[str, Any] = {question: choice}
            yield question, choice, partial(subject.oracle_values, **choices)
    # This question concerns operations that weigh keys once; in models, such as ``encoder_stack``, layers mix the rows.
    if QUESTIONS["attendable_nan"].concerns(operation) and operation.masks and len(operation.outputs) == 1:
        uniform = partial(result_of_equal_weights, subject=subject)
        yield "fully_masked", "uniform", partial(_with_empty_rows, subject, uniform)
        yield "fully_masked", "nan", partial(_with_empty_rows, subject, lambda _, shape: np.full(shape, np.nan))
    if QUESTIONS["no_keys"].concerns(operation):
        yield "no_keys", "nan", partial(_nan_without_keys, subject)


def _with_empty_rows(subject: Subject, fill: Fill, arguments: Arguments) -> Results:
    """Return the formula's results with replaced rows without attendable keys; unchanged if there are no keys."""
    leaf, size = subject.operation.leading, subject.operation.query_size
    results = subject.oracle_values(arguments)
    result, live = results[leaf.path], live_rows(arguments, bottom_right=subject.semantics.bottom_right)
    if not arguments.keys_count or live.all():
        return results
    return {leaf.path: np.where(with_feature_axes(live, leaf, size), result, fill(arguments.unordered(), result.shape))}


def _nan_without_keys(subject: Subject, arguments: Arguments) -> Results:
    results = subject.oracle_values(arguments)
    return results if arguments.keys_count else {path: np.full(x.shape, np.nan) for path, x in results.items()}
