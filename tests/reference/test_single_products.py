"""Products of magnitudes in single precision are at least the exact ones, and hardly more."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.reference.budget.numbers import magnitudes_product, singly_multiplied, widened

Array = np.ndarray[Any, Any]


def matrices(scale: float = 1.0, rows: int = 256, terms: int = 2048) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return scale * rng.random((2, rows, terms)), rng.standard_normal((2, terms, 64)) ** 2


@pytest.mark.parametrize("scale", [1.0, 1e-60, 1e60])
def test_a_large_product_is_enlarged_by_less_than_a_thousandth(scale: float) -> None:
    left, right = matrices(scale)
    assert singly_multiplied(left, right)
    exact, computed = left @ right, magnitudes_product(left, right)
    assert (computed >= exact).all()
    assert (computed <= 1.001 * exact).all()


def test_small_rows_beside_large_ones_keep_their_digits() -> None:
    left, right = matrices()
    left[0, 3] *= 1e-200
    right[..., 5] *= 1e-100
    exact, computed = left @ right, magnitudes_product(left, right)
    assert (computed >= exact).all()
    assert (computed <= 1.001 * exact).all()


def test_products_that_underflow_in_single_precision_are_not_lost() -> None:
    """Rows and columns hold a 1, but only numbers of 2⁻¹⁰⁰ meet."""
    left, right = (np.zeros(x.shape) for x in matrices())
    left[..., 0], right[..., 1, :] = 1, 1
    left[..., 2], right[..., 2, :] = 2.0**-100, 2.0**-100
    assert (left @ right == 2.0**-200).all()
    assert (magnitudes_product(left, right) >= 2.0**-200).all()


def test_small_and_unknown_products_are_those_in_double_precision() -> None:
    left, right = matrices(rows=40, terms=50)
    assert not singly_multiplied(left, right)
    np.testing.assert_array_equal(magnitudes_product(left, right), left @ right)
    left, right = matrices()
    left[1, 0, 0] = np.inf
    np.testing.assert_array_equal(magnitudes_product(left, right), left @ right)


def test_zeros_have_a_product_that_hardly_differs_from_0() -> None:
    left, right = matrices()
    left[:] = 0
    assert 0 <= magnitudes_product(left, right).max() < 1e-30


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_numbers_are_widened_exactly(dtype: Any) -> None:
    x = np.array([0.0, -0.0, 1.5, -3.25, np.inf, -np.inf, np.nan, 6e-8, 2.0**-14], dtype)[::-1]
    np.testing.assert_array_equal(widened(x, np.dtype(np.float64)), x.astype(np.float64))
