"""Missing declarations: found by judging again, combined for all operations, and ready to paste."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jsonschema
import ml_dtypes
import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.explaining.declaration import Declaration, declaration, lines, with_attributes
from attnspec.conformance.explaining.missing_declarations import MissingDeclarations, missing_declarations
from attnspec.conformance.explaining.precision_classes import wider_classes
from attnspec.conformance.explaining.refusals import REFUSED, Refusals, refusals, says_unsupported
from attnspec.conformance.explaining.refusals import _Probes as Probes
from attnspec.conformance.inputs.corners import FEATURES, LENGTHS, multiply_adds
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import FORMULA, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import violations
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.running.messages import paste_text
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

from .test_cli import attnspec, write_backend
from .test_report import SCHEMA

Numbers = np.ndarray[Any, Any]
ATTENTION = "scaled_dot_product_attention"


def attention(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False,
    rounded: Callable[[Numbers], Numbers] = lambda x: x, scale: float = 1.0, masked: float = -np.inf,
) -> Numbers:  # fmt: skip
    """Attention with rounded operands, scaled scores, and a chosen score of masked pairs."""
    allowed = np.ones((query.shape[-2], key.shape[-2]), bool) if mask is None else mask
    if causal:
        allowed = allowed & np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    root = query.dtype.type(scale / np.sqrt(query.shape[-1]))
    with np.errstate(all="ignore"):
        scores = rounded(query) @ np.swapaxes(rounded(key), -1, -2) * root
        scores = np.where(allowed, scores, query.dtype.type(masked))
        weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
        weights /= np.where((total := weights.sum(-1, keepdims=True)) > 0, total, 1)
        # Values that no query attends to are left out of the product, as they may be NaN.
        attended = np.where(
            np.swapaxes(np.broadcast_to(allowed, weights.shape), -1, -2).any(-1, keepdims=True), value, 0
        )
        return np.asarray(rounded(weights) @ rounded(value if masked > -np.inf else attended))


def tf32(x: Numbers) -> Numbers:
    """Float32 with 10 bits of mantissa, rounded to nearest."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x0FFF) + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def subjects(backend: Any, case: Case) -> Callable[[Contract], Subject]:
    """A function that makes the subject of a case under a contract."""
    return lambda contract: Subject(backend, contract, OPERATIONS[case.operation], case.dtype, "cpu")


def explanation(
    laws: tuple[str, ...], function: Callable[..., Any] = attention, dtype: str = "float32", **changed: Any
) -> MissingDeclarations:
    """The missing declarations that explain the violations of an attention function."""
    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=partial(function, **changed))
    contract, case = Contract.of(backend), Case(ATTENTION, dtype, laws)
    judging = partial(judge, backend, profile=PROFILES["quick"])
    failed = [r for r in judging(contract, case) if r.status is Status.FAILED]
    assert failed
    judge_under, subject_under = partial(judging, stop_at_first=True), subjects(backend, case)
    return missing_declarations(
        judge_under,
        contract,
        case,
        failed,
        lambda: refusals(subject_under(contract), lambda law, example: None),
        subject_under,
    )


LAWS = (FORMULA, "semantics.fully_masked", "pooling.unbiased-gain")


def test_a_program_pastes_json() -> None:
    proposed = Declaration({"semantics": {"rejection": "unchecked"}, "limits": {"dtypes": ("float32",)}})
    assert proposed.json_text == '"semantics": {"rejection": "unchecked"}, "limits": {"dtypes": ["float32"]}'


def test_a_choice_explains_the_formula() -> None:
    explained = explanation(LAWS, masked=-1e30)
    assert (explained.semantics, explained.precision, explained.limits) == ({"fully_masked": "uniform"}, "", {})
    assert set(explained.laws) >= {FORMULA, "semantics.fully_masked"}
    assert set(explained.laws.values()) == {"semantics"}


@pytest.mark.slow
def test_the_narrowest_class_that_allows_the_roundings_is_proposed() -> None:
    explained = explanation(LAWS, rounded=tf32)
    assert (explained.semantics, explained.precision) == ({}, "tf32")
    assert explained.laws[FORMULA] == "precision"


def test_a_choice_is_found_beside_roundings_of_another_class() -> None:
    explained = explanation(LAWS, rounded=tf32, masked=-1e30)
    assert (explained.semantics, explained.precision) == ({"fully_masked": "uniform"}, "tf32")
    assert set(explained.laws) >= {FORMULA, "semantics.fully_masked"}


def test_no_class_explains_errors_on_the_inputs_of_another_law() -> None:
    """The formula is wrong only where the mask has more dimensions than the arrays."""

    def wrong(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        output = attention(query, key, value, mask=mask, causal=causal)
        most = max(x.ndim for x in (query, key, value))
        return output if mask is None or mask.ndim <= most else output * output.dtype.type(1.5)

    assert explanation((FORMULA, "operation.broadcast-equals-repeat"), wrong).precision == ""


WRONG_SCALES: Mapping[str, dict[str, Any]] = {
    "the scores are twice as large": {"scale": 2.0},
    "the scores are a little larger, less than a class allows for": {"scale": 1 + 2.0**-9},
    "errors are far below those of the next class": {"scale": 1 + 2.0**-19},
}


@pytest.mark.parametrize("changed", WRONG_SCALES.values(), ids=WRONG_SCALES)
def test_no_declaration_explains_wrong_numbers(changed: dict[str, Any]) -> None:
    assert explanation((FORMULA, "attention.unbiased-scale"), **changed) == MissingDeclarations()


def test_no_declaration_explains_an_error_that_does_not_repeat() -> None:
    calls: list[bool] = []

    def wrong_at_first(query: Numbers, *arrays: Numbers, **options: Any) -> Numbers:
        result = attention(query, *arrays, **options)
        calls.append(bool(result.size and not calls))
        return result + 1 if calls[-1] else result

    assert explanation((FORMULA,), wrong_at_first) == MissingDeclarations()
    assert sum(calls) == 1


def refuses_long_sequences(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Numbers:
    """Attention to at most 40 keys."""
    if max(query.shape[-2], key.shape[-2]) > 40:
        raise ValueError(f"sequences of {key.shape[-2]} are not supported")
    return attention(query, key, value, **options)


def test_limits_explain_refused_sizes() -> None:
    explained = explanation((FORMULA, "operation.shape"), refuses_long_sequences)
    assert (explained.limits, set(explained.laws.values())) == ({"max_length": 40}, {"limits"})


def test_each_limit_has_the_message_of_its_own_refusal() -> None:
    def tiles(query: Numbers, *others: Numbers, **options: Any) -> Numbers:
        if query.shape[-2] % 16:
            raise ValueError("the length must be divisible by 16")
        if query.shape[-2] > 64:
            raise ValueError("more than 64 are not supported")
        return attention(query, *others, **options)

    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=tiles)
    subject = subjects(backend, Case(ATTENTION, "float32", LAWS))(Contract.of(backend))
    refused = refusals(subject, lambda law, example: None)
    assert (refused.limits["multiple_of"], refused.limits["max_length"]) == (16, 64)
    assert refused.exceptions["multiple_of"].startswith("ValueError: the length must be divisible by 16")
    assert refused.exceptions["max_length"].startswith("ValueError: more than 64 are not supported")


def test_refused_sizes_do_not_hide_refused_options() -> None:
    def one_width(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        if not query.shape[-1] == value.shape[-1] == 64:
            raise ValueError(f"head size {query.shape[-1]} is not supported")
        if mask is not None:
            raise NotImplementedError("masks are not supported")
        if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            raise ValueError("broadcasting is not supported")
        return attention(query, key, value, causal=causal)

    explained = explanation((FORMULA,), one_width)
    expected = {"broadcasting": False, "mask": False, "head_sizes": (64,)}
    assert (explained.limits, set(explained.laws)) == (expected, {FORMULA})
    assert explained.evidence["mask"].startswith("raised NotImplementedError: masks are not supported")


def batches_alike(query: Numbers, *others: Numbers) -> bool:
    return all(x.shape[:-2] == query.shape[:-2] for x in others)


def all_filled(*arrays: Numbers) -> bool:
    return all(x.size for x in arrays)


@pytest.mark.parametrize("message", [(), ("what the author wrote",)], ids=["bare", "with a message"])
@pytest.mark.parametrize(
    ("accepts", "limits"),
    [(batches_alike, {"broadcasting": False}), (all_filled, {"min_length": 1, "min_batch": 1})],
    ids=["broadcasting", "empty"],
)
def test_limits_are_proposed_for_failed_assertions(
    accepts: Callable[..., bool], limits: dict[str, Any], message: tuple[str, ...]
) -> None:
    def asserts(*arrays: Numbers, **options: Any) -> Numbers:
        if not accepts(*arrays):
            raise AssertionError(*message)
        return attention(*arrays, **options)

    explained = explanation((FORMULA, "operation.shape"), asserts)
    assert explained.limits == limits
    assert set(explained.laws.values()) == {"limits"}


def test_no_choice_explains_a_strict_causal_mask() -> None:
    """A fill of −10⁹ gives the first row the mean of all values, as ``fully_masked: uniform`` does."""

    def strict(*arrays: Numbers, mask: Any = None, causal: bool = False) -> Numbers:
        n, m = arrays[0].shape[-2], arrays[1].shape[-2]
        if not causal or mask is not None:
            return attention(*arrays, mask=mask, causal=causal)
        return attention(*arrays, mask=np.tri(n, m, -1, dtype=bool), masked=-1e9)

    assert explanation((FORMULA, "semantics.causal_alignment"), strict).semantics == {}


def ignores_masks_beside_causal(*arrays: Numbers, mask: Any = None, causal: bool = False) -> Numbers:
    """Attention that refuses masks, but ignores them under the causal flag."""
    if mask is not None and not causal:
        raise NotImplementedError("masks are not supported")
    return attention(*arrays, causal=causal)


def ignores_a_tail_of_keys(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Numbers:
    """Attention that refuses 17 queries, for one, but ignores the last of 17 keys."""
    if query.shape[-2] % 16:
        raise ValueError(f"expected a multiple of 16 queries; got {query.shape[-2]}")
    whole = key.shape[-2] // 16 * 16 or key.shape[-2]
    mask = options.get("mask")
    mask = mask[..., :whole] if mask is not None and mask.shape[-1] > 1 else mask
    return attention(query, key[..., :whole, :], value[..., :whole, :], **{**options, "mask": mask})


@pytest.mark.parametrize("wrong", [ignores_masks_beside_causal, ignores_a_tail_of_keys])
def test_limits_do_not_hide_calls_with_wrong_numbers(wrong: Callable[..., Any]) -> None:
    explained = explanation((FORMULA, "operation.shape"), wrong)
    assert (explained.limits, explained.laws) == ({}, {})
    assert "not proposed, since a call beyond them, with " in explained.withdrawn
    assert "raises nothing: the result[" in explained.withdrawn


def test_without_such_limits_the_rest_is_still_proposed() -> None:
    def nan_without_keys(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Numbers:
        result = ignores_masks_beside_causal(query, key, value, **options)
        return result if key.shape[-2] else np.full_like(result, np.nan)

    explained = explanation((FORMULA, "operation.shape", "semantics.no_keys"), nan_without_keys)
    assert (explained.limits, explained.semantics) == ({}, {"no_keys": "nan"})
    combined = combine({"scaled_dot_product_attention-float32": explained.as_json()})
    assert combined.text == 'semantics = {"scaled_dot_product_attention": {"no_keys": "nan"}}'
    assert combined.reasons["limits"] == (explained.withdrawn,)
    assert explained.withdrawn.startswith("limits mask of scaled_dot_product_attention: not proposed, since a call ")


def in_single(*arrays: Numbers, returned: str = "", **options: Any) -> Numbers:
    """Attention that is computed in float32, and cast to ``returned`` or its inputs' dtype."""
    computed = attention(*(x.astype(np.float32) for x in arrays), **options)
    return computed.astype(returned or arrays[0].dtype)


OTHER_CALLS = "operation.independent-of-other-calls"


def test_calls_in_another_dtype_are_explained_by_what_explains_that_dtype() -> None:
    explained = explanation((FORMULA, OTHER_CALLS), in_single)
    assert (explained.other_dtypes, explained.laws) == (("float64",), {OTHER_CALLS: "other_dtypes"})
    at_float32 = {"scaled_dot_product_attention-float32": explained.as_json()}
    results = [
        Result(ATTENTION, OTHER_CALLS, "float32", Status.FAILED, "value", ""),
        Result(ATTENTION, FORMULA, "float32", Status.PASSED),
        Result(ATTENTION, FORMULA, "float64", Status.FAILED, "value", ""),
    ]
    # Alone it is a dependence on earlier calls, which no declaration allows.
    assert not combine(at_float32, results).explained
    for kind, change in (("precision", "ieee32-float64"), ("limits", {REFUSED: True})):
        combined = combine({**at_float32, f"{ATTENTION}-float64": explain(kind, change)}, results)
        assert combined.explained[ATTENTION, OTHER_CALLS, "float32"] == "what is declared for float64"
        assert combined.attributes.keys() == {kind}


def test_a_dtype_that_is_computed_and_returned_in_another_is_not_supported() -> None:
    laws = (FORMULA, "operation.dtype", "operation.rejection")
    narrower = explanation(laws, partial(in_single, returned="float32"), dtype="float64")
    assert (narrower.limits, narrower.precision) == ({REFUSED: True}, "")
    assert narrower.evidence[REFUSED].endswith("the result has dtype float32, expected float64")
    wider = explanation(laws, lambda *arrays, **options: attention(*arrays, **options).astype(np.float64))
    assert (wider.limits, wider.laws) == ({}, {"operation.rejection": "semantics"})


def test_refusing_calls_without_keys_is_a_choice_and_no_limit() -> None:
    def needs_keys(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if not key.shape[-2]:
            raise ValueError("the keys must be non-empty")
        return attention(query, key, value, **more)

    explained = explanation((FORMULA, "semantics.no_keys"), needs_keys)
    assert (explained.semantics, explained.limits) == ({"no_keys": "error"}, {})


def test_exceptions_that_refuse_nothing_are_no_limits() -> None:
    def breaks(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if key.shape[-2] > 40:
            raise IndexError("index 40 is out of bounds")
        return attention(query, key, value, **more)

    assert explanation((FORMULA,), breaks) == MissingDeclarations()


def test_after_a_crash_the_backend_is_not_called_again() -> None:
    crashed = Result(ATTENTION, FORMULA, "float32", Status.FAILED, Reason.CRASHED, "ended the process")
    value = replace(crashed, law="attention.unbiased-scale", reason=Reason.VALUE)
    never: Any = None
    assert missing_declarations(never, never, never, [crashed, value], never, never) == MissingDeclarations()


REFUSING: Mapping[str, tuple[str, Callable[..., bool], dict[str, Any]]] = {
    "batches": ("dot_scores", lambda query, key: max(query.ndim, key.ndim) > 3, {"max_batch_dims": 1}),
    "broadcasting": ("dot_scores", lambda query, key: query.shape[:-2] != key.shape[:-2], {"broadcasting": False}),
    "multiples": (
        "dot_scores", lambda query, key: query.shape[-2] % 16 > 0 or key.shape[-2] % 16 > 0, {"multiple_of": 16},
    ),
    "features": ("dot_scores", lambda query, key: query.shape[-1] not in (8, 16), {"head_sizes": (8, 16)}),
    "lengths": ("dot_scores", lambda query, key: key.shape[-2] > 50, {"max_length": 50}),
    "everything": ("dot_scores", lambda query, key: True, {REFUSED: True}),
    "nothing": ("dot_scores", lambda query, key: False, {}),
    "what no limit describes": ("dot_scores", lambda query, key: query.shape[-2] > key.shape[-2], {}),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "refuses", "limits"), REFUSING.values(), ids=REFUSING)
def test_limits_describe_refused_inputs(operation: str, refuses: Callable[..., bool], limits: dict[str, Any]) -> None:
    def call(*arguments: Numbers) -> Any:
        if refuses(*arguments):
            raise NotImplementedError
        return getattr(reference, operation)(*arguments)

    backend = SimpleNamespace(name="mine", **{operation: call})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    expected = Refusals(everything=True) if REFUSED in limits else Refusals(limits=limits, accepts_any=True)
    assert refusals(subject, lambda law, example: None) == expected


MOST_WORK = 2.0**30
"""Multiply-adds of a probe, about a second."""


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if not o.reference_only])
def test_no_probe_of_any_operation_is_large(name: str) -> None:
    backend = SimpleNamespace(name="mine", **{name: getattr(reference, name)})
    operation = OPERATIONS[name]
    probes = Probes(Subject(backend, Contract.of(backend), operation, "float32", "cpu"), lambda law, example: None)
    length, features = max(probes.length, 1), max(probes.width, 1)
    for arguments in (probes.plain(max(LENGTHS), features), probes.plain(length, max(FEATURES))):
        assert multiply_adds(arguments.sizes, arguments.batch, operation) <= MOST_WORK
        assert sum(x.size for x in arguments.arrays.values()) <= 2**24


def test_refused_grids_are_probed_with_small_inputs() -> None:
    def gate(x: Numbers, gating: Numbers, parameters: Any) -> Any:
        if x.shape[-4:-1] != gating.shape[-4:-1]:
            raise NotImplementedError("gating of another grid is not supported")
        sizes.append(x.size)
        return reference.attention_gate(x, gating, parameters)

    sizes: list[int] = []
    backend = SimpleNamespace(name="mine", attention_gate=gate)
    subject = Subject(backend, Contract.of(backend), OPERATIONS["attention_gate"], "float32", "cpu")
    # Inputs whose batches broadcast also have grids that differ, so broadcasting is not to blame.
    assert refusals(subject, lambda law, example: None) == Refusals(accepts_any=True)
    assert max(sizes) <= 2**15
    # No limit says that grids must be equal: nothing is proposed, and the backend's message stays.
    contract, case = Contract.of(backend), Case("attention_gate", "float32", (FORMULA,))
    judging = partial(judge, backend, profile=PROFILES["quick"])
    (failed,) = judging(contract, case)
    assert failed.message.startswith("raised NotImplementedError: gating of another grid is not supported")
    judge_under = partial(judging, stop_at_first=True)
    observed_refusals = refusals(subject, lambda law, example: None)
    proposed = missing_declarations(
        judge_under, contract, case, [failed], lambda: observed_refusals, subjects(backend, case)
    )
    assert proposed == MissingDeclarations()


def test_shape_errors_where_batches_broadcast_are_a_limit() -> None:
    def call(query: Numbers, key: Numbers) -> Any:
        flat = [x.reshape(int(np.prod(query.shape[:-2])), *x.shape[-2:]) for x in (query, key)]
        return reference.dot_scores(*flat).reshape(*query.shape[:-1], key.shape[-2])

    backend = SimpleNamespace(name="mine", dot_scores=call)
    subject = Subject(backend, Contract.of(backend), OPERATIONS["dot_scores"], "float64", "cpu")
    assert refusals(subject, lambda law, example: None) == Refusals(accepts_any=True, limits={"broadcasting": False})


def test_shape_errors_without_broadcasting_are_no_limit() -> None:
    def breaks(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if key.ndim > 2:
            raise ValueError("cannot reshape array of size 6 into shape (2,2)")
        return attention(query, key, value, **more)

    assert explanation((FORMULA,), breaks) == MissingDeclarations()


def test_a_backend_whose_heads_divide_the_width_is_recognised() -> None:
    def call(query: Numbers, key: Numbers, value: Numbers, w_q: Numbers, *weights: Numbers) -> Any:
        heads, part, width = w_q.shape
        if not (heads * part == width == key.shape[-1] == value.shape[-1] and part == weights[1].shape[1]):
            raise ValueError("the width must be divisible by the heads")
        return reference.multi_head_attention(query, key, value, w_q, *weights)

    backend = SimpleNamespace(name="mine", multi_head_attention=lambda *arrays, **options: call(*arrays))
    subject = Subject(backend, Contract.of(backend), OPERATIONS["multi_head_attention"], "float64", "cpu")
    observed = refusals(subject, lambda law, example: None)
    assert (observed.everything, observed.limits) == (False, {"divided_heads": True})


def test_a_choice_that_every_accepted_call_makes_is_recognised() -> None:
    def encoder_layer(x: Numbers, parameters: Any, *, mask: Any = None, norm: str = "post") -> Numbers:
        if norm != "pre":
            raise NotImplementedError("post-norm is not supported")
        return np.asarray(reference.encoder_layer(x, parameters, mask=mask, norm="pre"))

    backend = SimpleNamespace(name="mine", encoder_layer=encoder_layer)
    subject = Subject(backend, Contract.of(backend), OPERATIONS["encoder_layer"], "float64", "cpu")
    observed = refusals(subject, lambda law, example: None)
    assert (observed.everything, observed.limits) == (False, {"always": ("norm=pre",)})


def test_a_refused_feature_is_left_out_of_the_limits() -> None:
    (name, feature), *_ = ((o.name, f) for o in OPERATIONS.values() for f in o.features if "=" in f)
    path, _, choice = feature.partition("=")

    def call(*arguments: Any, **more: Any) -> Any:
        if more.get(path) == choice:
            raise NotImplementedError
        return getattr(reference, name)(*arguments, **more)

    backend = SimpleNamespace(name="mine", **{name: call})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[name], "float64", "cpu")
    observed = refusals(subject, lambda law, example: None)
    assert list(observed.limits) == ["features"]
    assert set(OPERATIONS[name].features) - set(observed.limits["features"]) == {feature}


def test_an_accepted_option_is_no_limit_where_all_others_are_refused() -> None:
    def call(query: Numbers, key: Numbers, value: Numbers, *, causal: bool = False) -> Any:
        return reference.grouped_query_attention(query, key, value, causal=causal)

    backend = SimpleNamespace(name="mine", grouped_query_attention=call)
    operation = OPERATIONS["grouped_query_attention"]
    observed = refusals(Subject(backend, Contract.of(backend), operation, "float32", "cpu"), lambda law, example: None)
    assert set(observed.limits) == {"mask", "features"}
    assert set(operation.features) & set(observed.limits["features"]) == {"log_sum_exp"}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("NotImplementedError", True),
        ("RuntimeError: \"addmm\" not implemented for 'Half'", True),
        ("ValueError: head_dim 300 is not supported", True),
        ("RuntimeError: this kernel only supports 16 bits", True),
        ("ValueError: the length must be divisible by 16", True),
        ("ValueError: sequence too long", True),
        ("AssertionError: query should be unbatched 2D or batched 3D tensor but received 4-D query tensor", True),
        ("raised AssertionError, in attention (mine.py:3)", True),
        ("IndexError: index 3 is out of bounds", False),
        ("RuntimeError: output with shape [1] doesn't match the broadcast shape [3]", False),
        ("TypeError: unexpected keyword argument 'mask'", False),
    ],
)
def test_messages_of_unsupported_calls_are_recognised(message: str, says: bool) -> None:
    assert says_unsupported(message) == says


def test_precision_classes_are_tried_from_narrow_to_wide() -> None:
    assert wider_classes("ieee64", "float64")[:2] == ["ieee64+one-pass-variance", "ieee32-float64"]
    names = wider_classes("mixed-bfloat16", "bfloat16")
    assert names.index("prescaled-bfloat16") < names.index("eager-bfloat16") < names.index("eager-bfloat16+fast-tanh")
    assert "mixed-bfloat16" not in names
    assert not [name for name in names if name.startswith("e4m3") or "truncating" in name]
    assert "mixed-float16" not in wider_classes("prescaled-float16", "float16")


def bfloat16(x: Numbers) -> Numbers:
    """The nearest numbers of bfloat16, in float32."""
    return np.asarray(np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))


def bf16_attention(query: Numbers, key: Numbers, value: Numbers, *, scales_queries: bool, **options: Any) -> Numbers:
    """Attention in bfloat16 that rounds its scores, or only its scaled queries."""
    q, k, v = (np.asarray(x, np.float32) for x in (query, key, value))
    root = np.float32(q.shape[-1] ** -0.5)
    scores = (
        bfloat16(q * root) @ k.swapaxes(-1, -2) if scales_queries else bfloat16(bfloat16(q @ k.swapaxes(-1, -2)) * root)
    )
    mask, causal = options.get("mask"), options.get("causal")
    allowed = np.ones(scores.shape[-2:], bool) if mask is None else mask
    allowed = allowed & np.tri(*scores.shape[-2:]).astype(bool) if causal else allowed
    scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(bfloat16(weights / np.where(total > 0, total, 1)) @ v).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(("scales_queries", "name"), [(False, "eager-bfloat16"), (True, "prescaled-bfloat16")])
def test_the_proposed_class_is_that_of_the_rounding(scales_queries: bool, name: str) -> None:
    """Only rounded scores explain errors at d = 16, where queries are scaled exactly."""
    backend = SimpleNamespace(
        name="mine",
        limits={"dtypes": ("bfloat16",)},
        scaled_dot_product_attention=partial(bf16_attention, scales_queries=scales_queries),
    )
    contract, case = Contract.of(backend), Case(ATTENTION, "bfloat16", (FORMULA, "attention.extreme-magnitudes"))
    judging = partial(judge, backend, profile=PROFILES["quick"], seed=1)
    failed = [r for r in judging(contract, case) if r.status is Status.FAILED]
    assert failed
    judge_under = partial(judging, stop_at_first=True)
    subject_under = subjects(backend, case)
    proposed = missing_declarations(judge_under, contract, case, failed, lambda: Refusals(), subject_under)
    assert proposed.precision == name


# All together ---------------------------------------------------------------------------------------------------------

PROVIDED = ("scaled_dot_product_attention", "self_attention", "dot_scores", "softmax")


def contract(**declared: Any) -> Contract:
    functions = {name: getattr(reference, name) for name in PROVIDED}
    return Contract.of(SimpleNamespace(name="mine", **functions, **declared))


def verdicts(*operations: str, status: Status = Status.FAILED) -> list[Result]:
    return [Result(o, FORMULA, d, status, "value", "") for o in operations for d in ("float64", "float32")]


def explain(kind: str, change: Any) -> dict[str, Any]:
    return MissingDeclarations(**{kind: change}, laws={FORMULA: kind}).as_json()


def combine(explanations: Mapping[str, Any], results: list[Result] | None = None, **declared: Any) -> Declaration:
    return declaration(contract(**declared), verdicts(*PROVIDED) if results is None else results, explanations)


NAN_ROWS, HIDDEN = (explain("semantics", {"no_keys": "nan"}), explain("semantics", {"attendable_nan": "hidden"}))


def test_a_choice_of_all_operations_is_declared_once() -> None:
    explanations = {f"{o}-{d}": NAN_ROWS for o in PROVIDED[:2] for d in ("float64", "float32")}
    combined = combine(explanations)
    assert combined.attributes == {"semantics": {"no_keys": "nan"}}
    assert combined.text == 'semantics = {"no_keys": "nan"}'
    assert set(combined.explained) == {(o, FORMULA, d) for o in PROVIDED[:2] for d in ("float64", "float32")}
    assert list(lines(combined.explained)) == [
        "explained by semantics no_keys = nan: "
        "4 laws of scaled_dot_product_attention, self_attention (operation.oracle)"
    ]


def test_choices_that_differ_are_declared_by_operation() -> None:
    explanations = {"self_attention-float64": NAN_ROWS, "softmax-float32": HIDDEN}
    assert combine(explanations).attributes == {
        "semantics": {"self_attention": {"no_keys": "nan"}, "softmax": {"attendable_nan": "hidden"}}
    }
    present = {"repeatability": "within-budget"}
    assert combine(explanations, semantics=present).attributes["semantics"] == {
        "self_attention": {"no_keys": "nan", **present},
        "softmax": {"attendable_nan": "hidden", **present},
        "*": present,
    }


def test_existing_declarations_are_kept() -> None:
    explanations = {f"{o}-float64": NAN_ROWS for o in PROVIDED[:2]}
    assert combine(explanations, semantics={"repeatability": "within-budget"}).attributes == {
        "semantics": {"no_keys": "nan", "repeatability": "within-budget"}
    }
    assert combine({}, semantics={"no_keys": "nan"}) == Declaration()


def test_dtypes_that_contradict_each_other_explain_nothing() -> None:
    other = Result("self_attention", "semantics.no_keys", "float32", Status.PASSED, observed="zero")
    combined = combine({"self_attention-float64": NAN_ROWS}, [*verdicts("self_attention"), other])
    assert (combined.attributes, combined.explained) == ({}, {})
    assert not combined


def test_the_text_to_paste_takes_effect_where_a_device_has_its_own_declaration() -> None:
    class Mine:
        name = "mine"
        softmax = staticmethod(reference.softmax)
        on_device: ClassVar[dict[str, Any]] = {
            "cpu": {"semantics": {"repeatability": "within-budget"}},
            "cuda": {"precision": {"float32": "tf32"}},
        }

    own = Contract.of(Mine)
    explanations = {"softmax-float32": explain("semantics", {"attendable_nan": "hidden"})}
    proposed = declaration(own, verdicts("softmax"), explanations)
    assert proposed.attributes == {"semantics": {"repeatability": "within-budget", "attendable_nan": "hidden"}}
    body: dict[str, Any] = {"on_device": Mine.on_device}
    exec(proposed.text, body)
    pasted = Contract.of(type("Pasted", (Mine,), {"on_device": body["on_device"]}))
    assert pasted == with_attributes(own, proposed.attributes)
    assert body["on_device"]["cuda"] == Mine.on_device["cuda"]


def test_a_normative_result_does_not_contradict_a_choice_that_allows_it() -> None:
    explanations = {"self_attention-float64": explain("semantics", {"repeatability": "within-budget"})}
    other = Result("self_attention", "semantics.repeatability", "float32", Status.PASSED, observed="bitwise")
    combined = combine(explanations, [*verdicts("self_attention"), other])
    assert combined.attributes == {"semantics": {"self_attention": {"repeatability": "within-budget"}}}


def test_classes_are_declared_by_dtype_or_by_operation() -> None:
    tf32_class = explain("precision", "tf32")
    assert combine({f"{o}-float32": tf32_class for o in PROVIDED}).attributes == {"precision": {"float32": "tf32"}}
    for_one_operation = combine({"dot_scores-float32": tf32_class})
    assert for_one_operation.attributes == {"precision": {"dot_scores": {"float32": "tf32"}}}
    assert list(lines(for_one_operation.explained)) == [
        "explained by precision tf32: 1 law of dot_scores (operation.oracle); "
        "declare it only if the kernel rounds like this"
    ]


def test_combined_limits_hold_for_all_operations() -> None:
    explanations = {
        "dot_scores-float64": explain("limits", {"max_length": 40, "head_sizes": [8, 16], "multiple_of": 4}),
        "softmax-float64": explain("limits", {"max_length": 64, "head_sizes": [16, 32], "multiple_of": 6}),
        "softmax-float32": explain("limits", {"broadcasting": False, "max_batch_dims": 1, "divided_heads": True}),
        "dot_scores-float32": explain("limits", {"always": ("norm=pre",)}),
    }
    combined = combine(explanations, limits={"max_length": 50})
    assert combined.attributes["limits"] == {
        "head_sizes": (16,), "multiple_of": 12, "max_length": 40, "max_batch_dims": 1, "broadcasting": False,
        "divided_heads": True, "always": ("norm=pre",),
    }  # fmt: skip
    assert ast.literal_eval(combined.text.removeprefix("limits = ")) == combined.attributes["limits"]


def test_a_dtype_that_no_operation_supports_is_left_out() -> None:
    refused = explain("limits", {REFUSED: True})
    passed = verdicts(*PROVIDED, status=Status.PASSED)
    results = [r for r in passed if r.dtype == "float64"] + [r for r in verdicts(*PROVIDED) if r.dtype == "float32"]
    combined = combine({f"{o}-float32": refused for o in PROVIDED}, results)
    assert combined.attributes == {"limits": {"dtypes": ("float64",)}}
    for_one_operation = combine({"softmax-float32": refused}, results)
    assert for_one_operation.attributes == {"limits": {"dtypes_by_operation": {"softmax": ("float64",)}}}
    assert list(lines(for_one_operation.explained)) == [
        "explained by limits without this dtype: 1 law of softmax (operation.oracle)"
    ]


def test_empty_limits_are_printed_as_none() -> None:
    combined = combine({"softmax-float32": explain("limits", {"gradients": (), "max_length": 40})})
    assert list(lines(combined.explained)) == [
        "explained by limits gradients = none and max_length = 40: 1 law of softmax (operation.oracle)"
    ]


def test_an_operation_that_refuses_every_dtype_is_not_excused() -> None:
    refused = explain("limits", {REFUSED: True})
    combined = combine({f"softmax-{d}": refused for d in ("float64", "float32")})
    assert (combined.attributes, combined.explained) == ({}, {})


def test_the_declaration_in_the_documentation_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text(encoding="utf-8")
    lines_ = page.partition("## Let a run tell you")[2].split("```\n")[1].splitlines()
    declared = {name: ast.literal_eval(value) for name, value in (line.split(" = ") for line in lines_)}
    assert set(declared) == {"semantics", "precision", "limits"}
    assert contract(**declared).limits.max_length == 100


def test_a_report_folds_explained_violations_and_ends_with_the_declaration() -> None:
    results = verdicts("self_attention", "softmax")
    combined = combine({f"self_attention-{d}": NAN_ROWS for d in ("float64", "float32")}, results)
    report = Report(contract(), Settings(), tuple(results), 1.0, declaration=combined)
    assert report.verdict == "violates"
    texts = [text.plain for text in violations(report)]
    assert texts[-1] == "explained by semantics no_keys = nan: 2 laws of self_attention (operation.oracle)"
    assert not [text for text in texts[:-1] if "self_attention" in text]
    document = json.loads(report.as_text())
    jsonschema.validate(document, SCHEMA)
    assert document["declaration"] == {"semantics": combined.attributes["semantics"]}
    causes = [r["explained_by"] for r in document["results"]]
    assert causes == ["semantics no_keys = nan"] * 2 + [None] * 2
    assert paste_text("into the backend", conforms=False, accepted=False) in " ".join(as_html(report).split())


CODE = """
import numpy as np
name = "mine"
def rounded(x):
    return ((x + 0).view(np.uint32) + 0x1000 & 0xFFFFE000).astype(np.uint32).view(np.float32)
def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    if query.dtype == np.float64:
        raise TypeError("float64 is not supported")
    if max(query.shape[-2], key.shape[-2]) > 40:
        raise ValueError("more than 40 are not supported")
    return rounded(query) @ np.swapaxes(rounded(key), -1, -2)
"""


@pytest.mark.slow
def test_a_second_run_with_the_pasted_declaration_conforms(tmp_path: Path) -> None:
    call = ("check", write_backend(tmp_path, CODE), "--operation", "dot_scores", "--json", "r.json", "--workers", "2")
    first = attnspec(*call, folder=tmp_path)
    assert first.returncode == 1, first.stderr
    assert "mine conforms as declared below" in first.stdout
    pasted = first.stdout.partition(paste_text("at the end of the module", conforms=True, accepted=False))[2]
    assert pasted.split("\n\n")[1].splitlines() == [
        'precision = {"float32": "tf32"}',
        'limits = {"dtypes": ("float32",), "max_length": 40}',
    ]
    assert "precision tf32 at float32: declare it only if the kernel rounds like this" in first.stdout
    place = "in dot_scores (backend.py:"
    for limit, line in {
        "max_length: dot_scores raised ValueError: more than 40 are not supported": 12,
        "dtypes: dot_scores raised TypeError: float64 is not supported": 10,
    }.items():
        assert f"limits {limit}, {place}{line})" in first.stdout
    assert "is violated by" not in first.stdout
    document = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(document, SCHEMA)
    assert all(r["explained_by"] for r in document["results"] if r["status"] == "failed")
    assert (document["verdict"], document["conforms_as_observed"]) == ("violates", True)
    accepted = attnspec(*call, "--accept-observed", folder=tmp_path)
    assert accepted.returncode == 0, accepted.stdout
    document = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(document, SCHEMA)
    assert (document["verdict"], document["exit_status"]) == ("conforms", 0)
    write_backend(tmp_path, CODE + pasted)
    second = attnspec(*call, folder=tmp_path)
    assert second.returncode == 0, second.stdout
    assert "paste these attributes" not in second.stdout


TILE_BORDER = """
import numpy as np

from attnspec import reference

name = "border"
limits = {"dtypes": ("bfloat16",)}


def scaled_dot_product_attention(query, key, value, *, mask=None, causal=False):
    n, m = query.shape[-2], key.shape[-2]
    allowed = np.tri(n, m, dtype=bool) if causal else np.ones((n, m), bool)
    if causal:
        for i in range(64, min(n, m), 64):
            allowed[i, i] = False
    allowed = allowed if mask is None else mask & allowed
    wide = (x.astype(np.float32) for x in (query, key, value))
    return reference.scaled_dot_product_attention(*wide, mask=allowed).astype(query.dtype)
"""


@pytest.mark.slow
def test_no_class_is_proposed_under_which_the_counterexample_is_wrong(tmp_path: Path) -> None:
    """A lost key is within wider budgets on random inputs, not on the smallest."""
    (tmp_path / "border.py").write_text(TILE_BORDER, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "border.py", "--json", "report.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert "precision" not in (report["declaration"] or {})
    (formula,) = [r for r in report["results"] if r["law"] == FORMULA and r["operation"] == ATTENTION]
    assert (formula["status"], formula["explained_by"]) == ("failed", None)
