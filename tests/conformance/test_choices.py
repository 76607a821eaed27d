"""Decoded tokens: judged by the tokens where scores differ clearly, and always by their scores."""

from typing import Any

import numpy as np
import pytest

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.attempt import first_violated
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.mutants.correct import Library
from attnspec.spec import OPERATIONS

DECODERS = [o.name for o in OPERATIONS.values() if o.chosen]
SIZES = {"d_s": 4, "m": 3, "d_h": 2, "steps": 4, "beams": 2}
SIZES |= {"parameters.vocabulary": 5, "parameters.d_y": 3, "parameters.h": 2}


def violation_message(backend: Any, law: str, name: str, kind: str) -> str:
    """The message of the law's violation on one input, or an empty text."""
    operation = OPERATIONS[name]
    subject = Subject(backend, Contract.of(backend), operation, "float32", "cpu")
    example = Example(
        {size: SIZES[size] for size in operation.sizes}, kinds={"parameters": kind}, options={"eos": 4}, seed=1
    )
    arguments = example.arguments(operation, "float32")
    if kind == "zeros":
        floats = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats}
        arguments = arguments.replaced(floats)
    violated_law = first_violated(subject, CHECKS[law], arguments, 0)
    return "" if violated_law is None else violated_law[1].message


def test_operations_that_choose_tokens_return_their_scores() -> None:
    assert DECODERS
    for name in DECODERS:
        operation = OPERATIONS[name]
        assert operation.float_result
        assert not operation.differentiable
        assert operation.leading.path not in operation.chosen


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "law", ["operation.oracle", "seq2seq.score-sums-log-probabilities", "seq2seq.greedy-takes-most-probable"]
)
def test_correct_tokens_are_accepted(name: str, law: str) -> None:
    assert not violation_message(Library("correct"), law, name, "normal")
    assert not violation_message(Library("correct"), law, name, "zeros")


@pytest.mark.parametrize(
    ("name", "mutant"), [("greedy_decode", "last of equal tokens"), ("beam_decode", "last of equal candidates")]
)
def test_another_of_equally_good_tokens_violates_the_tie_rule_alone(name: str, mutant: str) -> None:
    backend = MUTANTS[mutant].backend()
    assert not violation_message(backend, "operation.oracle", name, "zeros")
    assert not violation_message(backend, "seq2seq.score-sums-log-probabilities", name, "zeros")
    assert violation_message(backend, "seq2seq.greedy-takes-most-probable", name, "zeros")


def test_a_worse_token_violates_the_formula() -> None:
    backend = MUTANTS["second best token"].backend()
    assert "the result tokens" in violation_message(backend, "operation.oracle", "greedy_decode", "normal")
    assert not violation_message(backend, "seq2seq.score-sums-log-probabilities", "greedy_decode", "normal")
