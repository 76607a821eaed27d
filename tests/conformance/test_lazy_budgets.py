"""Lazy budgets are computed only where numbers differ, and change no verdict."""

from typing import NoReturn

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.comparison import Comparisons
from attnspec.conformance.judging.violation import Violation
from attnspec.spec.contract.operation import OPERATIONS

ARGUMENTS = Arguments(OPERATIONS["dot_scores"], {"query": np.ones((2, 3)), "key": np.ones((4, 3))})


def unexpected_budget() -> NoReturn:
    raise AssertionError("a budget was computed for numbers that are equal")


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble", "bool"])
def test_equal_numbers_need_no_budget(dtype: str) -> None:
    x = np.array([0, 1, 1]).astype(dtype)
    compared = Comparisons()
    compared.demand_match(x, x.copy(), unexpected_budget, ARGUMENTS)
    assert (compared.ratio, compared.not_judged) == (0.0, 0)


def test_an_expected_nan_needs_no_budget() -> None:
    Comparisons().demand_match(np.array([1.0, 5.0]), np.array([1.0, np.nan]), unexpected_budget, ARGUMENTS)


@pytest.mark.parametrize("result", [[1.0, 2.5], [1.0, np.nan], [np.inf, 2.0]])
def test_lazy_budgets_give_the_same_verdict(result: list[float]) -> None:
    expected, budget = np.array([1.0, 2.0]), np.array([0.01, 0.02])
    messages = []
    for budget_or_function in (budget, lambda: budget):
        with pytest.raises(Violation) as caught:
            Comparisons().demand_match(np.array(result), expected, budget_or_function, ARGUMENTS)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    near = Comparisons()
    near.demand_match(expected + 2.0**-8, expected, lambda: np.array([2.0**-7, 2.0**-6]), ARGUMENTS)
    assert near.ratio == 0.5
