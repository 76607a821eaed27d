"""JAX's own attention as a backend: what it provides, declares and refuses."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.spec import OPERATIONS, QUESTIONS, ShapeError

pytest.importorskip("jax", reason="JAX is not installed")

import jax
import jax.numpy as jnp

from attnspec.backends.jax_native import backend
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

attention = backend.scaled_dot_product_attention


def draw(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.array(np.random.default_rng(sum(shape)).normal(size=shape), dtype)


def arrays(*jax_arrays: jax.Array) -> list[Any]:
    return [np.asarray(x) for x in jax_arrays]


def choices_of_jax() -> dict[str, str]:
    """Choices of ``jax.nn.dot_product_attention``, seen on scores that are all 0."""
    scores, value = jnp.zeros((1, 3, 1, 4)), jnp.arange(1.0, 4.0)[None, :, None, None] * jnp.ones((1, 3, 1, 4))
    attend = jax.nn.dot_product_attention
    nothing = attend(scores, scores, value, mask=jnp.zeros((1, 1, 3, 3), bool))
    causal = attend(scores[:, :2], scores, value, is_causal=True)
    masked = attend(scores, scores, value.at[:, 2].set(jnp.nan), mask=jnp.array([True, True, False])[None, None, None])
    of_heads = jnp.array([1.0, 2.0])[None, None, :, None] * jnp.ones((1, 3, 2, 4))
    heads = attend(jnp.zeros((1, 1, 4, 4)), jnp.zeros((1, 3, 2, 4)), of_heads)[0, 0, :, 0]
    return {
        "fully_masked": "uniform" if (jnp.round(nothing) == 2).all() else "zero",
        "causal_alignment": "top-left" if causal[0, 0, 0, 0] == 1 else "bottom-right",
        "masked_nonfinite": "propagates" if jnp.isnan(masked).all() else "excluded",
        "head_groups": "blocks" if (jnp.round(heads) == jnp.array([1, 1, 2, 2])).all() else "interleaved",
    }


def test_jax_chooses_as_the_page_of_libraries_says() -> None:
    page = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "rosetta.py"))
    cells = {question: cells["JAX"] for question, cells in page["CELLS"].items() if "JAX" in cells}
    measured = {question: choice for question, (choice, source) in cells.items() if source == page["MEASURED"]}
    assert measured == choices_of_jax()


def test_the_backend_provides_these_operations() -> None:
    expected = {"scaled_dot_product_attention", "grouped_query_attention"}
    assert {name for name in OPERATIONS if hasattr(backend, name)} == expected
    assert backend.limits.features == ("scale", "window", "bias", "key_lengths")


def test_it_declares_its_deviations() -> None:
    deviations = {q: getattr(backend.semantics, q) for q in QUESTIONS}
    expected = {"fully_masked": "uniform", "masked_nonfinite": "propagates"}
    assert {q: c for q, c in deviations.items() if c != QUESTIONS[q].normative} == expected


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_the_numbers_are_those_of_jax(causal: bool, dtype: Any) -> None:
    query, key, value = draw(2, 4, 8, dtype=dtype), draw(2, 6, 8, dtype=dtype), draw(2, 6, 8, dtype=dtype)
    heads = (x[:, :, None] for x in (query, key, value))
    expected = jax.nn.dot_product_attention(*heads, is_causal=causal)[:, :, 0]
    result = attention(query, key, value, causal=causal)
    assert result.dtype == dtype
    assert jnp.array_equal(result, expected)


@pytest.mark.parametrize("d_v", [3, 11])
def test_values_may_be_narrower_or_wider_than_keys(d_v: int) -> None:
    query, key, value = draw(4, 8), draw(6, 8), draw(6, d_v)
    result = attention(query, key, value)
    assert_within_budgets(*arrays(result), "scaled_dot_product_attention", *arrays(query, key, value))


def test_mask_and_causal_both_hold() -> None:
    query, key, value = draw(2, 4, 8), draw(2, 6, 8), draw(2, 6, 5)
    mask = (draw(4, 6) > 0).at[:, 0].set(True)
    expected = attention(query, key, value, mask=mask & jnp.tril(jnp.ones((4, 6), bool)))
    assert jnp.array_equal(attention(query, key, value, mask=mask, causal=True), expected)


def test_the_batch_of_the_mask_joins_the_broadcast() -> None:
    query, key, value, mask = draw(4, 8), draw(6, 8), draw(6, 5), draw(3, 2, 4, 6) > 0
    expected = jnp.stack([jnp.stack([attention(query, key, value, mask=m) for m in rows]) for rows in mask])
    result = attention(query, key, value, mask=mask)
    *inputs, seen = arrays(query, key, value, mask)
    assert_within_budgets(arrays(result, expected), "scaled_dot_product_attention", *inputs, mask=seen)


def test_a_fully_masked_row_is_the_mean_of_all_values() -> None:
    query, key, value = draw(3, 4), draw(5, 4), draw(5, 4)
    mask = jnp.ones((3, 5), bool).at[1].set(False)
    result = attention(query, key, value, mask=mask)
    # all scores of a query of zeros are equal
    assert_within_budgets(*arrays(result), "scaled_dot_product_attention", *arrays(query.at[1].set(0), key, value))


def test_nan_at_a_masked_value_reaches_the_result() -> None:
    query, key, value = draw(3, 4), draw(3, 4), draw(3, 4).at[1].set(jnp.nan)
    assert jnp.isnan(attention(query, key, value, mask=jnp.array([[True, False, True]]))).any()


CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "a window": {"window": (1, 2)},
    "a window that is open before": {"window": (None, 1)},
    "a window that is open behind": {"window": (1, None), "causal": True},
    "a bias for all heads": {"bias": draw(1, 4, 6)},
    "a bias, a mask and a scale": {"bias": draw(4, 4, 1), "mask": draw(2, 1, 6) > -1, "scale": 0.25},
    "lengths": {"key_lengths": jnp.array([[2], [4], [6]]), "causal": True},
}


@pytest.mark.parametrize("options", CHOICES.values(), ids=CHOICES)
def test_heads_share_keys_and_values(options: dict[str, Any]) -> None:
    query, key, value = draw(2, 4, 4, 8), draw(2, 6, 8), draw(3, 1, 2, 6, 5)
    numpy_options: dict[str, Any] = {k: np.asarray(x) if isinstance(x, jax.Array) else x for k, x in options.items()}
    result, logarithms = backend.grouped_query_attention(query, key, value, **options)
    assert logarithms is None
    assert_within_budgets(
        (*arrays(result), None), "grouped_query_attention", *arrays(query, key, value), **numpy_options
    )


def test_lengths_of_keys_out_of_range_raise() -> None:
    message = r"^grouped_query_attention: key_lengths: expected key_lengths in 0\.\.5; got 6$"
    with pytest.raises(ShapeError, match=message):
        backend.grouped_query_attention(draw(4, 3, 8), draw(2, 5, 8), draw(2, 5, 6), key_lengths=jnp.array(6))


def test_the_backend_omits_the_logarithms_of_jax_since_they_have_no_gradients() -> None:
    query, key = draw(2, 3, 4, 8), draw(2, 3, 4, 8)

    def logarithms(query: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(query, key, key, return_residual=True)[1].sum()

    assert logarithms(query)
    assert not jax.grad(logarithms)(query).any()


def test_gradients_are_those_of_jax() -> None:
    query, key, value, cotangent = draw(2, 4, 8), draw(2, 6, 8), draw(2, 6, 8), draw(2, 4, 8)
    arguments = {"query": query, "key": key, "value": value}

    def theirs(*arrays: jax.Array) -> jax.Array:
        result: jax.Array = jax.nn.dot_product_attention(*(x[:, :, None] for x in arrays))
        return result[:, :, 0]

    expected = jax.vjp(theirs, query, key, value)[1](cotangent)
    own_gradients = backend.vjp("scaled_dot_product_attention", arguments, cotangent)
    gradients = [tuple(arrays(*(own_gradients[name] for name in arguments))), tuple(arrays(*expected))]
    *inputs, along = arrays(query, key, value, cotangent)
    assert_gradients_within_budgets(gradients, along, "scaled_dot_product_attention", *inputs)


@pytest.mark.parametrize(
    ("key", "value", "mask"),
    [
        ((2, 5, 4), (2, 6, 4), None),
        ((2, 5, 3), (2, 5, 4), None),
        ((3, 5, 4), (3, 5, 4), None),
        ((2, 5, 4),) * 2 + ((5,),),
    ],
)
def test_shapes_that_violate_the_protocol_raise(
    key: tuple[int, ...], value: tuple[int, ...], mask: tuple[int, ...] | None
) -> None:
    mask_array = None if mask is None else jnp.ones(mask, bool)
    with pytest.raises(ValueError, match=r"^scaled_dot_product_attention: (key|value|mask): expected .*; got "):
        attention(draw(2, 3, 4), draw(*key), draw(*value), mask=mask_array)
