"""Choices in force: which formulas ask for them, and for how long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE, choice, choosing
from attnspec.spec import OPERATIONS, QUESTIONS
from attnspec.spec.contract.semantics import asked_by_formula
from attnspec.spec.contract.tree import flatten


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_formula_asks_what_its_records_depend_on(name: str, draw: Callable[..., dict[str, Any]]) -> None:
    arguments, questions = draw(name), asked_by_formula(OPERATIONS[name])
    if "causal" in OPERATIONS[name].defaults:
        arguments["causal"] = True
    normative = flatten(REFERENCE[name](**arguments))
    for question, described in QUESTIONS.items():
        for other in described.choices[1:]:
            with choosing(**{question: other}):
                chosen = flatten(REFERENCE[name](**arguments))
            same = all(np.array_equal(chosen[path], x) for path, x in normative.items())
            assert same == (question not in questions)


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
        ({"gru": "after"}, f"choosing: expected questions among {', '.join(QUESTIONS)}; got gru"),
        ({"gru_reset": "later"}, "semantics gru_reset: expected one of before, after; got 'later'"),
    ],
)
def test_an_unknown_question_or_choice_is_refused(choices: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+.*: expected") as raised, choosing(**choices):
        pass
    assert str(raised.value) == message
    assert choice("gru_reset") == "before"
