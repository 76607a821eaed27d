"""The reference against SciPy and PyTorch in float64, where they define the same thing."""

from typing import Any, Literal

import numpy as np
import pytest
import scipy.special

from attnspec.reference import (
    additive_scores,
    choosing,
    decoder_step,
    dot_scores,
    encoder_layer,
    gru_cell,
    lstm_cell,
    multi_head_attention,
    scaled_dot_product_attention,
    softmax,
    teacher_forced_decode,
)
from attnspec.spec import (
    AttentionDecoderParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    GRUParameters,
    LayerNormParameters,
    LSTMParameters,
    MultiHeadParameters,
    RNNParameters,
)

torch = pytest.importorskip("torch", reason="the optional dependency torch is not installed")
RNG = np.random.default_rng(0)
NEAR: dict[str, Any] = {"rtol": 64 * 2.0**-53, "atol": 64 * 2.0**-53}
"""64 units in the last place of numbers near 1: both sides round."""


def test_softmax() -> None:
    scores = RNG.normal(size=(2, 5, 7)) * 10
    np.testing.assert_allclose(softmax(scores), scipy.special.softmax(scores, axis=-1), **NEAR)


def test_masked_softmax() -> None:
    scores, mask = RNG.normal(size=(5, 7)), RNG.random((5, 7)) < 0.7
    mask[:, 0] = True
    expected = torch.softmax(torch.from_numpy(scores).masked_fill(~torch.from_numpy(mask), -torch.inf), dim=-1)
    np.testing.assert_allclose(softmax(scores, mask=mask), expected.numpy(), **NEAR)


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
    got = scaled_dot_product_attention(query, key, value, mask=mask if masked else None, causal=causal)
    np.testing.assert_allclose(got, expected.numpy(), **NEAR)


def test_multi_head_attention() -> None:
    d, h = 6, 3
    module = torch.nn.MultiheadAttention(d, h, bias=False, batch_first=True, dtype=torch.float64)
    query, memory = RNG.normal(size=(2, 4, d)), RNG.normal(size=(2, 5, d))
    with torch.no_grad():
        expected, _ = module(*map(torch.from_numpy, (query, memory, memory)))
        w_q, w_k, w_v = (w.reshape(h, d // h, d).numpy() for w in module.in_proj_weight.chunk(3))
        got = multi_head_attention(query, memory, memory, w_q, w_k, w_v, module.out_proj.weight.numpy())
    np.testing.assert_allclose(got, expected.numpy(), **NEAR)


def test_additive_scores_are_a_perceptron_on_query_and_key() -> None:
    query, key = RNG.normal(size=(3, 2)), RNG.normal(size=(4, 5))
    w_q, w_k, w_v = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 5)), RNG.normal(size=6)
    pairs = np.concatenate([np.repeat(query, 4, axis=0), np.tile(key, (3, 1))], axis=1)
    expected = np.tanh(pairs @ np.concatenate([w_q, w_k], axis=1).T) @ w_v
    np.testing.assert_allclose(additive_scores(query, key, w_q, w_k, w_v), expected.reshape(3, 4), **NEAR)


def test_scores_of_a_batch_are_an_einsum() -> None:
    query, key = RNG.normal(size=(2, 1, 3, 4)), RNG.normal(size=(5, 6, 4))
    np.testing.assert_allclose(dot_scores(query, key), np.einsum("aind,bmd->abnm", query, key), **NEAR)


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
        np.testing.assert_allclose(gru_cell(x, state, parameters), expected, **NEAR)
    assert not np.allclose(gru_cell(x, state, parameters), expected)


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
    for ours, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, other.detach().numpy(), **NEAR)


def their_decoder(vocabulary: int, d_y: int, d_h: int, d_s: int, h: int) -> Any:
    """Bahdanau's decoder of PyTorch's modules, which have a bias for the input and one for the state."""
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
    distribution, following = decoder_step(token, state, annotations, parameters_of(m), mask=real)
    np.testing.assert_allclose(following, expected.detach().numpy(), **NEAR)
    np.testing.assert_allclose(distribution, scores.softmax(-1).detach().numpy(), **NEAR)


def test_teacher_forced_decode() -> None:
    m = their_decoder(vocabulary=7, d_y=3, d_h=5, d_s=4, h=6)
    tokens, annotations = RNG.integers(0, 7, (2, 5)), torch.from_numpy(RNG.normal(size=(2, 8, 5)))
    real = torch.arange(8) < torch.tensor([[8], [3]])
    s = state = torch.from_numpy(RNG.normal(size=(2, 4)))
    expected = []
    for token in torch.from_numpy(tokens).unbind(-1):
        scores, s = their_step(m, token, s, annotations, real)
        expected.append(torch.log_softmax(scores, -1).detach().numpy())
    got, final = teacher_forced_decode(tokens, state.numpy(), annotations.numpy(), parameters_of(m), mask=real.numpy())
    np.testing.assert_allclose(got, np.stack(expected, axis=-2), **NEAR)
    np.testing.assert_allclose(final, s.detach().numpy(), **NEAR)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_layer(norm: Literal["post", "pre"], masked: bool) -> None:
    d, heads, f, n = 8, 2, 5, 6
    theirs = torch.nn.TransformerEncoderLayer(
        d, heads, f, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    for parameter in theirs.parameters():
        parameter.data = torch.from_numpy(RNG.normal(size=parameter.shape) / 2)
    attention = theirs.self_attn
    attention.in_proj_bias.data.zero_()
    attention.out_proj.bias.data.zero_()

    def numbers(x: Any) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = x.detach().numpy()
        return found

    w_q, w_k, w_v = (w.reshape(heads, d // heads, d) for w in np.split(numbers(attention.in_proj_weight), 3))
    parameters = EncoderLayerParameters(
        attention=MultiHeadParameters(w_q, w_k, w_v, numbers(attention.out_proj.weight)),
        attention_norm=LayerNormParameters(numbers(theirs.norm1.weight), numbers(theirs.norm1.bias)),
        feed_forward=FeedForwardParameters(
            *map(numbers, (theirs.linear1.weight, theirs.linear1.bias, theirs.linear2.weight, theirs.linear2.bias))
        ),
        feed_forward_norm=LayerNormParameters(numbers(theirs.norm2.weight), numbers(theirs.norm2.bias)),
    )
    x, mask = RNG.normal(size=(3, n, d)), np.tri(n, dtype=bool) if masked else None
    got = encoder_layer(x, parameters, mask=mask, norm=norm)
    hidden = None if mask is None else torch.from_numpy(~mask)
    expected = theirs(torch.from_numpy(x), src_mask=hidden)
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
