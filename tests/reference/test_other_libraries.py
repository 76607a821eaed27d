"""The reference against SciPy and PyTorch in float64, where they define the same thing."""

from typing import Any, Literal

import numpy as np
import pytest
import scipy.special

from attnspec.reference import (
    additive_scores,
    choosing,
    decoder_layer,
    decoder_stack,
    decoder_step,
    dot_scores,
    encoder_layer,
    encoder_stack,
    gru_cell,
    lstm_cell,
    multi_head_attention,
    scaled_dot_product_attention,
    softmax,
    teacher_forced_decode,
)
from attnspec.spec import (
    AttentionDecoderParameters,
    DecoderLayerParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    GRUParameters,
    LayerNormParameters,
    LSTMParameters,
    MultiHeadParameters,
    RNNParameters,
)
from tests.budgets import assert_within_budgets

torch = pytest.importorskip("torch", reason="the optional dependency torch is not installed")
RNG = np.random.default_rng(0)


def test_softmax() -> None:
    scores = RNG.normal(size=(2, 5, 7)) * 10
    assert_within_budgets([softmax(scores), scipy.special.softmax(scores, axis=-1)], "softmax", scores)


def test_masked_softmax() -> None:
    scores, mask = RNG.normal(size=(5, 7)), RNG.random((5, 7)) < 0.7
    mask[:, 0] = True
    expected = torch.softmax(torch.from_numpy(scores).masked_fill(~torch.from_numpy(mask), -torch.inf), dim=-1)
    assert_within_budgets([softmax(scores, mask=mask), expected], "softmax", scores, mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product_attention(causal: bool, masked: bool) -> None:
    query, key = RNG.normal(size=(2, 3, 6, 4)), RNG.normal(size=(2, 3, 8, 4))
    value, mask = RNG.normal(size=(2, 3, 8, 5)), RNG.random((2, 1, 6, 8)) < 0.7
    mask[..., 0] = True
    allowed = torch.from_numpy(mask) if masked else torch.ones(6, 8, dtype=torch.bool)
    if causal:
        allowed = allowed & torch.ones(6, 8, dtype=torch.bool).tril()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (query, key, value)), attn_mask=allowed
    )
    options: dict[str, Any] = {"mask": mask if masked else None, "causal": causal}
    got = scaled_dot_product_attention(query, key, value, **options)
    assert_within_budgets([got, expected], "scaled_dot_product_attention", query, key, value, **options)


def test_multi_head_attention() -> None:
    d, h = 6, 3
    module = torch.nn.MultiheadAttention(d, h, bias=False, batch_first=True, dtype=torch.float64)
    query, memory = RNG.normal(size=(2, 4, d)), RNG.normal(size=(2, 5, d))
    w = vars(attention_of(module))
    expected, _ = module(*map(torch.from_numpy, (query, memory, memory)))
    got = multi_head_attention(query, memory, memory, **w)
    within_budget(got, expected, multi_head_attention, query=query, key=memory, value=memory, **w)


def test_additive_scores_are_a_perceptron_on_query_and_key() -> None:
    query, key = RNG.normal(size=(3, 2)), RNG.normal(size=(4, 5))
    w_q, w_k, w_v = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 5)), RNG.normal(size=6)
    pairs = np.concatenate([np.repeat(query, 4, axis=0), np.tile(key, (3, 1))], axis=1)
    expected = np.tanh(pairs @ np.concatenate([w_q, w_k], axis=1).T) @ w_v
    arguments = query, key, w_q, w_k, w_v
    assert_within_budgets([additive_scores(*arguments), expected.reshape(3, 4)], "additive_scores", *arguments)


def test_scores_of_a_batch_are_an_einsum() -> None:
    query, key = RNG.normal(size=(2, 1, 3, 4)), RNG.normal(size=(5, 6, 4))
    results = [dot_scores(query, key), np.einsum("aind,bmd->abnm", query, key)]
    assert_within_budgets(results, "dot_scores", query, key)


def test_gru_cell_with_the_reset_gate_after_the_product() -> None:
    d, h = 5, 3
    theirs = torch.nn.GRUCell(d, h, dtype=torch.float64)
    of_input, of_state = theirs.weight_ih.detach().numpy(), theirs.weight_hh.detach().numpy()
    # PyTorch's second bias of the candidate is reset too; ours has none there.
    theirs.bias_hh.data[2 * h :] = 0
    bias = (theirs.bias_ih + theirs.bias_hh).detach().numpy()
    rows = {gate: slice(i * h, (i + 1) * h) for i, gate in enumerate("rzh")}
    parameters = GRUParameters(
        **{f"w_x{g}": of_input[r].T for g, r in rows.items()},
        **{f"w_h{g}": of_state[r].T for g, r in rows.items()},
        **{f"b_{g}": bias[r] for g, r in rows.items()},
    )
    x, state = RNG.normal(size=(2, d)) * 3, RNG.normal(size=(2, h))
    expected = theirs(*map(torch.from_numpy, (x, state))).detach().numpy()
    with choosing(gru_reset="after"):
        assert_within_budgets([gru_cell(x, state, parameters), expected], "gru_cell", x, state, parameters)
    with pytest.raises(AssertionError, match="budgets away"):
        assert_within_budgets(expected, "gru_cell", x, state, parameters)


def test_lstm_cell() -> None:
    d, h = 5, 3
    theirs = torch.nn.LSTMCell(d, h, dtype=torch.float64)
    of_input, of_state = theirs.weight_ih.detach().numpy(), theirs.weight_hh.detach().numpy()
    bias = (theirs.bias_ih + theirs.bias_hh).detach().numpy()
    # PyTorch's order is input, forget, candidate, output; its weights are (out, in).
    gates = dict(zip("ifco", range(4), strict=True))
    rows = {gate: slice(i * h, (i + 1) * h) for gate, i in gates.items()}
    parameters = LSTMParameters(
        **{f"w_x{g}": of_input[r].T for g, r in rows.items()},
        **{f"w_h{g}": of_state[r].T for g, r in rows.items()},
        **{f"b_{g}": bias[r] for g, r in rows.items()},
    )
    x, state = RNG.normal(size=(2, d)) * 3, (RNG.normal(size=(2, h)), RNG.normal(size=(2, h)))
    got = lstm_cell(x, state, parameters)
    expected = theirs(torch.from_numpy(x), tuple(map(torch.from_numpy, state)))
    assert_within_budgets([got, expected], "lstm_cell", x, state, parameters)


def their_decoder(vocabulary: int, d_y: int, d_h: int, d_s: int, h: int) -> Any:
    """Bahdanau's decoder of PyTorch's modules; the cell has two biases."""
    modules = {
        "embedding": torch.nn.Embedding(vocabulary, d_y),
        "query": torch.nn.Linear(d_s, h, bias=False),
        "key": torch.nn.Linear(d_h, h, bias=False),
        "score": torch.nn.Linear(h, 1, bias=False),
        "cell": torch.nn.RNNCell(d_y + d_h, d_s),
        "output": torch.nn.Linear(d_s, vocabulary),
    }
    return torch.nn.ModuleDict(modules).double()


def their_step(m: Any, token: Any, state: Any, annotations: Any, real: Any) -> tuple[Any, Any]:
    """Scores of the tokens, and the next state."""
    e = m["score"](torch.tanh(m["query"](state)[:, None] + m["key"](annotations))).squeeze(-1)
    context = (e.masked_fill(~real, -torch.inf).softmax(-1)[..., None] * annotations).sum(1)
    state = m["cell"](torch.cat((m["embedding"](token), context), -1), state)
    return m["output"](state), state


def parameters_of(m: Any) -> AttentionDecoderParameters[np.ndarray[Any, Any]]:
    w = {name: x.detach().numpy() for name, x in m.named_parameters()}
    return AttentionDecoderParameters(
        w["embedding.weight"],
        w["query.weight"],
        w["key.weight"],
        w["score.weight"][0],
        RNNParameters(w["cell.weight_ih"].T, w["cell.weight_hh"].T, w["cell.bias_ih"] + w["cell.bias_hh"]),
        w["output.weight"],
        w["output.bias"],
    )


def test_decoder_step() -> None:
    m = their_decoder(vocabulary=7, d_y=3, d_h=5, d_s=4, h=6)
    token, state, annotations = np.array([6, 0]), RNG.normal(size=(2, 4)), RNG.normal(size=(2, 8, 5))
    real = np.arange(8) < np.array([[8], [3]])
    scores, expected = their_step(m, *map(torch.from_numpy, (token, state, annotations, real)))
    arguments = token, state, annotations, parameters_of(m)
    results = [decoder_step(*arguments, mask=real), (scores.softmax(-1), expected)]
    assert_within_budgets(results, "decoder_step", *arguments, mask=real)


def test_teacher_forced_decode() -> None:
    m = their_decoder(vocabulary=7, d_y=3, d_h=5, d_s=4, h=6)
    tokens, annotations = RNG.integers(0, 7, (2, 5)), torch.from_numpy(RNG.normal(size=(2, 8, 5)))
    real = torch.arange(8) < torch.tensor([[8], [3]])
    s = state = torch.from_numpy(RNG.normal(size=(2, 4)))
    expected = []
    for token in torch.from_numpy(tokens).unbind(-1):
        scores, s = their_step(m, token, s, annotations, real)
        expected.append(torch.log_softmax(scores, -1).detach().numpy())
    arguments = tokens, state.numpy(), annotations.numpy(), parameters_of(m)
    results = [teacher_forced_decode(*arguments, mask=real.numpy()), (np.stack(expected, axis=-2), s)]
    assert_within_budgets(results, "teacher_forced_decode", *arguments, mask=real)


def numbers(x: Any) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = x.detach().numpy()
    return values


def with_random_weights(module: Any) -> Any:
    """The module with normal weights; biases of attention are 0, for ours has none."""
    for name, parameter in module.named_parameters():
        bias = name.endswith(("in_proj_bias", "out_proj.bias"))
        parameter.data = torch.from_numpy(RNG.normal(size=parameter.shape) * (0 if bias else 0.5))
    return module.eval()


def attention_of(theirs: Any) -> MultiHeadParameters[Any]:
    d, heads = theirs.embed_dim, theirs.num_heads
    w_q, w_k, w_v = (w.reshape(heads, d // heads, d) for w in np.split(numbers(theirs.in_proj_weight), 3))
    return MultiHeadParameters(w_q, w_k, w_v, numbers(theirs.out_proj.weight))


def norm_of(theirs: Any) -> LayerNormParameters[Any]:
    return LayerNormParameters(numbers(theirs.weight), numbers(theirs.bias))


def feed_forward_of(theirs: Any) -> FeedForwardParameters[Any]:
    first, second = theirs.linear1, theirs.linear2
    return FeedForwardParameters(*map(numbers, (first.weight, first.bias, second.weight, second.bias)))


def encoder_of(theirs: Any) -> EncoderLayerParameters[Any]:
    return EncoderLayerParameters(
        attention_of(theirs.self_attn), norm_of(theirs.norm1), feed_forward_of(theirs), norm_of(theirs.norm2)
    )


def decoder_of(theirs: Any) -> DecoderLayerParameters[Any]:
    return DecoderLayerParameters(
        attention_of(theirs.self_attn),
        norm_of(theirs.norm1),
        attention_of(theirs.multihead_attn),
        norm_of(theirs.norm2),
        feed_forward_of(theirs),
        norm_of(theirs.norm3),
    )


NORMS_AND_MASKS = pytest.mark.parametrize(("norm", "masked"), [(n, m) for n in ("post", "pre") for m in (False, True)])
"""Norms, with and without masks."""
D, N, M, HEADS = 8, 6, 5, 2


def within_budget(got: Any, expected: Any, reference: Any, **arguments: Any) -> None:
    assert_within_budgets([got, expected], reference, **arguments)


@NORMS_AND_MASKS
def test_encoder_layers_and_stacks(norm: Literal["post", "pre"], masked: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        D, HEADS, 5, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    theirs = with_random_weights(torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    layers = tuple(map(encoder_of, theirs.layers))
    x, mask = RNG.normal(size=(3, N, D)), np.tri(N, dtype=bool) if masked else None
    hidden = None if mask is None else torch.from_numpy(~mask)
    flags: Any = {"mask": mask, "norm": norm}
    expected = theirs.layers[0](torch.from_numpy(x), src_mask=hidden)
    got = encoder_layer(x, layers[0], **flags)
    within_budget(got, expected, encoder_layer, x=x, parameters=layers[0], **flags)
    expected, got = theirs(torch.from_numpy(x), mask=hidden), encoder_stack(x, layers, **flags)
    within_budget(got, expected, encoder_stack, x=x, layers=layers, **flags)


@NORMS_AND_MASKS
def test_decoder_layers_and_stacks(norm: Literal["post", "pre"], masked: bool) -> None:
    layer = torch.nn.TransformerDecoderLayer(
        D, HEADS, 5, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    theirs = with_random_weights(torch.nn.TransformerDecoder(layer, 3))
    layers = tuple(map(decoder_of, theirs.layers))
    x, memory = RNG.normal(size=(3, N, D)), RNG.normal(size=(3, M, D))
    mask, memory_mask = (RNG.random((N, N)) < 0.7, RNG.random((N, M)) < 0.7) if masked else (None, None)
    for allowed in (mask, memory_mask):
        if allowed is not None:
            allowed[:, 0] = True
    hidden = torch.from_numpy(~(np.tri(N, dtype=bool) & (True if mask is None else mask)))
    memory_hidden = None if memory_mask is None else torch.from_numpy(~memory_mask)
    tensors = torch.from_numpy(x), torch.from_numpy(memory)
    flags: Any = {"mask": mask, "memory_mask": memory_mask, "norm": norm}
    expected = theirs.layers[0](*tensors, tgt_mask=hidden, memory_mask=memory_hidden)
    got = decoder_layer(x, memory, layers[0], **flags)
    within_budget(got, expected, decoder_layer, x=x, memory=memory, parameters=layers[0], **flags)
    expected = theirs(*tensors, tgt_mask=hidden, memory_mask=memory_hidden)
    got = decoder_stack(x, memory, layers, **flags)
    within_budget(got, expected, decoder_stack, x=x, memory=memory, layers=layers, **flags)
