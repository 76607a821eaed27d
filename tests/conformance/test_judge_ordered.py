"""``judge`` on sums with a pattern and on uniform rows: honest results are right, a dropped key is wrong."""

from typing import Any

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.harness.verdict import Verdict

Array = np.ndarray[Any, Any]


def one_by_one(terms: Array) -> Array:
    total = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        total = total + term
    return total


def ramps(d: int, seed: int) -> tuple[Array, Array]:
    """Ramps from −1 to 1, and one from 0 to 2.

    The results of the last one are so large that the budgets of the others are narrow enough to judge.
    """
    rng = np.random.default_rng(seed)
    query = np.linspace(-1, 1 + 20 / d, d) * rng.uniform(0.5, 2, (4, 1))
    key = np.repeat(rng.uniform(0.5, 2, (4, 1)), d, axis=1)
    return np.concatenate([query, query[:1] + 1]).astype(np.float32), key.astype(np.float32)


def verdict_on_ramps(seed: int, factor: float = 1.0) -> Verdict:
    query, key = ramps(4096, seed)
    got = one_by_one(np.moveaxis(query[:, None] * key, -1, 0))
    return judge("dot_scores", got * np.float32(factor), query, key)


def test_a_ramp_summed_one_by_one_is_right() -> None:
    verdicts = [verdict_on_ramps(seed) for seed in range(10)]
    assert all(verdicts)
    assert max(verdict.ratio for verdict in verdicts) <= 1


def test_a_wrong_scale_of_a_ramp_is_wrong() -> None:
    verdict = verdict_on_ramps(0, 1.001)
    assert not verdict
    assert verdict.worst is not None


def test_a_mean_of_equal_numbers_summed_one_by_one_is_right() -> None:
    value = np.full((10_000, 3), 0.1, np.float32)
    mean = one_by_one(value) / np.float32(len(value))
    assert judge("average_pooling", mean, value)
    assert not judge("average_pooling", mean * np.float32(1.01), value)


@pytest.mark.parametrize("keys", [256, 4096, 65_536])
@pytest.mark.parametrize("uniform", ["queries of zero", "equal keys"])
def test_a_dropped_key_of_a_uniform_row_is_wrong(keys: int, uniform: str) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((n, d)).astype(np.float32) for n, d in ((2, 16), (keys, 16), (keys, 64)))
    if uniform == "equal keys":
        key[:] = key[0]
    else:
        query[:] = 0
    exact, dropped = (x.mean(0, dtype=np.float64).astype(np.float32)[None].repeat(2, 0) for x in (value, value[1:]))
    assert judge("scaled_dot_product_attention", exact, query, key, value)
    verdict = judge("scaled_dot_product_attention", dropped, query, key, value)
    assert not verdict
    assert not verdict.outside
    assert verdict.ratio > 5


def test_a_ramp_pooled_in_many_rows_is_right() -> None:
    """The partial sums of every row grow and cancel: all rows err by more than random signs."""
    rng = np.random.default_rng(0)
    weights = np.exp(rng.standard_normal((200, 1024)))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    value = (np.linspace(-1, 1, 1024)[:, None] * rng.uniform(0.5, 2, 8)).astype(np.float32)
    got = one_by_one(weights.T[..., None] * value[:, None])
    verdict = judge("attention_pooling", got, weights, value)
    assert verdict, verdict
    assert verdict.ensemble == "tested on 200 rows"


def test_a_mean_of_several_groups_of_equal_numbers_is_right() -> None:
    """Every group rounds in its own direction; together they exceed the largest one alone."""
    value = np.random.default_rng(0).standard_normal((96, 8, 8)).astype(np.float32).repeat(256, 1)
    mean = one_by_one(np.moveaxis(value, 1, 0)) / np.float32(2048)
    assert judge("average_pooling", mean, value)
    assert not judge("average_pooling", mean * np.float32(1.001), value)


def test_softmax_of_several_groups_of_equal_scores_is_right() -> None:
    scores = np.random.default_rng(0).standard_normal((96, 8)).astype(np.float32).repeat(512, 1)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights = exponentials / one_by_one(exponentials.T)[:, None]
    assert judge("softmax", weights, scores)
    assert not judge("softmax", weights * np.float32(1.001), scores)


def test_an_average_of_8192_keys_in_float16_is_judged() -> None:
    """The step of float16 moves equal weights alike: it multiplies the average by one factor."""
    value = np.random.default_rng(0).standard_normal((4, 8192, 16)).astype(np.float16)
    query, key = np.zeros((4, 1, 8), np.float16), np.zeros((4, 8192, 8), np.float16)
    mean = value.astype(np.float64).mean(-2, keepdims=True)
    assert judge("scaled_dot_product_attention", mean.astype(np.float16), query, key, value)
    wrong = judge("scaled_dot_product_attention", (1.05 * mean).astype(np.float16), query, key, value)
    assert wrong.worst is not None
