"""``judge`` on all rows together counts rows that round alike once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.harness import dependence
from attnspec.conformance.harness.dependence import independent
from attnspec.conformance.harness.rounding import ROUNDINGS_OF_STORED, ROUNDINGS_OF_SUMS, SumsRounded, weight_roundings
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.reference import REFERENCE
from attnspec.spec.contract.precision import CLASSES

SDPA = "scaled_dot_product_attention"


def normal(*shape: int, seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("count", [0, 1, 7, 1500])
def test_different_rows_are_all_independent(count: int) -> None:
    np.testing.assert_array_equal(independent(normal(count, 16), 2.0**-8), np.arange(count))


@pytest.mark.parametrize("apart", [0.0, 1e-4])
def test_only_the_first_of_rows_within_a_step_is_kept(apart: float) -> None:
    rows = normal(7, 16)[np.arange(3000) % 7] + apart * normal(3000, 16, seed=1)
    np.testing.assert_array_equal(independent(rows, 2.0**-8), np.arange(7))
    assert len(independent(rows, 1e-6 if apart else 0.0)) == (3000 if apart else 7)


def test_a_step_is_relative_to_the_size_of_rows() -> None:
    rows = normal(100, 1)[:, :1] * np.ones(16)
    assert len(independent(1e-30 * rows, 2.0**-20)) == len(independent(rows, 2.0**-20)) == 100
    assert len(independent(1e6 + rows, 2.0**-8)) == 1
    assert len(independent(np.zeros((9, 16)), 2.0**-8)) == len(independent(np.full((9, 16), np.nan), 2.0**-8)) == 1


def test_at_most_a_maximum_of_rows_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependence, "MAX_ROWS", 50)
    rows = independent(normal(200, 16), 2.0**-8)
    assert len(rows) == len(set(rows)) == 50


class Inexact(SumsRounded):
    """Sums of multiples of a number that rounds them."""

    phase = 1.1


def test_weights_are_rounded_where_they_are_stored_and_sums_where_they_are_not() -> None:
    assert weight_roundings(CLASSES["mixed-bfloat16"]) == ROUNDINGS_OF_STORED
    assert weight_roundings(CLASSES["ieee32"]) == ROUNDINGS_OF_SUMS
    weights = np.full((1, 5000), 1 / 5000)
    assert abs(SumsRounded.divided(weights, CLASSES["ieee32"]).sum() - 1) < 1e-12, "1 + 1 + … is exact"
    assert 1e-6 < abs(Inexact.divided(weights, CLASSES["ieee32"]).sum() - 1) < 1e-3


def formula(*arguments: Numbers, **options: Any) -> Numbers:
    result: Numbers = REFERENCE[SDPA](*(x.astype(np.float64) for x in arguments), **options)
    return result


ROUNDING_ALIKE: dict[str, tuple[Callable[[int, int], Numbers], int]] = {
    "seven rows": (lambda count, seed: normal(7, 16, seed=seed)[np.arange(count) % 7], 7),
    "small": (lambda count, seed: 1e-2 * normal(count, 16, seed=seed), 1),
    "like one another": (lambda count, seed: normal(16, seed=seed) + 1e-3 * normal(count, 16, seed=9 + seed), 1),
}


@pytest.mark.parametrize("kind", ROUNDING_ALIKE)
def test_rows_with_the_same_weights_count_once_whatever_their_masks(kind: str) -> None:
    make, count = ROUNDING_ALIKE[kind]
    query, key = (exact_in(make(200, seed), "bfloat16") for seed in (0, 1))
    value = exact_in(normal(200, 16, seed=2), "bfloat16")
    mask = np.random.default_rng(3).random((200, 200)) < 0.5
    verdict = judge(SDPA, exact_in(formula(query, key, value, mask=mask), "bfloat16"), query, key, value, mask=mask)
    assert verdict, verdict
    assert verdict.ensemble == f"not tested, because this takes 65 rows that round differently, and there are {count}"
    assert "a scale that is 1 % off" in verdict.cannot_see


def test_nearly_equal_results_count_once() -> None:
    query, key, value = (exact_in(normal(200, 16, seed=seed), "bfloat16") for seed in range(3))
    value = exact_in(1 + 0.01 * value.astype(np.float64), "bfloat16")
    verdict = judge(SDPA, exact_in(formula(query, key, value), "bfloat16"), query, key, value)
    assert "that round differently, and there are" in verdict.ensemble


def test_rows_count_separately_for_values_of_one_feature() -> None:
    query, key, value = (normal(200, width, seed=seed).astype(np.float32) for seed, width in enumerate((16, 16, 1)))
    verdict = judge(SDPA, formula(query, key, value).astype(np.float32), query, key, value)
    assert verdict.ensemble == "tested on 200 rows"


def test_a_common_error_of_equal_exponentials_is_accepted() -> None:
    """Scores take 17 values only, so all rows sum the same exponentials and err alike."""
    query, key, value = (
        np.sign(normal(n, 16, seed=seed)).astype(np.float32) for seed, n in enumerate((600, 4000, 4000))
    )
    scores = query @ key.T / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    normalizers = np.cumsum(weights, -1, np.float32)[:, -1:]
    result = (weights.astype(np.float64) @ value.astype(np.float64) / normalizers).astype(np.float32)
    verdict = judge(SDPA, result, query, key, value)
    assert verdict, verdict
    assert verdict.ensemble == f"tested on {len(np.unique(query, axis=0))} rows"
    wrong = judge(SDPA, (1.0003 * formula(query, key, value)).astype(np.float32), query, key, value)
    assert not wrong


def test_a_common_error_of_scores_with_equal_terms_is_accepted() -> None:
    """Equal terms in all scores make their sums round alike."""
    torch = pytest.importorskip("torch")
    query, key, value = (normal(1000, 64, seed=seed).astype(np.float32) for seed in range(3))
    query[:, 4:] = key[:, 4:] = np.float32(1.01)
    scores = np.cumsum(query[:, None, :8] * key[None, :, :8], -1, np.float32)[..., -1]
    for i in range(8, 64):
        scores = scores + query[:, None, i] * key[None, :, i]
    weights = torch.softmax(torch.from_numpy(scores / 8).double(), -1).numpy()
    verdict = judge(SDPA, (weights @ value.astype(np.float64)).astype(np.float32), query, key, value)
    assert verdict, verdict
