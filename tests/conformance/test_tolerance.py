"""``tolerance`` returns the right result and the allowed error of every number."""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness import parts
from attnspec.conformance.harness import tolerance as module
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.shapes import results

from .test_judge import NAMES, OPERATION_NAMES, SDPA, inputs

Array = np.ndarray[Any, Any]
DIFFERENTIABLE = [o.name for o in OPERATIONS.values() if o.differentiable and o.floats and not o.reference_only]


def attention(queries: int = 20, keys: int = 30, dtype: Any = np.float32) -> tuple[Array, ...]:
    """Output of attention, with its query, key and value."""
    arguments = inputs(SDPA, 2, queries=queries, keys=keys, features=8)
    query, key, value = (arguments.array(name).astype(dtype) for name in NAMES)
    return REFERENCE[SDPA](query, key, value), query, key, value


PAGE = Path(__file__).parents[2] / "docs" / "tolerance.md"
LINES = re.findall(r"\| `(.*?)` \|\n", PAGE.read_text("utf-8"))
"""The documented comparisons, one for each framework."""


def within(got: Array, expected: Array, allowed: Array) -> bool:
    """True if all numbers are within their allowed errors, and NaN where NaN is expected."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    both_nan = np.isnan(got) & np.isnan(expected)
    with np.errstate(invalid="ignore"):  # equal infinities
        return bool(((got == expected) | (np.abs(got - expected) <= allowed) | both_nan).all())


def nearly_equal(pair: tuple[Array, Array], other: tuple[Array, Array]) -> None:
    """Compare expected numbers to a thousandth of the allowed errors, and these to a quarter.

    Either call may have found a pattern in the few sums that it samples.
    """
    assert within(pair[0], other[0], other[1] / 1000)
    assert within(pair[1], other[1], other[1] / 4)


@pytest.mark.parametrize("operation", OPERATION_NAMES)
def test_the_reference_is_within_the_allowed_errors(operation: str) -> None:
    arguments = inputs(operation, 2, queries=5, keys=6)
    output = dict(results(arguments.operation, REFERENCE[operation](**arguments.values_by_name)))
    expected, allowed = tolerance(operation, **arguments.passed)
    for (leaf, right), (_, error) in zip(
        results(arguments.operation, expected), results(arguments.operation, allowed), strict=True
    ):
        got = next(x for path, x in output.items() if path.path == leaf.path)
        assert got.shape == right.shape == error.shape
        assert within(got, right, error)


def test_the_allowed_errors_are_those_of_the_judge() -> None:
    output, *arguments = attention(dtype=ml_dtypes.bfloat16)
    expected, allowed = tolerance(SDPA, *arguments)
    verdict = judge(SDPA, output, *arguments)
    ratio = (np.abs(output.astype(np.float64) - expected) / allowed).max()
    assert abs(ratio / verdict.ratio - 1) < 1e-9
    for factor, right in ((0.99, True), (1.01, False)):
        other = expected.astype(np.float32)
        wide = tolerance(SDPA, *(x.astype(np.float32) for x in arguments))
        other[1, 3, 2] += factor * wide.allowed[1, 3, 2]
        assert bool(judge(SDPA, other, *(x.astype(np.float32) for x in arguments))) is right
        assert bool((np.abs(other - wide.expected) <= wide.allowed).all()) is right


def test_the_judge_measures_a_wrong_number_by_partial_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    output, *arguments = attention(queries=100, keys=100)
    output[1, 3, 2] += np.float32(0.5)
    worst = judge(SDPA, output, *arguments).worst
    assert worst is not None
    usual = tolerance(SDPA, *arguments)
    monkeypatch.setattr(module, "_has_patterns", lambda *_: True)
    by_sums = tolerance(SDPA, *arguments)
    assert worst.expected == usual.expected[worst.index] == by_sums.expected[worst.index]
    assert abs(worst.budget / by_sums.allowed[worst.index] - 1) < 1e-9
    assert abs(worst.budget / usual.allowed[worst.index] - 1) > 1e-6


def test_parts_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs("grouped_query_attention", 2, 3, queries=16, keys=8)
    whole = tolerance("grouped_query_attention", **arguments.passed)
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**7)
    divided = tolerance("grouped_query_attention", **arguments.passed)
    for expected, allowed, other, other_allowed in zip(*whole, *divided, strict=True):
        nearly_equal((expected, allowed), (other, other_allowed))


def test_heads_and_rows_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs("grouped_query_attention", queries=64, keys=40)
    whole = tolerance("grouped_query_attention", **arguments.passed, rows=[3, 60, 5])
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**6)
    divided = tolerance("grouped_query_attention", **arguments.passed)
    assert whole.rows is not None
    assert whole.rows.tolist() == [3, 60, 5]
    for expected, allowed, other, other_allowed in zip(*whole, *divided, strict=True):
        nearly_equal((expected, allowed), (other[:, [3, 60, 5]], other_allowed[:, [3, 60, 5]]))


@pytest.mark.parametrize("causal", [False, True])
def test_sampled_rows_are_those_of_the_whole(causal: bool) -> None:
    _, *arguments = attention(queries=50)
    whole = tolerance(SDPA, *arguments, causal=causal)
    some = tolerance(SDPA, *arguments, causal=causal, rows=8, seed=1)
    assert some.rows is not None
    assert len(some.rows) == 8
    assert {0, 49} <= {*some.rows.tolist()}
    nearly_equal((whole.expected[..., some.rows, :], whole.allowed[..., some.rows, :]), (some.expected, some.allowed))
    assert "judged: 8 of 50 rows of each of 2 elements of the batch, with all keys" in str(some)


def test_a_number_of_rows_may_be_an_integer_of_numpy() -> None:
    _, *arguments = attention(queries=50)
    some = tolerance(SDPA, *arguments, rows=np.int64(8))  # type: ignore[arg-type]
    assert some.rows is not None
    assert len(some.rows) == 8


def test_rows_that_do_not_exist_or_depend_on_each_other_are_refused() -> None:
    _, *arguments = attention()
    for rows in ([20], [-1], [[0]], [0.5], -1, 0, True):
        with pytest.raises(ValueError, match=r"rows: expected a number of rows, or indices in 0\.\.19"):
            tolerance(SDPA, *arguments, rows=rows)  # type: ignore[arg-type]
    x = inputs("self_attention", 2, queries=5).passed
    with pytest.raises(ValueError, match="rows: expected None, because rows of this operation depend on each other"):
        tolerance("self_attention", **x, rows=2)


@pytest.mark.parametrize("operation", DIFFERENTIABLE[::6])
def test_gradients_have_allowed_errors(operation: str) -> None:
    torch = pytest.importorskip("torch")
    pytorch = pytest.importorskip("attnspec.backends.pytorch")
    from attnspec.conformance.judging.declaration import Contract
    from attnspec.conformance.judging.subject import Subject

    arguments = inputs(operation, 2, queries=5, keys=6)
    subject = Subject(pytorch, Contract.of(pytorch), arguments.operation, "float32", "cpu")
    torch.manual_seed(0)
    cotangents = subject.cotangents(arguments, np.random.default_rng(0))
    gradients = subject.vjp(arguments, cotangents)
    cotangent = subject.like_result(cotangents, arguments, convert=False)
    pairs = tolerance(operation, **arguments.passed, cotangent=cotangent).gradients
    assert {*pairs} == {leaf.path for leaf, _ in arguments.floats}
    for path, (expected, allowed) in pairs.items():
        assert (np.abs(gradients[path] - expected) <= allowed).all(), path


def test_too_many_gradients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnspec.conformance.harness.tolerance.MAX_PAIRS", 100)
    output, *arguments = attention()
    with pytest.raises(ValueError, match="cotangent: expected at most 100 query–key pairs; got 600"):
        tolerance(SDPA, *arguments, cotangent=output)


# Frameworks -----------------------------------------------------------------------------------------------------------


def test_tensors_are_compared_with_tensors() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 40, 16).bfloat16() for _ in range(3))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    expected, allowed = tolerance(SDPA, query, key, value)
    assert expected.dtype == allowed.dtype == torch.float64
    assert ((output - expected).abs() <= allowed).all()
    names = {"torch": torch, "expected": expected, "allowed": allowed}
    wrong = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.2)
    for line in LINES[:2]:
        exec(line, {**names, "output": output})
        with pytest.raises(AssertionError):
            exec(line, {**names, "output": wrong})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_numpy_compares_with_arrays(dtype: Any) -> None:
    output, *arguments = attention(dtype=dtype)
    expected, allowed = tolerance(SDPA, *arguments)
    assert expected.dtype == allowed.dtype == np.float64
    names = {"np": np, "jnp": np, "expected": expected, "allowed": allowed}
    for line in (LINES[0], *LINES[2:]):
        exec(line, {**names, "output": output})
        with pytest.raises(AssertionError):
            exec(line, {**names, "output": 1.1 * output.astype(np.float64)})


def test_jax_compares_in_the_dtype_that_it_has() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    output, *arguments = attention()
    query, key, value = map(jax.numpy.asarray, arguments)
    expected, allowed = tolerance(SDPA, query, key, value)
    assert isinstance(expected, jax.Array)
    assert expected.dtype == allowed.dtype == jax.numpy.float32
    exec(LINES[3], {"jnp": jax.numpy, "output": output, "expected": expected, "allowed": allowed})
    assert not (abs(1.001 * output - expected) <= allowed).all()


# Sums with a pattern, NaN, infinities ---------------------------------------------------------------------------------


def test_a_ramp_summed_one_by_one_is_within_the_allowed_errors() -> None:
    rng = np.random.default_rng(0)
    query = (np.linspace(-1, 1.01, 2048) * rng.uniform(0.5, 2, (4, 1))).astype(np.float32)
    key = np.repeat(rng.uniform(0.5, 2, (4, 1)), 2048, axis=1).astype(np.float32)
    output = np.zeros((4, 4), np.float32)
    for i in range(2048):
        output += query[:, None, i] * key[None, :, i]
    expected, allowed = tolerance("dot_scores", query, key)
    assert (np.abs(output - expected) <= allowed).all()


def test_sums_of_random_terms_are_not_followed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *arguments = attention(queries=100, keys=100)
    usual = judge(SDPA, REFERENCE[SDPA](*arguments), *arguments)
    expected, allowed = tolerance(SDPA, *arguments)
    ratio = float((np.abs(REFERENCE[SDPA](*arguments) - expected) / allowed).max())
    assert abs(ratio / usual.ratio - 1) < 1e-6


def test_nan_is_expected_where_it_is_attended_to() -> None:
    output, query, key, value = attention()
    query[0, 3] = np.nan
    expected, allowed = tolerance(SDPA, query, key, value)
    assert np.isnan(expected[0, 3]).all()
    assert np.isfinite(expected).sum() == output.size - output.shape[-1]
    assert np.isfinite(allowed).all()
    assert within(REFERENCE[SDPA](query, key, value), expected, allowed)
    assert not within(output, expected, allowed)


def test_results_of_infinities_are_left_open() -> None:
    _, query, key, value = attention()
    key[1, 0, 0] = np.inf
    expected, allowed = tolerance(SDPA, query, key, value)
    assert np.isfinite(allowed[0]).all()
    # Some queries have a score of −∞ there: a weight of 0, and a finite result.
    assert np.isnan(expected[1]).any()
    assert np.isinf(allowed[1]).all()
    got = REFERENCE[SDPA](query, key, value)
    assert ((np.abs(got - expected) <= allowed) | np.isinf(allowed)).all()
    assert not ((np.abs(1.01 * got - expected) <= allowed) | np.isinf(allowed)).all()
    assert "are left open, because they come from NaN, an infinity or a query without keys" in str(
        tolerance(SDPA, query, key, value)
    )


def test_integers_and_booleans_are_exact() -> None:
    mask = tolerance("causal_mask", 3, 4)
    assert mask.expected.dtype == bool
    assert not mask.allowed.any()


# Text -----------------------------------------------------------------------------------------------------------------


def test_the_text_says_what_is_judged_and_what_is_hidden() -> None:
    _, query, key, value = attention(dtype=ml_dtypes.bfloat16)
    value[:] = 1
    text = str(tolerance(SDPA, query, key, value))
    assert text.startswith(f"{SDPA} in bfloat16: allowed errors from ")
    assert "judged: every number" in text
    assert "these inputs would hide: keys that are not read, a scale that is 5 % off" in text


def test_a_class_that_may_overflow_proves_nothing() -> None:
    _, query, key, value = attention(dtype=np.float16)
    t = tolerance(SDPA, 200 * query, 200 * key, value)
    assert "an intermediate may exceed 6e+04" in t.outside
    assert "cannot be judged: an intermediate may exceed" in str(t)
