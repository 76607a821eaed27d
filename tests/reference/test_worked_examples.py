"""Numbers that the lectures print, worked by hand."""

from fractions import Fraction
from math import exp, sqrt
from typing import Any

import numpy as np

from attnspec.reference import (
    attention_pooling,
    average_pooling,
    bahdanau_context,
    dot_product_attention,
    dot_product_mean,
    dot_product_variance,
    dot_scores,
    padding_mask,
    scaled_dot_product_attention,
    scaled_dot_scores,
    softmax,
)
from tests.budgets import assert_within_budgets

ANNOTATIONS = np.array([[1.0, 3.0, 9.0], [0.0, 0.0, 1.0], [5.0, -1.0, 2.0]])
STATE = np.array([[0.0, 1.0, 1.0]])


def context(scores: list[float]) -> Any:
    """S3's α₁h¹ + α₂h² + α₃h³, coordinate by coordinate."""
    powers = [exp(e) for e in scores]
    rows = ANNOTATIONS.tolist()
    return np.array([[sum(p * row[c] for p, row in zip(powers, rows, strict=True)) / sum(powers) for c in range(3)]])


def test_s3_average_pooling() -> None:
    expected = [float(Fraction(1 + 0 + 5, 3)), float(Fraction(3 + 0 - 1, 3)), float(Fraction(9 + 1 + 2, 3))]
    assert average_pooling(ANNOTATIONS).tolist() == expected == [2.0, 2 / 3, 4.0]


def test_s3_dot_scores() -> None:
    assert dot_scores(STATE, ANNOTATIONS).tolist() == [[12.0, 1.0, 1.0]]


def test_s3_scaled_scores() -> None:
    assert scaled_dot_scores(STATE, ANNOTATIONS).tolist() == [[12 / sqrt(3), 1 / sqrt(3), 1 / sqrt(3)]]


def test_s3_attention_weights() -> None:
    small, scores = 1 / (exp(11) + 2), dot_scores(STATE, ANNOTATIONS)
    assert_within_budgets([softmax(scores), np.array([[exp(11) * small, small, small]])], "softmax", scores)


def test_s3_dot_product_attention() -> None:
    arguments = STATE, ANNOTATIONS, ANNOTATIONS
    assert_within_budgets([dot_product_attention(*arguments), context([12, 1, 1])], "dot_product_attention", *arguments)


def test_s3_scaled_dot_product_attention() -> None:
    arguments, by_hand = (STATE, ANNOTATIONS, ANNOTATIONS), context([12 / sqrt(3), 1 / sqrt(3), 1 / sqrt(3)])
    assert_within_budgets(
        [scaled_dot_product_attention(*arguments), by_hand], "scaled_dot_product_attention", *arguments
    )


def test_s3_bahdanau_context_is_a_weighted_average_of_annotations() -> None:
    arguments = STATE[0], ANNOTATIONS, np.eye(3), np.zeros((3, 3)), np.ones(3)
    average = np.array([2, 2 / 3, 4])  # keys do not count
    assert_within_budgets([bahdanau_context(*arguments), average], "bahdanau_context", *arguments)


def test_s2_padding() -> None:
    assert padding_mask(np.array([2, 0, 3]), 3).tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_s0_note_on_the_variance() -> None:
    assert dot_product_mean(np.array(0.0), d=64) == 0
    assert dot_product_variance(np.array(0.0), np.array(1.0), d=64) == 64


def test_s0_pooling_of_one_pair_returns_its_value() -> None:
    assert attention_pooling(softmax(np.array([[7.0]])), np.array([[3.0, -5.0]])).tolist() == [[3.0, -5.0]]
