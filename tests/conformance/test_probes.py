"""Laws of choices report the observed result, and blame no choice for other wrong numbers."""

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


def violation_of(question: str, operation: str, wrong: Any, **semantics: str) -> Violation:
    backend = SimpleNamespace(name="wrong", semantics=semantics, **{operation: wrong})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**10)
    arguments = example.arguments(subject.operation, "float64")
    violation_of_law, *_ = attempt(subject, CHECKS[f"semantics.{question}"][0], arguments, 0)
    assert violation_of_law is not None
    return violation_of_law


def attention(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False, empty_row: float = 0.0
) -> Numbers:
    """Attention whose rows without attendable keys are ``empty_row``."""
    result = reference.dot_product_attention(query, key, value, mask=mask, causal=causal)
    if mask is not None:
        rows = np.broadcast_to(~mask.any(-1), result.shape[:-1])
        result = np.where(rows[..., None], empty_row, result)
    return result


def wrong_rows(*args: Numbers, **options: Any) -> Numbers:
    return attention(*args, **options, empty_row=0.5)


def wrong_numbers(*args: Numbers, **options: Any) -> Numbers:
    return 1.001 * attention(*args, **options, empty_row=0.5)


def wrong_under_the_mask(*args: Numbers, mask: Any = None, **options: Any) -> Numbers:
    return attention(*args, mask=mask, **options, empty_row=0.5) * (1.001 if mask is not None and mask.any() else 1)


def wrong_layer(x: Numbers, parameters: Any, **options: Any) -> Numbers:
    return 1.001 * reference.encoder_layer(x, parameters, **options)


def test_rows_of_zeros_are_no_declared_average_even_if_the_model_is_always_causal() -> None:
    violated = violation_of("fully_masked", "decoder_only", reference.decoder_only, fully_masked="uniform")
    assert violated.message.startswith("fully_masked: declared uniform, observed zero")


def test_an_unknown_choice_is_reported_with_its_result() -> None:
    violated = violation_of("fully_masked", "dot_product_attention", wrong_rows)
    assert violated.reason == Reason.DECLARED
    start = "fully_masked: declared zero, observed something else: without attendable keys, the result["
    assert violated.message.startswith(start)
    assert "] is 0.5; zero would be 0, uniform " in violated.message


@pytest.mark.parametrize(
    ("operation", "wrong", "where"),
    [
        ("dot_product_attention", wrong_numbers, "where it plays no part, the result["),
        ("dot_product_attention", wrong_under_the_mask, "in rows with attendable keys, the result["),
        ("encoder_layer", wrong_layer, "where it plays no part, the result["),
    ],
)
def test_a_choice_is_not_blamed_for_numbers_that_are_wrong_elsewhere(operation: str, wrong: Any, where: str) -> None:
    violated = violation_of("fully_masked", operation, wrong)
    assert violated.reason == Reason.VALUE
    assert violated.message.startswith(f"fully_masked cannot be determined: {where}")


def test_a_causal_alignment_is_not_blamed_for_wrong_numbers() -> None:
    violated = violation_of("causal_alignment", "dot_product_attention", wrong_numbers)
    assert violated.message.startswith("causal_alignment cannot be determined: where it plays no part, the result[")

    def shifted(*args: Numbers, causal: bool = False, **options: Any) -> Numbers:
        if causal:
            n, m = args[0].shape[-2], args[1].shape[-2]
            return reference.dot_product_attention(*args, mask=np.tri(n, m, 1, dtype=bool))
        return reference.dot_product_attention(*args, **options)

    violated = violation_of("causal_alignment", "dot_product_attention", shifted)
    assert "right without `causal`, but with it fits neither alignment" in violated.message


def test_encodings_and_cells_are_not_blamed_for_wrong_numbers() -> None:
    def encoding(n: int, d: int) -> Numbers:
        result = reference.sinusoidal_positional_encoding(n, d)
        return np.where(np.arange(d) == d - 1, 7.0, result) if d % 2 else result

    violated = violation_of("odd_encoding", "sinusoidal_positional_encoding", encoding)
    assert "] is 7; unpaired-sine would be 0" in violated.message
    wrong = violation_of("odd_encoding", "sinusoidal_positional_encoding", lambda n, d: np.zeros((n, d)))
    assert wrong.message.startswith("odd_encoding cannot be determined: where it plays no part, the result[")
    cell = violation_of("gru_reset", "gru_cell", lambda *args: 1.001 * reference.gru_cell(*args))
    assert cell.reason == Reason.VALUE
    assert cell.message.startswith(
        "gru_reset cannot be determined: no choice fits; under the normative one the result["
    )


def test_a_choice_that_no_operation_of_the_backend_reads_is_refused() -> None:
    message = r"^semantics: expected questions that softmax reads, fully_masked, .*; got gru_reset, head_groups$"
    declared = {"gru_reset": "after", "head_groups": "interleaved"}
    with pytest.raises(ValueError, match=message):
        Contract.of(SimpleNamespace(name="mine", softmax=reference.softmax, semantics=declared))
    on_device = {"cuda": {"semantics": declared}}
    backend = SimpleNamespace(
        name="mine", softmax=reference.softmax, on_device=on_device, limits={"devices": ("cuda",)}
    )
    with pytest.raises(ValueError, match=message):
        Contract.of(backend, device="cuda")
    together = SimpleNamespace(
        name="mine", softmax=reference.softmax, gru=reference.gru, semantics={"gru_reset": "after"}
    )
    assert Contract.of(together).semantics["softmax"].gru_reset == "after"


def test_two_undeclared_choices_are_seen_beside_each_other() -> None:
    def cell(*args: Any) -> Numbers:
        with reference.choosing(gru_reset="after", gru_update="candidate"):
            return reference.gru_cell(*args)

    for question, choice in (("gru_reset", "after"), ("gru_update", "candidate")):
        violated = violation_of(question, "gru_cell", cell)
        assert violated.reason == Reason.DECLARED
        assert f"observed {choice}" in violated.message


def test_numbers_that_hide_an_attendable_nan_are_counted() -> None:
    def attention(*args: Numbers, **options: Any) -> Numbers:
        result = reference.dot_product_attention(*args, **options)
        result[..., 0] = np.nan_to_num(result[..., 0])
        return result

    violated = violation_of("attendable_nan", "dot_product_attention", attention)
    assert "numbers that depend on it" in violated.message


def test_wrong_weights_of_minus_infinity_differ_from_other_wrong_weights() -> None:
    def half_guarded(scores: Numbers, **options: Any) -> Numbers:
        weights = reference.softmax(scores, **options)
        return np.where(np.isneginf(scores) & (np.arange(scores.shape[-1]) > 1), 0.25, weights)

    violated = violation_of("minus_infinity", "softmax", half_guarded)
    assert violated.reason == Reason.DECLARED
    assert "declared nan, observed something else" in violated.message
    assert "where scores are all −∞, the weight[" in violated.message
    wrong = violation_of(
        "minus_infinity", "softmax", lambda *args, **options: 1.001 * reference.softmax(*args, **options)
    )
    assert wrong.reason == Reason.VALUE
    assert wrong.message.startswith("minus_infinity cannot be determined: in rows with finite scores, the weight[")


@pytest.mark.parametrize(("choice", "stored"), [("zero", 0.0), ("uniform", 0.25)])
def test_the_choice_for_scores_of_minus_infinity_is_observed(choice: str, stored: float) -> None:
    def softmax(scores: Numbers, *, mask: Any = None) -> Numbers:
        lost = np.all(np.isneginf(scores) | (False if mask is None else ~mask), axis=-1, keepdims=True)
        some = True if mask is None else mask & mask.any(-1, keepdims=True)
        return np.where(lost & some, stored, reference.softmax(scores, mask=mask))

    assert f"observed {choice}" in violation_of("minus_infinity", "softmax", softmax).message


def test_averages_over_the_keys_of_another_row_are_seen() -> None:
    def softmax(scores: Numbers, *, mask: Any = None) -> Numbers:
        if mask is not None:
            empty = ~mask.any(-1, keepdims=True)
            first = mask[..., :1, :] | ~mask[..., :1, :].any(-1, keepdims=True)
            mask, scores = np.where(empty, first, mask), np.where(empty, 0, scores)
        return np.asarray(reference.softmax(scores, mask=mask))

    backend = SimpleNamespace(name="wrong", softmax=softmax, semantics={"fully_masked": "uniform"})
    subject = Subject(backend, Contract.of(backend), OPERATIONS["softmax"], "float64", "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**10)
    (check,) = CHECKS["masking.rows-without-keys-as-declared"]
    arguments = example.arguments(subject.operation, "float64")
    # Where the first row is empty itself, the numbers are right.
    violations = [attempt(subject, check, arguments.replaced({}), seed)[0] for seed in range(4)]
    assert any(violations)
