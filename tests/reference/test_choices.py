"""Choices in force: which formulas ask for them, and for how long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE, choice, choosing
from attnspec.spec import OPERATIONS, QUESTIONS, Operation
from attnspec.spec.contract.semantics import choices_of_formula
from attnspec.spec.contract.tree import flatten

from .conftest import SIZES, without_keys_for_first_query

WITHOUT_AVERAGES = ("mean_normalization", "dropout", "graph_layer", "sigmoid_attention")
"""Operations with a mask whose rows are no weighted averages: without keys they are 0 under any choice."""


def inputs_that_show(question: str, operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments, with those options on which a choice plays a part."""
    inputs = dict(arguments)
    if "causal" in operation.defaults:
        inputs["causal"] = question != "alibi_distances"  # signed and absolute ones differ at later keys
    if question in ("length_alignment", "window_left") and "key_lengths" in operation.lengths:
        inputs["key_lengths"] = np.asarray(SIZES["m"])  # not n, where both alignments are one
    if question == "window_left" and "window" in operation.defaults:
        inputs["window"] = (1, None)
    if question == "sink_alone" and "sinks" in inputs:
        hidden = [x.path for x in operation.masks.values()] + [x for x in operation.lengths if x in inputs]
        inputs |= {path: np.zeros_like(inputs[path]) for path in hidden}
        if operation.cumulative:  # all queries are in the first sequence, all keys in the last
            queries, keys = operation.cumulative
            places = np.arange(inputs[keys].size)
            inputs[queries] = np.where(places > 0, inputs[queries][-1], 0)
            inputs[keys] = np.where(places == places[-1], inputs[keys][-1], 0)
    if operation.name == "positions_from_mask":
        inputs["mask"] = np.arange(SIZES["t"]) % 3 > 0  # padding before the tokens and behind them
    return without_keys_for_first_query(operation, inputs) if question == "fully_masked" else inputs


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_formula_asks_what_its_records_depend_on(name: str, draw: Callable[..., dict[str, Any]]) -> None:
    operation, arguments = OPERATIONS[name], draw(name)
    # Lengths may be drawn as 0, and then no step is computed.
    arguments = {path: x for path, x in arguments.items() if path not in {*operation.lengths} & {*operation.defaults}}
    choices = choices_of_formula(operation)
    for question, described in QUESTIONS.items():
        if question == "fully_masked" and not operation.masks:
            continue  # masks that a formula makes itself, as `rnn_self_attention` does, raise no question
        inputs = inputs_that_show(question, operation, arguments)
        normative = flatten(REFERENCE[name](**inputs))
        for other in described.choices[1:]:
            with choosing(**{question: other}):
                chosen = flatten(REFERENCE[name](**inputs))
            same = all(np.array_equal(chosen[path], x) for path, x in normative.items())
            has_no_average = question == "fully_masked" and name in WITHOUT_AVERAGES
            assert same == (other not in choices.get(question, ()) or has_no_average)


def test_a_choice_holds_within_its_context() -> None:
    assert choice("gru_reset") == "before"
    with choosing(gru_reset="after"):
        assert choice("gru_reset") == "after"
        with choosing(no_keys="nan"):
            assert (choice("gru_reset"), choice("no_keys")) == ("after", "nan")
    assert choice("gru_reset") == "before"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"gru": "after"}, "choosing: expected questions among gru_reset, gru_update, head_groups, …; got gru"),
        ({"gru_reset": "later"}, "semantics gru_reset: expected one of before, after; got 'later'"),
    ],
)
def test_an_unknown_question_or_choice_is_refused(choices: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+.*: expected") as raised, choosing(**choices):
        pass
    assert str(raised.value) == message
    assert choice("gru_reset") == "before"
