"""Candidates of a diagnosis that make another choice than the declared one."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import live_rows, with_feature_axes
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.semantics import QUESTIONS, choices_of_formula

VISIBLE_EFFECTS = {
    ("causal_alignment", "top-left"): "The causal mask is aligned at the top left",
    ("causal_alignment", "bottom-right"): "The causal mask is aligned at the bottom right",
    ("fully_masked", "zero"): "Rows without attendable keys are 0",
    ("fully_masked", "uniform"): "Rows without attendable keys are the mean over all keys",
    ("fully_masked", "nan"): "Rows without attendable keys are NaN",
    ("no_keys", "nan"): "Without keys the result is NaN",
    ("length_alignment", "ignored"): "Key lengths do not move the causal mask",
    ("length_alignment", "at-length"): "The last query is aligned with the last key within the length",
    ("window_left", "excludes-own"): "The left side of a window does not count the query's own position",
    ("window_left", "includes-own"): "The left side of a window counts the query's own position",
    ("logarithms", "natural"): "Log-sum-exps are natural logarithms",
    ("logarithms", "base-2"): "Log-sum-exps are logarithms to base 2",
    ("sink_alone", "sink"): "The log-sum-exp of a row without attendable keys is its sink",
    ("sink_alone", "minus-infinity"): "The log-sum-exp of a row without attendable keys is −∞, even with a sink",
    ("gru_reset", "before"): "The reset gate multiplies the state before the recurrent product",
    ("gru_reset", "after"): "The reset gate multiplies the recurrent product",
    ("gru_update", "state"): "The update gate multiplies the state",
    ("gru_update", "candidate"): "The update gate multiplies the candidate",
    ("lstm_forget_bias", "as-given"): "The forget gate's bias is added as it is given",
    ("lstm_forget_bias", "plus-one"): "1 is added to the forget gate's bias",
    ("rms_weight", "as-given"): "The weight of RMS normalization is its factor",
    ("rms_weight", "plus-one"): "1 is added to the weight of RMS normalization",
    ("gelu_form", "erf"): "GELU is computed by erf",
    ("gelu_form", "tanh"): "GELU is approximated with tanh",
    ("head_groups", "blocks"): "Consecutive query heads share a key head",
    ("head_groups", "interleaved"): "Query heads take key heads in turn",
    ("alibi_distances", "absolute"): "Linear biases penalise the distance |i − j|",
    ("alibi_distances", "signed"): "Linear biases penalise i − j, negative for later keys",
    ("rotary_pairs", "interleaved"): "Features 2i and 2i + 1 are turned together",
    ("rotary_pairs", "halves"): "Features i and i + d/2 are turned together",
    ("padding_positions", "zero"): "Padding has position 0",
    ("padding_positions", "one"): "Padding has position 1",
    ("padding_positions", "previous"): "Padding has the position of the token before it",
    ("padding_positions", "minus-one"): "Padding has position −1",
    ("rotary_ramp", "rotations"): "The share of the unscaled frequency grows with the rotations of a pair",
    ("rotary_ramp", "indices"): "The share of the unscaled frequency falls with the index of a pair",
    ("rotary_ramp", "whole-indices"): "The share of the unscaled frequency falls between two whole indices of pairs",
}
"""Sentences on the choices that a diagnosis may name; others change no finite numbers, or raise errors."""

Formula = Callable[[Arguments], Results]


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
    for question, choices in choices_of_formula(operation).items():
        for choice in choices:
            chosen: dict[str, Any] = {question: choice}
            yield question, choice, partial(subject.oracle_values, **chosen)
    # This question concerns operations that weigh keys once; in models, such as ``encoder_stack``, layers mix the rows.
    if QUESTIONS["attendable_nan"].concerns(operation) and operation.masks and len(operation.outputs) == 1:
        yield "fully_masked", "nan", partial(_nan_in_empty_rows, subject)
    if QUESTIONS["no_keys"].concerns(operation):
        yield "no_keys", "nan", partial(_nan_without_keys, subject)


def _nan_in_empty_rows(subject: Subject, arguments: Arguments) -> Results:
    """Return the formula's results, with NaN in rows without attendable keys; unchanged if there are no keys."""
    leaf, size = subject.operation.leading, subject.operation.query_size
    results = subject.oracle_values(arguments)
    result, live = results[leaf.path], live_rows(arguments, semantics=subject.semantics)
    if not arguments.keys_count or live.all():
        return results
    return {leaf.path: np.where(with_feature_axes(live, leaf, size), result, np.nan)}


def _nan_without_keys(subject: Subject, arguments: Arguments) -> Results:
    results = subject.oracle_values(arguments)
    return results if arguments.keys_count else {path: np.full(x.shape, np.nan) for path, x in results.items()}
