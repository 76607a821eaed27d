"""The attention that people run, by hand and at its edges."""

from typing import Any

import numpy as np
import pytest

from attnspec.reference import (
    alibi_slopes,
    attention_weights,
    axial_rotary_embedding,
    choosing,
    document_mask,
    dropout,
    gated_output,
    grouped_query_attention,
    merge_attention,
    paged_attention,
    relative_position_bias,
    rotary_embedding,
    rotary_frequencies,
    scaled_dot_product_attention,
    sigmoid_attention,
    sliding_window_mask,
    tree_mask,
    variable_length_attention,
)
from attnspec.spec import ShapeError
from tests.budgets import assert_within_budgets

ROWS = np.arange(24.0).reshape(2, 4, 3) / 10
"""Two heads of four rows with three features."""


def test_equal_numbers_of_heads_give_attention_head_by_head() -> None:
    output, logarithms = grouped_query_attention(ROWS, ROWS, -ROWS)
    scores = ROWS @ ROWS.swapaxes(-1, -2) / np.sqrt(3)
    by_parts = scaled_dot_product_attention(ROWS, ROWS, -ROWS), np.log(np.exp(scores).sum(-1))
    assert_within_budgets([(output, logarithms), by_parts], "grouped_query_attention", ROWS, ROWS, -ROWS)


def test_the_first_heads_of_the_queries_share_the_first_head_of_the_keys() -> None:
    query = np.concatenate([ROWS, ROWS])
    values = np.stack([np.zeros((4, 3)), np.ones((4, 3))])
    result, expected = grouped_query_attention(query, ROWS, values), np.repeat([0.0, 1.0], 2)[:, None, None]
    assert_within_budgets(
        [(np.broadcast_to(expected, query.shape), None)], "grouped_query_attention", query, ROWS, values
    )
    assert_within_budgets(result, "grouped_query_attention", query, ROWS, values)


def test_a_sink_takes_its_share_and_no_value() -> None:
    output, logarithms = grouped_query_attention(ROWS[:, :1], 0 * ROWS, np.ones((2, 4, 1)), sinks=np.log([4.0, 12.0]))
    expected = np.array([4 / 8, 4 / 16]).reshape(2, 1, 1), np.log([[8.0], [16.0]])
    arguments = ROWS[:, :1], 0 * ROWS, np.ones((2, 4, 1))
    sinks = np.log([4.0, 12.0])
    assert_within_budgets([(output, logarithms), expected], "grouped_query_attention", *arguments, sinks=sinks)


def test_rows_without_keys_give_0() -> None:
    nothing = np.zeros((4, 4), bool)
    output, logarithms = grouped_query_attention(ROWS, ROWS, np.full_like(ROWS, np.nan), mask=nothing)
    assert logarithms is not None
    assert (output == 0).all()
    assert (logarithms == -np.inf).all()
    output, logarithms = grouped_query_attention(ROWS, ROWS, ROWS, mask=nothing, sinks=np.array([1.0, 2.0]))
    assert logarithms is not None
    assert (output == 0).all()
    assert logarithms.tolist() == [[1.0] * 4, [2.0] * 4]


def test_a_masked_score_is_not_capped() -> None:
    mask = np.arange(4) < 1
    output, _ = grouped_query_attention(ROWS, ROWS, ROWS, mask=mask[None], softcap=0.001)
    assert (output == ROWS[:, :1]).all()


@pytest.mark.parametrize(
    ("window", "allowed"),
    [
        ((1, 0), [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0]]),
        ((0, 2), [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]),
        ((None, 0), [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]),
        ((0, None), [[1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
        (None, [[1] * 5] * 3),
    ],
)
def test_windows_allow_the_keys_between_their_ends(window: Any, allowed: list[list[int]]) -> None:
    assert (sliding_window_mask(3, 5, window=window) == np.array(allowed, bool)).all()


@pytest.mark.parametrize("window", [3, (1,), (1, -1), (1.0, 0), [1, 0], (True, 0)])
def test_an_invalid_window_is_named(window: Any) -> None:
    pattern = r"^sliding_window_mask: window: expected a tuple \(left, right\), each an integer"
    with pytest.raises(TypeError, match=pattern):
        sliding_window_mask(3, 5, window=window)


@pytest.mark.parametrize("ends", [[1, 2, 4], [0, 2, 3], [0, 5, 4]])
def test_ends_of_sequences_that_do_not_fit_are_named(ends: list[int]) -> None:
    with pytest.raises(ShapeError, match=r"query_ends: expected integers from 0 to 4, never falling; got"):
        variable_length_attention(ROWS, ROWS, ROWS, np.array(ends), np.array([0, 2, 4]))


def test_a_sequence_without_keys_gives_0() -> None:
    ends = np.array([0, 2, 4])
    output, logarithms = variable_length_attention(ROWS, ROWS, ROWS, ends, np.array([0, 0, 4]))
    assert logarithms is not None
    assert (output[:, :2] == 0).all()
    assert (logarithms[:, :2] == -np.inf).all()
    assert np.array_equal(output[:, 2:], grouped_query_attention(ROWS[:, 2:], ROWS, ROWS)[0])


def test_pages_beyond_the_cache_and_lengths_beyond_the_table_are_named() -> None:
    pages, table = np.zeros((3, 2, 4, 3)), np.array([2, 0])
    with pytest.raises(ShapeError, match=r"block_table: expected block_table in 0..2; got 3"):
        paged_attention(ROWS, pages, pages, np.array([3, 0]), np.array(5))
    with pytest.raises(ShapeError, match=r"key_lengths: expected key_lengths in 0..8; got 9"):
        paged_attention(ROWS, pages, pages, table, np.array(9))


def test_queries_are_the_last_positions_of_a_cache() -> None:
    pages = np.arange(8.0).reshape(2, 1, 4, 1)
    query = np.zeros((1, 2, 1))
    arguments = query, pages, pages, np.array([1, 0]), np.array(6)
    order = np.array([4, 5, 6, 7, 0, 1])
    means = np.array([order[:5].mean(), order.mean()]).reshape(1, 2, 1), np.log([[5.0, 6.0]])
    assert_within_budgets([paged_attention(*arguments, causal=True), means], "paged_attention", *arguments, causal=True)


def test_distances_of_a_cache_are_counted_from_positions() -> None:
    pages, query = np.zeros((2, 1, 4, 1)), np.zeros((1, 2, 1))
    arguments = query, pages, pages, np.array([1, 0]), np.array(6)
    slopes, sinks = np.log([2.0]), np.log([3.0])
    totals = 1 + sum(0.5**k for k in range(1, 5)) + 0.5, sum(0.5**k for k in range(6))  # positions 4 and 5 of 0 to 5
    expected = np.zeros((1, 2, 1)), np.log(3.0 + np.array([totals]))
    options: dict[str, Any] = {"slopes": slopes, "sinks": sinks}
    assert_within_budgets([paged_attention(*arguments, **options), expected], "paged_attention", *arguments, **options)


def test_distances_of_packed_sequences_are_counted_in_each() -> None:
    x = np.zeros((1, 4, 1))
    arguments = x, x, x, np.array([0, 1, 4]), np.array([0, 3, 4])
    totals = 1 + 0.5 + 0.25, 1.0, 0.5, 0.25  # three keys for the first query, one for the others
    expected = x, np.log(3.0 + np.array([totals]))
    options: dict[str, Any] = {"slopes": np.log([2.0]), "sinks": np.log([3.0])}
    result = variable_length_attention(*arguments, **options)
    assert_within_budgets([result, expected], "variable_length_attention", *arguments, **options)


def test_parts_without_keys_are_left_out() -> None:
    outputs = np.array([[1.0, 2.0], [np.nan, np.nan], [3.0, 6.0]])
    logarithms = np.array([0.0, -np.inf, np.log(3)])
    expected = np.array([2.5, 5.0]), np.array(np.log(4))
    results = [merge_attention(outputs, logarithms), expected]
    assert_within_budgets(results, "merge_attention", outputs, logarithms)
    output, logarithm = merge_attention(outputs, np.full(3, -np.inf))
    assert (output == 0).all()
    assert logarithm == -np.inf


def test_rotations_worked_by_hand() -> None:
    arguments, theta = (np.array([[1.0, 0.0, 1.0, 0.0]]), np.array([1])), (2 / np.pi) ** 2
    expected = np.array([[np.cos(1), np.sin(1), 0, 1]])
    assert_within_budgets(
        [rotary_embedding(*arguments, theta=theta), expected], "rotary_embedding", *arguments, theta=theta
    )


def test_an_odd_number_of_features_cannot_be_turned() -> None:
    with pytest.raises(ShapeError, match=r"^rotary_embedding: x: expected"):
        rotary_embedding(np.zeros((2, 3)))


def test_rotations_along_two_axes_worked_by_hand() -> None:
    """The first pair turns by 1·π/6, the second by 2·π/4; the last feature is not rotated."""
    x, positions = np.array([[1.0, 0.0, 0.0, 1.0, 7.0]]), np.array([[1, 2]])
    frequencies = np.array([[np.pi / 6, 0.0], [0.0, np.pi / 4]])
    expected = np.array([[np.sqrt(3) / 2, 0.5, -1.0, 0.0, 7.0]])
    results = [axial_rotary_embedding(x, positions, frequencies), expected]
    assert_within_budgets(results, "axial_rotary_embedding", x, positions, frequencies)


def test_frequencies_of_llama_worked_by_hand() -> None:
    """The unscaled frequencies are 1, 1/8 and 1/64, which make 64, 8 and 1 rotations."""
    options: dict[str, Any] = {"theta": 512.0, "factor": 4.0, "length": 128 * np.pi, "low": 2.0, "high": 14.0}
    expected = np.array([1.0, (0.5 + 0.5 / 4) / 8, 1 / 256])
    assert_within_budgets([rotary_frequencies(3, **options), expected], "rotary_frequencies", 3, **options)


def test_attention_weights_worked_by_hand() -> None:
    """Scores are log 1, log 2 and log 5; the second head has a sink, log 2."""
    query, key = np.ones((2, 1, 1)), np.log([[[1.0], [2.0], [5.0]]])
    mask, sinks = np.array([[True, False, True]]), np.array([-np.inf, np.log(2)])
    weights = attention_weights(query, key, mask=mask, sinks=sinks)
    expected = np.array([[[1 / 6, 0, 5 / 6]], [[1 / 8, 0, 5 / 8]]])
    assert_within_budgets([weights, expected], "attention_weights", query, key, mask=mask, sinks=sinks)


def test_gates_worked_by_hand() -> None:
    """One gate per query: the sigmoid of log 3 is ¾, that of 0 is ½."""
    output, gate = np.array([[4.0, -8.0], [4.0, -8.0]]), np.array([[np.log(3)], [0.0]])
    expected = np.array([[3.0, -6.0], [2.0, -4.0]])
    assert_within_budgets([gated_output(output, gate), expected], "gated_output", output, gate)


@pytest.mark.parametrize(("heads", "exponents"), [(1, [8]), (4, [2, 4, 6, 8]), (3, [4, 8, 2]), (6, [2, 4, 6, 8, 1, 3])])
def test_slopes_are_powers_of_two(heads: int, exponents: list[int]) -> None:
    assert_within_budgets([alibi_slopes(heads), 2.0 ** -np.array(exponents)], "alibi_slopes", heads)


def test_documents_attend_to_themselves_alone() -> None:
    mask = document_mask(np.array([0, 7, 7]), np.array([7, 0]))
    assert mask.tolist() == [[False, True], [True, False], [True, False]]


def test_sigmoids_weigh_each_key_by_itself() -> None:
    """Scores are 0, ln 3 and −ln 3, so weights are 1/2, 3/4 and 1/4."""
    query, keys, values = (
        np.eye(1, 4),
        2 * np.log(3) * np.array([[0.0], [1], [-1]]) * np.ones(4),
        np.array([[8.0], [16], [32]]),
    )
    cases: list[tuple[float, dict[str, Any]]] = [
        (24.0, {}),
        (16.0, {"mask": np.array([[True, True, False]])}),
        (6.0, {"causal": True, "bias": np.log(3)}),
    ]
    for expected, options in cases:
        results = [sigmoid_attention(query, keys, values, **options), np.array([[expected]])]
        assert_within_budgets(results, "sigmoid_attention", query, keys, values, **options)


BUCKETS = [0, 1, 2, 3, 4, 5, 6, 7, *[8] * 4, *[9] * 4, *[10] * 7, *[11] * 9, *[12] * 14, *[13] * 18, *[14] * 27]
"""The bucket of each distance up to 90 in T5's encoder: after 8 single distances, buckets grow by √2."""


def test_distances_have_the_buckets_of_t5() -> None:
    positions = np.array([0, 500])
    behind, ahead = 500 - np.arange(700), 500 + np.arange(700)
    numbers = np.arange(32.0)[:, None]
    expected = np.array(BUCKETS + [15] * (700 - len(BUCKETS)))
    assert relative_position_bias(numbers, positions, behind)[0, 1].tolist() == expected.tolist()
    assert relative_position_bias(numbers, positions, ahead)[0, 1].tolist() == [0, *(16 + expected[1:])]


def test_a_causal_bias_does_not_see_later_distances() -> None:
    """Four of eight buckets hold one distance, the others double up to 64."""
    keys = 100 + np.array([50, 1, 0, -3, -4, -7, -8, -15, -16, -31, -32, -99])
    bias = relative_position_bias(np.arange(8.0)[:, None], np.array([100]), keys, bidirectional=False, max_distance=64)
    assert bias.tolist() == [[[0, 0, 0, 3, 4, 4, 5, 5, 6, 6, 7, 7]]]


def test_tokens_of_a_tree_attend_to_their_paths() -> None:
    """Tokens 1 and 2 are children of 0, and token 3 is one of 2; 4 and 5, whose parent is not earlier, are roots."""
    mask = tree_mask(np.array([-1, 0, 0, 2, -1, 7]))
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0], [0, 1], [0, 2], [0, 2, 3], [4], [5]]


def test_dropout_scales_the_kept_weights() -> None:
    weights = np.array([[0.25, np.nan, 0.75]])
    kept = dropout(weights, keep=np.array([[True, False, True]]), rate=0.5)
    assert kept.tolist() == [[0.5, 0.0, 1.5]]


@pytest.mark.parametrize(("n", "m"), [(2, 5), (5, 2), (3, 3)])
def test_all_distances_count_from_the_diagonal_at_the_bottom_right(n: int, m: int) -> None:
    """Causal masks, windows and linear biases of FlashAttention: |i + m − n − j|."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, size, 3)) for size in (n, m, m))
    beyond, steep = np.arange(m) - np.arange(n)[:, None] - (m - n), np.array([0.5, 2.0])
    with choosing(causal_alignment="bottom-right"):
        got = grouped_query_attention(query, key, value, causal=True, window=(1, 2), slopes=steep)
    mask, bias = (beyond <= 0) & (beyond >= -1), -steep[:, None, None] * np.abs(beyond)
    for x, y in zip(got, grouped_query_attention(query, key, value, mask=mask, bias=bias), strict=True):
        assert x is not None
        assert y is not None
        assert np.array_equal(x, y)


def test_every_packed_sequence_has_a_diagonal_at_the_bottom_right() -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(1, size, 3)) for size in (6, 8, 8))
    ends = np.array([0, 2, 6]), np.array([0, 5, 8])
    with choosing(causal_alignment="bottom-right"):
        output, _ = variable_length_attention(query, key, value, *ends, causal=True, window=(2, None))
        first, _ = grouped_query_attention(query[:, :2], key[:, :5], value[:, :5], causal=True, window=(2, None))
        last, _ = grouped_query_attention(query[:, 2:], key[:, 5:], value[:, 5:], causal=True, window=(2, None))
    assert np.array_equal(output, np.concatenate([first, last], axis=-2))
    assert np.array_equal(first, scaled_dot_product_attention(
        query[:, :2], key[:, :5], value[:, :5], mask=np.tri(2, 5, 3, dtype=bool) & ~np.tri(2, 5, 0, dtype=bool)
    ))  # fmt: skip
    assert not output[:, 2].any(), "the first of four queries to three keys sees none"
