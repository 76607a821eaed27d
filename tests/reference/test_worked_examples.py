"""Numbers that the lectures print, worked by hand."""

from fractions import Fraction
from math import exp, sqrt

import numpy as np
import pytest

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

ANNOTATIONS = np.array([[1.0, 3.0, 9.0], [0.0, 0.0, 1.0], [5.0, -1.0, 2.0]])
STATE = np.array([[0.0, 1.0, 1.0]])
ULP = 2.0**-52


def context(scores: list[float]) -> list[float]:
    """S3's α₁h¹ + α₂h² + α₃h³, coordinate by coordinate."""
    powers = [exp(e) for e in scores]
    rows = ANNOTATIONS.tolist()
    return [sum(p * row[c] for p, row in zip(powers, rows, strict=True)) / sum(powers) for c in range(3)]


def test_s3_average_pooling() -> None:
    expected = [float(Fraction(1 + 0 + 5, 3)), float(Fraction(3 + 0 - 1, 3)), float(Fraction(9 + 1 + 2, 3))]
    assert average_pooling(ANNOTATIONS).tolist() == expected == [2.0, 2 / 3, 4.0]


def test_s3_dot_scores() -> None:
    assert dot_scores(STATE, ANNOTATIONS).tolist() == [[12.0, 1.0, 1.0]]


def test_s3_scaled_scores() -> None:
    assert scaled_dot_scores(STATE, ANNOTATIONS).tolist() == [[12 / sqrt(3), 1 / sqrt(3), 1 / sqrt(3)]]


def test_s3_attention_weights() -> None:
    small = 1 / (exp(11) + 2)
    weights = softmax(dot_scores(STATE, ANNOTATIONS))
    assert weights[0].tolist() == pytest.approx([exp(11) * small, small, small], rel=4 * ULP)


def test_s3_dot_product_attention() -> None:
    got = dot_product_attention(STATE, ANNOTATIONS, ANNOTATIONS)
    assert got[0].tolist() == pytest.approx(context([12, 1, 1]), rel=8 * ULP)


def test_s3_scaled_dot_product_attention() -> None:
    got = scaled_dot_product_attention(STATE, ANNOTATIONS, ANNOTATIONS)
    assert got[0].tolist() == pytest.approx(context([12 / sqrt(3), 1 / sqrt(3), 1 / sqrt(3)]), rel=16 * ULP)


def test_s3_bahdanau_context_is_a_weighted_average_of_annotations() -> None:
    got = bahdanau_context(STATE[0], ANNOTATIONS, np.eye(3), np.zeros((3, 3)), np.ones(3))
    assert got.tolist() == pytest.approx([2, 2 / 3, 4], rel=4 * ULP)  # keys do not count: the average


def test_s2_padding() -> None:
    assert padding_mask(np.array([2, 0, 3]), 3).tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_s0_note_on_the_variance() -> None:
    assert dot_product_mean(np.array(0.0), d=64) == 0
    assert dot_product_variance(np.array(0.0), np.array(1.0), d=64) == 64


def test_s0_pooling_of_one_pair_returns_its_value() -> None:
    assert attention_pooling(softmax(np.array([[7.0]])), np.array([[3.0, -5.0]])).tolist() == [[3.0, -5.0]]
