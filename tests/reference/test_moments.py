"""The moments of dot products, exactly: on all signs at once, for every d from 1 to 64."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from attnspec.reference import dot_product_mean, dot_product_variance, two_point_design
from attnspec.spec import ShapeError
from attnspec.spec.errata import ERRATA

DIMENSIONS = range(1, 65)


@cache
def design(degree: int) -> np.ndarray:
    return two_point_design(2**degree - 1)


def dot_products(mean: np.ndarray, sigma: float) -> np.ndarray:
    """Dot products of q and k on every sample of the design; shape (samples)."""
    d = len(mean)
    signs = design((2 * d).bit_length())
    query, key = (mean + sigma * signs[:, part] for part in (slice(0, d), slice(d, 2 * d)))
    result: np.ndarray = np.einsum("sd,sd->s", query, key)
    return result


def vector_mean(d: int) -> np.ndarray:
    """Multiples of 1/8, for which sums of squared dot products are exact in doubles."""
    return np.random.default_rng(d).integers(-8, 9, d) / 8


@pytest.mark.parametrize("d", DIMENSIONS)
def test_moments_with_a_vector_mean_match_samples(d: int) -> None:
    mean, sigma = vector_mean(d), 0.75
    samples = dot_products(mean, sigma)
    assert samples.mean() == dot_product_mean(mean)
    assert samples.var() == dot_product_variance(mean, np.array(sigma))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_moments_with_a_common_mean_match_samples(d: int) -> None:
    m, sigma = 0.5, 1.25
    samples = dot_products(np.full(d, m), sigma)
    expected = 2 * d * sigma**2 * m**2 + d * sigma**4
    assert samples.mean() == d * m**2
    assert samples.var() == expected
    assert dot_product_mean(np.array(m), d=d) == d * m**2
    assert dot_product_variance(np.array(m), np.array(sigma), d=d) == expected


@pytest.mark.parametrize("d", DIMENSIONS)
def test_centred_and_scaled_scores_have_variance_one(d: int) -> None:
    samples = dot_products(np.zeros(d), 1.0)
    assert samples.mean() == 0
    assert samples.var() / d == 1


@pytest.mark.parametrize("d", range(2, 65))
def test_literal_vector_reading_of_s2_is_refuted(d: int) -> None:
    mean, sigma = vector_mean(d), 0.75
    variance, printed = dot_products(mean, sigma).var(), ERRATA["S2-variance"].printed_form(mean, sigma)
    assert printed - variance > 0.01 * variance


def test_symbolic_identity_at_two_coordinates() -> None:
    """Sums over all 16 signs in exact integers: Var = 2σ²μᵀμ + dσ⁴ with nothing rounded."""
    for mean in product(range(-2, 3), repeat=2):
        for sigma in (1, 2, 3):
            values = [
                sum((m + sigma * e) * (m + sigma * f) for m, e, f in zip(mean, signs[:2], signs[2:], strict=True))
                for signs in product((-1, 1), repeat=4)
            ]
            variance_of_16 = 16 * sum(v * v for v in values) - sum(values) ** 2
            assert variance_of_16 == 256 * (2 * sigma**2 * sum(m * m for m in mean) + 2 * sigma**4)
            assert dot_product_variance(np.array(mean), np.array(sigma)) == variance_of_16 / 256


def patterns(signs: np.ndarray) -> Iterator[np.ndarray]:
    """Counts of the 16 patterns of every four variables."""
    for columns in combinations(range(signs.shape[1]), 4):
        yield np.bincount((signs[:, columns] > 0) @ np.array([1, 2, 4, 8]), minlength=16)


@pytest.mark.parametrize("variables", [4, 7, 12, 15])
def test_any_four_variables_are_independent(variables: int) -> None:
    signs = two_point_design(variables)
    assert all((counts == len(signs) // 16).all() for counts in patterns(signs))


@pytest.mark.parametrize("variables", [31, 100, 128, 255])
def test_many_variables_are_uncorrelated_in_pairs_of_pairs(variables: int) -> None:
    """Any four columns multiply to a column that sums to 0: seen on 2,000 random quadruples."""
    signs = two_point_design(variables)
    rng = np.random.default_rng(variables)
    for _ in range(2_000):
        columns = rng.choice(variables, 4, replace=False)
        assert signs[:, columns].prod(axis=1, dtype=np.int8).sum(dtype=np.int64) == 0
    assert not signs.sum(axis=0, dtype=np.int64).any()


@pytest.mark.parametrize("variables", [1, 2, 3, 128, 255])
def test_a_two_point_design_has_signs_of_shape_power_of_4_by_variables(variables: int) -> None:
    signs = two_point_design(variables)
    assert signs.shape == (4 ** variables.bit_length(), variables)
    assert signs.dtype == np.int8
    assert set(np.unique(signs)) == {-1, 1}


@pytest.mark.parametrize("variables", [0, -1, 256])
def test_number_of_variables_out_of_range(variables: int) -> None:
    with pytest.raises(ValueError, match=rf"^two_point_design: variables: expected 1\.\.255; got {variables}$"):
        two_point_design(variables)


@pytest.mark.parametrize(
    ("mean", "d", "message"),
    [
        (0.5, None, "d: expected a size, since the mean is a scalar; got None"),
        ([1.0, 2.0], 3, "d: expected 2 (from mean) or None; got 3"),
        ([[1.0, 2.0]], None, "mean: expected shape () or (d,); got (1, 2)"),
        (0.5, 0, "d: expected d of at least 1; got 0"),
        ([], None, "mean: expected d of at least 1; got (0,)"),
    ],
)
def test_means_and_sizes_that_do_not_fit_are_refused(mean: Any, d: int | None, message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        dot_product_mean(mean, d=d)
    assert str(raised.value) == f"dot_product_mean: {message}"
    with pytest.raises(ShapeError) as raised:
        dot_product_variance(mean, np.array(1.0), d=d)
    assert str(raised.value) == f"dot_product_variance: {message}"


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan])
def test_sigma_is_positive(sigma: Any) -> None:
    with pytest.raises(ValueError, match=r"^dot_product_variance: sigma: expected a number > 0; got "):
        dot_product_variance(np.ones(2), sigma)
