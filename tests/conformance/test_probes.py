"""Probes of declared choices say what was seen, and blame no choice for numbers that are wrong elsewhere."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.spec import OPERATIONS


def violation(question: str, operation: str, wrong: Any) -> Violation:
    """How a function violates the law of a question."""
    backend = SimpleNamespace(name="wrong", **{operation: wrong})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**10)
    given = example.arguments(subject.operation, "float64")
    found, *_ = attempt(subject, CHECKS[f"semantics.{question}"][0], given, 0)
    assert found is not None
    return found


def attention(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False, dead: float = 0.0
) -> Numbers:
    """Right but for the rows without attendable keys."""
    result = reference.dot_product_attention(query, key, value, mask=mask, causal=causal)
    if mask is not None:
        rows = np.broadcast_to(~mask.any(-1), result.shape[:-1])
        result = np.where(rows[..., None], dead, result)
    return result


def wrong_rows(*args: Numbers, **options: Any) -> Numbers:
    return attention(*args, **options, dead=0.5)


def wrong_numbers(*args: Numbers, **options: Any) -> Numbers:
    return 1.001 * attention(*args, **options, dead=0.5)


def wrong_under_the_mask(*args: Numbers, mask: Any = None, **options: Any) -> Numbers:
    return attention(*args, mask=mask, **options, dead=0.5) * (1.001 if mask is not None and mask.any() else 1)


def wrong_layer(x: Numbers, parameters: Any, **options: Any) -> Numbers:
    return 1.001 * reference.encoder_layer(x, parameters, **options)


def test_of_a_choice_that_is_none_of_the_known_ones_it_is_said_what_was_seen() -> None:
    found = violation("fully_masked", "dot_product_attention", wrong_rows)
    assert found.reason == Reason.DECLARED
    start = "fully_masked: declared zero, observed something else: without attendable keys, the result["
    assert found.message.startswith(start)
    assert "] is 0.5; zero would be 0, uniform " in found.message


@pytest.mark.parametrize(
    ("operation", "wrong", "where"),
    [
        ("dot_product_attention", wrong_numbers, "where it is not asked, the result["),
        ("dot_product_attention", wrong_under_the_mask, "of the rows with attendable keys, the result["),
        ("encoder_layer", wrong_layer, "where it is not asked, the result["),
    ],
)
def test_a_choice_is_not_blamed_for_numbers_that_are_wrong_elsewhere(operation: str, wrong: Any, where: str) -> None:
    found = violation("fully_masked", operation, wrong)
    assert found.reason == Reason.VALUE
    assert found.message.startswith(f"fully_masked cannot be told: {where}")


def test_an_alignment_is_not_blamed_either() -> None:
    found = violation("causal_alignment", "dot_product_attention", wrong_numbers)
    assert found.message.startswith("causal_alignment cannot be told: where it is not asked, the result[")

    def shifted(*args: Numbers, causal: bool = False, **options: Any) -> Numbers:
        if causal:
            n, m = args[0].shape[-2], args[1].shape[-2]
            return reference.dot_product_attention(*args, mask=np.tri(n, m, 1, dtype=bool))
        return reference.dot_product_attention(*args, **options)

    found = violation("causal_alignment", "dot_product_attention", shifted)
    assert "right without `causal`, and under it fits neither alignment" in found.message


def test_neither_are_encodings_and_cells() -> None:
    def encoding(n: int, d: int) -> Numbers:
        result = reference.sinusoidal_positional_encoding(n, d)
        return np.where(np.arange(d) == d - 1, 7.0, result) if d % 2 else result

    found = violation("odd_encoding", "sinusoidal_positional_encoding", encoding)
    assert "] is 7; unpaired-sine would be 0" in found.message
    wrong = violation("odd_encoding", "sinusoidal_positional_encoding", lambda n, d: np.zeros((n, d)))
    assert wrong.message.startswith("odd_encoding cannot be told: where it is not asked, the result[")
    cell = violation("gru_reset", "gru_cell", lambda *args: 1.001 * reference.gru_cell(*args))
    assert cell.reason == Reason.VALUE
    assert cell.message.startswith("gru_reset cannot be told: under no choice the result[")


def test_nan_in_some_of_the_numbers_that_depend_on_it_is_counted() -> None:
    def attention(*args: Numbers, **options: Any) -> Numbers:
        result = reference.dot_product_attention(*args, **options)
        result[..., 0] = np.nan_to_num(result[..., 0])
        return result

    found = violation("attendable_nan", "dot_product_attention", attention)
    assert "numbers that depend on it" in found.message


def test_weights_of_minus_infinity_are_told_from_other_wrong_weights() -> None:
    def half_guarded(scores: Numbers, **options: Any) -> Numbers:
        weights = reference.softmax(scores, **options)
        return np.where(np.isneginf(scores) & (np.arange(scores.shape[-1]) > 1), 0.25, weights)

    found = violation("minus_infinity", "softmax", half_guarded)
    assert found.reason == Reason.DECLARED
    assert "declared nan, observed something else" in found.message
    assert "where scores are all −∞, the weight[" in found.message
    wrong = violation("minus_infinity", "softmax", lambda *args, **options: 1.001 * reference.softmax(*args, **options))
    assert wrong.reason == Reason.VALUE
    assert wrong.message.startswith("minus_infinity cannot be told: of the rows with finite scores, the weight[")


@pytest.mark.parametrize(("choice", "stored"), [("zero", 0.0), ("uniform", 0.25)])
def test_a_choice_of_weights_of_minus_infinity_is_seen(choice: str, stored: float) -> None:
    def softmax(scores: Numbers, *, mask: Any = None) -> Numbers:
        lost = np.all(np.isneginf(scores) | (False if mask is None else ~mask), axis=-1, keepdims=True)
        some = True if mask is None else mask & mask.any(-1, keepdims=True)
        return np.where(lost & some, stored, reference.softmax(scores, mask=mask))

    assert f"observed {choice}" in violation("minus_infinity", "softmax", softmax).message
