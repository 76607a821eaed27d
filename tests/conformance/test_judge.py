"""``judge``: one result of any framework against the formula."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.harness import backward, parts
from attnspec.conformance.harness.arrays import read
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.shapes import ShapeError, results
from attnspec.spec.contract.tree import Kind

SDPA = "scaled_dot_product_attention"
NAMES = ("query", "key", "value")
JUDGED = [o.name for o in OPERATIONS.values() if not o.reference_only]


class Nothing:
    """A backend that is asked for samples alone."""

    name = "nothing"


def inputs(operation: str, *batch: int, queries: int = 4, keys: int = 4, features: int = 4, seed: int = 0) -> Arguments:
    """Normal arguments of an operation, with two heads if it has any."""
    found = Subject(Nothing(), Contract.of(Nothing()), OPERATIONS[operation], "float32", "cpu")
    rng = np.random.default_rng(seed)
    return sample(found, rng, batch, queries=queries, keys=keys, heads=2, features=features)


def attention(queries: int, keys: int, features: int = 4) -> tuple[Numbers, ...]:
    """The attention that query, key and value give, and these."""
    given = inputs(SDPA, 2, queries=queries, keys=keys, features=features)
    query, key, value = (given.array(name) for name in NAMES)
    return REFERENCE[SDPA](query, key, value), query, key, value


@pytest.mark.parametrize("operation", JUDGED)
def test_the_reference_is_right(operation: str) -> None:
    given = inputs(operation, 2, queries=5, keys=6)
    output = REFERENCE[operation](**given.values_by_name)
    verdict = judge(operation, output, **given.passed)
    assert verdict, verdict
    assert verdict.worst is None


@pytest.mark.parametrize(
    "operation", [o.name for o in OPERATIONS.values() if o.floats and o.float_result and not o.reference_only]
)
def test_a_number_that_is_wrong_is_named(operation: str) -> None:
    given = inputs(operation, 2, queries=5, keys=6)
    output = REFERENCE[operation](**given.values_by_name)
    leaf, leading = next((leaf, x) for leaf, x in results(given.operation, output) if leaf.kind is Kind.FLOAT)
    at = tuple(n - 1 for n in leading.shape)
    leading[at] += 1
    verdict = judge(operation, output, **given.passed)
    assert not verdict
    assert verdict.worst is not None
    assert verdict.worst.index == at
    assert verdict.worst.of in ("the result", f"the result {leaf.path}")


def test_what_a_verdict_says() -> None:
    output, query, key, value = attention(queries=3, keys=5)
    verdict = judge(SDPA, output, query, key, value)
    extent = r"judged: every number\ntogether: not judged, for it takes 65 rows that round differently, and these are 6"
    pattern = rf"{SDPA} in float32 is right: the largest error is 0\.\d+ of its budget\n{extent}"
    assert re.fullmatch(pattern, str(verdict))
    output[1, 2, 3] = np.nan
    number = r"-?0\.\d+"
    assert re.fullmatch(
        rf"{SDPA} in float32 is wrong: the result\[1, 2, 3\] is nan, expected {number} ± [\de.-]+: far beyond its "
        r"budget\njudged: every number",
        repr(judge(SDPA, output, query, key, value)),
    )


WRONG: dict[str, Callable[[Numbers, Numbers, Numbers], Numbers]] = {
    "the keys are not read": lambda q, k, v: REFERENCE[SDPA](q, np.zeros_like(k), v),
    "the last key is dropped": lambda q, k, v: REFERENCE[SDPA](q, k[..., :-1, :], v[..., :-1, :]),
    "a key of zeros is attended to": lambda q, k, v: REFERENCE[SDPA](
        q, np.concatenate([k, 0 * k[..., :1, :]], -2), np.concatenate([v, 0 * v[..., :1, :]], -2)
    ),
    "a scale that is 5 % off": lambda q, k, v: REFERENCE[SDPA](np.float32(1.05) * q, k, v),
    "the last row is that before it": lambda q, k, v: np.concatenate(
        [REFERENCE[SDPA](q[..., :-1, :], k, v), REFERENCE[SDPA](q[..., -2:-1, :], k, v)], -2
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_attention_that_a_tolerance_takes_is_wrong(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some rows judged of many."""
    monkeypatch.setattr(parts, "PAIRS", 2**16)
    monkeypatch.setattr(parts, "AT_ONCE", 2**14)
    output, query, key, value = attention(queries=300, keys=1024, features=16)
    verdict = judge(SDPA, output, query, key, value)
    assert verdict, verdict
    assert verdict.judged == "32 of 300 rows of each of 2 elements of the batch, with all keys"
    assert not judge(SDPA, WRONG[wrong](query, key, value), query, key, value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_every_element_are_judged(causal: bool, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAIRS", 2**10)
    monkeypatch.setattr(parts, "AT_ONCE", 2**8)
    rng = np.random.default_rng(1)
    given = inputs("multi_head_attention", 3, 2, queries=70, keys=70)
    given = given.replaced({"mask": rng.random((2, 70, 70)) < 0.6 if masked else None, "causal": causal})
    output = REFERENCE["multi_head_attention"](**given.values_by_name)
    verdict = judge("multi_head_attention", output, **given.passed)
    assert verdict, verdict
    assert verdict.judged.startswith("4 of 70 rows of each of 6 elements")
    for index in np.ndindex(3, 2):
        wrong = output.copy()
        wrong[index] *= np.float32(1.001)
        found = judge("multi_head_attention", wrong, **given.passed).worst
        assert found is not None
        assert found.index[:2] == index
        assert found.got == wrong[found.index]


def test_semantics_and_precision_are_those_of_a_backend() -> None:
    given = inputs(SDPA, queries=3, keys=5).replaced({"causal": True})
    aligned = np.tri(3, 5, 2, dtype=bool)
    output = REFERENCE[SDPA](**(given.plain().with_mask(aligned)).values_by_name)
    assert not judge(SDPA, output, **given.passed)
    assert judge(SDPA, output, **given.passed, semantics={"causal_alignment": "bottom-right"})
    query, key, value = (given.array(name) for name in NAMES)
    rounded = REFERENCE[SDPA](*(x.astype(np.float16).astype(np.float32) for x in (query, key, value)))
    assert not judge(SDPA, rounded, query, key, value)
    assert judge(SDPA, rounded, query, key, value, precision="tf32")
    assert judge(SDPA, rounded, query, key, value, precision={"float32": "tf32"})


@pytest.mark.parametrize(("choice", "row"), [("zero", 0.0), ("nan", np.nan), ("uniform", None)])
def test_rows_without_keys_are_as_declared(choice: str, row: float | None) -> None:
    given = inputs(SDPA, queries=3, keys=6).replaced({"mask": np.arange(3)[:, None] < np.full(6, 2)})
    output = REFERENCE[SDPA](**given.values_by_name)
    output[2] = given.array("value").mean(-2) if row is None else row
    assert judge(SDPA, output, **given.passed, semantics={"fully_masked": choice})
    for other in {"zero", "nan", "uniform"} - {choice}:
        assert not judge(SDPA, output, **given.passed, semantics={"fully_masked": other})
    output[2] = 7.0
    assert not judge(SDPA, output, **given.passed, semantics={"fully_masked": choice})


def test_a_bias_leaves_the_weights_of_a_row_without_keys_equal() -> None:
    operation = "grouped_query_attention"
    given = inputs(operation, 2).without_masks()
    mask = np.ones((4, 4), bool)
    mask[1] = False
    heads = given.array("query").shape[-3]
    bias = np.random.default_rng(0).standard_normal((heads, 4, 4)).astype(np.float32)
    values = {**given.values_by_name, "mask": mask, "bias": bias}
    right = REFERENCE[operation](**values)
    output = right[0].copy()
    groups = heads // given.array("value").shape[-3]
    output[..., 1, :] = given.array("value").mean(-2).repeat(groups, -2)
    assert judge(operation, (output, right[1]), **values, semantics={"fully_masked": "uniform"})


def test_overflow_is_said() -> None:
    output, query, key, value = attention(queries=3, keys=5)
    verdict = judge(SDPA, output, query * np.float32(1e30), key * np.float32(1e30), value)
    assert not verdict
    assert str(verdict).startswith(f"{SDPA} in float32 cannot be judged: ")


def test_where_the_class_overflows_wrong_numbers_tell_nothing() -> None:
    output, query, key, value = attention(queries=3, keys=1)
    verdict = judge(SDPA, output + 1, query * np.float32(1e30), key * np.float32(1e30), value)
    assert "an intermediate may exceed 1.7e+38, the largest number of its precision class" in str(verdict)


def test_an_empty_result_has_nothing_to_judge() -> None:
    x = np.zeros((0, 4), np.float32)
    assert judge(SDPA, x, x, NUMBERS, NUMBERS).judged == "nothing, for the result is empty"


# NaN and infinities ---------------------------------------------------------------------------------------------------


def hiding(key: int) -> tuple[Numbers, ...]:
    """A mask that hides a key of six from 3 queries, query, key, and a value with a NaN in that key's first feature."""
    given = inputs(SDPA, queries=3, keys=6)
    query, keys, value = (given.array(name) for name in NAMES)
    value = value.copy()
    value[key, 0] = np.nan
    return np.broadcast_to(np.arange(6) != key, (3, 6)), query, keys, value


def test_what_masked_nan_becomes_is_declared() -> None:
    mask, query, key, value = hiding(2)
    excluded = REFERENCE[SDPA](query, key, value, mask=mask)
    propagated = excluded.copy()
    propagated[:, 0] = np.nan
    assert judge(SDPA, excluded, query, key, value, mask=mask)
    assert not judge(SDPA, propagated, query, key, value, mask=mask)
    declared = {"masked_nonfinite": "propagates"}
    verdict = judge(SDPA, propagated, query, key, value, mask=mask, semantics=declared)
    assert verdict, verdict
    assert verdict.left_open == 1 / 4
    words = "judged: every number; 25% are left open: they come from NaN, an infinity or a query without keys\n"
    assert words in str(verdict)
    propagated[0, 1] += 1
    assert not judge(SDPA, propagated, query, key, value, mask=mask, semantics=declared)


def test_nan_that_is_attended_to_is_not_hidden() -> None:
    _, query, key, value = hiding(2)
    right = REFERENCE[SDPA](query, key, value)
    assert np.isnan(right[:, 0]).all()
    assert judge(SDPA, right, query, key, value).left_open == 0
    hidden = np.nan_to_num(right, nan=7.0)
    verdict = judge(SDPA, hidden, query, key, value)
    assert str(verdict).startswith(f"{SDPA} in float32 is wrong: the result[0, 0] is 7, expected nan")
    assert judge(SDPA, hidden, query, key, value, semantics={"attendable_nan": "hidden"})


def test_what_becomes_of_infinities_is_left_open() -> None:
    _, query, key, value = hiding(2)
    value[2, 0] = np.inf
    for first in (np.inf, np.nan, 7.0):
        output = REFERENCE[SDPA](query, key, value)
        output[:, 0] = first
        assert judge(SDPA, output, query, key, value).left_open == 1 / 4
    value[2] = np.inf
    verdict = judge(SDPA, REFERENCE[SDPA](query, key, value), query, key, value)
    reason = "every number is left open: it comes from NaN, an infinity or a query without keys"
    assert str(verdict) == f"{SDPA} in float32 cannot be judged: {reason}"


# Gradients ------------------------------------------------------------------------------------------------------------


def gradients(operation: str) -> tuple[Arguments, Any, dict[str, Numbers]]:
    """Arguments, a cotangent, and the gradients, rounded to float32."""
    given = inputs(operation, 3, queries=5, keys=6)
    subject = Subject(Nothing(), Contract.of(Nothing()), given.operation, "float32", "cpu")
    output = REFERENCE[operation](**given.values_by_name)
    rng = np.random.default_rng(1)
    weights = {
        leaf.path: rng.standard_normal(x.shape).astype(np.float32) for leaf, x in results(given.operation, output)
    }
    found = {path: g.astype(np.float32) for path, (g, _) in subject.gradients(given, weights).items()}
    return given, subject.like_result(weights, given, convert=False), found


@pytest.mark.parametrize("operation", [SDPA, "additive_attention", "multi_head_attention", "lstm"])
def test_gradients_are_judged(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "AT_ONCE", 2**6)
    given, cotangent, found = gradients(operation)
    output = REFERENCE[operation](**given.values_by_name)
    verdict = judge(operation, output, **given.passed, gradients=found, cotangent=cotangent)
    assert verdict, verdict
    assert verdict.judged == "every number, every number of the gradients"
    for path, g in found.items():
        at = tuple(n - 1 for n in g.shape)
        wrong = g.copy()
        wrong[at] += 1
        worst = judge(operation, output, **given.passed, gradients={**found, path: wrong}, cotangent=cotangent).worst
        assert worst is not None
        assert (worst.of, worst.index) == (f"the gradient of {path}", at)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_rows_are_judged(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more pairs than are judged as a whole: those of queries, and all where few rows have a cotangent."""
    monkeypatch.setattr(backward, "MOST_PAIRS", 2**6)
    monkeypatch.setattr(backward, "PAIRS", 2**10)
    monkeypatch.setattr(parts, "AT_ONCE", 2**8)
    given = inputs(SDPA, 3, queries=70, keys=70).replaced({"causal": causal})
    subject = Subject(Nothing(), Contract.of(Nothing()), given.operation, "float32", "cpu")
    output = REFERENCE[SDPA](**given.values_by_name)
    dense = np.random.default_rng(2).standard_normal(output.shape).astype(np.float32)
    sparse = np.where(np.isin(np.arange(70), [3, 41, 69])[:, None], dense, np.float32(0))
    for cotangent, paths, words in (
        (dense, ("query",), "the gradient of query in 4 rows"),
        (sparse, NAMES, "the gradients of 3 rows, which are all that the cotangent asks for"),
    ):
        exact = subject.gradients(given, {"result": cotangent})
        found = {path: exact[path][0].astype(np.float32) for path in paths}
        verdict = judge(SDPA, output, **given.passed, gradients=found, cotangent=cotangent)
        assert verdict, verdict
        assert verdict.judged == f"every number, {words}"
        for path, g in found.items():
            wrong = g.copy()
            wrong[1, 69, 2] += 1
            worst = judge(SDPA, output, **given.passed, gradients={**found, path: wrong}, cotangent=cotangent).worst
            assert worst is not None
            assert (worst.of, worst.index) == (f"the gradient of {path}", (1, 69, 2))


# Arrays of other frameworks -------------------------------------------------------------------------------------------


class Lent:
    """An array of a framework that speaks DLPack, on a device of this kind."""

    def __init__(self, x: Numbers, device: int = 1) -> None:
        self.x, self.device = x, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None) -> object:
        if self.device != 1 and dl_device is None:
            raise BufferError("the array lies on a device")
        return self.x.__dlpack__()


class Copied(Lent):
    """One that is not copied to the host where it is lent."""

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None) -> object:
        if self.device != 1:
            raise BufferError("the array lies on a device")
        return self.x.__dlpack__()

    def cpu(self) -> "Copied":
        """A copy on the host."""
        return Copied(self.x)


@pytest.mark.parametrize("lend", [Lent, Copied])
@pytest.mark.parametrize("device", [1, 2])
def test_arrays_on_any_device_are_read(lend: type[Lent], device: int) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for x in (whole, whole.swapaxes(0, 2), whole[:, ::2], whole[:0], np.full(1, 7, np.float32)):
        np.testing.assert_array_equal(read(lend(x, device), "x"), x)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64"])
def test_tensors_of_every_dtype_are_read(name: str) -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    found = read(x.T, "x")
    assert found.dtype.name == name
    assert not found.flags.writeable
    np.testing.assert_array_equal(found.astype(np.float64), x.T.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_results_of_pytorch_are_right(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    query, key, value = (torch.randn(2, 3, 40, 16).to(getattr(torch, dtype)) for _ in range(3))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert judge(SDPA, output, query, key, value, causal=True)
    assert not judge(SDPA, output, query, key, value)


def test_a_negation_that_is_pending_is_read() -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    negated = torch._neg_view(torch.arange(3.0))
    assert negated.is_neg()
    np.testing.assert_array_equal(read(negated, "x"), [0.0, -1.0, -2.0])


def test_inputs_of_8_bits_are_judged_in_the_dtype_of_the_result() -> None:
    query, key, value = (inputs(SDPA, seed=2).array(name).astype(ml_dtypes.float8_e4m3fn) for name in NAMES)
    output = REFERENCE[SDPA](*(x.astype(np.float32) for x in (query, key, value)))
    verdict = judge(SDPA, output, query, key, value)
    assert verdict, verdict
    assert verdict.dtype == "float32"


# Errors ---------------------------------------------------------------------------------------------------------------

NUMBERS = np.ones((3, 4), np.float32)
LSTM = inputs("lstm_cell").values_by_name["parameters"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("sdpa", *[NUMBERS] * 4), {}, ValueError, "judge: expected one of scaled_dot_product_attention, "),
        (
            (SDPA, *[NUMBERS] * 4),
            {"casual": True},
            TypeError,
            f"{SDPA}: expected one of query, key, value, mask, causal",
        ),
        ((SDPA, *[NUMBERS] * 4), {"query": NUMBERS}, TypeError, f"{SDPA}: query: expected one value; got two"),
        ((SDPA, *[NUMBERS] * 3), {}, TypeError, f"{SDPA}: value: expected an argument; got none"),
        ((SDPA, *[NUMBERS] * 7), {}, TypeError, f"{SDPA}: expected at most 5 arguments; got 6"),
        (
            (SDPA, NUMBERS[:2], *[NUMBERS] * 3),
            {},
            ShapeError,
            rf"{SDPA}: output: expected shape \(3, 4\); got \(2, 4\)",
        ),
        ((SDPA, *[NUMBERS] * 2, NUMBERS[:, :2], NUMBERS), {}, ShapeError, f"{SDPA}: key: expected "),
        ((SDPA, "none", *[NUMBERS] * 3), {}, TypeError, f"{SDPA}: output: expected an array, by DLPack or .*; got str"),
        (
            (SDPA, NUMBERS, NUMBERS.astype(np.float64), NUMBERS, NUMBERS),
            {},
            TypeError,
            f"{SDPA}: expected floats in one of float64, .*; got query in float64, key in float32, value in float32",
        ),
        ((SDPA, *[NUMBERS] * 4), {"precision": "exact"}, ValueError, "expected .*; got 'exact'"),
        (
            (SDPA, *[NUMBERS] * 4),
            {"semantics": {"fully_masked": "one"}},
            ValueError,
            "semantics fully_masked: expected",
        ),
        ((len, NUMBERS), {}, TypeError, "judge: expected the name of an operation; got builtin_function_or_method"),
        ((SDPA, *[NUMBERS] * 4), {"seed": "x"}, TypeError, "judge: seed: expected an integer of at least 0; got 'x'"),
        ((SDPA, *[NUMBERS] * 4), {"seed": True}, TypeError, "judge: seed: expected an integer of at least 0; got True"),
        (
            (SDPA, *[NUMBERS] * 4),
            {"precision": {"float32": 3}},
            TypeError,
            "precision: expected names of classes; got 3",
        ),
        (
            (SDPA, NUMBERS, np.ma.masked_array(NUMBERS, NUMBERS > 0), NUMBERS, NUMBERS),
            {},
            TypeError,
            f"{SDPA}: query: expected an array of which all numbers count; got MaskedArray",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"causal": NUMBERS},
            TypeError,
            rf"{SDPA}: causal: expected True or False; got an array of shape \(3, 4\)",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"mask": np.zeros((3, 3), np.float32)},
            TypeError,
            f"{SDPA}: mask: expected booleans; got float32",
        ),
        (
            ("padding_mask", np.ones((2, 3), bool), NUMBERS[0, :2], 3),
            {},
            TypeError,
            "padding_mask: lengths: expected integers; got float32",
        ),
        (
            ("padding_mask", np.ones((2, 3), np.int32), np.array([1, 3]), 3),
            {},
            TypeError,
            "padding_mask: output: expected booleans; got int32",
        ),
        (
            (SDPA, NUMBERS.astype(np.float64), *[NUMBERS] * 3),
            {},
            TypeError,
            f"{SDPA}: output: expected float32 as the arguments; got float64",
        ),
        (
            ("sinusoidal_positional_encoding", NUMBERS.astype(ml_dtypes.float8_e5m2), 3, 4),
            {},
            TypeError,
            "sinusoidal_positional_encoding: output: expected one of float64, .*; got float8_e5m2",
        ),
        (
            ("lstm_cell", (NUMBERS, NUMBERS, NUMBERS), NUMBERS, (NUMBERS, NUMBERS), LSTM),
            {},
            TypeError,
            r"lstm_cell: output: expected \(h, c\): result: expected .*",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"gradients": (NUMBERS,), "cotangent": NUMBERS},
            TypeError,
            f"{SDPA}: gradients: expected a mapping from query, key, value to arrays; got tuple",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"gradients": {}, "cotangent": NUMBERS},
            TypeError,
            f"{SDPA}: gradients: expected a mapping from query, key, value to arrays; got an empty one",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"gradients": {"key": NUMBERS.astype(np.float64)}, "cotangent": NUMBERS},
            TypeError,
            f"{SDPA}: the gradient of key: expected float32 as the arguments; got float64",
        ),
        ((SDPA, *[NUMBERS] * 4), {"cotangent": NUMBERS}, TypeError, f"{SDPA}: gradients: expected a mapping"),
        ((SDPA, *[NUMBERS] * 4), {"gradients": {"query": NUMBERS}}, TypeError, f"{SDPA}: cotangent: expected an array"),
        (
            (SDPA, *[NUMBERS] * 4),
            {"gradients": {"keys": NUMBERS}, "cotangent": NUMBERS},
            ValueError,
            f"{SDPA}: gradients: expected one of query, key, value; got 'keys'",
        ),
        (
            (SDPA, *[NUMBERS] * 4),
            {"gradients": {"key": NUMBERS[:1]}, "cotangent": NUMBERS},
            ShapeError,
            rf"{SDPA}: the gradient of key: expected shape \(3, 4\); got \(1, 4\)",
        ),
    ],
)
def test_what_is_wrong_with_a_call(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        judge(*arguments, **options)


def test_what_cannot_be_read_is_named() -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    x = torch.ones(3, 4)
    for unreadable in (x.clone().requires_grad_(), x.to_sparse(), x.to("meta")):
        with pytest.raises(TypeError, match=f"{SDPA}: key: expected an array that can be read; got Tensor: "):
            judge(SDPA, x, x, unreadable, x)


MANY = np.ones((2049, 1), np.float32)
"""More rows and keys than gradients are judged of as a whole."""


def test_gradients_that_are_sums_over_too_many_rows_are_refused() -> None:
    words = (
        f"{SDPA}: the gradient of key: expected a cotangent of 0 in all but 64 rows, or at most 4,194,304 pairs of a "
        "query and a key; got 2,049 rows and 4,198,401 pairs"
    )
    double = MANY.astype(np.float64)
    with pytest.raises(ValueError, match=re.escape(words)):
        judge(SDPA, *[double] * 4, gradients={"key": double}, cotangent=double)


def test_gradients_of_rows_that_depend_on_others_are_refused() -> None:
    words = "self_attention: gradients: expected at most 4,194,304 pairs of a query and a key where rows cannot be "
    with pytest.raises(ValueError, match=f"{words}judged by themselves; got 4,198,401"):
        judge("self_attention", MANY, MANY, gradients={"x": MANY}, cotangent=MANY)


# Roundings that no class allows, and classes that explain -------------------------------------------------------------


def rounded(x: Any) -> Numbers:
    """Float32 with the digits of bfloat16."""
    return np.asarray(np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))


def rotary(x: Numbers, positions: Numbers, stored: Callable[[Any], Any], angles: Callable[[Any], Any]) -> Numbers:
    """A rotary embedding in bfloat16, whose positions, frequencies and all that is made of them are rounded."""
    frequencies = angles(10_000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    angle = angles(positions)[:, None] * frequencies
    cosine, sine = stored(np.cos(angle)), stored(np.sin(angle))
    even, odd = x.astype(np.float32)[..., 0::2], x.astype(np.float32)[..., 1::2]
    turned = (stored(even * cosine) - stored(odd * sine), stored(even * sine) + stored(odd * cosine))
    return np.stack(turned, -1).reshape(x.shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("first", [300, 2000, 131_000])
@pytest.mark.parametrize("precision", ["mixed-bfloat16", "prescaled-bfloat16", "eager-bfloat16"])
def test_positions_and_angles_are_never_stored_in_16_bits(first: int, precision: str) -> None:
    """EleutherAI/gpt-neox#1003 and huggingface/candle#3520; bfloat16 has no odd integers from 256 on."""
    x = np.random.default_rng(0).normal(size=(2, 4, 16, 64)).astype(ml_dtypes.bfloat16)
    positions = np.arange(16) + first
    everywhere = np.broadcast_to(positions, (2, 4, 16))
    wrong = rotary(x, positions, np.float32, rounded)
    assert judge("rotary_embedding", wrong, x, everywhere, precision=precision).worst is not None
    assert judge("rotary_embedding", rotary(x, positions, np.float32, np.float64), x, everywhere, precision=precision)
    eager = judge("rotary_embedding", rotary(x, positions, rounded, np.float32), x, everywhere, precision=precision)
    assert bool(eager) == (precision == "eager-bfloat16"), "cosines, sines and products may be"


def stored_scores(d: int, scale: float = 1.0) -> tuple[Numbers, ...]:
    """The attention of half tensors whose scores are stored, and its arguments."""
    rng = np.random.default_rng(0)
    query, key, value = ((c * rng.normal(size=(2, 64, d))).astype(ml_dtypes.bfloat16) for c in (scale, scale, 1))
    products = query.astype(np.float32) @ key.astype(np.float32).swapaxes(-1, -2)
    scores = rounded(rounded(products) * np.float32(d**-0.5))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(weights / weights.sum(-1, keepdims=True))
    return (weights @ value.astype(np.float32)).astype(ml_dtypes.bfloat16), query, key, value


def test_a_wrong_result_says_which_class_explains_it() -> None:
    """A query over √64 is exact, so that it cannot be that which was rounded."""
    verdict = judge(SDPA, *stored_scores(64))
    assert verdict.worst is not None
    assert verdict.explained_by == "eager-bfloat16"
    assert "explained by precision eager-bfloat16" in str(verdict)
    right = judge(SDPA, *stored_scores(64), precision="eager-bfloat16")
    assert right
    assert right.explained_by == ""


def test_no_class_explains_a_wrong_formula() -> None:
    output, *given = stored_scores(64)
    assert judge(SDPA, -output, *given).explained_by == ""


def test_most_budgets_must_tell_something() -> None:
    verdict = judge(SDPA, *stored_scores(64, scale=3.0), precision="eager-bfloat16")
    assert not verdict
    assert verdict.worst is None
    assert verdict.untold > 0.5
    assert re.match(
        rf"{SDPA} in bfloat16 cannot be judged: the budgets of \d+% of the numbers are too large", str(verdict)
    )
    assert "suggest_inputs" in str(verdict)


def test_a_right_result_is_printed_with_what_its_inputs_cannot_show() -> None:
    verdict = judge(SDPA, *stored_scores(64), precision="eager-bfloat16")
    assert verdict
    assert "a scale that is 1 % off" in verdict.cannot_see
    assert str(verdict).splitlines()[-1] == f"these inputs cannot show: {', '.join(verdict.cannot_see)}"


@pytest.mark.parametrize("declared", ["uniform", "nan"])
def test_a_sink_has_all_the_weight_of_a_row_without_keys(declared: str) -> None:
    given = inputs("grouped_query_attention", 2).without_masks()
    mask = np.ones((4, 4), bool)
    mask[1] = False
    values = {**given.values_by_name, "mask": mask, "sinks": np.zeros(given.array("query").shape[-3], np.float32)}
    right = REFERENCE["grouped_query_attention"](**values)
    assert not right[0][..., 1, :].any()
    semantics = {"fully_masked": declared}
    assert judge("grouped_query_attention", right, **values, semantics=semantics).left_open == 0
    wrong = right[0].copy()
    wrong[..., 1, :] = given.array("value").mean()
    assert judge("grouped_query_attention", (wrong, right[1]), **values, semantics=semantics).worst is not None
