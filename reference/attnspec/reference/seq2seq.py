"""Sequence to sequence: attention of a decoder to a source, its output, and decoding.

At each step the decoder's state queries the annotations, which are the encoder's states, one per source token. Their
weighted average is the context. From it and the last token follow the next state and the next token's distribution.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.reference.attention import additive_attention, attend, dot_product_attention, general_attention
from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.reference.normalization import log_softmax, softmax
from attnspec.reference.recurrent import rnn_cell
from attnspec.reference.scoring import location_scores
from attnspec.spec.seq2seq import (
    AttentionalState,
    AttentionDecoderParameters,
    BahdanauContext,
    BeamDecode,
    ConcatOutput,
    DecoderStep,
    Embed,
    EncoderContext,
    GreedyDecode,
    LuongContextDot,
    LuongContextGeneral,
    LuongContextLocation,
    OutputDistribution,
    TeacherForcedDecode,
)

__all__ = [
    "attentional_state",
    "bahdanau_context",
    "beam_decode",
    "concat_output",
    "decoder_step",
    "embed",
    "encoder_context",
    "greedy_decode",
    "luong_context_dot",
    "luong_context_general",
    "luong_context_location",
    "output_distribution",
    "teacher_forced_decode",
]


@defines(BahdanauContext[np.ndarray])
def bahdanau_context(
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    w_q: Float[np.ndarray, "h d_s"],
    w_k: Float[np.ndarray, "h d_h"],
    w_v: Float[np.ndarray, " h"],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> Float[np.ndarray, "*batch d_h"]:
    """c = Σ_t softmax_t(w_vᵀ tanh(W_q s + W_k h_t)) h_t; the state s is the query."""
    query = state[..., None, :]
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=for_every_query(mask))[..., 0, :]


@defines(LuongContextDot[np.ndarray])
def luong_context_dot(
    state: Float[np.ndarray, "*#batch d_h"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> Float[np.ndarray, "*batch d_h"]:
    """c = Σ_t softmax_t(sᵀ h_t) h_t: the score is the dot product."""
    return dot_product_attention(state[..., None, :], annotations, annotations, mask=for_every_query(mask))[..., 0, :]


@defines(LuongContextGeneral[np.ndarray])
def luong_context_general(
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    w: Float[np.ndarray, "d_s d_h"],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> Float[np.ndarray, "*batch d_h"]:
    """c = Σ_t softmax_t(sᵀ W h_t) h_t: the score is a bilinear form."""
    return general_attention(state[..., None, :], annotations, annotations, w, mask=for_every_query(mask))[..., 0, :]


@defines(LuongContextLocation[np.ndarray])
def luong_context_location(
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    w: Float[np.ndarray, "m d_s"],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> Float[np.ndarray, "*batch d_h"]:
    """c = Σ_t softmax_t(W s)_t h_t: the state scores positions without looking at the annotations."""
    scores = location_scores(state[..., None, :], w)
    return attend(scores, annotations, for_every_query(mask), causal=False)[..., 0, :]


@defines(AttentionalState[np.ndarray])
def attentional_state(
    state: Float[np.ndarray, "*#batch d_s"],
    context: Float[np.ndarray, "*#batch d_h"],
    w: Float[np.ndarray, "p_o d_s+d_h"],
) -> Float[np.ndarray, "*batch p_o"]:
    """s̃ = tanh(W [s; c]): the state, informed by the context."""
    result: np.ndarray = np.tanh(concatenated(state, context) @ np.swapaxes(w, -1, -2))
    return result


@defines(ConcatOutput[np.ndarray])
def concat_output(
    context: Float[np.ndarray, "*#batch d_h"], state: Float[np.ndarray, "*#batch d_s"]
) -> Float[np.ndarray, "*batch d_h+d_s"]:
    """[a; s]: the context a, then the state s."""
    return concatenated(context, state)


@defines(Embed[np.ndarray])
def embed(
    tokens: Int[np.ndarray, "*batch n"], table: Float[np.ndarray, "vocabulary d"]
) -> Float[np.ndarray, "*batch n d"]:
    """x_t = E_{w_t}: the row of the table E that belongs to token w_t."""
    rows: np.ndarray = table[tokens]
    return rows


@defines(OutputDistribution[np.ndarray])
def output_distribution(
    state: Float[np.ndarray, "*batch d_s"],
    w: Float[np.ndarray, "vocabulary d_s"],
    b: Float[np.ndarray, " vocabulary"],
) -> Float[np.ndarray, "*batch vocabulary"]:
    """P(y_{t+1} = w | y₁, …, y_t, c) = softmax_w(W s_t + b)."""
    scores = state @ np.swapaxes(w, -1, -2) + b
    return softmax(scores[..., None, :])[..., 0, :]


@defines(EncoderContext[np.ndarray])
def encoder_context(
    states: Float[np.ndarray, "*#batch t h"], *, lengths: Int[np.ndarray, "*#batch"] | None = None
) -> Float[np.ndarray, "*batch h"]:
    """c = q(h₁, …, h_T) = h_T, with h₀ = 0."""
    t, h = states.shape[-2:]
    last = np.array(t) if lengths is None else lengths
    batch = np.broadcast_shapes(states.shape[:-2], last.shape)
    # With h₀ = 0 in front, index T holds h_T, also for T = 0.
    initial = np.zeros((*batch, 1, h), states.dtype)
    with_initial = np.concatenate([initial, np.broadcast_to(states, (*batch, t, h))], axis=-2)
    context: np.ndarray = with_initial[(*np.indices(batch), np.broadcast_to(last, batch))]
    return context


@defines(DecoderStep[np.ndarray])
def decoder_step(
    token: Int[np.ndarray, "*#batch"],
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> tuple[Float[np.ndarray, "*batch vocabulary"], Float[np.ndarray, "*batch d_s"]]:
    """P(y_{t'+1}) and s_{t'} = g([y_{t'}; c_{t'}], s_{t'−1}), with c_{t'} from s_{t'−1}."""
    new_state = next_state(token, state, annotations, parameters, mask)
    return output_distribution(new_state, parameters.w_o, parameters.b_o), new_state


@defines(TeacherForcedDecode[np.ndarray])
def teacher_forced_decode(
    tokens: Int[np.ndarray, "*#batch t"],
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t vocabulary"], Float[np.ndarray, "*batch d_s"]]:
    """log P(y_{t'+1}) = log softmax(W_o s_{t'} + b_o) with s_{t'} = g([y_{t'}; c_{t'}], s_{t'−1}) for every t'."""
    batches = [tokens.shape[:-1], state.shape[:-1], annotations.shape[:-2], () if mask is None else mask.shape[:-1]]
    state = np.broadcast_to(state, (*np.broadcast_shapes(*batches), state.shape[-1]))
    states = [state]
    for i in range(tokens.shape[-1]):
        states.append(next_state(tokens[..., i], states[-1], annotations, parameters, mask))
    all_states = np.concatenate([s[..., None, :] for s in states], axis=-2)
    return log_probabilities(all_states[..., 1:, :], parameters), states[-1]


@defines(GreedyDecode[np.ndarray])
def greedy_decode(
    token: Int[np.ndarray, "*#batch"],
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[np.ndarray],
    steps: int,
    eos: int,
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> tuple[Int[np.ndarray, "*batch {steps}"], Float[np.ndarray, "*batch"]]:
    """y_{t'+1} = argmax_w P(w | y₁, …, y_{t'}) until ⟨eos⟩; the score is Σ log P."""
    vocabulary = parameters.b_o.shape[0]
    batches = [token.shape, state.shape[:-1], annotations.shape[:-2], () if mask is None else mask.shape[:-1]]
    batch = np.broadcast_shapes(*batches)
    last, score, ended = np.broadcast_to(token, batch), np.zeros(batch, state.dtype), np.zeros(batch, bool)
    tokens = [np.zeros((*batch, 0), int)]
    for _ in range(steps):
        state = next_state(last, state, annotations, parameters, mask)
        # Only ⟨eos⟩ can continue an ended sentence, and it adds nothing to the score.
        may_follow = ~ended[..., None] | (np.arange(vocabulary) == eos)
        best_tokens, log_probability = greatest(log_probabilities(state, parameters), 1, may_follow)
        last = best_tokens[..., 0]
        score = score + np.where(ended, 0, log_probability[..., 0])
        ended = last == eos
        tokens.append(best_tokens)
    return np.concatenate(tokens, axis=-1), score


@defines(BeamDecode[np.ndarray])
def beam_decode(
    token: Int[np.ndarray, "*#batch"],
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[np.ndarray],
    steps: int,
    eos: int,
    beams: int,
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
    length_penalty: float = 0.0,
) -> tuple[Int[np.ndarray, "*batch {steps}"], Float[np.ndarray, "*batch"]]:
    """Extend all hypotheses by all tokens, `steps` times; always keep the `beams` of greatest Σ log P / lp(y)."""
    vocabulary = parameters.b_o.shape[0]
    batches = [token.shape, state.shape[:-1], annotations.shape[:-2], () if mask is None else mask.shape[:-1]]
    batch = np.broadcast_shapes(*batches)
    sources, source_mask = annotations[..., None, :, :], None if mask is None else mask[..., None, :]
    # The search starts from one empty hypothesis. Where fewer hypotheses than beams are possible, `exists` is False for
    # those that only fill the beam: they continue an ended sentence by another token than ⟨eos⟩.
    state = np.broadcast_to(state, (*batch, state.shape[-1]))[..., None, :]
    last = np.broadcast_to(token, batch)[..., None]
    tokens, scores = np.zeros((*batch, 1, 0), int), np.zeros((*batch, 1), state.dtype)
    exists, ended = np.ones((*batch, 1), bool), np.zeros((*batch, 1), bool)
    lengths = np.zeros((*batch, 1), int)
    for step in range(steps):
        state = next_state(last, state, sources, parameters, source_mask)
        extended = scores[..., None] + np.where(ended[..., None], 0, log_probabilities(state, parameters))
        may_follow = exists[..., None] & (~ended[..., None] | (np.arange(vocabulary) == eos))
        # The extensions of all hypotheses compete in one row; number hypothesis · vocabulary + token is one extension.
        count = extended.shape[-2] * vocabulary
        may_follow = may_follow.reshape(*batch, count)
        lengths = np.where(ended, lengths, step + 1)
        ranked = penalised(extended, lengths[..., None], length_penalty)
        chosen, scores = greatest(ranked.reshape(*batch, count), min(beams, count), may_follow)
        parent, last = np.divmod(chosen, vocabulary)
        lengths = np.take_along_axis(lengths, parent, axis=-1)
        scores = penalised(scores, lengths, -length_penalty)
        state = np.take_along_axis(state, parent[..., None], axis=-2)
        tokens = np.concatenate([np.take_along_axis(tokens, parent[..., None], axis=-2), last[..., None]], axis=-1)
        exists, ended = np.take_along_axis(may_follow, chosen, axis=-1), last == eos
    winner, score = greatest(penalised(scores, lengths, length_penalty), 1, exists)
    return np.take_along_axis(tokens, winner[..., None], axis=-2)[..., 0, :], score[..., 0]


def penalised(scores: np.ndarray, lengths: np.ndarray, exponent: float) -> np.ndarray:
    """Divide sums of log P by lp(y) = ((5 + |y|) / 6)^α; −α undoes it."""
    if not exponent:
        return scores
    logarithms = np.log((5 + lengths).astype(scores.dtype) / 6)
    divided: np.ndarray = scores / np.exp(exponent * np.asarray(logarithms, dtype=scores.dtype, like=scores))
    return divided


@overridable
def greatest(scores: np.ndarray, count: int, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and values of the `count` greatest scores (*batch, m), the greatest first.

    Equal scores keep their order. Scores at which the mask `among` (*batch, m) is False come last.
    """
    indices = np.argsort(-np.where(among, scores, -np.inf), axis=-1, kind="stable")[..., :count]
    return indices, np.take_along_axis(scores, indices, axis=-1)


def log_probabilities(states: np.ndarray, parameters: AttentionDecoderParameters[np.ndarray]) -> np.ndarray:
    """log P(y = w) = log softmax(W_o s + b_o); states s (*batch, d_s) give (*batch, vocabulary)."""
    return log_softmax(states @ np.swapaxes(parameters.w_o, -1, -2) + parameters.b_o)


def next_state(
    token: np.ndarray,
    state: np.ndarray,
    annotations: np.ndarray,
    parameters: AttentionDecoderParameters[np.ndarray],
    mask: np.ndarray | None,
) -> np.ndarray:
    """s_{t'} = g([y_{t'}; c_{t'}], s_{t'−1}), (*batch, d_s), from y_{t'} (*batch) and annotations (*batch, m, d_h)."""
    p = parameters
    context = bahdanau_context(state, annotations, p.w_q, p.w_k, p.w_v, mask=mask)
    return rnn_cell(concatenated(p.embedding[token], context), state, p.cell)


def concatenated(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Concatenate vectors (*batch, d) and (*batch, e) whose batches broadcast: (*batch, d + e)."""
    batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    parts = [np.broadcast_to(x, (*batch, x.shape[-1])) for x in (first, second)]
    joined: np.ndarray = np.concatenate(parts, axis=-1)
    return joined


def for_every_query(mask: np.ndarray | None) -> np.ndarray | None:
    """Give a mask of keys (*batch, m) an axis for the queries: (*batch, 1, m)."""
    return None if mask is None else mask[..., None, :]
