"""Budgets from samples: larger than those of independent errors where errors align, equal to them elsewhere."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from attnspec.reference import REFERENCE
from attnspec.reference.budget import judged
from attnspec.reference.budget.gradients import gradients
from attnspec.reference.budget.sampled import SAMPLES

from .test_budget import largest_ratio, normal, precision

Array = np.ndarray[Any, Any]
UNITS, STEPS = 64, 14
RNG = np.random.default_rng(3)
POSITIVE = RNG.uniform(0, 3 / UNITS, (UNITS, UNITS)).astype(np.float32)
"""A matrix that multiplies the mean of units by 1.5 and shrinks their deviations."""


def around_a_fixed_point(h: Any, w: Any, b: Any) -> Any:
    """States that stay where they are but for their errors, which the weights amplify."""
    for _ in range(STEPS):
        h = h @ w + b
    return h


def network() -> dict[str, Array]:
    h = normal(5, UNITS)
    return {"h": h, "w": POSITIVE, "b": h - h @ POSITIVE}


def test_aligned_errors_exceed_independent_budgets_but_not_sampled_ones() -> None:
    p = precision("rnn", "float32")
    independent, sampled = [], []
    for _ in range(5):
        arguments = network()
        got = around_a_fixed_point(**arguments)
        independent.append(largest_ratio(got, judged(around_a_fixed_point, arguments, p)))
        sampled.append(largest_ratio(got, judged(around_a_fixed_point, arguments, p, sampled=True)))
    assert max(independent) > 2
    assert max(sampled) < 1


def test_aligned_gradient_errors_exceed_independent_budgets_but_not_sampled_ones() -> None:
    p, arguments = precision("rnn", "float32"), network()
    values, vectors = np.linalg.eig(POSITIVE.T.astype(np.float64))
    common = np.real(vectors[:, np.argmax(np.abs(values))])
    drawn = normal(UNITS)
    # A gradient without what the weights amplify, so that only its errors are amplified.
    cotangent = np.tile(drawn - common * (drawn @ common) / (common @ common), (5, 1)).astype(np.float32)
    results = [
        gradients(around_a_fixed_point, arguments, cotangent, p, np.float64, sampled=how)["h"] for how in (False, True)
    ]
    got = cotangent
    for _ in range(STEPS):
        got = got @ POSITIVE.T
    independent, sampled = (np.abs(got - value).max() / budget.max() for value, budget in results)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert independent > 1 > sampled


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("operation", "names"),
    [("dot_scores", ["query", "key"]), ("scaled_dot_product_attention", ["query", "key", "value"])],
)
def test_independent_errors_have_the_same_deviation_either_way(operation: str, names: list[str], dtype: str) -> None:
    p = precision(operation, dtype)
    arguments: dict[str, Array] = {name: normal(16, 6, 8) for name in names}
    rule, sample = (judged(REFERENCE[operation], arguments, p, sampled=how) for how in (False, True))
    np.testing.assert_array_equal(rule.value, sample.value)
    assert 1 <= np.median(sample.sigma / rule.sigma) < 1.2
    assert np.quantile(sample.sigma / rule.sigma, 0.99) < 2


def test_samples_are_the_same_each_time_and_their_number_is_enough() -> None:
    p, arguments = precision("rnn", "float32"), network()
    first, again = (judged(around_a_fixed_point, arguments, p, sampled=True) for _ in range(2))
    np.testing.assert_array_equal(first.budget, again.budget)
    assert 2 * t.sf(8, SAMPLES) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shapes", [((3,), (3, 4)), ((2, 3), (3, 4)), ((2, 3), (3,)), ((3,), (2, 3, 4))])
def test_samples_of_products_have_the_shape_of_the_product(shapes: Any, dtype: str) -> None:
    arguments = {name: normal(*shape).astype(np.dtype(dtype)) for name, shape in zip("ab", shapes, strict=True)}
    product_shapes = []

    def product(a: Any, b: Any) -> Any:
        result = np.tanh(a) @ b
        product_shapes.append(result.shape)
        return result

    judged(product, arguments, precision("rnn", dtype), sampled=True)
    assert len(product_shapes) > SAMPLES
    assert set(product_shapes) == {(arguments["a"] @ arguments["b"]).shape}
