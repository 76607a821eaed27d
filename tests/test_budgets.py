"""Comparisons within budgets fail where a number is wrong, and where budgets are too wide."""

import numpy as np
import pytest

from .budgets import assert_gradients_within_budgets, assert_slopes_within_budgets, assert_within_budgets

X = np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32)


def test_one_wrong_number_is_named() -> None:
    square = X * X
    assert_within_budgets([square, square], lambda x: x * x, X)
    square[1, 2] *= 1 + 2.0**-18
    with pytest.raises(AssertionError, match=r"result 0: the array\[1, 2\]: expected .* budgets away$"):
        assert_within_budgets(square, lambda x: x * x, X)


def test_budgets_that_are_too_wide_are_refused() -> None:
    """A difference of large numbers has no digit left."""
    with pytest.raises(AssertionError, match=r"for 6 of 12 numbers; got 0"):
        assert_within_budgets(X, lambda x: (x + 1e9) - 1e9, X)


def test_gradients_and_slopes_are_judged() -> None:
    cotangent = np.ones_like(X)
    assert_gradients_within_budgets((2 * X,), cotangent, lambda x: x * x, X)
    slope = np.float32((2 * (X.astype(np.float64) + 1)).sum())  # the derivative of (x + 1)²
    assert_slopes_within_budgets(slope, {"x": cotangent}, cotangent, lambda x: (x + 1) * (x + 1), X)
    with pytest.raises(AssertionError, match="budgets away"):
        assert_slopes_within_budgets(
            slope * np.float32(1.001), {"x": cotangent}, cotangent, lambda x: (x + 1) * (x + 1), X
        )
