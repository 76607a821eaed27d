"""Budgets from partial sums: wider where terms have a pattern, those of random signs elsewhere."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.reference import REFERENCE
from attnspec.reference.budget import judged
from attnspec.reference.budget.gradients import gradients

from .test_budget import largest_ratio, precision, softmax

Array = np.ndarray[Any, Any]
ATTENTION = "scaled_dot_product_attention"


def one_by_one(terms: Array) -> Array:
    """Sum over the first axis, adding one term at a time."""
    total = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        total = total + term
    return total


def in_lanes(terms: Array) -> Array:
    return one_by_one(np.stack([one_by_one(terms[i::8]) for i in range(8)]))


def in_blocks(terms: Array) -> Array:
    return one_by_one(np.stack([one_by_one(terms[i : i + 64]) for i in range(0, len(terms), 64)]))


def pairwise(terms: Array) -> Array:
    return np.asarray(np.ascontiguousarray(np.moveaxis(terms, 0, -1)).sum(-1))


ORDERS: dict[str, Callable[[Array], Array]] = {
    "one by one": one_by_one,
    "from the end": lambda terms: one_by_one(terms[::-1]),
    "in lanes": in_lanes,
    "in blocks": in_blocks,
    "pairwise": pairwise,
}

ROWS: dict[str, Callable[[int, Any], Array]] = {
    "a ramp": lambda d, rng: np.linspace(-1, 1 + 20 / d, d) * rng.uniform(0.5, 2, (4, 1)),
    "equal terms": lambda d, rng: np.repeat(rng.uniform(0.5, 2, (4, 1)), d, 1),
    "nearly equal terms": lambda d, rng: 100.3 + 1e-3 * rng.standard_normal((4, d)),
    "alternating signs": lambda d, rng: (0.001 + 0.3 * (-1.0) ** np.arange(d)) * rng.uniform(0.5, 2, (4, 1)),
    "two plateaus": lambda d, rng: np.repeat(rng.uniform(-1, 1, (4, 2)), d // 2, 1),
    "eight plateaus": lambda d, rng: np.repeat(rng.uniform(-1, 1, (4, 8)), d // 8, 1),
    "random signs": lambda d, rng: rng.standard_normal((4, d)),
}

ACCUSED = {
    ("a ramp", "one by one"),
    ("a ramp", "from the end"),
    ("equal terms", "one by one"),
    ("equal terms", "from the end"),
    ("nearly equal terms", "one by one"),
    ("nearly equal terms", "from the end"),
    ("alternating signs", "in lanes"),
    ("two plateaus", "one by one"),
    ("two plateaus", "from the end"),
    ("two plateaus", "in lanes"),
    ("two plateaus", "in blocks"),
    ("eight plateaus", "one by one"),
    ("eight plateaus", "from the end"),
    ("eight plateaus", "in lanes"),
    ("eight plateaus", "in blocks"),
}
"""Rows and orders whose honest errors exceed the budget of random signs."""


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("order", ORDERS)
def test_sums_in_every_order_are_within_their_budget(rows: str, order: str) -> None:
    p, usual, ordered = precision("dot_scores", "float32"), [], []
    for seed, d in [(seed, d) for seed in range(4) for d in (256, 4096)]:
        rng = np.random.default_rng([seed, d])
        query = ROWS[rows](d, rng).astype(np.float32)
        key = np.repeat(rng.uniform(0.5, 2, (4, 1)), d, 1).astype(np.float32)
        got = ORDERS[order](np.moveaxis(query[:, None] * key, -1, 0))
        arguments = {"query": query, "key": key}
        usual.append(largest_ratio(got, judged(REFERENCE["dot_scores"], arguments, p)))
        ordered.append(largest_ratio(got, judged(REFERENCE["dot_scores"], arguments, p, ordered=True)))
    assert max(ordered) <= 1
    assert (max(usual) > 1) == ((rows, order) in ACCUSED)


@pytest.mark.parametrize("d", [16, 256, 4096])
def test_terms_of_random_signs_keep_their_budget(d: int) -> None:
    rng, p = np.random.default_rng(d), precision("dot_scores", "float32")
    arguments = {name: rng.standard_normal((64, d)).astype(np.float32) for name in ("query", "key")}
    usual, ordered = (judged(REFERENCE["dot_scores"], arguments, p, ordered=x).budget for x in (False, True))
    assert np.median(ordered / usual) < 1.01
    assert np.mean(ordered > 1.5 * usual) < 0.001


def test_a_mean_of_equal_numbers_is_within_its_budget() -> None:
    value, p = np.full((10_000, 3), 0.1, np.float32), precision("average_pooling", "float32")
    mask = np.arange(10_000) % 2 == 0
    for arguments, summed in (({"value": value}, value), ({"value": value, "mask": mask}, value[mask])):
        got = one_by_one(summed) / np.float32(len(summed))
        assert largest_ratio(got, judged(REFERENCE["average_pooling"], arguments, p)) > 1
        assert largest_ratio(got, judged(REFERENCE["average_pooling"], arguments, p, ordered=True)) <= 1


@pytest.mark.parametrize("count", [256, 1024, 4096])
def test_a_missing_one_of_equal_terms_exceeds_the_budget(count: int) -> None:
    value = np.repeat(np.random.default_rng(0).uniform(0.5, 2, (1, 16)), count, 0).astype(np.float32)
    oracle = judged(
        REFERENCE["average_pooling"], {"value": value}, precision("average_pooling", "float32"), ordered=True
    )
    missing = (value[1:].sum(0, dtype=np.float64) / count).astype(np.float32)
    assert (np.abs(missing - oracle.value) > 2 * oracle.budget).all()


@pytest.mark.parametrize("period", [2, 4, 8, 16, 32])
def test_sums_in_lanes_of_repeated_tokens_are_within_their_budget(period: int) -> None:
    """Every lane adds one token alone, many times."""
    p = precision("average_pooling", "float32")
    for count in (256, 4096):
        rng = np.random.default_rng([period, count])
        value = rng.uniform(-1, 1, (period, 16)).astype(np.float32)[np.arange(count) % period]
        oracle = judged(REFERENCE["average_pooling"], {"value": value}, p, ordered=True)
        lanes = one_by_one(np.stack([one_by_one(value[i::period]) for i in range(period)]))
        for total in (lanes, one_by_one(value), one_by_one(value[rng.permutation(count)])):
            assert largest_ratio(total / np.float32(count), oracle) <= 1


def test_a_positive_ramp_that_falls_by_steps_of_the_grid_is_within_its_budget() -> None:
    """It falls by nearly 2⁻¹²: all remainders are alike."""
    value, p = (
        (np.linspace(0, 0.73213637, 3000)[::-1, None]).astype(np.float32),
        precision("average_pooling", "float32"),
    )
    got = one_by_one(value) / np.float32(3000)
    assert largest_ratio(got, judged(REFERENCE["average_pooling"], {"value": value}, p)) > 2
    assert largest_ratio(got, judged(REFERENCE["average_pooling"], {"value": value}, p, ordered=True)) <= 1


def test_terms_below_the_grid_of_a_large_sum_are_within_its_budget() -> None:
    rng, p = np.random.default_rng(0), precision("average_pooling", "float32")
    value = np.concatenate([np.repeat(rng.uniform(0.3, 0.5, 16)[None], 5000, 0), rng.uniform(0, 1e-4, (5000, 16))])
    value = value.astype(np.float32)
    got = one_by_one(value) / np.float32(10_000)
    assert largest_ratio(got, judged(REFERENCE["average_pooling"], {"value": value}, p, ordered=True)) <= 1


def test_a_gradient_summed_over_a_ramp_is_within_its_budget() -> None:
    operation, d = "dot_scores", 4096
    p, ratios = precision(operation, "float32"), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        query, key = (rng.standard_normal((count, 8)).astype(np.float32) for count in (4, d))
        key[:, 0] = rng.uniform(0.5, 2)
        cotangent = ROWS["a ramp"](d, rng).astype(np.float32)
        got = one_by_one(cotangent.T[:, :, None] * key[:, None])
        arguments = {"query": query, "key": key}
        budgets = (
            gradients(REFERENCE[operation], arguments, cotangent, p, np.float64, ordered=x)["query"]
            for x in (False, True)
        )
        ratios.append([float(np.max(np.abs(got - value) / budget)) for value, budget in budgets])
    usual, ordered = np.max(ratios, axis=0)
    assert usual > 1
    assert ordered <= 1


def online_attention(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Attention with a running maximum, key by key, and the logarithms of its sums."""
    scores = query @ key.T / np.float32(np.sqrt(query.shape[-1]))
    highest = np.full((len(query), 1), -np.inf, np.float32)
    pooled, total = np.zeros((len(query), value.shape[-1]), np.float32), np.zeros((len(query), 1), np.float32)
    for j in range(len(key)):
        new = np.maximum(highest, scores[:, j : j + 1])
        rescaling, exponential = np.exp(highest - new), np.exp(scores[:, j : j + 1] - new)
        pooled, total, highest = pooled * rescaling + exponential * value[j], total * rescaling + exponential, new
    return pooled / total, (highest + np.log(total))[:, 0]


@pytest.mark.parametrize("keys", [256, 4096])
def test_a_running_softmax_of_growing_scores_is_within_its_budget(keys: int) -> None:
    usual, ordered = [], []
    for seed, slope in [(seed, slope) for seed in range(5) for slope in (1e-4, 1e-3, 1e-2)]:
        rng = np.random.default_rng(seed)
        query, key = np.zeros((4, 16), np.float32), np.zeros((keys, 16), np.float32)
        query[:, 0], key[:, 0] = 4 * np.linspace(0.6, 1.7, 4), slope * np.arange(keys)
        value = rng.standard_normal((keys, 16)).astype(np.float32)
        for direction in (1, -1):
            got, _ = online_attention(query, key[::direction][::direction], value)
            arguments = {"query": query, "key": key[::direction], "value": value[::direction]}
            p = precision(ATTENTION, "float32")
            usual.append(largest_ratio(got, judged(REFERENCE[ATTENTION], arguments, p)))
            ordered.append(largest_ratio(got, judged(REFERENCE[ATTENTION], arguments, p, ordered=True)))
    assert max(usual) > 1
    assert max(ordered) <= 1


def test_logarithms_of_running_sums_of_growing_scores_are_within_their_budget() -> None:
    operation, keys = "grouped_query_attention", 4096
    query, key = np.zeros((4, 16), np.float32), np.zeros((keys, 16), np.float32)
    query[:, 0], key[:, 0] = 4 * np.linspace(0.6, 1.7, 4), 1e-3 * np.arange(keys)
    value = np.random.default_rng(0).standard_normal((keys, 2)).astype(np.float32)
    got = online_attention(query, key, value)[1][None]
    arguments = {"query": query[None], "key": key[None], "value": value[None]}
    logarithms = judged(REFERENCE[operation], arguments, precision(operation, "float32"), ordered=True)[1]
    assert largest_ratio(got, logarithms) <= 1


# Uniform rows ---------------------------------------------------------------------------------------------------------


def uniform_row(kind: str, keys: int, rng: Any) -> dict[str, Array]:
    query, key = rng.standard_normal((2, 16)), rng.standard_normal((keys, 16))
    if kind == "queries of zero":
        query = np.zeros(query.shape)
    else:
        key = np.repeat(key[:1], keys, axis=0)
    return {"query": query, "key": key, "value": rng.standard_normal((keys, 64))}


@pytest.mark.parametrize("kind", ["queries of zero", "equal keys"])
@pytest.mark.parametrize("keys", [256, 4096, 65_536])
def test_a_dropped_key_of_a_uniform_row_exceeds_the_budget(kind: str, keys: int) -> None:
    arguments = {name: x.astype(np.float32) for name, x in uniform_row(kind, keys, np.random.default_rng(0)).items()}
    oracle = judged(REFERENCE[ATTENTION], arguments, precision(ATTENTION, "float32"), ordered=True)
    dropped = arguments["value"][1:].mean(0, dtype=np.float64).astype(np.float32)
    assert largest_ratio(dropped[None], oracle) > 5
    # The budget is no wider than it takes to judge most numbers.
    assert np.mean(oracle.budget > 0.03 * np.abs(oracle.value).max()) < 0.01


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("kind", ["queries of zero", "equal keys"])
def test_honest_kernels_are_within_the_budget_of_uniform_rows(kind: str, dtype: Any) -> None:
    operation = precision(ATTENTION, np.dtype(dtype).name)
    for seed in range(8):
        for keys in (40, 300, 1500):
            drawn = uniform_row(kind, keys, np.random.default_rng([seed, keys]))
            arguments = {name: x.astype(dtype) for name, x in drawn.items()}
            oracle = judged(REFERENCE[ATTENTION], arguments, operation)
            query, key, value = (x.astype(np.float32) for x in arguments.values())
            scores = query @ key.T / np.float32(4)
            # Kernels subtract the maximum, or a number near it: equal exponentials that are no powers of 2.
            for weights in (softmax(scores), np.exp(scores - scores.max(-1, keepdims=True) - np.float32(0.3))):
                total = one_by_one(weights.T)[:, None]
                stored = weights.astype(dtype).astype(np.float32)
                for result in (stored @ value / total, one_by_one((stored[..., None] * value).swapaxes(0, 1)) / total):
                    assert largest_ratio(result.astype(dtype), oracle) <= 1


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_groups_of_equal_weights_and_values_are_within_their_budget(dtype: Any) -> None:
    """Two tokens, many times each: their weights round alike, and their values are alike."""
    p, usual, ordered = precision(ATTENTION, np.dtype(dtype).name), [], []
    for seed in range(5):
        rng = np.random.default_rng([seed, 2000])
        token = np.sort(rng.integers(0, 2, 2000))
        drawn = {name: rng.standard_normal((2, 16)).astype(dtype) for name in ("query", "key", "value")}
        arguments = {"query": drawn["query"], "key": drawn["key"][token], "value": drawn["value"][token]}
        query, key, value = (x.astype(np.float32) for x in arguments.values())
        weights = np.exp(query @ key.T / np.float32(4))
        stored = weights.astype(dtype).astype(np.float32)
        got = one_by_one((stored[..., None] * value).swapaxes(0, 1)[::-1]) / weights.sum(-1, keepdims=True)
        usual.append(largest_ratio(got.astype(dtype), judged(REFERENCE[ATTENTION], arguments, p)))
        ordered.append(largest_ratio(got.astype(dtype), judged(REFERENCE[ATTENTION], arguments, p, ordered=True)))
    assert max(usual) > 1
    assert max(ordered) <= 1


# Gradients ------------------------------------------------------------------------------------------------------------


def attention_arrays(kind: str, queries: int, keys: int, rng: Any) -> dict[str, Array]:
    """Query, key, value and cotangent."""
    drawn = {name: rng.standard_normal((queries, 16)) for name in ("query", "cotangent")}
    drawn |= {name: rng.standard_normal((keys, 16)) for name in ("key", "value")}
    if kind == "queries of zero":
        drawn["query"][:] = 0
    elif kind == "two tokens":
        drawn |= {name: drawn[name][np.arange(keys) % 2] for name in ("key", "value")}
    elif kind == "positive keys":
        drawn |= {name: np.abs(drawn[name]) for name in ("key", "value")}
    elif kind == "a ramp of values":
        drawn["value"] = np.linspace(-1, 1, keys)[:, None] * rng.uniform(0.5, 2, 16)
    elif kind == "growing scores":
        drawn["query"], drawn["key"] = np.zeros((queries, 16)), np.zeros((keys, 16))
        drawn["query"][:, 0], drawn["key"][:, 0] = 4 * np.linspace(0.6, 1.7, queries), 1e-3 * np.arange(keys)
    return {name: x.astype(np.float32) for name, x in drawn.items()}


def product(left: Array, right: Array) -> Array:
    return one_by_one(np.moveaxis(left[:, :, None] * right, 1, 0))


def gradients_of_attention(query: Array, key: Array, value: Array, cotangent: Array) -> dict[str, Array]:
    """Gradients as flash attention computes them, with all sums one by one."""
    scale = np.float32(query.shape[-1] ** -0.5)
    output, logarithms = online_attention(query, key, value)
    weights = np.exp(product(query, key.T) * scale - logarithms[:, None])
    of_sums = one_by_one((cotangent * output).T)[:, None]
    of_scores = weights * (product(cotangent, value.T) - of_sums) * scale
    return {
        "query": product(of_scores, key),
        "key": product(of_scores.T, query),
        "value": product(weights.T, cotangent),
    }


@pytest.mark.parametrize(
    "kind", ["random", "queries of zero", "two tokens", "positive keys", "a ramp of values", "growing scores"]
)
def test_gradients_with_sums_one_by_one_are_within_their_budget(kind: str) -> None:
    p = precision(ATTENTION, "float32")
    for seed in range(2):
        for queries, keys in ((4, 2000), (60, 60)):
            arrays = attention_arrays(kind, queries, keys, np.random.default_rng([seed, keys]))
            got, cotangent = gradients_of_attention(**arrays), arrays.pop("cotangent")
            wanted = gradients(REFERENCE[ATTENTION], arrays, cotangent, p, np.float64, ordered=True)
            for path, (value, budget) in wanted.items():
                assert (np.abs(got[path] - value) <= budget).all(), path


@pytest.mark.parametrize(("keys", "least"), [(256, 1000), (4096, 30), (16_384, 5)])
def test_a_dropped_key_of_a_uniform_row_exceeds_the_budget_of_the_gradient(keys: int, least: float) -> None:
    arrays = attention_arrays("queries of zero", 2, keys, np.random.default_rng(0))
    cotangent, key, value = arrays.pop("cotangent"), *(arrays[x][1:].astype(np.float64) for x in ("key", "value"))
    expected, budget = gradients(
        REFERENCE[ATTENTION], arrays, cotangent, precision(ATTENTION, "float32"), np.float64, ordered=True
    )["query"]
    of_weights = cotangent @ value.T
    dropped = (of_weights - of_weights.mean(-1, keepdims=True)) @ key / 4 / (keys - 1)
    assert (np.abs(dropped - expected) / budget).max() > least
