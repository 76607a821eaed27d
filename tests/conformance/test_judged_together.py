"""``judge`` on all rows together, defects that inputs hide, suggested inputs, diagnoses and plots."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge, suggest_inputs
from attnspec.conformance.harness import ensemble
from attnspec.conformance.harness.hidden_defects import DEFECTS
from attnspec.conformance.harness.reading import subject_of
from attnspec.conformance.harness.rounding import ExponentialsRounded, WeightsRounded, nearest, rounded
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in, numpy_dtype
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS

SDPA = "scaled_dot_product_attention"
DTYPES_OF_16_BITS = ("bfloat16", "float16")


def normal(dtype: str, *, queries: int = 200, keys: int = 300, scale: float = 1.0, seed: int = 0) -> list[Numbers]:
    """Query, key and value of two heads."""
    rng = np.random.default_rng(seed)
    shapes = ((2, queries, 16), (2, keys, 16), (2, keys, 16))
    return [exact_in(scale * rng.standard_normal(shape), dtype) for shape in shapes]


def formula(*arguments: Numbers, **options: Any) -> Numbers:
    result: Numbers = REFERENCE[SDPA](*(x.astype(np.float64) for x in arguments), **options)
    return result


def with_zeros(x: Numbers) -> Numbers:
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1)


SMALL_DEFECTS: dict[str, tuple[Callable[[Numbers, Numbers, Numbers], Numbers], str]] = {
    "a gain": (lambda q, k, v: 1.001 * formula(q, k, v), r"0\.000\d+ in the gain"),
    "a scale": (lambda q, k, v: formula(1.01 * q.astype(np.float64), k, v), r"0\.0\d+ in the scale of the scores"),
    "a key of zeros": (
        lambda q, k, v: formula(q, with_zeros(k), with_zeros(v)),
        r"(-0\.00\d+ in the gain|0\.\d+ in the weight of a key of zeros)",
    ),
}


@pytest.mark.parametrize("defect", SMALL_DEFECTS)
def test_errors_that_no_single_number_shows_are_seen_together(defect: str) -> None:
    wrong, error = SMALL_DEFECTS[defect]
    query, key, value = normal("bfloat16", scale=0.5)
    assert judge(SDPA, exact_in(formula(query, key, value), "bfloat16"), query, key, value)
    verdict = judge(SDPA, exact_in(wrong(query, key, value), "bfloat16"), query, key, value)
    assert verdict.worst is None
    assert not verdict
    assert re.fullmatch(
        rf"{SDPA} in bfloat16 is wrong: a relative error of {error} shows over 400 independent elements; rounding "
        r"explains at most 0\.\d+\njudged: every number\nerrors shared by many rows: tested on 400 rows",
        str(verdict),
    )


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("way", [WeightsRounded, ExponentialsRounded])
@pytest.mark.parametrize("dtype", DTYPES_OF_16_BITS)
def test_rounded_weights_are_right(dtype: str, way: type[WeightsRounded], scale: float) -> None:
    query, key, value = normal(dtype, scale=scale)
    subject = subject_of(OPERATIONS[SDPA], dtype, None, None)
    arguments = Arguments(OPERATIONS[SDPA], {"query": query, "key": key, "value": value})
    verdict = judge(SDPA, rounded(subject, arguments, way), query, key, value)
    assert verdict, verdict


def test_a_filter_ignores_gains_that_honest_roundings_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of almost 1 round to 1 in 16 bits, which resembles a gain."""
    rng = np.random.default_rng(3)
    value = exact_in(np.repeat([1.0, 0.0], 80)[:, None] * (1 + rng.random((160, 8))), "bfloat16")
    key = exact_in(12.0 * np.eye(160), "bfloat16")
    query = exact_in(np.tile(key[:80], (8, 1)) + 0.01 * rng.standard_normal((640, 160)), "bfloat16")
    weights = REFERENCE["softmax"](REFERENCE["scaled_dot_scores"](query.astype(np.float64), key.astype(np.float64)))
    assert 2**-11 < 1 - weights.max(-1).max() < 2**-9
    output = exact_in(weights.astype(ml_dtypes.bfloat16).astype(np.float64) @ value.astype(np.float64), "bfloat16")
    verdict = judge(SDPA, output, query, key, value)
    assert verdict, verdict
    monkeypatch.setattr(ensemble, "weight_roundings", lambda precision: ())
    monkeypatch.setattr(ensemble, "EXPONENTIALS", 0.0)
    assert judge(SDPA, output, query, key, value).together


@pytest.mark.parametrize(("rows", "keys", "gain"), [(512, 2048, 2e-5), (2048, 512, 4e-6)])
def test_exponentials_added_one_by_one_are_right(rows: int, keys: int, gain: float) -> None:
    """Small exponentials are lost in the running sum, always in one direction."""
    scores = (4 * np.random.default_rng(0).standard_normal((rows, keys))).astype(np.float32)
    exponentials = np.exp((scores - scores.max(-1, keepdims=True)).astype(np.float64)).astype(np.float32)
    weights = exponentials / np.cumsum(exponentials, -1, dtype=np.float32)[:, -1:]
    assert judge("softmax", weights, scores)
    assert not judge("softmax", weights * np.float32(1 + gain), scores)


def test_common_roundings_of_ties_are_accepted() -> None:
    """Means of two values are ties, which a tiny common error rounds all alike."""
    rng = np.random.default_rng(4)
    value = exact_in(1 + rng.random((200, 8)), "bfloat16")
    query, key = (exact_in(np.zeros((n, 4)), "bfloat16") for n in (199, 200))
    mask = np.eye(199, 200, dtype=bool)
    mask[:, 199] = True
    exact = formula(query, key, value, mask=mask)
    assert (exact_in(exact, "bfloat16").astype(np.float64) != exact).mean() > 0.3
    for share in (1 - 1e-5, 1 + 1e-5):
        verdict = judge(SDPA, exact_in(share * exact, "bfloat16"), query, key, value, mask=mask)
        assert verdict, verdict
    assert not judge(SDPA, exact_in(1.01 * exact, "bfloat16"), query, key, value, mask=mask)


def test_numbers_are_rounded_to_a_unit() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    np.testing.assert_array_equal(nearest(x, 2.0**-8), x.astype(ml_dtypes.bfloat16).astype(np.float64))
    np.testing.assert_array_equal(nearest(x, 2.0**-24), x.astype(np.float32).astype(np.float64))
    assert nearest(x, 0.0) is x


@pytest.mark.parametrize(("operation", "arguments", "options", "reason"), [
    (SDPA, [np.ones((2, 70, 4), np.float32)] * 3, {}, "this takes 65 rows that round differently, and there are 1"),
    ("general_attention", [np.ones((3, 4), np.float32)] * 3 + [np.eye(4, dtype=np.float32)], {"precision": "tf32"},
     "the precision class rounds weight matrices, which all rows share"),
    ("general_attention",
     [np.ones((2, 3, 4), np.float32), *[np.ones((1, 3, 4), np.float32)] * 2, np.eye(4, dtype=np.float32)], {},
     "elements of the batch share arguments"),
])  # fmt: skip
def test_the_reason_why_rows_are_not_judged_together_is_named(
    operation: str, arguments: list[Numbers], options: dict[str, Any], reason: str
) -> None:
    verdict = judge(operation, REFERENCE[operation](*arguments), *arguments, **options)
    assert verdict.ensemble == f"not tested, because {reason}"


# What inputs hide -----------------------------------------------------------------------------------------------------


def test_equal_values_hide_everything_but_a_key_of_zeros() -> None:
    query, key, value = normal("float32", queries=9, keys=70)
    value = np.ones_like(value)
    verdict = judge(SDPA, REFERENCE[SDPA](query, key, value), query, key, value)
    assert verdict
    assert "a scale that is 5 % off" in verdict.cannot_see
    assert "the last key left out" in verdict.cannot_see
    assert "the keys behind the last whole tile of 64 left out" in verdict.cannot_see
    assert "the keys behind the last whole tile of 128 left out" not in verdict.cannot_see, "none would be left"
    assert "a key of zeros, behind the others, that is attended to" not in verdict.cannot_see
    assert "a mask that is ignored" not in verdict.cannot_see, "there is none"
    assert set(verdict.cannot_see) < set(DEFECTS)


@pytest.mark.parametrize("hides", [True, False])
def test_a_mask_shows_where_it_hides_keys(hides: bool) -> None:
    query, key, value = normal("float32", queries=5, keys=6)
    mask = np.arange(6) < (4 if hides else 6)
    options: dict[str, Any] = {"mask": np.broadcast_to(mask, (5, 6))}
    verdict = judge(SDPA, REFERENCE[SDPA](query, key, value, **options), query, key, value, **options)
    assert verdict, verdict
    assert ("a mask that is ignored" in verdict.cannot_see) is not hides
    assert ("a mask that ends one key too late" in verdict.cannot_see) is not hides


def test_a_wrong_result_hides_nothing() -> None:
    query, key, value = normal("float32", queries=3, keys=4)
    assert judge(SDPA, np.zeros_like(query), query, key, value).cannot_see == ()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", *DTYPES_OF_16_BITS])
def test_suggested_inputs_hide_nothing(dtype: str, causal: bool) -> None:
    zeros = [np.zeros((2, 600, 16), numpy_dtype(dtype))] * 3
    suggested = suggest_inputs(SDPA, *zeros, causal=causal, seed=1)
    assert list(suggested) == ["query", "key", "value", *(["causal"] if causal else [])]
    query, key, value = (suggested[name].astype(numpy_dtype(dtype)) for name in ("query", "key", "value"))
    np.testing.assert_array_equal(query, suggested["query"])
    assert suggested["query"].dtype == np.float32
    verdict = judge(SDPA, exact_in(formula(query, key, value, causal=causal), dtype), query, key, value, causal=causal)
    assert verdict, verdict
    assert verdict.cannot_see == ()


def test_suggested_scores_are_negative_where_a_key_of_zeros_would_hide() -> None:
    """In bfloat16, one key of zeros among 20,000 does not show even over all rows."""
    zeros = [exact_in(np.zeros((n, 8)), "bfloat16") for n in (70, 20_000, 20_000)]
    suggested = suggest_inputs(SDPA, *zeros)
    query, key, value = (suggested[name] for name in ("query", "key", "value"))
    assert (query @ key.T).mean() < -10
    right = exact_in(formula(query, key, value), "bfloat16")
    padded = formula(query, *(np.concatenate([x, 0 * x[:1]]) for x in (key, value)))
    query, key, value = (x.astype(ml_dtypes.bfloat16) for x in (query, key, value))
    assert judge(SDPA, right, query, key, value)
    assert not judge(SDPA, exact_in(padded, "bfloat16"), query, key, value)


@pytest.mark.parametrize("operation", [o.name for o in OPERATIONS.values() if o.name.endswith("_attention")])
def test_inputs_are_suggested_for_every_attention(operation: str) -> None:
    subject = subject_of(OPERATIONS[operation], "float32", None, None)
    from attnspec.conformance.laws.common import sample

    arguments = sample(subject, np.random.default_rng(0), (2,), queries=5, keys=6, features=4, heads=2)
    suggested = suggest_inputs(operation, **arguments.passed)
    Arguments(OPERATIONS[operation], suggested).binding  # noqa: B018 - raises for shapes that do not belong together
    assert judge(operation, REFERENCE[operation](**suggested), **suggested)


def test_an_unknown_operation_has_no_inputs() -> None:
    with pytest.raises(ValueError, match=r"suggest_inputs: expected one of .*; got 'sdpa'"):
        suggest_inputs("sdpa")


# A guess at what is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [6, 300])
def test_a_known_defect_is_named(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnspec.conformance.harness.judge.DIAGNOSED_PAIRS", 2**12)
    query, key, value = normal("float32", queries=queries, keys=40)
    verdict = judge(SDPA, REFERENCE[SDPA](query / 4, key, value), query, key, value)
    lines = str(verdict).splitlines()
    assert lines[1] == f"diagnosis: {verdict.diagnosis}"
    assert "“attention scaled by d”" in lines[1]


def test_another_choice_is_named() -> None:
    query, key, value = normal("float32", queries=5, keys=9)
    output = REFERENCE[SDPA](query, key, value, mask=np.tri(5, 9, 4, dtype=bool))
    assert "bottom-right" in judge(SDPA, output, query, key, value, causal=True).diagnosis


def test_a_result_that_fits_no_defect_has_no_diagnosis() -> None:
    query, key, value = normal("float32", queries=5, keys=9)
    verdict = judge(SDPA, np.random.default_rng(9).standard_normal((2, 5, 16)).astype(np.float32), query, key, value)
    assert verdict.diagnosis == ""
    assert [line.partition(" ")[0] for line in str(verdict).splitlines()] == [SDPA, "judged:"]
    assert judge(SDPA, REFERENCE[SDPA](query, key, value), query, key, value).diagnosis == ""


# Pictures -------------------------------------------------------------------------------------------------------------


def test_a_plot_shows_where_errors_are() -> None:
    pytest.importorskip("matplotlib", reason="pictures need Matplotlib")
    query, key, value = normal("float32", queries=7, keys=9)
    output = REFERENCE[SDPA](query, key, value)
    output[1, 4:] = output[1, 3:4]
    figure = judge(SDPA, output, query, key, value).plot()
    rows, features = (np.asarray(axis.images[0].get_array()) for axis in figure.axes[:2])
    assert rows.shape == (2, 7)
    assert features.shape == (7, 16)
    np.testing.assert_array_equal(rows > 1, [[False] * 7, [False] * 4 + [True] * 3])
    np.testing.assert_array_equal(features[:4] > 1, False)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["the result: error / budget"] * 2
    assert figure.axes[1].get_ylabel() == "judged rows of element 1"
    assert figure.get_suptitle().startswith(f"{SDPA} in float32 is wrong: the result[1, ")
