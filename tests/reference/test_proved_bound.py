"""The computed bound is the proved one, and honest kernels stay within it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnspec.reference.budget as budgets
from attnspec.reference import REFERENCE
from attnspec.reference.attention import scaled_dot_product_attention
from attnspec.reference.budget import Judged, Rigorous, judged, numbers, oracle_dtype
from attnspec.reference.budget.numbers import growth
from attnspec.reference.budget.softmax import MANY_WEIGHTS
from attnspec.reference.normalization import softmax
from attnspec.spec.contract.precision import CLASSES, Precision
from tests.modules import ROOT
from tests.statement import Statement, definitions

Array = np.ndarray[Any, Any]
DTYPES = {"ieee32": np.float32, "ieee64": np.float64, "mixed-float16": np.float16, "mixed-bfloat16": ml_dtypes.bfloat16}
MASKED = {"ieee32": 1e6, "ieee64": 1e15, "mixed-float16": 8.0, "mixed-bfloat16": 1e6}
"""Factor of masked keys: errors of their scores are so large that they would matter."""

LARGEST_RATIO = 1.002
"""Largest quotient of computed and proved bound, since the computed one includes the oracle's roundings."""


@dataclass
class Inputs:
    """Arguments of attention, and the attendable keys of every query.

    Shapes are (batch, n, d), (batch, m, d), (batch, m, d_v) and (batch, n, m).
    """

    precision: Precision
    query: Array
    key: Array
    value: Array
    attendable: Array

    def bound(self, monkeypatch: pytest.MonkeyPatch) -> Judged:
        """The rigorous bound alone: the infinite width makes the statistical budget the larger of the two."""
        arguments = {"query": self.query, "key": self.key, "value": self.value}
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "WIDTH", np.inf)
            result: Judged = judged(
                scaled_dot_product_attention, {**arguments, "mask": self.attendable}, self.precision
            )
        return result

    def single(self) -> "Inputs":
        """A batch with one query and one coordinate of the values each."""
        columns = np.swapaxes(self.value, 1, 2)[:, None, ..., None]
        q, k, v = self.query[:, :, None, None], self.key[:, None, None], columns
        arrays = (q, k, v, self.attendable[:, :, None, :, None])
        batch = np.broadcast_shapes(*(x.shape[:3] for x in arrays))
        flat = [np.broadcast_to(x, batch + x.shape[3:]).reshape(-1, *x.shape[3:]) for x in arrays]
        return Inputs(self.precision, *flat)

    def statement(self, texts: dict[str, str] | None = None) -> Statement:
        """The proved bound in long doubles, which hold squares and exponentials."""
        p, single = self.precision, self.single()
        q, k, v = (x.astype(np.longdouble) for x in (single.query, single.key, single.value))
        numbers = {
            "u": p.accumulation,
            "smallest": p.smallest,
            "omega": p.weights,
            "weights_smallest": p.weights_smallest,
            "output": p.output,
            "output_smallest": p.output_smallest,
            "d": q.shape[-1],
            "m": k.shape[-2],
        }
        statement = Statement({**numbers, "q": q, "k": k, "v": v, "A": single.attendable}, texts)
        # The budget allows weights exp(e − log Σ exp e), which share the error of the rounded logarithm. It is exact
        # where the exponentials, in the oracle's dtype, sum to 1 in double precision.
        shifted = np.where(single.attendable, statement["shifted"], -np.inf).astype(oracle_dtype(p.dtype))
        total = np.exp(shifted).sum(1, keepdims=True).astype(np.float64)
        logarithm = np.where(total == 1, 0, np.abs(statement["highest"] + np.log(total)))
        statement.values["lambda"] = 2 * p.accumulation * logarithm
        return statement


def draw(rng: np.random.Generator, name: str, count: int, n: int = 0, d_v: int = 0) -> Inputs:
    """Inputs of one shape. Scores and values have any size; those of masked keys are largest."""
    dtype, p = DTYPES[name], CLASSES[name]
    d, m = int(rng.choice([1, 2, 5, 16, 64])), int(rng.choice([1, 2, 3, 8, 60, 300]))
    n, d_v = n or (int(rng.choice([1, 1, 3])) if m < 300 else 1), d_v or int(rng.choice([1, 1, 2]))
    size = 10 ** rng.uniform(-2, 1.5, (count, 1, 1))
    query, key = size * rng.standard_normal((count, n, d)), rng.standard_normal((count, m, d))
    sizes = 10 ** np.where(rng.random((count, 1, 1)) < 0.7, rng.uniform(-3, 3, (count, 1, 1)), decades(rng, p, count))
    tiny = rng.random((count, 1, 1)) < 0.3
    value = rng.standard_normal((count, m, d_v)) * np.where(tiny, p.output_smallest, sizes)
    value *= rng.random((count, m, 1)) < rng.choice([1.0, 0.3])
    # A mask of one row is that of all queries.
    attendable = rng.random((count, rng.choice([1, n]), m)) < rng.choice([1.0, 0.5])
    attendable[np.arange(count), :, rng.integers(0, m, count)] = True
    key *= np.where(attendable.any(1), 1, MASKED[name])[..., None]
    return Inputs(p, query.astype(dtype), key.astype(dtype), value.astype(dtype), attendable)


def decades(rng: np.random.Generator, p: Precision, count: int) -> Array:
    """Powers of ten, from the smallest normal number to nearly the largest number."""
    return rng.uniform(np.log10(p.output_smallest), np.log10(p.largest) - 4, (count, 1, 1))


def cancelling(rng: np.random.Generator, name: str, count: int, n: int = 2, d_v: int = 2) -> Inputs:
    """Inputs whose products cancel: scores of the first query may err by up to 100.

    Values are the sum of an offset and a small part, or span many decades.
    """
    dtype, p = DTYPES[name], CLASSES[name]
    d, m = int(rng.choice([2, 5])), int(rng.choice([2, 3, 20]))
    largest = 1e3 if name == "mixed-float16" else np.inf
    size = np.minimum(np.sqrt(10 ** rng.uniform(-3, 2, (count, 1, 1)) / 20 / p.accumulation), largest)
    query, key = size * rng.standard_normal((count, n, d)), size * rng.standard_normal((count, m, d))
    first = query[:, :1]
    gaps = rng.uniform(-150, 0, (count, m, 1)) * rng.random((count, 1, 1))
    key += (gaps - (key * first).sum(-1, keepdims=True)) * first / (first**2).sum(-1, keepdims=True)
    value = rng.choice([0, 3]) + rng.standard_normal((count, m, d_v)) * 10 ** rng.uniform(-4, 0, (count, 1, 1))
    if rng.random() < 0.3:
        value = value * 10 ** rng.uniform(np.log10(p.output_smallest) / 2, 0, value.shape)
    attendable = rng.random((count, rng.choice([1, n]), m)) < rng.choice([1.0, 0.5])
    attendable[:, :, 0] = True
    key *= np.where(attendable.any(1), 1, MASKED[name])[..., None]
    return Inputs(p, query.astype(dtype), key.astype(dtype), value.astype(dtype), attendable)


def draws(seed: int, shapes: int, count: int, kind: Callable[..., Inputs] = draw, **sizes: Any) -> Iterator[Inputs]:
    rng = np.random.default_rng(seed)
    for i in range(shapes):
        yield kind(rng, [*DTYPES][i % len(DTYPES)], count, **sizes)


def ratios(inputs: Inputs, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str] | None = None) -> Array:
    """Computed bounds divided by the proved ones."""
    with np.errstate(over="ignore", invalid="ignore"):  # of masked keys, whose numbers are left out
        proved = inputs.statement(texts)["result_bound"].ravel()
    ratio: Array = inputs.bound(monkeypatch).budget.ravel() / proved
    return ratio


def test_growth_is_the_function_of_the_proofs() -> None:
    assert "Definition growth (u : R) (n : nat) : R := / (1 - u) ^ n - 1." in (ROOT / "proofs/Rounding.v").read_text()
    assert "Definition expm1 (x : R) : R := exp x - 1." in (ROOT / "proofs/Bound.v").read_text()
    for u in (2.0**-53, 2.0**-24, 2.0**-13):
        for n in (1, 7, 66):
            exact = 1 / (1 - Fraction(u)) ** n - 1
            assert abs(Fraction(growth(u, n)) / exact - 1) < 2.0**-50
            assert abs(Statement({"u": u, "n": n}, {"g": "growth u n"})["g"] / growth(u, n) - 1) < 2.0**-50


def agrees(inputs: Inputs, ratio: Array) -> bool:
    """The bound is larger where the queries attend to different keys: it includes all values of their union."""
    return bool(ratio.min() >= 1 - 2.0**-50 and (inputs.attendable.shape[1] > 1 or ratio.max() <= LARGEST_RATIO))


def test_the_bound_is_the_proved_one_on_ten_thousand_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(agrees(inputs, ratios(inputs, monkeypatch)) for inputs in draws(1, 100, 100))


def test_the_bound_of_a_score_is_the_proved_one() -> None:
    """Small products underflow, which hardly changes the bound of a result."""
    for inputs in draws(2, 8, 5):
        inputs.value = inputs.value[..., :1]
        for scale in (1.0, 2.0**-60, 2.0**-63):
            small = Inputs(CLASSES["ieee32"], inputs.query * scale, inputs.key * scale, inputs.value, inputs.attendable)
            arrays = (
                Rigorous(x.astype(np.float64), 0.0, small.precision, is_input=True) for x in (small.query, small.key)
            )
            expected = small.statement()["score_error"].reshape(len(inputs.query), -1, inputs.key.shape[1])
            ratio = REFERENCE["scaled_dot_scores"](*arrays).error / expected
            assert abs(ratio - 1).max() < 1e-9


TEXTS = definitions()
CONSTANTS = [(name, *match.span()) for name, text in TEXTS.items() for match in re.finditer(r"\b\d+\b", text)]
NOT_CHANGED = {"score", "magnitude", "dot_error"}
"""The first two have only the 0 with which a sum begins; the test of scores covers the last."""


@pytest.mark.parametrize(("name", "start", "end"), [x for x in CONSTANTS if x[0] not in NOT_CHANGED])
def test_no_constant_of_the_statement_can_change(
    name: str, start: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = []
    for change in (-1, 1):
        constant = str(int(TEXTS[name][start:end]) + change)
        texts = {**TEXTS, name: TEXTS[name][:start] + constant + TEXTS[name][end:]}
        with np.errstate(all="ignore"):
            noticed.append(not all(agrees(inputs, ratios(inputs, monkeypatch, texts)) for inputs in draws(0, 24, 20)))
    assert any(noticed), "neither a smaller nor a larger constant is noticed"


def test_the_bound_of_many_weights_is_at_least_the_proved_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their squares may underflow in single precision, so the smaller sum of `Pooling.pooling_error` is compared."""
    texts = {**TEXTS, "weighting": "Rmin (sum (fun j => factor j * Rabs (v j - o)) A) farthest"}
    drawn = [*draws(7, 30, 1100), *draws(8, 12, 1700, cancelling)]
    large = [x for x in drawn if x.query[..., 0].size * x.key.shape[1] >= MANY_WEIGHTS]
    assert len(large) > 5
    for inputs in large:
        assert ratios(inputs, monkeypatch, texts).min() >= 1 - 2.0**-50


@pytest.mark.parametrize("single", [False, True], ids=["double", "single"])
def test_the_bound_where_scores_cancel_is_large_enough(single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The farthest value limits W where the sum of squares cancels.

    Larger matrices are multiplied in single precision.
    """
    sizes: dict[str, Any] = {"n": 32, "d_v": 32} if single else {}
    monkeypatch.setattr(numbers, "SINGLE_PRODUCTS", 1 if single else numbers.SINGLE_PRODUCTS)
    largest = {**TEXTS, "weighting": "farthest", "mass": "maximum (fun j => Rabs (v j)) A"}
    if single:
        assert all(ratios(inputs, monkeypatch).min() >= 1 - 2.0**-50 for inputs in draws(6, 16, 1, **sizes))
    for inputs in draws(5, 24 if single else 40, 3 if single else 100, cancelling, **sizes):
        assert ratios(inputs, monkeypatch).min() >= 1 - 2.0**-50
        if not single and inputs.attendable.shape[1] == 1:
            assert ratios(inputs, monkeypatch, largest).max() <= LARGEST_RATIO


def test_weights_whose_format_loses_all_of_them_have_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 2⁻⁹ for 200 weights: their rounded sum may be 0."""
    inputs = next(draws(0, 1, 4, cancelling))
    inputs.key, inputs.value = np.zeros((4, 200, inputs.key.shape[-1])), np.ones((4, 200, 1))
    inputs.attendable = np.ones((4, 1, 200), bool)
    inputs.precision = replace(inputs.precision, weights_smallest=2.0**-9)
    assert inputs.statement()["lost"] > 1
    assert np.isinf(inputs.bound(monkeypatch).budget).all()


# Honest kernels -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """Attention as the theorem allows it, in one order of summation."""

    order: str = "sequential"
    scale: str = "after"
    exponential: str = "exp2"
    divides: str = "after"
    sums: str = "unrounded"

    def total(self, terms: Array) -> Array:
        """Sum over the first axis."""
        if self.order == "tree":
            while len(terms) > 1:
                last = terms[len(terms) // 2 * 2 :]
                terms = np.concatenate([terms[:-1:2] + terms[1::2], last])
            terms = terms[:1]
        result: Array = terms[0]
        for term in terms[1:]:
            result = result + term
        return result

    def dot(self, x: Array, y: Array) -> Array:
        """Sum of products over the first axis.

        Products of float32 are exact in float64, for fused multiply-adds.
        """
        if self.order == "reversed":
            x, y = x[::-1], y[::-1]
        if self.order != "fused" or x.dtype == np.float64:
            return self.total(x * y)
        result: Array = x[0] * y[0]
        for a, b in zip(x[1:], y[1:], strict=True):
            result = (a.astype(np.float64) * b + result).astype(np.float32)
        return result

    def __call__(self, inputs: Inputs) -> Array:
        dtype = np.float64 if inputs.precision.dtype == "float64" else np.float32
        stored = inputs.query.dtype
        q, k, v, attendable = (
            np.moveaxis(x, 0, -1) for x in (inputs.query, inputs.key, inputs.value, inputs.attendable)
        )
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        root = np.sqrt(dtype(len(q[0])))
        if self.scale == "before":
            q = q * (1 / root)
        e = self.dot(np.moveaxis(q, 1, 0), np.moveaxis(k, 1, 0))
        e = e * (1 / root) if self.scale == "after" else e / root if self.scale == "division" else e
        keys = attendable[:, 0]
        shifted = np.where(keys, e - np.where(keys, e, -np.inf).max(0), -np.inf)
        w = np.exp2(shifted * dtype(1 / np.log(2))) if self.exponential == "exp2" else np.exp(shifted)
        if self.divides == "before":
            w = w / self.total(w)
            return self.dot(w.astype(stored).astype(dtype), v[:, 0]).astype(stored)
        rounded = w.astype(stored).astype(dtype)
        total = self.total(rounded if self.sums == "rounded" else w)
        pooled = self.dot(rounded, v[:, 0])
        return (pooled * (1 / total) if self.divides == "by reciprocal" else pooled / total).astype(stored)


KERNELS = [
    Kernel(),
    Kernel("reversed", "before", divides="by reciprocal"),
    Kernel("fused", "division", "exp"),
    Kernel("tree", sums="rounded"),
    Kernel("sequential", "division", divides="before"),
    Kernel("fused", "before", sums="rounded"),
]


def test_honest_kernels_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = dict.fromkeys(KERNELS, 0.0)
    for inputs in [*draws(3, 100, 100), *draws(4, 40, 100, cancelling)]:
        bound = inputs.bound(monkeypatch)
        for kernel in KERNELS:
            error = np.abs(kernel(inputs.single()) - bound.value.ravel())
            largest[kernel] = max(largest[kernel], float((error / bound.budget.ravel()).max()))
    assert max(largest.values()) <= 1
    assert min(largest.values()) > 0.05, largest  # The bound is not far above their errors.


def test_a_kernel_may_divide_by_the_sum_of_rounded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight is rounded up, all others down: numerator, sum and result err alike."""
    key = np.full((1, 200, 1), -0.359375, ml_dtypes.bfloat16)
    key[0, :2, 0] = 0, -1.4765625
    value = np.zeros_like(key)
    value[0, 1] = 1
    inputs = Inputs(
        CLASSES["mixed-bfloat16"], np.full((1, 1, 1), 1.875, key.dtype), key, value, np.ones((1, 1, 200), bool)
    )
    bound = inputs.bound(monkeypatch)
    unit = 2.0**-8 * bound.value[0, 0, 0]
    error = abs(float(Kernel(sums="rounded")(inputs)[0]) - bound.value[0, 0, 0])
    assert 2.7 * unit < error < bound.budget[0, 0, 0] < 3.1 * unit


@pytest.mark.parametrize("size", [1e-290, 1e-200, 1e-150, 1.0, 1e155, 1e200, 1e290])
@pytest.mark.parametrize("other", [False, True], ids=["", "another query has larger values"])
def test_values_may_have_any_magnitude(size: float, other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of double precision hold half of its exponents; scores of 10⁵ cancel here."""
    a = 1000 / 3
    query, key = np.array([[[a, a]]]), np.array([[[0, 0], [a, -a + 1e-3 / 3], [0, 0]]])
    mask = np.array([[[True, True, False]]])
    if other:
        query, mask = np.repeat(query, 2, 1), np.array([[[True, True, False], [False, False, True]]])
    value = np.array([[[size], [0.0 if other else -2 * size], [max(size, 1.0)]]])
    inputs = Inputs(CLASSES["ieee64"], query, key, value, mask)
    bound, proved = inputs.bound(monkeypatch), inputs.statement()["result_bound"].ravel()
    error = np.abs(Kernel(scale="division", exponential="exp")(inputs.single()) - bound.value.ravel())
    assert (error <= proved).all()
    assert error[0] / proved[0] > 0.01
    assert 1 - 2.0**-50 <= bound.budget[0, 0, 0] / proved[0] <= (3 if other and size < 1 else LARGEST_RATIO)


@pytest.mark.parametrize("infinite", [False, True], ids=["", "another query is infinite"])
def test_a_key_whose_weight_underflows_may_have_half_the_weight(
    infinite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two products of 2³⁵ cancel: their score is −1,238, and 0 in float32."""
    query = np.array([[[12082759, 16396293], [np.inf, 1]]], np.float32)[:, : 2 if infinite else 1] / 64
    key = np.array([[[0, 0], [12582038, -9271958]]], np.float32) / 64
    mask = np.ones((1, query.shape[1], 2), bool)
    bound = Inputs(CLASSES["ieee32"], query, key, np.array([[[1], [2]]], np.float32), mask).bound(monkeypatch)
    assert bound.value[0, 0, 0] == 1
    assert (
        Kernel()(Inputs(CLASSES["ieee32"], query[:, :1], key, np.array([[[1], [2]]], np.float32), mask[:, :1])) == 1.5
    )
    assert 1 <= bound.budget[0, 0, 0] < 1.001
    assert np.isinf(bound.budget[0, 1:]).all()


def test_a_score_of_minus_infinity_has_weight_0_unless_its_error_is_unknown() -> None:
    """The error is unknown where a query or key is infinite."""
    for error, known in ((1e-6, True), (np.inf, True), (np.nan, False)):
        scores = Rigorous(np.array([[0, -np.inf]]), np.array([[1e-6, error]]), CLASSES["ieee32"])
        weights: Any = softmax(scores)  # type: ignore[arg-type]
        assert np.isfinite(weights.error).all() == known


def test_large_errors_of_300_scores_have_a_small_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of 300 keys may err by 1.3, but only one value is not 0. A kernel errs most where that one key does."""
    key = np.tile(np.array([2.0**21, -(2.0**21)], np.float32), (1, 300, 1))
    value = np.zeros((1, 300, 1), np.float32)
    value[0, 7] = 1
    inputs = Inputs(CLASSES["ieee32"], np.full_like(key[:, :1], 2.5), key, value, np.ones((1, 1, 300), bool))
    assert 1 < inputs.statement()["delta"].max() < 2
    assert inputs.bound(monkeypatch).budget[0, 0, 0] < 0.7
    assert agrees(inputs, ratios(inputs, monkeypatch))


def test_a_large_error_of_the_largest_weight_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first score may err by 3, the other is less by 200."""
    query = np.array([[[6, 6]]], np.float32)
    key = np.array([[[2.0**21, -(2.0**21)], [-50, 0]]], np.float32)
    inputs = Inputs(CLASSES["ieee32"], query, key, np.array([[[1], [0]]], np.float32), np.ones((1, 1, 2), bool))
    assert 3 < inputs.statement()["delta"].max() < 4
    assert inputs.bound(monkeypatch).budget[0, 0, 0] < 1e-4


def test_the_bound_of_a_small_value_whose_weight_may_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of 2⁻⁶⁰ may grow from e⁻¹²³⁸, that of 1 is 0 for certain. The bound is max |v − o| all the same."""
    query = np.array([[[12082759, 16396293]]], np.float32) / 64
    key = np.array([[[0, 0], [12582038, -9271958], [-1e3, -1e3]]], np.float32) / 64
    value = np.array([[[0], [2.0**-60], [1]]], np.float32)
    inputs = Inputs(CLASSES["ieee32"], query, key, value, np.ones((1, 1, 3), bool))
    assert agrees(inputs, ratios(inputs, monkeypatch))


def test_a_row_without_keys_has_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.ones((1, 1, 1), np.float32)
    bound = Inputs(CLASSES["ieee32"], one, one, one, np.zeros((1, 1, 1), bool)).bound(monkeypatch)
    assert bound.value[0, 0, 0] == 0
    assert 0 <= bound.budget[0, 0, 0] < 1e-36
