"""Complexity: counted by running the reference, searched for in dependency graphs, and worked out by hand."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference import (
    REFERENCE,
    bahdanau_context,
    convolution,
    convolution_complexity,
    cross_attention,
    cross_attention_complexity,
    decoder_attention_complexity,
    encoder_decoder_attention_complexity,
    multi_head_attention,
    multi_head_attention_complexity,
    projected_self_attention,
    projected_self_attention_complexity,
    rnn,
    rnn_cell,
    rnn_complexity,
    scaled_dot_product_attention,
    self_attention,
    self_attention_complexity,
    seq2seq_attention_complexity,
    seq2seq_complexity,
)
from attnspec.reference.defining.counting import Counted, Tally
from attnspec.spec import OPERATIONS, Complexity, RNNParameters, ShapeError

from . import dependencies as depend

size = st.integers(1, 9)
sixty_examples = settings(max_examples=60, deadline=None)


def numbers(complexity: Complexity[np.ndarray]) -> tuple[int | None, ...]:
    length = complexity.maximum_path_length
    counts = (int(complexity.multiply_adds), int(complexity.parameters), int(complexity.sequential_operations))
    return (*counts, None if length is None else int(length))


class Run:
    """Arrays that are counted together, and the parameters among them."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.parameters = 0
        self.rng = np.random.default_rng(0)

    def tokens(self, *shape: int) -> Any:
        return Counted(self.rng.standard_normal(shape), self.tally)

    def weights(self, *shape: int) -> Any:
        self.parameters += int(np.prod(shape))
        return self.tokens(*shape)

    def cell(self, d: int, h: int) -> RNNParameters[Any]:
        return RNNParameters(self.weights(d, h), self.weights(h, h), self.weights(h))

    def heads(self, heads: int, d_q: int, d_k: int, d_v: int, p_q: int, p_v: int, p_o: int) -> list[Any]:
        shapes = ((heads, p_q, d_q), (heads, p_q, d_k), (heads, p_v, d_v), (p_o, heads * p_v))
        return [self.weights(*shape) for shape in shapes]

    @property
    def counted(self) -> tuple[int, int, int]:
        return self.tally.multiply_adds, self.parameters, self.tally.longest_chain


def row(x: Any, i: int) -> Any:
    return x[..., i, :]


def stacked(rows: list[Any]) -> Any:
    return np.stack(rows, axis=-2)


# Counts ---------------------------------------------------------------------------------------------------------------


@sixty_examples
@given(size, size, size, size)
def test_complexity_of_a_convolution_matches_a_counted_run(t: int, d_x: int, p_o: int, taps: int) -> None:
    run = Run()
    convolution(run.tokens(t, d_x), run.weights(taps, p_o, d_x))
    assert numbers(convolution_complexity(t, d_x, p_o, taps))[:3] == run.counted


@sixty_examples
@given(size, size, size)
def test_complexity_of_a_recurrent_network_matches_a_counted_run(t: int, d: int, h: int) -> None:
    run = Run()
    rnn(run.tokens(t, d), run.tokens(h), run.cell(d, h))
    assert numbers(rnn_complexity(t, d, h))[:3] == run.counted


@sixty_examples
@given(size, size)
def test_complexity_of_self_attention_matches_a_counted_run(n: int, d: int) -> None:
    run = Run()
    self_attention(run.tokens(n, d))
    assert numbers(self_attention_complexity(n, d))[:3] == run.counted


@sixty_examples
@given(size, size)
def test_complexity_of_causal_attention_matches_attention_to_every_prefix(n: int, d: int) -> None:
    run = Run()
    x = run.tokens(n, d)
    for i in range(n):
        scaled_dot_product_attention(x[i : i + 1], x[: i + 1], x[: i + 1])
    assert numbers(self_attention_complexity(n, d, autoregressive=True))[:3] == run.counted


@sixty_examples
@given(size, size)
def test_a_causal_mask_on_whole_matrices_saves_nothing(n: int, d: int) -> None:
    run = Run()
    self_attention(run.tokens(n, d), causal=True)
    excluded = n * (n - 1) // 2
    assert (
        run.tally.multiply_adds == self_attention_complexity(n, d, autoregressive=True).multiply_adds + 2 * d * excluded
    )


@sixty_examples
@given(size, size, size, size)
def test_complexity_of_projected_self_attention_matches_a_counted_run(n: int, d_x: int, d_k: int, d_v: int) -> None:
    run = Run()
    projected_self_attention(run.tokens(n, d_x), run.weights(d_k, d_x), run.weights(d_k, d_x), run.weights(d_v, d_x))
    assert numbers(projected_self_attention_complexity(n, d_x, d_k, d_v))[:3] == run.counted
    saved = (
        run.tally.multiply_adds
        - projected_self_attention_complexity(n, d_x, d_k, d_v, autoregressive=True).multiply_adds
    )
    assert saved == n * (n - 1) // 2 * (d_k + d_v)


@sixty_examples
@given(size, size, size, size, size, size)
def test_complexity_of_cross_attention_matches_a_counted_run(
    n: int, m: int, d_x: int, d_m: int, d_k: int, d_v: int
) -> None:
    run = Run()
    w_q, w_k, w_v = run.weights(d_k, d_x), run.weights(d_k, d_m), run.weights(d_v, d_m)
    cross_attention(run.tokens(n, d_x), run.tokens(m, d_m), w_q, w_k, w_v)
    assert numbers(cross_attention_complexity(n, m, d_x, d_m, d_k, d_v))[:3] == run.counted


@sixty_examples
@given(size, size, st.integers(1, 4), st.tuples(*[size] * 6))
def test_complexity_of_multi_head_attention_matches_a_counted_run(
    n: int, m: int, heads: int, widths: tuple[int, ...]
) -> None:
    run, sizes = Run(), dict(zip(("d_q", "d_k", "d_v", "p_q", "p_v", "p_o"), widths, strict=True))
    query, key, value = (run.tokens(rows, sizes[d]) for rows, d in ((n, "d_q"), (m, "d_k"), (m, "d_v")))
    multi_head_attention(query, key, value, *run.heads(heads, **sizes))
    assert numbers(multi_head_attention_complexity(n, m, heads, **sizes))[:3] == run.counted


@sixty_examples
@given(size, size, size, size)
def test_complexity_of_a_recurrent_encoder_and_decoder_matches_a_counted_run(m: int, n: int, d: int, h: int) -> None:
    run = Run()
    source, target, state = run.tokens(m, d), run.tokens(n, d), run.tokens(h)
    encoder, decoder = run.cell(d, h), run.cell(d, h)
    for i in range(m):
        state = rnn_cell(row(source, i), state, encoder)
    for i in range(n):
        state = rnn_cell(row(target, i), state, decoder)
    assert numbers(seq2seq_complexity(m, n, d, h))[:3] == run.counted


@sixty_examples
@given(size, size, size, size, size)
def test_complexity_of_a_recurrent_decoder_with_attention_matches_a_counted_run(
    m: int, n: int, d: int, h: int, s: int
) -> None:
    run = Run()
    source, target, states = run.tokens(m, d), run.tokens(n, d), [run.tokens(h)]
    encoder, decoder = run.cell(d, h), run.cell(d + h, h)
    alignment = run.weights(s, h), run.weights(s, h), run.weights(s)
    for i in range(m):
        states.append(rnn_cell(row(source, i), states[-1], encoder))
    annotations, state = stacked(states[1:]), states[-1]
    for i in range(n):
        context = bahdanau_context(state, annotations, *alignment)
        state = rnn_cell(np.concatenate([row(target, i), context], axis=-1), state, decoder)
    assert numbers(seq2seq_attention_complexity(m, n, d, h, s))[:3] == run.counted


HEADS = 2


def attention_of_a_transformer(run: Run, m: int, n: int, d: int, *, encoder: bool, generating: bool) -> None:
    """An encoder layer, unless the memory is given, and a decoder layer; generating, each result is the next token."""
    widths = (d, d, d, d // HEADS, d // HEADS, d)
    memory = run.tokens(m, d)
    if encoder:
        memory = multi_head_attention(memory, memory, memory, *run.heads(HEADS, *widths))
    itself, other = run.heads(HEADS, *widths), run.heads(HEADS, *widths)

    def layer(target: Any, causal: bool) -> Any:
        asking = target if causal else target[-1:]
        attended = multi_head_attention(asking, target, target, *itself, causal=causal)
        return multi_head_attention(attended, memory, memory, *other)

    if not generating:
        layer(run.tokens(n, d), True)
        return
    target = run.tokens(1, d)
    for _ in range(n):
        target = np.concatenate([target, layer(target, False)], axis=-2)


transformers = pytest.mark.parametrize(
    ("complexity", "encoder"), [(decoder_attention_complexity, False), (encoder_decoder_attention_complexity, True)]
)


@transformers
@sixty_examples
@given(m=size, n=size, half=size)
def test_complexity_of_a_transformer_plus_masked_pairs_matches_a_counted_run(
    complexity: Callable[..., Complexity[np.ndarray]], encoder: bool, m: int, n: int, half: int
) -> None:
    run, d = Run(), HEADS * half
    attention_of_a_transformer(run, m, n, d, encoder=encoder, generating=False)
    multiply_adds, parameters, sequential, _ = numbers(complexity(m, n, d))
    # masked pairs are computed, too: n(n − 1)/2, each of 2d multiply-adds
    assert run.counted == ((multiply_adds or 0) + n * (n - 1) * d, parameters, sequential)


@transformers
@pytest.mark.parametrize("n", [1, 2, 5])
def test_generated_tokens_are_computed_one_after_another(
    complexity: Callable[..., Complexity[np.ndarray]], encoder: bool, n: int
) -> None:
    run = Run()
    attention_of_a_transformer(run, 3, n, 4, encoder=encoder, generating=True)
    assert complexity(3, n, 4, generating=True).sequential_operations == run.tally.longest_chain == 8 * n
    assert complexity(3, n, 4).sequential_operations == 8


def test_counts_worked_by_hand() -> None:
    """Self-attention, n = 3, d = 2: 9 scores of 2 terms, 6 results of 3. Convolution: 8 weights per token and tap."""
    assert numbers(self_attention_complexity(3, 2)) == (9 * 2 + 6 * 3, 0, 2, 1)
    assert numbers(self_attention_complexity(3, 2, autoregressive=True)) == (6 * 2 + 2 * (1 + 2 + 3), 0, 2, 1)
    assert numbers(convolution_complexity(5, 2, 4, 3)) == (5 * 3 * 8, 24, 1, 2)
    assert numbers(rnn_complexity(4, 2, 3)) == (4 * (6 + 9), 6 + 9 + 3, 4, 4)
    assert numbers(projected_self_attention_complexity(3, 2, 2, 2)) == (3 * 3 * 4 + 36, 12, 3, 1)


def test_base_model_of_the_paper() -> None:
    """512 features, 8 heads of 64: four square matrices."""
    sizes = {"d_q": 512, "d_k": 512, "d_v": 512, "p_q": 64, "p_v": 64, "p_o": 512}
    complexity = multi_head_attention_complexity(10, 10, 8, **sizes)
    assert complexity.parameters == 4 * 512**2
    assert complexity.multiply_adds == 4 * 10 * 512**2 + 2 * 10 * 10 * 512


def test_number_of_heads_changes_nothing() -> None:
    widths = {"d_q": 24, "d_k": 24, "d_v": 24, "p_o": 24}
    distinct = {
        numbers(multi_head_attention_complexity(5, 7, h, p_q=24 // h, p_v=24 // h, **widths)) for h in (1, 2, 3, 8)
    }
    assert len(distinct) == 1


def test_encoder_decoder_counts_are_those_of_encoder_plus_decoder() -> None:
    """S2, solution 4: what another language adds is the decoder."""
    sizes = {"d_q": 6, "d_k": 6, "d_v": 6, "p_q": 3, "p_v": 3, "p_o": 6}
    m, n = 5, 7
    encoder, decoder = multi_head_attention_complexity(m, m, 2, **sizes), decoder_attention_complexity(m, n, 6)
    both = encoder_decoder_attention_complexity(m, n, 6)
    assert both.multiply_adds == encoder.multiply_adds + decoder.multiply_adds
    assert both.parameters == encoder.parameters + decoder.parameters


COUNTED = [o for o in OPERATIONS.values() if o.chapter == "complexity" and o.reference_only]


@pytest.mark.parametrize("name", [o.name for o in COUNTED])
def test_nothing_is_counted_without_tokens(name: str) -> None:
    sizes = dict.fromkeys(OPERATIONS[name].sizes, 1)
    assert all(count is None or count >= 0 for count in numbers(REFERENCE[name](**sizes)))
    for position in {"n", "m", "t"} & sizes.keys():
        with pytest.raises(ShapeError, match=f"^{name}: {position}: expected .*; got 0$"):
            REFERENCE[name](**{**sizes, position: 0})


def test_counts_beyond_64_bit_integers_are_refused() -> None:
    complexity = self_attention_complexity(2**30, 2)
    assert complexity.multiply_adds == 2**62
    with pytest.raises(ShapeError, match=r"^self_attention_complexity: sizes: expected counts below 2⁶³; got 92"):
        self_attention_complexity(2**30, 4)


# Counting -------------------------------------------------------------------------------------------------------------


def test_the_example_of_the_documentation() -> None:
    run = Run()
    self_attention(run.tokens(5, 3))
    assert run.tally == Tally(150, 2)


def test_counted_arrays_give_the_results_of_plain_arrays() -> None:
    run, rng = Run(), np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 4, 3))
    got: Any = convolution(Counted(x, run.tally), w)  # type: ignore[arg-type]
    assert (got.value == convolution(x, w)).all()
    got = self_attention(Counted(x, run.tally), causal=True)  # type: ignore[arg-type]
    assert (got.value == self_attention(x, causal=True)).all()


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [((3,), (3,), 3), ((2, 3), (3,), 6), ((3,), (3, 4), 12), ((5, 2, 3), (3, 4), 120), ((5, 1, 2, 3), (6, 3, 1), 180)],
)
def test_products_count_their_terms(left: tuple[int, ...], right: tuple[int, ...], count: int) -> None:
    for counted in (True, False):
        tally = Tally()
        a, b = np.ones(left), np.ones(right)
        product: Any = Counted(a, tally) @ b if counted else a @ Counted(b, tally)
        assert tally == Tally(count, 1)
        assert product.shape == (a @ b).shape
        assert len(product @ np.ones(product.shape[-1])) if product.ndim > 1 else tally.longest_chain == 1


# Paths ----------------------------------------------------------------------------------------------------------------

LENGTHS = range(1, 17)


def among(graph: depend.Graph, letter: str) -> list[tuple[depend.State, depend.State]]:
    return depend.pairs_among(depend.tokens(graph, letter))


def between(graph: depend.Graph, first: str, second: str) -> Iterable[tuple[depend.State, depend.State]]:
    return [(a, b) for a in depend.tokens(graph, first) for b in depend.tokens(graph, second)]


@pytest.mark.parametrize("taps", range(1, 9))
@pytest.mark.parametrize("t", LENGTHS)
def test_path_length_of_convolutions(t: int, taps: int) -> None:
    graph = depend.convolutions(t, taps, layers=t)
    pairs = depend.pairs_among([("0", i) for i in range(t)])
    assert depend.maximum_path_length(graph, pairs) == convolution_complexity(t, 1, 1, taps).maximum_path_length
    assert depend.longest_chain(depend.convolutions(t, taps, layers=1)) == 1


@pytest.mark.parametrize("t", LENGTHS)
def test_path_length_of_recurrent_networks(t: int) -> None:
    graph = depend.recurrent(t)
    expected = rnn_complexity(t, 1, 1)
    assert depend.maximum_path_length(graph, among(graph, "x")) == expected.maximum_path_length
    assert depend.longest_chain(graph) == expected.sequential_operations


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_path_length_of_self_attention(n: int, causal: bool) -> None:
    graph = depend.self_attention(n, causal=causal)
    searched = depend.maximum_path_length(graph, among(graph, "x"))
    assert searched == self_attention_complexity(n, 1, autoregressive=causal).maximum_path_length
    assert searched == projected_self_attention_complexity(n, 1, 1, 1, autoregressive=causal).maximum_path_length
    assert depend.longest_chain(graph) == 1


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_path_lengths_between_two_sequences(n: int, m: int) -> None:
    def searched(graph: depend.Graph, first: str, second: str) -> int | None:
        return depend.maximum_path_length(graph, between(graph, first, second))

    cross = searched(depend.cross_attention(n, m), "x", "z")
    assert cross == cross_attention_complexity(n, m, 1, 1, 1, 1).maximum_path_length
    widths = dict.fromkeys(("d_q", "d_k", "d_v", "p_q", "p_v", "p_o"), 1)
    assert cross == multi_head_attention_complexity(n, m, 1, **widths).maximum_path_length
    recurrent = depend.seq2seq(m, n)
    assert searched(recurrent, "x", "y") == seq2seq_complexity(m, n, 1, 1).maximum_path_length
    assert depend.longest_chain(recurrent) == seq2seq_complexity(m, n, 1, 1).sequential_operations
    attending = depend.seq2seq(m, n, attention=True)
    assert searched(attending, "x", "y") == seq2seq_attention_complexity(m, n, 1, 1, 1).maximum_path_length
    transformer = depend.encoder_decoder(m, n)
    assert searched(transformer, "x", "y") == encoder_decoder_attention_complexity(m, n, 1).maximum_path_length
    decoder = depend.decoder(n, [("z", j) for j in range(m)])
    expected = decoder_attention_complexity(m, n, 1)
    assert depend.maximum_path_length(decoder, among(decoder, "y")) == expected.maximum_path_length


@pytest.mark.parametrize("n", [1, 2, 7])
def test_generating_is_a_chain_of_tokens(n: int) -> None:
    """Two states for each token, of four products each; in training two for all."""
    rows = [("z", 0)]
    assert depend.longest_chain(depend.decoder(n, rows)) == 2
    assert depend.longest_chain(depend.decoder(n, rows, generating=True)) == 2 * n
    assert depend.longest_chain(depend.encoder_decoder(3, n, generating=True)) == 2 * n


def edges(graph: depend.Graph, source: str) -> np.ndarray:
    """True where a computed state (rows, sorted) depends on a token (columns)."""
    tokens, states = depend.tokens(graph, source), sorted(graph)
    reached = [depend.distances(graph, token) for token in tokens]
    return np.array([[state in distances for distances in reached] for state in states])


def influence(layer: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """True where a row of the result (rows) changes with one of the input (columns)."""
    columns = []
    for j in range(len(x)):
        changed = x.copy()
        changed[j] += 1.0
        columns.append((layer(changed) != layer(x)).any(-1))
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_graphs_are_those_of_the_layers(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, 3))
    for taps in (1, 2, 3, 4, 9):
        layer = partial(convolution, w=rng.standard_normal((taps, 2, 3)))
        assert (influence(layer, x) == edges(depend.convolutions(n, taps, 1), "0")).all()
    assert (influence(self_attention, x) == edges(depend.self_attention(n), "x")).all()
    causal = depend.self_attention(n, causal=True)
    assert (influence(lambda x: self_attention(x, causal=True), x) == edges(causal, "x")).all()
    parameters = RNNParameters(*(rng.uniform(-1, 1, shape) for shape in ((3, 3), (3, 3), (3,))))
    states = influence(lambda x: rnn(x, np.zeros(3), parameters)[0], x)
    assert (states == edges(depend.recurrent(n), "x")).all()
