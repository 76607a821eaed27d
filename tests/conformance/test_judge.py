"""``judge`` compares one result of any framework with the formula."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge, suggest_inputs
from attnspec.conformance.harness import backward, parts
from attnspec.conformance.harness.arrays import read
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.reference import REFERENCE, choosing
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.shapes import ShapeError, results
from attnspec.spec.contract.tree import Kind

SDPA = "scaled_dot_product_attention"
NAMES = ("query", "key", "value")
OPERATION_NAMES = [o.name for o in OPERATIONS.values() if not o.reference_only]


class NoOperations:
    """A backend without operations, for which samples are drawn."""

    name = "nothing"


def inputs(
    operation: str, *batch: int, queries: int = 4, keys: int = 4, features: int = 4, heads: int = 2, seed: int = 0
) -> Arguments:
    """Normal arguments of an operation, by default with two heads if it has any."""
    subject = Subject(NoOperations(), Contract.of(NoOperations()), OPERATIONS[operation], "float32", "cpu")
    rng = np.random.default_rng(seed)
    return sample(subject, rng, batch, queries=queries, keys=keys, heads=heads, features=features)


def attention(queries: int, keys: int, features: int = 4) -> tuple[Numbers, ...]:
    """The output of attention, with its query, key and value."""
    arguments = inputs(SDPA, 2, queries=queries, keys=keys, features=features)
    query, key, value = (arguments.array(name) for name in NAMES)
    return REFERENCE[SDPA](query, key, value), query, key, value


@pytest.mark.parametrize("operation", OPERATION_NAMES)
def test_the_reference_is_right(operation: str) -> None:
    arguments = inputs(operation, 2, queries=5, keys=6)
    output = REFERENCE[operation](**arguments.values_by_name)
    verdict = judge(operation, output, **arguments.passed)
    assert verdict, verdict
    assert verdict.worst is None


@pytest.mark.parametrize(
    "operation", [o.name for o in OPERATIONS.values() if o.floats and o.float_result and not o.reference_only]
)
def test_a_wrong_number_is_named(operation: str) -> None:
    arguments = inputs(operation, 2, queries=5, keys=6)
    output = REFERENCE[operation](**arguments.values_by_name)
    leaf, leading = next((leaf, x) for leaf, x in results(arguments.operation, output) if leaf.kind is Kind.FLOAT)
    at = tuple(n - 1 for n in leading.shape)
    leading[at] += 1
    verdict = judge(operation, output, **arguments.passed)
    assert not verdict
    assert verdict.worst is not None
    assert verdict.worst.index == at
    assert verdict.worst.of in ("the result", f"the result {leaf.path}")


def test_the_text_of_a_verdict() -> None:
    output, query, key, value = attention(queries=3, keys=5)
    verdict = judge(SDPA, output, query, key, value)
    extent = (
        r"judged: every number\nerrors shared by many rows: not tested, because this takes 65 rows that round "
        "differently, and there are 6"
    )
    pattern = rf"{SDPA} in float32 is right: the largest error is 0\.\d+ of its budget\n{extent}"
    assert re.fullmatch(pattern, str(verdict))
    output[1, 2, 3] = np.nan
    number = r"-?0\.\d+"
    assert re.fullmatch(
        rf"{SDPA} in float32 is wrong: the result\[1, 2, 3\] is nan, expected {number} ± [\de.-]+: the error "
        r"is far beyond its budget\njudged: every number",
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
def test_errors_that_a_tolerance_accepts_are_wrong(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is convicted although only 32 of 300 rows are judged."""
    monkeypatch.setattr(parts, "JUDGED_PAIRS", 2**16)
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**14)
    output, query, key, value = attention(queries=300, keys=1024, features=16)
    verdict = judge(SDPA, output, query, key, value)
    assert verdict, verdict
    assert verdict.judged == "32 of 300 rows of each of 2 elements of the batch, with all keys"
    assert not judge(SDPA, WRONG[wrong](query, key, value), query, key, value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_every_element_are_judged(causal: bool, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "JUDGED_PAIRS", 2**10)
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**8)
    rng = np.random.default_rng(1)
    arguments = inputs("multi_head_attention", 3, 2, queries=70, keys=70)
    arguments = arguments.replaced({"mask": rng.random((2, 70, 70)) < 0.6 if masked else None, "causal": causal})
    output = REFERENCE["multi_head_attention"](**arguments.values_by_name)
    verdict = judge("multi_head_attention", output, **arguments.passed)
    assert verdict, verdict
    assert verdict.judged.startswith("4 of 70 rows of each of 6 elements")
    for index in np.ndindex(3, 2):
        wrong = output.copy()
        wrong[index] *= np.float32(1.001)
        worst = judge("multi_head_attention", wrong, **arguments.passed).worst
        assert worst is not None
        assert worst.index[:2] == index
        assert worst.got == wrong[worst.index]


def test_semantics_and_precision_can_be_declared() -> None:
    arguments = inputs(SDPA, queries=3, keys=5).replaced({"causal": True})
    aligned = np.tri(3, 5, 2, dtype=bool)
    output = REFERENCE[SDPA](**(arguments.unordered().with_mask(aligned)).values_by_name)
    assert not judge(SDPA, output, **arguments.passed)
    assert judge(SDPA, output, **arguments.passed, semantics={"causal_alignment": "bottom-right"})
    query, key, value = (arguments.array(name) for name in NAMES)
    rounded = REFERENCE[SDPA](*(x.astype(np.float16).astype(np.float32) for x in (query, key, value)))
    assert not judge(SDPA, rounded, query, key, value)
    assert judge(SDPA, rounded, query, key, value, precision="tf32")
    assert judge(SDPA, rounded, query, key, value, precision={"float32": "tf32"})


CHOICES = [
    ("gru_cell", {"gru_reset": "after"}),
    ("gru_cell", {"gru_update": "candidate"}),
    ("lstm_cell", {"lstm_forget_bias": "plus-one"}),
    ("rms_norm", {"rms_weight": "plus-one"}),
    ("gelu", {"gelu_form": "tanh"}),
    ("grouped_query_attention", {"head_groups": "interleaved"}),
    ("variable_length_attention", {"head_groups": "interleaved"}),
    ("grouped_query_attention", {"alibi_distances": "signed"}),
]


@pytest.mark.parametrize(("operation", "choices"), CHOICES)
def test_a_choice_of_the_formula_is_accepted_where_it_is_declared(operation: str, choices: dict[str, str]) -> None:
    arguments = inputs(operation, 3, queries=5, keys=5, heads=4)
    if "alibi_distances" in choices:
        arguments = arguments.replaced({"slopes": np.array([0.5, 0.25, 0.125, 1.0], np.float32)})
    normative = REFERENCE[operation](**arguments.values_by_name)
    with choosing(**choices):
        output = REFERENCE[operation](**arguments.values_by_name)
    assert judge(operation, normative, **arguments.passed)
    assert judge(operation, output, **arguments.passed, semantics=choices)
    assert not judge(operation, output, **arguments.passed)
    assert not judge(operation, normative, **arguments.passed, semantics=choices)


@pytest.mark.parametrize(("choice", "row"), [("zero", 0.0), ("nan", np.nan), ("uniform", None)])
def test_rows_without_keys_are_as_declared(choice: str, row: float | None) -> None:
    arguments = inputs(SDPA, queries=3, keys=6).replaced({"mask": np.arange(3)[:, None] < np.full(6, 2)})
    output = REFERENCE[SDPA](**arguments.values_by_name)
    output[2] = arguments.array("value").mean(-2) if row is None else row
    assert judge(SDPA, output, **arguments.passed, semantics={"fully_masked": choice})
    for other in {"zero", "nan", "uniform"} - {choice}:
        assert not judge(SDPA, output, **arguments.passed, semantics={"fully_masked": other})
    output[2] = 7.0
    assert not judge(SDPA, output, **arguments.passed, semantics={"fully_masked": choice})


@pytest.mark.parametrize("hidden", [False, True])
def test_rows_without_keys_are_nan_as_declared_beside_nan_values(hidden: bool) -> None:
    arguments = inputs(SDPA, 2, queries=3, keys=6).replaced({"mask": np.array([[1], [0], [1]], bool)})
    arguments.array("value")[0, 2, 0] = np.nan
    output = REFERENCE[SDPA](**arguments.values_by_name)
    output[:, 1] = np.nan
    semantics = {"fully_masked": "nan", "attendable_nan": "hidden" if hidden else "propagates"}
    assert judge(SDPA, output, **arguments.passed, semantics=semantics)
    output[0, :, 0] = 7.0, np.nan, 7.0
    assert bool(judge(SDPA, output, **arguments.passed, semantics=semantics)) == hidden
    output[0, 1, 0] = 7.0
    assert not judge(SDPA, output, **arguments.passed, semantics=semantics)


def test_a_mask_whose_shape_has_no_choice_leaves_its_rows_without_keys_open() -> None:
    arguments = inputs(SDPA, 2, queries=3, keys=6).replaced({"mask": np.zeros((1, 6), bool)})
    output = REFERENCE[SDPA](**arguments.values_by_name)
    semantics = {"fully_masked": {"full": "zero", "no-batch": "nan"}}
    assert judge(SDPA, output, **arguments.passed, semantics=semantics).left_open == 1
    assert judge(SDPA, output, **arguments.passed, semantics={"fully_masked": {"full": "zero"}})


def test_averages_of_an_always_causal_model_are_left_open() -> None:
    """No declaration says whether such an average includes the keys behind the query."""
    arguments = inputs("decoder_layer", 2, queries=5, keys=5)
    arguments = arguments.replaced({leaf.path: None for leaf in arguments.operation.masks.values()})
    mask = np.ones((2, 5, 5), bool)
    mask[:, 1] = False
    emptied = arguments.with_mask(mask, "n")
    with choosing(fully_masked="uniform"):
        output = REFERENCE["decoder_layer"](**emptied.values_by_name)
    verdict = judge("decoder_layer", output, **emptied.passed, semantics={"fully_masked": "uniform"})
    assert verdict.worst is None
    assert verdict.left_open == 1


def test_a_bias_leaves_the_weights_of_a_row_without_keys_equal() -> None:
    operation = "grouped_query_attention"
    arguments = inputs(operation, 2).without_masks()
    mask = np.ones((4, 4), bool)
    mask[1] = False
    heads = arguments.array("query").shape[-3]
    bias = np.random.default_rng(0).standard_normal((heads, 4, 4)).astype(np.float32)
    values = {**arguments.values_by_name, "mask": mask, "bias": bias}
    right = REFERENCE[operation](**values)
    output = right[0].copy()
    groups = heads // arguments.array("value").shape[-3]
    output[..., 1, :] = arguments.array("value").mean(-2).repeat(groups, -2)
    assert judge(operation, (output, right[1]), **values, semantics={"fully_masked": "uniform"})


def test_an_overflow_is_reported() -> None:
    output, query, key, value = attention(queries=3, keys=5)
    verdict = judge(SDPA, output, query * np.float32(1e30), key * np.float32(1e30), value)
    assert not verdict
    assert str(verdict).startswith(f"{SDPA} in float32 cannot be judged: ")


def test_wrong_numbers_are_not_judged_where_the_class_overflows() -> None:
    output, query, key, value = attention(queries=3, keys=1)
    verdict = judge(SDPA, output + 1, query * np.float32(1e30), key * np.float32(1e30), value)
    assert "an intermediate may exceed 1.7e+38, the largest number of its precision class" in str(verdict)


def recurrence(steps: int) -> dict[str, Any]:
    """Random arguments of the gated delta rule, with which its state grows in every step."""
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"state": (1, 16, 16), "decay": (1, steps, 1), "beta": (1, steps)}
    shapes |= dict.fromkeys(("query", "key", "value"), (1, steps, 16))
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_recurrence_that_overflows_is_no_evidence() -> None:
    arguments = recurrence(300)
    with np.errstate(all="ignore"):
        results = tuple(x.astype(np.float32) for x in REFERENCE["linear_attention"](**arguments))
    assert not np.isfinite(results[0]).all()
    verdict = judge("linear_attention", results, **arguments)
    assert not verdict
    assert "an intermediate may exceed 1.7e+38, the largest number of its precision class" in str(verdict)


def test_suggested_recurrences_stay_in_range() -> None:
    suggested = suggest_inputs("linear_attention", **recurrence(300))
    assert (suggested["decay"] <= 0).all()
    results = tuple(x.astype(np.float32) for x in REFERENCE["linear_attention"](**suggested))
    verdict = judge("linear_attention", results, **suggested)
    assert verdict
    assert verdict.judged == "every number"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_states_and_weights_may_be_wider_than_operands(dtype: str) -> None:
    arguments = suggest_inputs("linear_attention", **recurrence(70))
    operands = {name: arguments[name].astype(dtype) for name in ("query", "key", "value")}
    arguments |= operands
    wide = arguments | {name: x.astype(np.float32) for name, x in operands.items()}
    output, final = (x.astype(np.float32) for x in REFERENCE["linear_attention"](**wide))
    assert judge("linear_attention", (output.astype(dtype), final), **arguments)
    assert not judge("linear_attention", (output.astype(dtype), -final), **arguments)
    with pytest.raises(
        TypeError, match=r"linear_attention: output: expected b?float16, like the arguments; got float32"
    ):
        judge("linear_attention", (output, final), **arguments)
    x, weight = operands["query"], wide["value"][0, 0]
    right = REFERENCE["rms_norm"](x.astype(np.float32), weight).astype(dtype)
    assert judge("rms_norm", right, x, weight)
    assert not judge("rms_norm", right, x, weight + 1)


def test_the_defect_of_an_operation_is_named_before_those_of_others() -> None:
    draw = np.random.default_rng(0)
    query, key, value = (draw.standard_normal((1, rows, 16)).astype(np.float32) for rows in (4, 8, 8))
    indices = np.stack([draw.permutation(8)[:3] for _ in range(4)])[None]
    verdict = judge("selected_attention", REFERENCE[SDPA](query, key, value), query, key, value, indices)
    assert "“indices of selected attention ignored”: Queries attend to all keys" in str(verdict)


def test_an_empty_result_has_nothing_to_judge() -> None:
    x = np.zeros((0, 4), np.float32)
    assert judge(SDPA, x, x, ONES, ONES).judged == "nothing, because the result is empty"


# NaN and infinities ---------------------------------------------------------------------------------------------------


def masked_nan(key: int) -> tuple[Numbers, ...]:
    """A mask that hides one key; query, key, and a value with NaN there."""
    arguments = inputs(SDPA, queries=3, keys=6)
    query, keys, value = (arguments.array(name) for name in NAMES)
    value = value.copy()
    value[key, 0] = np.nan
    return np.broadcast_to(np.arange(6) != key, (3, 6)), query, keys, value


def test_the_effect_of_masked_nan_can_be_declared() -> None:
    mask, query, key, value = masked_nan(2)
    excluded = REFERENCE[SDPA](query, key, value, mask=mask)
    propagated = excluded.copy()
    propagated[:, 0] = np.nan
    assert judge(SDPA, excluded, query, key, value, mask=mask)
    assert not judge(SDPA, propagated, query, key, value, mask=mask)
    declared = {"masked_nonfinite": "propagates"}
    verdict = judge(SDPA, propagated, query, key, value, mask=mask, semantics=declared)
    assert verdict, verdict
    assert verdict.left_open == 1 / 4
    message = (
        "judged: every number; 25% are left open, because they come from NaN, an infinity or a query without keys\n"
    )
    assert message in str(verdict)
    propagated[0, 1] += 1
    assert not judge(SDPA, propagated, query, key, value, mask=mask, semantics=declared)


def test_attendable_nan_must_not_be_hidden() -> None:
    _, query, key, value = masked_nan(2)
    right = REFERENCE[SDPA](query, key, value)
    assert np.isnan(right[:, 0]).all()
    assert judge(SDPA, right, query, key, value).left_open == 0
    hidden = np.nan_to_num(right, nan=7.0)
    verdict = judge(SDPA, hidden, query, key, value)
    assert str(verdict).startswith(f"{SDPA} in float32 is wrong: the result[0, 0] is 7, expected nan: the error")
    assert judge(SDPA, hidden, query, key, value, semantics={"attendable_nan": "hidden"})


def test_results_of_infinities_are_left_open() -> None:
    _, query, key, value = masked_nan(2)
    value[2, 0] = np.inf
    for first in (np.inf, np.nan, 7.0):
        output = REFERENCE[SDPA](query, key, value)
        output[:, 0] = first
        assert judge(SDPA, output, query, key, value).left_open == 1 / 4
    value[2] = np.inf
    verdict = judge(SDPA, REFERENCE[SDPA](query, key, value), query, key, value)
    reason = "every number is left open, because it comes from NaN, an infinity or a query without keys"
    assert str(verdict) == f"{SDPA} in float32 cannot be judged: {reason}"


# Gradients ------------------------------------------------------------------------------------------------------------


def gradients(operation: str) -> tuple[Arguments, Any, dict[str, Numbers]]:
    """Arguments, a cotangent, and the gradients, rounded to float32."""
    arguments = inputs(operation, 3, queries=5, keys=6)
    subject = Subject(NoOperations(), Contract.of(NoOperations()), arguments.operation, "float32", "cpu")
    output = REFERENCE[operation](**arguments.values_by_name)
    rng = np.random.default_rng(1)
    weights = {
        leaf.path: rng.standard_normal(x.shape).astype(np.float32) for leaf, x in results(arguments.operation, output)
    }
    rounded = {path: g.astype(np.float32) for path, (g, _) in subject.gradients(arguments, weights).items()}
    return arguments, subject.like_result(weights, arguments, convert=False), rounded


@pytest.mark.parametrize("operation", [SDPA, "additive_attention", "multi_head_attention", "lstm"])
def test_gradients_are_judged(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**6)
    arguments, cotangent, grads = gradients(operation)
    output = REFERENCE[operation](**arguments.values_by_name)
    verdict = judge(operation, output, **arguments.passed, gradients=grads, cotangent=cotangent)
    assert verdict, verdict
    assert verdict.judged == "every number, every number of the gradients"
    for path, g in grads.items():
        at = tuple(n - 1 for n in g.shape)
        wrong = g.copy()
        wrong[at] += 1
        worst = judge(
            operation, output, **arguments.passed, gradients={**grads, path: wrong}, cotangent=cotangent
        ).worst
        assert worst is not None
        assert (worst.of, worst.index) == (f"the gradient of {path}", at)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_rows_are_judged(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many pairs, only some rows are judged, or all those with a cotangent."""
    monkeypatch.setattr(backward, "MAX_PAIRS", 2**6)
    monkeypatch.setattr(backward, "JUDGED_PAIRS", 2**10)
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**8)
    arguments = inputs(SDPA, 3, queries=70, keys=70).replaced({"causal": causal})
    subject = Subject(NoOperations(), Contract.of(NoOperations()), arguments.operation, "float32", "cpu")
    output = REFERENCE[SDPA](**arguments.values_by_name)
    dense = np.random.default_rng(2).standard_normal(output.shape).astype(np.float32)
    sparse = np.where(np.isin(np.arange(70), [3, 41, 69])[:, None], dense, np.float32(0))
    for cotangent, paths, description in (
        (dense, ("query",), "the gradient of query in 4 rows"),
        (sparse, NAMES, "the gradients of 3 rows, the only ones with a nonzero cotangent"),
    ):
        exact = subject.gradients(arguments, {"result": cotangent})
        grads = {path: exact[path][0].astype(np.float32) for path in paths}
        verdict = judge(SDPA, output, **arguments.passed, gradients=grads, cotangent=cotangent)
        assert verdict, verdict
        assert verdict.judged == f"every number, {description}"
        for path, g in grads.items():
            wrong = g.copy()
            wrong[1, 69, 2] += 1
            worst = judge(SDPA, output, **arguments.passed, gradients={**grads, path: wrong}, cotangent=cotangent).worst
            assert worst is not None
            assert (worst.of, worst.index) == (f"the gradient of {path}", (1, 69, 2))


# Arrays of other frameworks -------------------------------------------------------------------------------------------


class DLPackArray:
    """An array that supports DLPack, on a device of this kind."""

    def __init__(self, x: Numbers, device: int = 1) -> None:
        self.x, self.device = x, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None) -> object:
        if self.device != 1 and dl_device is None:
            raise BufferError("the array lies on a device")
        return self.x.__dlpack__()


class DeviceArray(DLPackArray):
    """An array on a device that must be copied to the host by ``cpu`` first."""

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None) -> object:
        if self.device != 1:
            raise BufferError("the array lies on a device")
        return self.x.__dlpack__()

    def cpu(self) -> "DeviceArray":
        return DeviceArray(self.x)


@pytest.mark.parametrize("lend", [DLPackArray, DeviceArray])
@pytest.mark.parametrize("device", [1, 2])
def test_arrays_on_any_device_are_read(lend: type[DLPackArray], device: int) -> None:
    contiguous = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for x in (contiguous, contiguous.swapaxes(0, 2), contiguous[:, ::2], contiguous[:0], np.full(1, 7, np.float32)):
        np.testing.assert_array_equal(read(lend(x, device), "x"), x)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64"])
def test_tensors_of_every_dtype_are_read(name: str) -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    array = read(x.T, "x")
    assert array.dtype.name == name
    assert not array.flags.writeable
    np.testing.assert_array_equal(array.astype(np.float64), x.T.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_results_of_pytorch_are_right(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    query, key, value = (torch.randn(2, 3, 40, 16).to(getattr(torch, dtype)) for _ in range(3))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert judge(SDPA, output, query, key, value, causal=True)
    assert not judge(SDPA, output, query, key, value)


def test_lazily_negated_tensors_are_read() -> None:
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

ONES = np.ones((3, 4), np.float32)
LSTM = inputs("lstm_cell").values_by_name["parameters"]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), [
    (("sdpa", *[ONES] * 4), {}, ValueError, "judge: expected one of scaled_dot_product_attention, "),
    ((SDPA, *[ONES] * 4), {"key_lengths": 3}, TypeError, f"{SDPA}: expected .*grouped_query_attention has key_lengths"),
    ((SDPA, *[ONES] * 4), {"casual": True}, TypeError, f"{SDPA}: expected one of query, key, value, mask, causal"),
    ((SDPA, *[ONES] * 4), {"query": ONES}, TypeError,
     f"{SDPA}: query: expected one value; got one by position and one by name"),
    ((SDPA, *[ONES] * 3), {}, TypeError, f"{SDPA}: value: expected an argument; got none"),
    ((SDPA, *[ONES] * 7), {}, TypeError, f"{SDPA}: expected at most 5 arguments; got 6"),
    ((SDPA, ONES[:2], *[ONES] * 3), {}, ShapeError, rf"{SDPA}: output: expected shape \(3, 4\); got \(2, 4\)"),
    ((SDPA, *[ONES] * 2, ONES[:, :2], ONES), {}, ShapeError, f"{SDPA}: key: expected "),
    ((SDPA, "none", *[ONES] * 3), {}, TypeError, f"{SDPA}: output: expected an array, by DLPack or .*; got str"),
    ((SDPA, ONES, ONES.astype(np.float64), ONES, ONES), {}, TypeError,
     f"{SDPA}: expected floats of a single dtype, one of .*; got query in float64, key in float32, value in float32"),
    ((SDPA, *[ONES] * 4), {"precision": "exact"}, ValueError, "expected .*; got 'exact'"),
    ((SDPA, *[ONES] * 4), {"semantics": {"fully_masked": "one"}}, ValueError, "semantics fully_masked: expected"),
    ((SDPA, *[ONES] * 4), {"semantics": {"gru_reset": "after"}}, ValueError,
     f"semantics: expected questions that {SDPA} reads, fully_masked, .*; got gru_reset"),
    ((len, ONES), {}, TypeError, "judge: expected the name of an operation; got builtin_function_or_method"),
    ((SDPA, *[ONES] * 4), {"seed": "x"}, TypeError, "judge: seed: expected an integer of at least 0; got 'x'"),
    ((SDPA, *[ONES] * 4), {"seed": True}, TypeError, "judge: seed: expected an integer of at least 0; got True"),
    ((SDPA, *[ONES] * 4), {"precision": {"float32": 3}}, TypeError,
     "precision: expected names of precision classes; got 3"),
    ((SDPA, ONES, np.ma.masked_array(ONES, ONES > 0), ONES, ONES), {}, TypeError,
     f"{SDPA}: query: expected an array without masked entries; got MaskedArray"),
    ((SDPA, *[ONES] * 4), {"causal": ONES}, TypeError,
     rf"{SDPA}: causal: expected True or False; got an array of shape \(3, 4\)"),
    ((SDPA, *[ONES] * 4), {"mask": np.zeros((3, 3), np.float32)}, TypeError,
     f"{SDPA}: mask: expected booleans; got float32"),
    (("padding_mask", np.ones((2, 3), bool), ONES[0, :2], 3), {}, TypeError,
     "padding_mask: lengths: expected integers; got float32"),
    (("padding_mask", np.ones((2, 3), np.int32), np.array([1, 3]), 3), {}, TypeError,
     "padding_mask: output: expected booleans; got int32"),
    ((SDPA, ONES.astype(np.float64), *[ONES] * 3), {}, TypeError,
     f"{SDPA}: output: expected float32, like the arguments; got float64"),
    (("sinusoidal_positional_encoding", ONES.astype(ml_dtypes.float8_e5m2), 3, 4), {}, TypeError,
     "sinusoidal_positional_encoding: output: expected one of float64, .*; got float8_e5m2"),
    (("lstm_cell", (ONES, ONES, ONES), ONES, (ONES, ONES), LSTM), {}, TypeError,
     r"lstm_cell: output: expected \(h, c\): result: expected .*"),
    ((SDPA, *[ONES] * 4), {"gradients": (ONES,), "cotangent": ONES}, TypeError,
     f"{SDPA}: gradients: expected a mapping from query, key, value to arrays; got tuple"),
    ((SDPA, *[ONES] * 4), {"gradients": {}, "cotangent": ONES}, TypeError,
     f"{SDPA}: gradients: expected a mapping from query, key, value to arrays; got an empty one"),
    ((SDPA, *[ONES] * 4), {"gradients": {"key": ONES.astype(np.float64)}, "cotangent": ONES}, TypeError,
     f"{SDPA}: the gradient of key: expected float32, like the arguments; got float64"),
    ((SDPA, *[ONES] * 4), {"cotangent": ONES}, TypeError, f"{SDPA}: gradients: expected a mapping"),
    ((SDPA, *[ONES] * 4), {"gradients": {"query": ONES}}, TypeError, f"{SDPA}: cotangent: expected an array"),
    ((SDPA, *[ONES] * 4), {"gradients": {"keys": ONES}, "cotangent": ONES}, ValueError,
     f"{SDPA}: gradients: expected one of query, key, value; got 'keys'"),
    ((SDPA, *[ONES] * 4), {"gradients": {"key": ONES[:1]}, "cotangent": ONES}, ShapeError,
     rf"{SDPA}: the gradient of key: expected shape \(3, 4\); got \(1, 4\)"),
])  # fmt: skip
def test_a_wrong_call_of_judge_is_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        judge(*arguments, **options)


def test_a_tensor_that_cannot_be_read_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    x = torch.ones(3, 4)
    for unreadable in (x.clone().requires_grad_(), x.to_sparse(), x.to("meta")):
        with pytest.raises(TypeError, match=f"{SDPA}: key: expected an array that can be read; got Tensor: "):
            judge(SDPA, x, x, unreadable, x)


LARGE = np.ones((2049, 1), np.float32)
"""More pairs of rows and keys than gradients are judged for."""


def test_gradients_that_are_sums_over_too_many_rows_are_refused() -> None:
    message = (
        f"{SDPA}: the gradient of key: expected a cotangent of 0 in all but 64 rows, or at most 4,194,304 "
        "query–key pairs; got 2,049 rows and 4,198,401 pairs"
    )
    double = LARGE.astype(np.float64)
    with pytest.raises(ValueError, match=re.escape(message)):
        judge(SDPA, *[double] * 4, gradients={"key": double}, cotangent=double)


def test_gradients_of_rows_that_depend_on_others_are_refused() -> None:
    message = "self_attention: gradients: expected at most 4,194,304 query–key pairs, because rows cannot be "
    with pytest.raises(ValueError, match=f"{message}judged separately; got 4,198,401"):
        judge("self_attention", LARGE, LARGE, gradients={"x": LARGE}, cotangent=LARGE)


# Roundings that no class allows, and classes that explain -------------------------------------------------------------


def rounded(x: Any) -> Numbers:
    return np.asarray(np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))


def rotary(x: Numbers, positions: Numbers, stored: Callable[[Any], Any], angles: Callable[[Any], Any]) -> Numbers:
    """A rotary embedding in bfloat16 that rounds angles and stored factors by these functions."""
    frequencies = angles(10_000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    angle = angles(positions)[:, None] * frequencies
    cosine, sine = stored(np.cos(angle)), stored(np.sin(angle))
    even, odd = x.astype(np.float32)[..., 0::2], x.astype(np.float32)[..., 1::2]
    turned = (stored(even * cosine) - stored(odd * sine), stored(even * sine) + stored(odd * cosine))
    return np.stack(turned, -1).reshape(x.shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("first", [300, 2000, 131_000])
@pytest.mark.parametrize("precision", ["mixed-bfloat16", "prescaled-bfloat16", "eager-bfloat16"])
def test_positions_and_angles_are_never_stored_in_16_bits(first: int, precision: str) -> None:
    """As in EleutherAI/gpt-neox#1003 and huggingface/candle#3520: bfloat16 has no odd integers above 256."""
    x = np.random.default_rng(0).normal(size=(2, 4, 16, 64)).astype(ml_dtypes.bfloat16)
    positions = np.arange(16) + first
    everywhere = np.broadcast_to(positions, (2, 4, 16))
    wrong = rotary(x, positions, np.float32, rounded)
    assert judge("rotary_embedding", wrong, x, everywhere, precision=precision).worst is not None
    assert judge("rotary_embedding", rotary(x, positions, np.float32, np.float64), x, everywhere, precision=precision)
    eager = judge("rotary_embedding", rotary(x, positions, rounded, np.float32), x, everywhere, precision=precision)
    assert bool(eager) == (precision == "eager-bfloat16"), "cosines, sines and products may be stored in 16 bits"


def stored_scores(d: int, scale: float = 1.0) -> tuple[Numbers, ...]:
    """Attention in bfloat16 that rounds its scores, with its arguments."""
    rng = np.random.default_rng(0)
    query, key, value = ((c * rng.normal(size=(2, 64, d))).astype(ml_dtypes.bfloat16) for c in (scale, scale, 1))
    products = query.astype(np.float32) @ key.astype(np.float32).swapaxes(-1, -2)
    scores = rounded(rounded(products) * np.float32(d**-0.5))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(weights / weights.sum(-1, keepdims=True))
    return (weights @ value.astype(np.float32)).astype(ml_dtypes.bfloat16), query, key, value


def test_a_wrong_result_says_which_class_explains_it() -> None:
    """Dividing queries by √64 is exact, so rounded queries cannot explain the result."""
    verdict = judge(SDPA, *stored_scores(64))
    assert verdict.worst is not None
    assert verdict.explained_by == "eager-bfloat16"
    assert "explained by precision eager-bfloat16" in str(verdict)
    right = judge(SDPA, *stored_scores(64), precision="eager-bfloat16")
    assert right
    assert right.explained_by == ""


def test_no_class_explains_a_wrong_formula() -> None:
    output, *arguments = stored_scores(64)
    assert judge(SDPA, -output, *arguments).explained_by == ""


def test_a_result_cannot_be_judged_if_most_budgets_are_too_wide() -> None:
    verdict = judge(SDPA, *stored_scores(64, scale=3.0), precision="eager-bfloat16")
    assert not verdict
    assert verdict.worst is None
    assert verdict.untold > 0.5
    assert re.match(
        rf"{SDPA} in bfloat16 cannot be judged: the budgets of \d+% of the numbers are too wide", str(verdict)
    )
    assert "suggest_inputs" in str(verdict)


def test_a_right_result_lists_the_defects_that_its_inputs_cannot_show() -> None:
    verdict = judge(SDPA, *stored_scores(64), precision="eager-bfloat16")
    assert verdict
    assert "a scale that is 1 % off" in verdict.cannot_see
    assert str(verdict).splitlines()[-1] == f"these inputs would hide: {', '.join(verdict.cannot_see)}"


@pytest.mark.parametrize("declared", ["uniform", "nan"])
def test_a_sink_has_all_the_weight_of_a_row_without_keys(declared: str) -> None:
    arguments = inputs("grouped_query_attention", 2).without_masks()
    mask = np.ones((4, 4), bool)
    mask[1] = False
    values = {
        **arguments.values_by_name,
        "mask": mask,
        "sinks": np.zeros(arguments.array("query").shape[-3], np.float32),
    }
    right = REFERENCE["grouped_query_attention"](**values)
    assert not right[0][..., 1, :].any()
    semantics = {"fully_masked": declared}
    assert judge("grouped_query_attention", right, **values, semantics=semantics).left_open == 0
    wrong = right[0].copy()
    wrong[..., 1, :] = arguments.array("value").mean()
    assert judge("grouped_query_attention", (wrong, right[1]), **values, semantics=semantics).worst is not None


@pytest.mark.parametrize(
    ("row", "right"),
    [([1, 0, 1, 0], True), ([1, 1, 0, 0], True), ([1, 0, 0, 0], False), ([1, 1, 1, 0], False), ([0, 1, 1, 0], False)],
)
def test_of_equal_scores_any_are_right_but_not_any_number_of_them(row: list[int], right: bool) -> None:
    scores = np.array([[3.0, 1, 1, 0], [1, 2, 3, 4]])
    mask = np.array([row, [0, 0, 1, 1]], bool)
    assert (judge("top_keys", mask, scores, count=2).worst is None) is right
