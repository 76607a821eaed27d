"""A wrong verdict names another reading of the arrays under which the result is right."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.reference import REFERENCE

SDPA, GROUPED = "scaled_dot_product_attention", "grouped_query_attention"
Array = np.ndarray[Any, Any]


def arrays(*shape: int, seed: int = 0) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(np.float32) for _ in range(3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("operation", [SDPA, GROUPED])
def test_transposed_inputs_are_named(operation: str, causal: bool) -> None:
    by_head = arrays(2, 4, 8, 16)
    right = REFERENCE[operation](*by_head, causal=causal)
    output = right if operation == SDPA else right[0]
    query, key, value, output = (x.swapaxes(1, 2) for x in (*by_head, output))
    result = output if operation == SDPA else (output, None)
    verdict = judge(operation, result, query, key, value, causal=causal)
    assert not verdict
    assert verdict.right_if == "the arrays are read as (…, n, h, d), not as (…, h, n, d)"
    assert "\nright if the arrays are read as (…, n, h, d)" in str(verdict)
    assert verdict.explained_by == ""


def test_transposed_inputs_of_a_rotary_embedding_are_named() -> None:
    x, *_ = arrays(2, 3, 7, 8)
    rotated = REFERENCE["rotary_embedding"](x).astype(np.float32)
    verdict = judge("rotary_embedding", rotated.swapaxes(1, 2), x.swapaxes(1, 2))
    assert not verdict
    assert verdict.right_if == "the arrays are read as (…, n, h, d), not as (…, h, n, d)"
    assert judge("rotary_embedding", 1.1 * rotated[0, 0], x[0, 0]).right_if == ""


def test_a_logarithm_to_base_2_is_named() -> None:
    inputs = arrays(2, 4, 8, 16)
    output, logarithm = REFERENCE[GROUPED](*inputs)
    verdict = judge(GROUPED, (output, logarithm / np.float32(np.log(2))), *inputs)
    assert not verdict
    assert verdict.right_if == "log_sum_exp is read to base 2, not e"
    assert judge(GROUPED, (output, 1.1 * logarithm), *inputs).right_if == ""


@pytest.mark.parametrize("keys", [8, 512])
def test_another_choice_is_named(keys: int) -> None:
    """With many keys, too, where no diagnosis names it."""
    query = np.random.default_rng(1).standard_normal((1, 4, 8, 16)).astype(np.float32)
    key, value, _ = arrays(1, 2, keys, 16)
    in_turn = [np.tile(x, (1, 2, 1, 1)) for x in (key, value)]
    verdict = judge(GROUPED, (REFERENCE[SDPA](query, *in_turn), None), query, key, value)
    assert not verdict
    assert verdict.right_if == "head_groups is interleaved, not blocks"
    in_diagnosis = "head_groups is interleaved" in verdict.diagnosis
    assert (f"right if {verdict.right_if}" in str(verdict)) is not in_diagnosis


def test_a_precision_class_is_a_reading_too() -> None:
    query, key, value = (x.astype(ml_dtypes.bfloat16) for x in arrays(2, 40, 50))
    query *= 4  # larger scores, whose roundings show
    scores = (query @ key.swapaxes(-1, -2) / ml_dtypes.bfloat16(50**0.5)).astype(ml_dtypes.bfloat16)
    weights = np.exp(scores.astype(np.float32) - scores.astype(np.float32).max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(ml_dtypes.bfloat16)
    output = (weights.astype(np.float32) @ value.astype(np.float32)).astype(ml_dtypes.bfloat16)
    verdict = judge(SDPA, output, query, key, value)
    assert verdict.right_if == f"its precision class is {verdict.explained_by}"
    assert f"explained by precision {verdict.explained_by}" in str(verdict)
    assert verdict.explained_by


def test_no_reading_explains_a_wrong_number() -> None:
    query, key, value = arrays(2, 4, 8, 16)
    output = REFERENCE[SDPA](query, key, value)
    output[1, 2, 3, 4] += 1
    verdict = judge(SDPA, output, query, key, value)
    assert verdict.right_if == verdict.explained_by == ""
    assert "right if" not in str(verdict)
    assert judge(SDPA, REFERENCE[SDPA](query, key, value), query, key, value).right_if == ""
