"""Budgets: honest arithmetic stays within them, also where its errors are not independent, and they are not vacuous."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.reference import REFERENCE
from attnspec.reference.budget import Judged, Rigorous, Statistical, judged
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.reference.budget.gradients import gradients
from attnspec.reference.normalization import log_softmax
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import CLASSES, MODIFIERS, DeclaredPrecision, Precision
from attnspec.spec.contract.tree import flatten
from attnspec.spec.transformer import LayerNormParameters

from .conftest import draw_arguments

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def precision(operation: str, dtype: str, **modifiers: Any) -> Precision:
    declared = DeclaredPrecision.of({"default": modifiers.pop("declared", {})} if modifiers else None, OPERATIONS)
    return declared(operation, dtype)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def largest_ratio(got: Array, oracle: Judged) -> float:
    return float(np.max(np.abs(got.astype(np.float64) - oracle.value) / oracle.budget))


HONEST: dict[str, tuple[Callable[[], dict[str, Any]], Callable[..., Array]]] = {
    "dot_scores": (lambda: {"query": normal(3, 9, 16), "key": normal(3, 11, 16)}, lambda query, key: query @ key.mT),
    "general_scores": (
        lambda: {"query": normal(9, 16), "key": normal(11, 12), "w": normal(16, 12) / 4},
        lambda query, key, w: query @ (w @ key.T),
    ),
    "additive_scores": (
        lambda: {
            "query": normal(9, 5), "key": normal(11, 6), "w_q": normal(20, 5), "w_k": normal(20, 6), "w_v": normal(20),
        },
        lambda query, key, w_q, w_k, w_v: np.tanh((query @ w_q.T)[:, None] + key @ w_k.T) @ w_v,
    ),
    "scaled_dot_product_attention": (
        lambda: {"query": normal(3, 9, 16), "key": normal(3, 40, 16), "value": normal(3, 40, 7)},
        lambda query, key, value: softmax(query @ key.mT / np.float32(4)) @ value,
    ),
}  # fmt: skip


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("operation", HONEST)
def test_plain_float32_stays_within_its_budget_and_comes_near(operation: str) -> None:
    make, compute = HONEST[operation]
    ratios = []
    for _ in range(60):
        arguments = make()
        oracle = judged(REFERENCE[operation], arguments, precision(operation, "float32"))
        ratios.append(largest_ratio(compute(**arguments), oracle))
    assert 0.05 < max(ratios) <= 1.0


def test_a_relative_error_of_64_roundings_exceeds_the_budget() -> None:
    arguments = HONEST["dot_scores"][0]()
    oracle = judged(REFERENCE["dot_scores"], arguments, precision("dot_scores", "float32"))
    assert largest_ratio(oracle.value * (1 + 64 * 2.0**-24), oracle) > 1


def test_equal_hidden_units_err_together() -> None:
    """27 units that are all alike: the error of one tanh counts 27 times, not √27 times."""
    ratios, independent = [], []
    for _ in range(200):
        arguments = {
            "query": normal(4, 3), "key": normal(4, 3),
            "w_q": np.repeat(normal(1, 3), 27, 0), "w_k": np.repeat(normal(1, 3), 27, 0),
            "w_v": np.ones(27, np.float32),
        }  # fmt: skip
        oracle = judged(REFERENCE["additive_scores"], arguments, precision("additive_scores", "float32"))
        # an honest tanh that rounds its result up
        z = (arguments["query"] @ arguments["w_q"].T)[:, None] + arguments["key"] @ arguments["w_k"].T
        got = (np.nextafter(np.tanh(z), np.float32(2)) @ arguments["w_v"]).astype(np.float64)
        ratios.append(largest_ratio(got, oracle))
        arguments["w_q"], arguments["w_k"] = normal(27, 3), normal(27, 3)
        other = judged(REFERENCE["additive_scores"], arguments, precision("additive_scores", "float32"))
        independent.append(float(np.median(other.sigma)) / float(np.median(oracle.sigma)))
    assert max(ratios) <= 1.0
    assert np.median(independent) < 0.7


def test_units_that_share_the_weights_of_keys_err_together() -> None:
    """400 units share a projected key: its error moves every tanh in one direction."""
    ratios = []
    for _ in range(100):
        arguments: dict[str, Any] = {
            "query": np.ones((1, 1), np.float32), "key": normal(4, 25) / 5,
            "w_q": 0.3 * normal(400, 1), "w_k": np.repeat(normal(1, 25), 400, 0), "w_v": np.ones(400, np.float32),
        }  # fmt: skip
        oracle = judged(REFERENCE["additive_scores"], arguments, precision("additive_scores", "float32"))
        from_key = (arguments["key"].astype(np.float64) @ arguments["w_k"].T.astype(np.float64)).astype(np.float32)
        # a sixteenth of what 25 roundings in one direction may add up to
        magnitudes = np.abs(arguments["key"]) @ np.abs(arguments["w_k"].T)
        from_key += (25 / 16 * 2.0**-24 * magnitudes).astype(np.float32)
        z = (arguments["query"] @ arguments["w_q"].T)[:, None] + from_key
        ratios.append(largest_ratio(np.tanh(z) @ arguments["w_v"], oracle))
    assert 0.05 < max(ratios) <= 1.0


def test_a_sum_may_begin_with_the_bias() -> None:
    """Kernels of linear layers start from the bias: where it is large, every term is rounded to its last place."""
    ratios = []
    for _ in range(200):
        x, w, bias = 1e-4 * np.abs(normal(1, 30)), 1e-2 * np.abs(normal(30, 3)), np.abs(normal(3)) + 1
        total = bias.copy()
        for i in range(30):
            total += x[0, i] * w[i]
        oracle = judged(lambda x, w, bias: x @ w + bias, {"x": x, "w": w, "bias": bias}, precision("", "float32"))
        ratios.append(largest_ratio(total[None], oracle))
    assert 0.05 < max(ratios) <= 1.0


def test_weights_whose_squares_underflow_have_a_budget() -> None:
    scores = np.array([[0.0, -500.3, -650.7]])
    oracle = judged(REFERENCE["softmax"], {"scores": scores}, precision("softmax", "float64"))
    relative = (oracle.budget / oracle.value)[:, 1:]
    assert ((relative > 2.0**-50) & (relative < 2.0**-40)).all()


def test_a_row_that_is_taken_often_gets_the_sum_of_its_gradients() -> None:
    tokens, table = np.array([1, 0, 1, 1]), normal(3, 2)
    cotangent = normal(4, 2)
    arguments = {"tokens": tokens, "table": table}
    gradients_by_path = gradients(
        REFERENCE["embed"], arguments, cotangent, precision("embed", "float32"), np.dtype(np.float64)
    )
    gradient, budget = gradients_by_path["table"]
    expected = np.stack([cotangent[1], cotangent[[0, 2, 3]].astype(np.float64).sum(0), np.zeros(2)])
    np.testing.assert_array_equal(gradient, expected)  # doubles hold sums of three floats
    sums = (cotangent[0] + cotangent[2]) + cotangent[3]
    assert (np.abs(sums - expected[1]) <= budget[1]).all()
    assert (budget[1] < 1e-5).all()


def test_tanh_errs_by_the_steepest_slope_within_the_budget() -> None:
    """tanh is flat at 3, but with σ = 0.5 the argument may be −1."""
    x, sigma = 3.0, 0.5
    result = np.tanh(Statistical(np.array([x]), sigma, precision("rnn_cell", "float32")))
    assert 8 * result.error[0] >= np.tanh(x) - np.tanh(x - 8 * sigma)


def test_the_slope_of_tanh_errs_as_a_square_does() -> None:
    """Both factors of r² are the same number, whose error counts twice."""
    p = precision("rnn_cell", "float32")
    x, identity = np.array([[1.5]]), np.ones((1, 1))
    budget = gradients(lambda x: np.tanh(x @ identity), {"x": x}, identity, p, np.dtype(np.float64))["x"][1]
    r = np.tanh(Statistical(x, 0.0, p, is_input=True) @ identity)
    assert budget[0, 0] / 8 >= 2 * r.value[0, 0] * r.error[0, 0]


def test_a_product_of_three_may_be_taken_in_either_order_in_bfloat16() -> None:
    """Terms of W k that add up coherently: its rounding as an operand exceeds that of q W."""
    p = precision("general_scores", "bfloat16")
    assert p.operand > 0
    ratios = []
    for _ in range(200):
        key = np.ones((3, 64), ml_dtypes.bfloat16)
        w = np.abs(normal(16, 64)).astype(ml_dtypes.bfloat16)
        query = normal(5, 16).astype(ml_dtypes.bfloat16)
        oracle = judged(REFERENCE["general_scores"], {"query": query, "key": key, "w": w}, p)
        inner = (w.astype(np.float32) @ key.astype(np.float32).T).astype(ml_dtypes.bfloat16).astype(np.float32)
        ratios.append(largest_ratio((query.astype(np.float32) @ inner).astype(ml_dtypes.bfloat16), oracle))
    assert 0.1 < max(ratios) <= 1.0


def test_the_bound_holds_where_every_rounding_goes_one_way() -> None:
    """Sums whose partial sums are all rounded up."""
    arguments = {"query": np.abs(normal(3, 200)), "key": np.abs(normal(4, 200))}
    p = precision("dot_scores", "float32")
    bound = judged(REFERENCE["dot_scores"], arguments, p)
    total = np.zeros((3, 4), np.float32)
    for k in range(200):
        term = arguments["query"][:, None, k] * arguments["key"][None, :, k]
        total = np.nextafter(total + np.nextafter(term, np.float32(np.inf)), np.float32(np.inf))
    bounded = REFERENCE["dot_scores"](
        *(Rigorous(x.astype(np.float64), 0.0, p, is_input=True) for x in (arguments["query"], arguments["key"]))
    )
    error = np.abs(total - bound.value)
    assert (error <= bounded.error).all()
    assert (error > 8 * 0.5 * 2.0**-24 * bound.value).any()


def test_errors_reach_the_peak_where_an_intermediate_overflows() -> None:
    arguments = {"query": np.full((1, 4), 1e20, np.float32), "key": np.full((1, 4), 1e20, np.float32)}
    p = precision("dot_scores", "float32")
    assert judged(REFERENCE["dot_scores"], arguments, p).peak > p.largest


def test_values_do_not_raise_the_peak_of_an_empty_batch() -> None:
    key, value = np.ones((4, 3), np.float32), np.full((4, 3), np.inf, np.float32)
    arguments = {"query": np.ones((0, 4, 3), np.float32), "key": key, "value": value}
    attention, p = "scaled_dot_product_attention", precision("scaled_dot_product_attention", "float32")
    assert judged(REFERENCE[attention], arguments, p).peak < p.largest


def test_gradients_of_plain_float32_stay_within_their_budget_and_come_near() -> None:
    query, key = normal(6, 8), normal(9, 8)
    p = precision("dot_scores", "float32")
    ratios = []
    for _ in range(40):
        cotangent = normal(6, 9)
        gradients_by_path = gradients(REFERENCE["dot_scores"], {"query": query, "key": key}, cotangent, p, np.float64)
        value, budget = gradients_by_path["query"]
        ratios.append(float(np.max(np.abs(cotangent @ key - value) / budget)))
    assert 0.05 < max(ratios) <= 1.0


def test_the_gradient_of_shared_weights_may_be_summed_in_one_go() -> None:
    """A backend may sum over all pairs in sequence, not first over keys per query."""
    p = precision("additive_scores", "float32")
    arguments = {"query": normal(60, 3), "key": normal(70, 3), "w_q": normal(2, 3), "w_k": normal(2, 3)}
    hidden = np.tanh((arguments["query"] @ arguments["w_q"].T)[:, None] + arguments["key"] @ arguments["w_k"].T)
    ratios = []
    for _ in range(30):
        cotangent = normal(60, 70)
        inputs = {**arguments, "w_v": normal(2)}
        value, budget = gradients(REFERENCE["additive_scores"], inputs, cotangent, p, np.float64)["w_v"]
        total = np.cumsum((cotangent[..., None] * hidden).reshape(-1, 2), axis=0, dtype=np.float32)[-1]
        ratios.append(float(np.max(np.abs(total - value) / budget)))
    assert 0.02 < max(ratios) <= 1.0


def test_a_product_without_columns_has_gradients_of_zero() -> None:
    query, w = normal(2, 3, 4), normal(0, 4)
    p = precision("location_scores", "float32")
    gradients_by_path = gradients(
        REFERENCE["location_scores"], {"query": query, "w": w}, np.zeros((2, 3, 0)), p, np.float64
    )
    assert gradients_by_path["w"][0].shape == (0, 4)
    assert not gradients_by_path["query"][0].any()


def test_statistical_arrays_refuse_what_they_have_no_rule_for() -> None:
    x = Statistical(np.ones(3), 0.0, precision("softmax", "float32"), is_input=True)
    with pytest.raises(TypeError):
        np.arctan(x)


def test_budgets_of_doubles_need_no_long_doubles() -> None:
    rng = np.random.default_rng(0)
    arguments = {name: rng.standard_normal((2, 5, 3)) for name in ("query", "key", "value")}
    formula, doubles = REFERENCE["scaled_dot_product_attention"], precision("scaled_dot_product_attention", "float64")
    narrow = judged(formula, arguments, doubles, np.dtype(np.float64))
    assert narrow.value.dtype == np.float64
    # A budget is an estimate: a hundredth of it is nothing.
    assert (np.abs(narrow.budget / judged(formula, arguments, doubles).budget - 1) < 0.01).all()


def test_weights_through_the_logarithm_of_the_sum_are_honest() -> None:
    scores = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32) + np.float32(1000)
    top = scores.max(-1, keepdims=True)
    logarithm = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))
    expected = judged(REFERENCE["softmax"], {"scores": scores}, precision("softmax", "float32"))
    error = np.abs(np.exp(scores - logarithm) - expected.value)
    assert error.max() > 1e-6
    assert (error <= expected.budget).all()


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    w: Array
    b: Array | None = None


def affine(x: Array, layers: tuple[Affine, ...], count: int = 1) -> tuple[Array, tuple[Array, Array]]:
    """The last layer's rows, its input, and the signs of the result."""
    for layer in layers:
        before = x
        x = x @ layer.w.T if layer.b is None else x @ layer.w.T + layer.b
    return x * count, (before, np.greater(x, 0))


def affine_arguments(draw: Callable[..., Array] = normal) -> dict[str, Any]:
    return {"x": draw(5, 4), "layers": (Affine(draw(3, 4), draw(3)), Affine(draw(6, 3))), "count": 2}


def integers(*shape: int) -> Array:
    """Integers from −3 to 3, other than 0: sums of their products are exact."""
    values: Array = RNG.choice([-3, -2, -1, 1, 2, 3], shape).astype(np.float32)
    return values


def test_a_tree_of_results_has_a_tree_of_budgets() -> None:
    arguments = affine_arguments()
    rows, (before, signs) = judged(affine, arguments, precision("dot_scores", "float32"))
    assert all(isinstance(x, Judged) for x in (rows, before, signs))
    got, (got_before, got_signs) = affine(**arguments)
    assert (largest_ratio(got, rows), largest_ratio(got_before, before)) < (1.0, 1.0)
    assert largest_ratio(got * np.float32(1.001), rows) > 1
    assert np.array_equal(got_signs, signs.value)
    assert not signs.budget.any()
    assert before.budget.shape == (5, 3)


def test_an_array_of_a_tree_has_the_budget_that_it_would_have_alone() -> None:
    arguments, p = affine_arguments(), precision("dot_scores", "float32")
    whole, (before, _) = judged(affine, arguments, p)
    alone = judged(lambda **inputs: affine(**inputs)[0], arguments, p)
    np.testing.assert_array_equal(whole.budget, alone.budget)
    first = {**arguments, "layers": arguments["layers"][:1], "count": 1}
    np.testing.assert_array_equal(before.value, judged(lambda **inputs: affine(**inputs)[0], first, p).value)


def test_gradients_of_a_tree_come_by_path() -> None:
    arguments, p = affine_arguments(integers), precision("dot_scores", "float32")
    cotangent = integers(5, 6)
    gradients_by_path = gradients(affine, arguments, (cotangent, (None, None)), p, np.float64)
    assert list(gradients_by_path) == ["x", "layers[0].w", "layers[0].b", "layers[1].w"]
    layers = arguments["layers"]
    before = arguments["x"].astype(np.float64) @ layers[0].w.T + layers[0].b
    np.testing.assert_array_equal(gradients_by_path["layers[1].w"][0], 2 * cotangent.T.astype(np.float64) @ before)
    back = 2 * cotangent.astype(np.float64) @ layers[1].w
    np.testing.assert_array_equal(gradients_by_path["layers[0].b"][0], back.sum(0))
    for path, (value, budget) in gradients_by_path.items():
        assert value.shape == budget.shape == flatten(arguments)[path].shape
        assert (budget > 0).all()


def test_a_cotangent_of_every_array_counts() -> None:
    arguments, p = affine_arguments(integers), precision("dot_scores", "float32")
    of_rows, of_before = integers(5, 6), integers(5, 3)
    parts = [(of_rows, (None, None)), (None, (of_before, None)), (of_rows, (of_before, None))]
    results = [gradients(affine, arguments, cotangent, p, np.float64) for cotangent in parts]
    for path in results[2]:
        np.testing.assert_array_equal(results[0][path][0] + results[1][path][0], results[2][path][0])
    assert not results[1]["layers[1].w"][0].any()


@pytest.mark.parametrize("scale", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("offset", [0.0, 60.0])
def test_logarithms_of_softmax_have_a_budget(scale: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    scores = (scale * rng.normal(size=(50, 9)) + offset).astype(np.float32)
    verdict = judged(lambda x: log_softmax(x), {"x": scores}, precision("softmax", "float32"))
    total = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) + scores.max(
        -1, keepdims=True
    )
    unit = np.finfo(np.float32).eps / 2
    for got in (log_softmax(scores), scores - total):
        assert (np.abs(got - verdict.value) <= verdict.budget).all()
    assert (verdict.budget <= 40 * unit * (1 + np.abs(verdict.value) + np.abs(total))).all()


@pytest.mark.parametrize("name", ["greedy_decode", "beam_decode"])
def test_scores_are_unknown_where_errors_decide_what_is_chosen(name: str) -> None:
    arguments = draw_arguments(name, np.random.default_rng(0), np.float32, batch=(2,))
    known = judged(REFERENCE[name], arguments, precision(name, "float32"))
    assert (known[1].budget <= 1e-4).all()
    arguments["parameters"].w_o[...] = arguments["parameters"].b_o[...] = 0
    _, score = judged(REFERENCE[name], arguments, precision(name, "float32"))
    assert (score.budget >= UNKNOWN / 2).all()
    assert score.peak < 1e3
    assert np.isfinite(score.value).all()


def test_a_variance_from_one_pass_is_within_the_budget_of_backends_that_declare_it() -> None:
    x = (10 + normal(200, 12)).astype(np.float32)
    gain, bias = normal(12), normal(12)
    arguments = {"x": x, "parameters": LayerNormParameters(gain, bias)}
    declared = DeclaredPrecision.of({"float32": "ieee32+one-pass-variance"}, OPERATIONS)("layer_norm", "float32")
    mean = x.mean(-1, keepdims=True)
    variance = np.maximum((x * x).mean(-1, keepdims=True) - mean * mean, 0)
    got = gain * (x - mean) / np.sqrt(variance + np.float32(1e-5)) + bias
    assert largest_ratio(got, judged(REFERENCE["layer_norm"], arguments, precision("layer_norm", "float32"))) > 2
    assert 0.1 < largest_ratio(got, judged(REFERENCE["layer_norm"], arguments, declared)) < 1


def test_only_matrix_products_have_narrow_operands_in_tf32() -> None:
    arguments = {"x": normal(50, 12), "parameters": LayerNormParameters(normal(12), normal(12))}
    wide, narrow = (judged(REFERENCE["layer_norm"], arguments, CLASSES[name]).budget for name in ("tf32", "ieee32"))
    np.testing.assert_array_equal(wide, narrow)
    products = {"query": normal(9, 16), "key": normal(11, 16)}
    wide, narrow = (judged(REFERENCE["dot_scores"], products, CLASSES[name]).budget for name in ("tf32", "ieee32"))
    assert (wide > 100 * narrow).all()


def test_weights_of_infinite_scores_are_those_of_the_reference() -> None:
    scores = np.array([[-np.inf, 2.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, -np.inf]])
    oracle = judged(REFERENCE["softmax"], {"scores": scores}, precision("softmax", "float64"))
    assert np.array_equal(oracle.value, REFERENCE["softmax"](scores), equal_nan=True)
    assert oracle.budget[0, 1] < 1e-14
    assert oracle.budget[0, 0] < 1e-300


def test_operands_of_eight_bits_are_rounded_in_steps() -> None:
    p, dtype = CLASSES["e4m3-float32"], ml_dtypes.float8_e4m3fn
    finfo: Any = ml_dtypes.finfo
    assert p.largest == float(finfo(dtype).max)
    assert 2 * p.inputs_smallest == float(finfo(dtype).smallest_subnormal)
    assert 2 * p.inputs == float(finfo(dtype).eps)
    rng = np.random.default_rng(0)
    # from numbers whose steps are relative down to those that are less than a step
    query, key = (rng.standard_normal((64, 4)) * 2.0 ** rng.integers(-20, 4, (64, 1)) for _ in range(2))
    stored = [x.astype(dtype).astype(np.float64) for x in (query, key)]
    oracle = judged(REFERENCE["dot_scores"], {"query": query, "key": key}, p)
    error = np.abs(stored[0] @ stored[1].T - query @ key.T)
    assert (error <= oracle.budget).all()
    assert (error > 0.2 * oracle.budget).any()


def in_blocks(x: np.ndarray, dtype: Any) -> Any:
    """Rows of 32 numbers in 8 bits, scaled by powers of 2 (MX formats)."""
    finfo: Any = ml_dtypes.finfo
    largest = float(finfo(dtype).max)
    scale = 2.0 ** (np.floor(np.log2(np.abs(x).max(-1, keepdims=True))) - np.floor(np.log2(largest)))
    return np.clip(x / scale, -largest, largest).astype(dtype).astype(np.float64) * scale


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_scaled_operands_of_eight_bits_are_rounded_in_steps_of_the_largest(dtype: Any) -> None:
    p = CLASSES["mxfp8-float32"]
    rng = np.random.default_rng(0)
    # of any magnitude, and within a row down to what is less than a step
    query, key = (rng.standard_normal((64, 32)) * 2.0 ** rng.integers(-20, 20, (64, 32)) for _ in range(2))
    oracle = judged(REFERENCE["dot_scores"], {"query": query, "key": key}, p)
    error = np.abs(in_blocks(query, dtype) @ in_blocks(key, dtype).T - query @ key.T)
    assert (error <= oracle.budget).all()
    assert (error > 0.05 * oracle.budget).any()


def test_budgets_include_rounding_of_values_that_wrong_weights_select() -> None:
    p = CLASSES["mxfp8-float32"]
    arguments = {"query": np.full((1, 8), 40.0), "key": np.array([[3.0], [3.2]]) * np.ones(8)}
    arguments["value"] = np.array([[-0.286], [0.001]])
    oracle = judged(REFERENCE["scaled_dot_product_attention"], arguments, p)
    assert abs(oracle.value[0, 0] - 0.001) < 1e-6
    # The scores may be so wrong that the other key has all the weight. Its value is rounded by an eighth, and the sum
    # of weights that divides it by another one.
    assert abs(-0.286 * 9 / 7 - oracle.value[0, 0]) <= oracle.budget[0, 0] < 0.42


def test_the_logarithm_of_a_sum_errs_as_much_as_its_greatest_score() -> None:
    """An error of 10¹⁸ in a score is not cut to 700, where exp overflows."""
    query = np.array([[[1.0, -1.0 + 2.0**-20]]], np.float32)
    arguments = {"query": query, "key": np.full((1, 3, 2), 1e25, np.float32), "value": np.ones((1, 3, 1), np.float32)}
    logarithms = judged(REFERENCE["grouped_query_attention"], arguments, CLASSES["ieee32"])[1]
    scores = judged(REFERENCE["scaled_dot_scores"], {x: arguments[x] for x in ("query", "key")}, CLASSES["ieee32"])
    assert (logarithms.budget >= scores.budget.min() / 2).all()


@pytest.mark.parametrize("name", ["dot_scores", "attention_pooling"])
def test_codes_times_scales_may_be_rounded_to_float32(name: str) -> None:
    """Code and scale have 31 bits together; a kernel in float32 keeps 24."""
    rng = np.random.default_rng(0)

    def operand(*shape: int) -> Array:
        scales = rng.uniform(0.5, 1, (*shape[:-1], 1)).astype(np.float32)
        return rng.integers(-127, 128, shape) * scales.astype(np.float64)

    first, second = list(OPERATIONS[name].call.names)[:2]
    left = operand(2000, 1, 1) if name == "dot_scores" else rng.exponential(size=(2000, 1, 5)).astype(np.float32)
    arguments = {first: left, second: operand(2000, 5, 1)}
    oracle = judged(REFERENCE[name], arguments, CLASSES["ieee32"])
    got = REFERENCE[name](**{path: x.astype(np.float32) for path, x in arguments.items()})
    assert 0.2 < largest_ratio(got, oracle) <= 1


def stored_weights(name: str, x: Array) -> Array:
    """Numbers from 0 to 1 rounded as one of the modifiers of weights says."""
    if name == "weights-int8":
        return np.asarray(np.rint(x * 127) / 127)
    if name == "weights-mxfp8":
        return np.asarray(in_blocks(x, ml_dtypes.float8_e4m3fn))
    if name == "weights-nvfp4":
        scale = (x.max(-1, keepdims=True) / 6).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        scale = np.maximum(scale, 2.0**-40)  # a scale of 0 makes all numbers of its block 0
        return np.asarray(np.clip(x / scale, 0, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale)
    kind = ml_dtypes.float8_e4m3fn if name == "weights-e4m3" else ml_dtypes.float8_e5m2
    return x.astype(kind).astype(np.float64)


@pytest.mark.parametrize("name", [name for name in MODIFIERS if name.startswith("weights-")])
def test_weights_in_few_bits_err_by_their_roundoff_or_by_a_step_of_the_largest(name: str) -> None:
    p = MODIFIERS[name](CLASSES["ieee32"])
    x = np.concatenate([np.linspace(0, 1, 32 * 4001), 2.0 ** np.linspace(-24, 0, 32 * 4001)]).reshape(-1, 32)
    x[:, 0] = 1.0
    x[::2] *= np.linspace(0.01, 1, len(x[::2]))[:, None]  # blocks below the largest of their row, 1
    error = np.abs(stored_weights(name, x) - x)
    allowed = np.maximum(p.weights * x, p.weights_scaled)
    assert (error <= allowed * (1 + 1e-9)).all()
    assert (error > 0.99 * p.weights_scaled).any()
    assert p.weights == 0 or (error > 0.7 * p.weights * x)[x > 16 * p.weights_scaled].any()


@pytest.mark.parametrize("name", [name for name in MODIFIERS if name.startswith("weights-")])
@pytest.mark.parametrize("keys", [1, 2, 64, 1024])
def test_attention_with_weights_in_few_bits_stays_within_its_budget(name: str, keys: int) -> None:
    p = MODIFIERS[name](CLASSES["ieee32"])
    rng = np.random.default_rng(keys)
    ratios = []
    for case in range(12):
        query, key, value = (rng.standard_normal((1 + 4096 // keys, n, 16)) for n in (4, keys, keys))
        # One key that outweighs many equal ones, constant values, peaked and flat rows.
        key = key * (0.1, 1, 3)[case % 3] if case < 6 else np.where(np.arange(keys)[:, None] > 0, 0.0, query[:, :1])
        value = np.abs(value) if case % 2 else value
        arguments = {
            "query": query.astype(np.float32),
            "key": key.astype(np.float32),
            "value": value.astype(np.float32),
        }
        oracle = judged(REFERENCE["scaled_dot_product_attention"], arguments, p)
        scores = query.astype(np.float32) @ key.astype(np.float32).swapaxes(-1, -2) / np.float32(4)
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        padded = np.pad(exponentials, [(0, 0), (0, 0), (0, -keys % 32)])
        blocks = np.maximum(padded.reshape(-1, 32).astype(np.float64), 1e-30)  # the scale of zeros would be 0
        stored = stored_weights(name, blocks).reshape(padded.shape)[..., :keys].astype(np.float32)
        got = stored @ value.astype(np.float32) / exponentials.sum(-1, keepdims=True)
        ratios.append(largest_ratio(got, oracle))
    assert max(ratios) <= 1, ratios
    assert max(ratios) > 0.1 or keys == 1


def test_masked_keys_add_no_step_of_float16() -> None:
    """The step of weights counts only for attended keys, not for masked ones."""
    value = np.random.default_rng(0).standard_normal((60_000, 8)).astype(np.float16)
    query, key, mask = np.zeros((1, 8), np.float16), np.zeros((60_000, 8), np.float16), np.arange(60_000) < 8
    p = precision("scaled_dot_product_attention", "float16")
    masked = {"query": query, "key": key, "value": value, "mask": mask[None]}
    attended = {"query": query, "key": key[:8], "value": value[:8]}
    wide, narrow = (judged(REFERENCE["scaled_dot_product_attention"], x, p).sigma for x in (masked, attended))
    assert (wide / narrow).max() < 1.02
