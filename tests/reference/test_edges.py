"""Edges: empty sizes, fully masked rows, NaN where nobody may attend, extreme scores, broadcasting."""

from typing import Any

import numpy as np
import pytest

from attnspec.reference import (
    REFERENCE,
    additive_scores,
    average_pooling,
    causal_mask,
    dot_product_attention,
    encoder_context,
    gaussian_scores,
    mean_normalization,
    nadaraya_watson,
    output_distribution,
    padding_mask,
    rnn_cell,
    scaled_dot_product_attention,
    sinusoidal_positional_encoding,
    softmax,
)
from attnspec.reference.budget import judged
from attnspec.reference.normalization import log_softmax
from attnspec.spec import OPERATIONS, AttentionDecoderParameters, Operation, RNNParameters
from attnspec.spec.contract.precision import CLASSES
from attnspec.spec.contract.shapes import bind, results
from attnspec.spec.contract.tree import flatten, map_tree, without_indices
from tests.budgets import assert_within_budgets

MASKED = [o.name for o in OPERATIONS.values() if "mask" in o.call.names and o.chapter != "kernels"]
POOLING = [o.name for o in OPERATIONS.values() if o.only_weighs_keys and o.chapter != "kernels"]
CAUSAL = [o.name for o in OPERATIONS.values() if o.flag and o.mask]
PAIRWISE = [
    (o.name, x.path)
    for o in OPERATIONS.values()
    if o.name in POOLING and o.weighs_keys and o.query_size and not o.attends_to_itself
    for x in o.attended
]
"""Operations that attend to another sequence, each with its arguments of keys."""


def assert_shapes(operation: Operation, arguments: dict[str, Any], result: Any) -> None:
    binding = bind(operation, arguments)
    assert [(leaf.path, x.shape) for leaf, x in results(operation, result)] == [
        (leaf.path, binding.shape(leaf)) for leaf, _ in results(operation, result)
    ]


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = map_tree(arguments, lambda _, x: x.copy() if isinstance(x, np.ndarray) else x)
    return copy


def equal(left: Any, right: Any) -> bool:
    return all(np.array_equal(x, flatten(right)[path]) for path, x in flatten(left).items())


@pytest.mark.parametrize("name", OPERATIONS)
def test_empty_sizes_give_results_of_the_right_shape(name: str, draw: Any, subtests: pytest.Subtests) -> None:
    operation = OPERATIONS[name]
    may_be_empty = [size for size in "nmt" if size in operation.sizes and not operation.least(size)]
    for batch in ((), (2,), (0,), (2, 1, 3)):
        for empty in {tuple(s for s in sizes if s in may_be_empty) for sizes in ("", "n", "m", "nm", "t")}:
            arguments = draw(name, batch=batch, **dict.fromkeys(empty, 0))
            if name == "padding_mask" and "m" in empty:
                arguments = {"lengths": np.zeros(batch, int), "m": 0}
            with subtests.test(batch=batch, empty=empty):
                result = REFERENCE[name](**arguments)
                assert_shapes(operation, arguments, result)
                if "m" in empty and (name in POOLING or name == "attention_pooling"):
                    assert not result.any()


ADDING = [o.name for o in OPERATIONS.values() if o.chapter == "transformer"]
ADDING += ["biased_multi_head_attention", "decoder_step", "teacher_forced_decode", "greedy_decode", "beam_decode"]
"""Operations whose result is more than attention, such as a residual or a bias."""


@pytest.mark.parametrize("name", sorted(name for name in MASKED if name not in ADDING))
def test_fully_masked_row_is_zero(name: str, draw: Any) -> None:
    arguments = draw(name)
    arguments["mask"][...] = True
    arguments["mask"][0] = False
    result = REFERENCE[name](**arguments)
    if arguments["mask"].ndim == 2:
        assert not result[0].any()
        assert result[1:].any()
    else:
        arguments["mask"][:] = False
        assert not REFERENCE[name](**arguments).any()


@pytest.mark.parametrize("stored", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("name", POOLING)
def test_numbers_at_a_masked_key_do_not_count(name: str, stored: float, draw: Any) -> None:
    arguments = draw(name)
    arguments["mask"][..., -1] = False
    clean, unchanged = REFERENCE[name](**arguments), copied(arguments)
    for attended in OPERATIONS[name].attended:
        arguments[attended.path][-1] = stored
    result = REFERENCE[name](**arguments)
    queries = slice(None, -1) if OPERATIONS[name].attends_to_itself else slice(None)
    outputs = [result[queries], clean[queries]]
    assert_within_budgets(outputs, lambda unchanged: REFERENCE[name](**unchanged)[queries], unchanged)
    if np.isfinite(stored):
        assert np.array_equal(result[queries], clean[queries])


@pytest.mark.parametrize("stored", [np.nan, np.inf])
@pytest.mark.parametrize(("name", "where"), PAIRWISE)
def test_a_key_masked_for_some_queries_counts_for_the_others(name: str, where: str, stored: float, draw: Any) -> None:
    arguments = draw(name)
    mask = arguments["mask"]
    mask[...] = True
    mask[0, -1] = False
    clean, unchanged = REFERENCE[name](**arguments), copied(arguments)
    arguments[where][-1] = stored
    result = REFERENCE[name](**arguments)
    assert_within_budgets([result[0], clean[0]], lambda unchanged: REFERENCE[name](**unchanged)[0], unchanged)
    infinitely_far = name == "nadaraya_watson" and where == "key" and stored == np.inf  # its weight is 0
    assert np.isfinite(result[1:]).all() == infinitely_far


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.weighs_keys and o.pooled in o.linear])
def test_infinite_values_show_in_their_features_of_the_rows_that_attend_to_them(name: str, draw: Any) -> None:
    arguments, value = draw(name), OPERATIONS[name].pooled
    mask = arguments["mask"]
    mask[...] = True
    clean, unchanged = REFERENCE[name](**arguments), copied(arguments)
    arguments[value][0, 0], arguments[value][1, 1] = np.inf, -np.inf
    result = REFERENCE[name](**arguments)
    assert (result[..., 0] == np.inf).all()
    assert (result[..., 1] == -np.inf).all()
    outputs = [result[..., 2:], clean[..., 2:]]
    assert_within_budgets(outputs, lambda unchanged: REFERENCE[name](**unchanged)[..., 2:], unchanged)
    arguments[value][2, 0] = -np.inf
    assert np.isnan(REFERENCE[name](**arguments)[..., 0]).all()


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_and_mask_join_by_and(name: str, draw: Any) -> None:
    arguments = draw(name, causal=True, batch=(2,))
    n, m = arguments["mask"].shape[-2:]
    joined = {**arguments, "mask": arguments["mask"] & causal_mask(n, m), "causal": False}
    assert equal(REFERENCE[name](**arguments), REFERENCE[name](**joined))


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_is_the_causal_mask(name: str, draw: Any) -> None:
    arguments = draw(name, causal=True)
    n, m = arguments.pop("mask").shape
    assert equal(
        REFERENCE[name](**arguments), REFERENCE[name](**{**arguments, "causal": False}, mask=causal_mask(n, m))
    )


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3), (4, 4)])
def test_causal_is_aligned_top_left(n: int, m: int) -> None:
    value = np.eye(m)
    result = dot_product_attention(np.zeros((n, 1)), np.zeros((m, 1)), value, causal=True)
    for i in range(n):
        seen = min(i + 1, m)
        assert result[i].tolist() == [1 / seen] * seen + [0] * (m - seen)


def test_the_context_of_an_empty_source_is_zero() -> None:
    states = np.full((2, 3, 2), np.nan)
    states[1, 1] = 5, 7
    assert encoder_context(states, lengths=np.array([0, 2])).tolist() == [[0, 0], [5, 7]]
    assert encoder_context(np.ones((2, 0, 3))).tolist() == [[0, 0, 0]] * 2


def test_a_narrow_beam_may_score_below_greedy() -> None:
    rng = np.random.default_rng(16)
    embedding, w_q, w_k, w_v, *cell = (
        2 * rng.normal(size=shape) for shape in ((4, 3), (1, 3), (1, 1), (1,), (4, 3), (3, 3), (3,))
    )
    w_o, b_o = rng.normal(size=(4, 3)), rng.normal(size=4)
    p = AttentionDecoderParameters(embedding, w_q, w_k, w_v, RNNParameters(*cell), w_o, b_o)
    inputs = (np.zeros(40, int), rng.normal(size=(40, 3)), np.ones((1, 1)), p, 4, 3)
    single, double, exhaustive = (REFERENCE["beam_decode"](*inputs, beams) for beams in (1, 2, 4**4))
    assert_within_budgets([REFERENCE["greedy_decode"](*inputs), single], "greedy_decode", *inputs)
    # where an error decides which sequence is found there is no budget
    arguments = dict(zip(OPERATIONS["beam_decode"].call.names, (*inputs, 2), strict=False))
    budget = judged(REFERENCE["beam_decode"], arguments, CLASSES["ieee64"])[1].budget
    assert (exhaustive[1] >= np.maximum(single[1], double[1]) - 2 * budget).all()
    assert (double[1] < single[1] - 2 * budget).any()
    assert (double[1] > single[1] + 2 * budget).any()


@pytest.mark.parametrize("name", ["greedy_decode", "beam_decode"])
def test_equal_tokens_are_chosen_in_order(name: str, draw: Any) -> None:
    a = draw(name)
    a["parameters"].w_o[...] = 0
    a["parameters"].b_o[...] = 0
    step_score = log_softmax(np.zeros(6))[0]
    tokens, score = REFERENCE[name](**{**a, "eos": 5})
    assert tokens.tolist() == [0, 0, 0]
    assert score == step_score + step_score + step_score
    tokens, score = REFERENCE[name](**{**a, "eos": 0})
    assert tokens.tolist() == [0, 0, 0]
    assert score == step_score


def test_no_tokens_leave_the_state_as_it_is(draw: Any) -> None:
    a = draw("teacher_forced_decode", t=0, batch=(2,))
    distributions, final = REFERENCE["teacher_forced_decode"](**{**a, "state": a["state"][0]})
    assert distributions.shape == (2, 0, 6)
    assert np.array_equal(final, np.stack([a["state"][0]] * 2))


def test_a_step_without_annotations_goes_on(draw: Any) -> None:
    a = draw("decoder_step", m=0)
    p = a["parameters"]
    x = np.concatenate([p.embedding[a["token"]], np.zeros(6)])
    distribution, following = REFERENCE["decoder_step"](**a)
    assert np.array_equal(following, rnn_cell(x, a["state"], p.cell))
    assert np.array_equal(distribution, output_distribution(following, p.w_o, p.b_o))


@pytest.mark.parametrize("name", OPERATIONS)
def test_batches_broadcast(name: str, draw: Any) -> None:
    operation = OPERATIONS[name]
    ranks = {leaf.path: len(leaf.core) for leaf in operation.leaves if leaf.batched}
    parts = ((slice(None), slice(None, 1)), (slice(None, 1),), (0,))
    reduced_to: dict[str, Any] = dict(zip(ranks, parts, strict=False)) if len(ranks) > 1 else {}
    arguments = draw(name, batch=(2, 3))

    def reduce(path: str, x: Any) -> Any:
        return x[reduced_to[without_indices(path)]] if without_indices(path) in reduced_to else x

    def repeat(path: str, x: Any) -> Any:
        rank = ranks.get(without_indices(path))
        return x if rank is None else np.broadcast_to(x, (2, 3, *x.shape[x.ndim - rank :]))

    reduced = map_tree(arguments, reduce)
    got, expected = (REFERENCE[name](**inputs) for inputs in (reduced, map_tree(reduced, repeat)))
    assert_shapes(operation, reduced, got)
    assert_shapes(operation, reduced, expected)
    assert_within_budgets([got, expected], lambda inputs: REFERENCE[name](**inputs), reduced, precision="ieee64")


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("axis", [-1, -2])
def test_masks_broadcast(name: str, axis: int, draw: Any) -> None:
    arguments = draw(name, batch=(2,))
    mask = arguments["mask"]
    part = mask.take([0], axis=axis)
    whole = np.broadcast_to(part, mask.shape)
    got, expected = (flatten(REFERENCE[name](**{**arguments, "mask": x})) for x in (part, whole))
    assert all(np.array_equal(x, expected[path]) for path, x in got.items())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_softmax_of_extreme_scores(dtype: Any) -> None:
    largest = np.finfo(dtype).max
    scores = np.array([[largest, 0, -largest], [largest, largest, -largest], [-largest] * 3], dtype)
    third = dtype(1) / dtype(3)
    assert softmax(scores).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [third, third, third]]


def test_a_masked_score_does_not_make_the_others_underflow() -> None:
    weights = softmax(np.array([[1e30, 1.0, 1.0]]), mask=np.array([[False, True, True]]))
    assert weights.tolist() == [[0, 0.5, 0.5]]


@pytest.mark.parametrize("stored", [np.nan, np.inf])
def test_softmax_propagates_nan_and_infinity_of_an_attendable_key(stored: float) -> None:
    assert np.isnan(softmax(np.array([[stored, 1.0]]))).all()


def test_softmax_of_one_key_is_one() -> None:
    assert softmax(np.array([[-1e308], [0.1]])).tolist() == [[1], [1]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_softmax_of_infinite_scores(dtype: Any) -> None:
    inf, nan = np.inf, np.nan
    scores = np.array([[-inf, 2, 2], [-inf, -inf, -inf], [inf, 0, -inf], [-inf, -inf, 7], [-inf, inf, 7]], dtype)
    mask = np.array([[True, True, True]] * 3 + [[True, True, False]] * 2)
    expected = [[0, 0.5, 0.5], [nan] * 3, [nan] * 3, [nan, nan, 0], [nan, nan, 0]]
    assert np.array_equal(softmax(scores, mask=mask), np.array(expected, dtype), equal_nan=True)
    assert np.array_equal(softmax(scores[:3]), np.array(expected[:3], dtype), equal_nan=True)


def test_mean_normalization_counts_attendable_keys() -> None:
    scores, mask = np.array([[2.0, -4.0, 6.0], [1.0, 1.0, 1.0]]), np.array([[True, True, False], [False] * 3])
    assert mean_normalization(scores, mask=mask).tolist() == [[1, -2, 0], [0, 0, 0]]
    assert mean_normalization(scores * 3).tolist() == [[2, -4, 6], [1, 1, 1]]


@pytest.mark.parametrize("m", [3_000, 70_000])
def test_counts_beyond_what_the_dtype_adds_up(m: int) -> None:
    """In float16, adding ones stops at 2,048, and the largest number is 65,504."""
    value = np.ones((m, 1), np.float16)
    mask = np.ones((1, m), bool)
    for used_mask in (None, mask):
        assert average_pooling(value, mask=None if used_mask is None else used_mask[0]).tolist() == [1]
        assert mean_normalization(value.T * np.float16(3_000), mask=used_mask)[0, 0] == np.float16(3_000 / m)


def test_additive_scores_saturate() -> None:
    query, key = np.array([[1e300]]), np.array([[1e300], [-1e300]])
    weights = np.ones((2, 1))
    assert additive_scores(query, key, weights, weights, np.array([1.0, 2.0])).tolist() == [[3, 0]]


def test_a_query_equal_to_a_key_scores_zero() -> None:
    x = np.array([[1e8, -3.0]])
    assert gaussian_scores(x, x).tolist() == [[0]]


def test_kernel_regression_far_from_all_keys() -> None:
    keys, values = np.array([[0.0], [1.0], [3.0]]), np.array([[5.0], [6.0], [7.0]])
    assert nadaraya_watson(np.array([[100.0], [-100.0]]), keys, values).tolist() == [[7], [5]]


def test_padding_of_every_length() -> None:
    lengths = np.array([[0, 1], [2, 3]])
    assert padding_mask(lengths, 3).sum(axis=-1).tolist() == lengths.tolist()
    assert padding_mask(np.array(2), 3).tolist() == [True, True, False]


def test_strict_causal_mask() -> None:
    assert causal_mask(2, 3, include_self=False).tolist() == [[False] * 3, [True, False, False]]
    assert causal_mask(2, 3).tolist() == [[True, False, False], [True, True, False]]


@pytest.mark.parametrize("d", [1, 2, 5])
def test_encoding_interleaves_and_ends_in_a_sine_if_odd(d: int) -> None:
    encoding = sinusoidal_positional_encoding(4, d)
    angle = np.arange(4)[:, None] / 10_000 ** (np.arange(0, d, 2) / d)
    by_hand = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(4, -1)[:, :d]
    assert_within_budgets([encoding, by_hand], "sinusoidal_positional_encoding", 4, d)
    assert encoding[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0][:d]


def test_longdouble_keeps_what_float64_loses() -> None:
    """The root of the scale and every constant are longdouble: one float64 among them would cost 11 bits."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("np.longdouble has no more bits than float64 here")
    x = np.array([[1.0, 1.0, 1.0]], np.longdouble)
    score = REFERENCE["scaled_dot_scores"](x, x)[0, 0]
    assert abs(score * score - 3) < 8 * np.finfo(np.longdouble).eps
    far = scaled_dot_product_attention(
        x, np.array([[1, 0, 0], [0, 0, 0]], np.longdouble), np.eye(2, dtype=np.longdouble)
    )
    odds = far[0, 0] / far[0, 1]
    assert abs(odds - np.exp(1 / np.sqrt(np.longdouble(3)))) < 8 * np.finfo(np.longdouble).eps


def test_a_result_is_memory_of_its_own() -> None:
    table = np.arange(12.0).reshape(3, 4)
    for name, arguments in (
        ("learned_positions", {"table": table, "n": 2}),
        ("split_heads", {"x": table, "heads": 2}),
        ("merge_heads", {"x": table[None]}),
        ("patchify", {"image": table[..., None], "patch": 1}),
        ("encoder_stack", {"x": table, "layers": ()}),
    ):
        result = REFERENCE[name](**arguments)
        assert result.flags.writeable, name
        assert not np.shares_memory(result, table), name
