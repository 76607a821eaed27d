"""Results that are chosen: by themselves where no error decides, and by their scores everywhere."""

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

CHOOSING = [o.name for o in OPERATIONS.values() if o.chosen]
SIZES = {"d_s": 4, "m": 3, "d_h": 2, "steps": 4, "beams": 2}
SIZES |= {"parameters.vocabulary": 5, "parameters.d_y": 3, "parameters.h": 2}


def verdict(backend: Any, law: str, name: str, kind: str) -> str:
    """What the law says of an input: nothing, or its message."""
    operation = OPERATIONS[name]
    subject = Subject(backend, Contract.of(backend), operation, "float32", "cpu")
    example = Example(
        {size: SIZES[size] for size in operation.sizes}, kinds={"parameters": kind}, options={"eos": 4}, seed=1
    )
    arguments = example.arguments(operation, "float32")
    if kind == "zeros":
        floats = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats}
        arguments = arguments.replaced(floats)
    found = first_violated(subject, CHECKS[law], arguments, 0)
    return "" if found is None else found[1].message


def test_what_chooses_says_how_good_the_choice_is() -> None:
    assert CHOOSING
    for name in CHOOSING:
        operation = OPERATIONS[name]
        assert operation.float_result
        assert not operation.differentiable
        assert operation.leading.path not in operation.chosen


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("law", ["operation.oracle", "seq2seq.score-of-tokens", "seq2seq.greedy-choice"])
def test_correct_choices_are_accepted(name: str, law: str) -> None:
    assert not verdict(Library("correct"), law, name, "normal")
    assert not verdict(Library("correct"), law, name, "zeros")


@pytest.mark.parametrize(
    ("name", "mutant"), [("greedy_decode", "last of equal tokens"), ("beam_decode", "last of equal candidates")]
)
def test_another_choice_of_equals_is_no_error_of_the_formula(name: str, mutant: str) -> None:
    backend = MUTANTS[mutant].backend()
    assert not verdict(backend, "operation.oracle", name, "zeros")
    assert not verdict(backend, "seq2seq.score-of-tokens", name, "zeros")
    assert verdict(backend, "seq2seq.greedy-choice", name, "zeros")


def test_another_choice_is_an_error_where_none_decides() -> None:
    backend = MUTANTS["second best token"].backend()
    assert "the result tokens" in verdict(backend, "operation.oracle", "greedy_decode", "normal")
    assert not verdict(backend, "seq2seq.score-of-tokens", "greedy_decode", "normal")
