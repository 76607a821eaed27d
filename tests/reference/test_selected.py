"""Selected attention, worked by hand: indexer, top keys with ties, indices of −1, partial blocks."""

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.reference import block_mask, grouped_query_attention, indexer_scores, selected_attention, top_keys
from attnspec.reference.budget import Judged, judged
from attnspec.spec import OPERATIONS, ShapeError
from attnspec.spec.contract.precision import precision
from tests.budgets import assert_within_budgets

QUERY, KEY, VALUE = (np.random.default_rng(seed).standard_normal((2, 4, 3)) for seed in range(3))


def test_scores_of_the_indexer_worked_by_hand() -> None:
    """Key 0 has the products 1 and −2, key 1 has −1 and 4. The heads weigh 3 and 5."""
    query, key = np.array([[[1.0, 0.0]], [[0.0, 2.0]]]), np.array([[1.0, -1.0], [-1.0, 2.0]])
    scores = indexer_scores(query, key, np.array([[3.0, 5.0]]))
    assert scores.tolist() == [[3.0, 20.0]]


def test_keys_of_the_greatest_scores() -> None:
    scores = np.array([[5.0, -np.inf, 7.0, -1.0], [-np.inf, -np.inf, 2.0, -np.inf]])
    assert top_keys(scores, 2).tolist() == [[True, False, True, False], [False, False, True, False]]
    assert top_keys(scores, 9).tolist() == [[True, False, True, True], [False, False, True, False]]


def test_only_ties_of_the_last_selected_score_are_open() -> None:
    scores = np.array([[3.0, 1.0, 4.0, 3.0], [4.0, 4.0, 1.0, 0.0]], np.float32)
    result: Judged = judged(top_keys, {"scores": scores, "count": 2}, precision("ieee32"))
    assert np.isinf(result.budget).tolist() == [[True, False, False, True], [False] * 4]
    assert not result.budget[np.isfinite(result.budget)].any()


def test_all_keys_selected_in_any_order() -> None:
    order = np.array([[2, 0, 1, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 3, 2, 1]])[None]
    expected, _ = grouped_query_attention(QUERY, KEY, VALUE, causal=True)
    results = [expected, selected_attention(QUERY, KEY, VALUE, order, causal=True)]
    assert_within_budgets(results, "selected_attention", QUERY, KEY, VALUE, order, causal=True)


def test_one_selected_key_gives_its_value_and_none_gives_0() -> None:
    indices = np.array([[[-1, 2], [1, -1], [-1, -1], [3, -1]]])
    output = selected_attention(QUERY, KEY, VALUE, indices)
    rows = [VALUE[:, 2], VALUE[:, 1], 0 * VALUE[:, 0], VALUE[:, 3]]
    assert np.array_equal(output, np.stack(rows, axis=1))


@pytest.mark.parametrize("wrong", [-2, 4])
def test_an_index_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(ShapeError, match=rf"indices: expected indices in -1\.\.3; got {wrong}"):
        selected_attention(QUERY, KEY, VALUE, np.array([[[wrong, 0]] * 4]))


def test_indices_follow_their_keys() -> None:
    arrays = {"query": QUERY, "key": KEY, "value": VALUE, "indices": np.array([[[3, 0, -1], [1, 2, 3]] * 2])}
    fewer = Arguments(OPERATIONS["selected_attention"], arrays).along("m", take([3, 1]))
    assert fewer["indices"].tolist() == [[[0, -1, -1], [1, -1, 0]] * 2]


def test_partial_blocks_and_positions_beyond_them() -> None:
    blocks = np.array([[True, False], [False, True]])
    expected = ["1110", "1110", "0001", "0001", "0000"]
    assert ["".join(map(str, row)) for row in block_mask(blocks, 5, 4, 2, 3).astype(int)] == expected
