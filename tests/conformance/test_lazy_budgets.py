"""Budgets that are computed only where numbers differ: the verdicts are those of budgets computed in advance."""

from typing import NoReturn

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.comparison import Comparisons
from attnspec.conformance.judging.violation import Violation
from attnspec.spec.contract.operation import OPERATIONS

ARGUMENTS = Arguments(OPERATIONS["dot_scores"], {"query": np.ones((2, 3)), "key": np.ones((4, 3))})


def unasked() -> NoReturn:
    raise AssertionError("a budget was computed for numbers that are equal")


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble", "bool"])
def test_equal_numbers_need_no_budget(dtype: str) -> None:
    x = np.array([0, 1, 1]).astype(dtype)
    compared = Comparisons()
    compared.matches(x, x.copy(), unasked, ARGUMENTS)
    assert (compared.ratio, compared.not_judged) == (0.0, 0)


def test_what_is_expected_to_be_open_needs_none() -> None:
    Comparisons().matches(np.array([1.0, 5.0]), np.array([1.0, np.nan]), unasked, ARGUMENTS)


@pytest.mark.parametrize("got", [[1.0, 2.5], [1.0, np.nan], [np.inf, 2.0]])
def test_different_numbers_are_judged_by_the_budget_that_is_asked_for(got: list[float]) -> None:
    expected, budget = np.array([1.0, 2.0]), np.array([0.01, 0.02])
    messages = []
    for given in (budget, lambda: budget):
        with pytest.raises(Violation) as caught:
            Comparisons().matches(np.array(got), expected, given, ARGUMENTS)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    near = Comparisons()
    near.matches(expected + 2.0**-8, expected, lambda: np.array([2.0**-7, 2.0**-6]), ARGUMENTS)
    assert near.ratio == 0.5
