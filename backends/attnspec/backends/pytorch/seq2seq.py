"""Sequence-to-sequence operations. Protocols: ``attnspec.spec.seq2seq``."""

from math import inf, prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention
from attnspec.backends.pytorch.kernels.additive import plain
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite, upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.decoder import LARGE, Decoder, concatenated
from attnspec.backends.pytorch.runtime.products import batched_product, project, wide_linear
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.tables import embedding_rows
from attnspec.backends.pytorch.runtime.top_k import stable_top_k
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted, readable
from attnspec.backends.pytorch.scoring import projections
from attnspec.spec import (
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
    ShapeError,
    TeacherForcedDecode,
    implements,
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

_attentional = Check("attentional_state")
_concat = Check("concat_output")
_embed = Check("embed")
_distribution = Check("output_distribution")
_dot = Check("luong_context_dot")
_general = Check("luong_context_general")
_location = Check("luong_context_location")
_bahdanau = Check("bahdanau_context")
_encoder = Check("encoder_context")
_step = Check("decoder_step")
_forced = Check("teacher_forced_decode")
_greedy = Check("greedy_decode")
_beam = Check("beam_decode")


@implements(BahdanauContext[Tensor])
@follows_autocast
def bahdanau_context(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w_q: Float[Tensor, "h d_s"],
    w_k: Float[Tensor, "h d_h"],
    w_v: Float[Tensor, " h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Additive attention over the annotations, with the state as the only query."""
    *batch, _ = _bahdanau(state, annotations, w_q, w_k, w_v, mask)
    query, row_mask = state.unsqueeze(-2), _for_query(mask)
    tracked = needs_gradients(state, annotations, w_q, w_k, w_v)
    if state.is_cpu and (tracked or prod(batch) * annotations.shape[-2] * w_v.shape[0] < LARGE):
        a, b = projections(query, annotations, w_q, w_k)
        context = plain.attention_in_memory(a, b, upcast(w_v), upcast(annotations), mask=row_mask)
        return context.squeeze(-2).to(annotations.dtype)
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=row_mask).squeeze(-2)


def _for_query(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.unsqueeze(-2)


def _context(query: Tensor, key: Tensor, annotations: Tensor, mask: Tensor | None) -> Tensor:
    """Pool annotations (*batch, m, d_h) by dot products of one query with keys.

    With one query, plain products create no array larger than the annotations. They serve float32 and float64 on the
    CPU if no row is fully masked and masked numbers are finite; other calls take the general path.
    """
    row_mask = _for_query(mask)
    fast = (
        query.dtype not in HALF_DTYPES and query.is_cpu and annotations.shape[-2] > 0 and not operations_intercepted()
    )
    if fast and row_mask is not None:
        fast = bool(row_mask.any(-1).all()) and finite(annotations) and (key is annotations or finite(key))
    if not fast:
        return dot_attention(query.unsqueeze(-2), key, annotations, mask=row_mask, causal=False, scale=1.0).squeeze(-2)
    if key.dim() == 2:
        scores = functional.linear(query, key).unsqueeze(-2)
    else:
        scores = batched_product(query.unsqueeze(-2), key.mT)
    if row_mask is not None:
        scores = scores.masked_fill(~row_mask, -torch.inf)
    return batched_product(scores.softmax(-1), annotations).squeeze(-2)


@implements(LuongContextDot[Tensor])
@follows_autocast
def luong_context_dot(
    state: Float[Tensor, "*#batch d_h"],
    annotations: Float[Tensor, "*#batch m d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Dot-product attention over the annotations, with the state as the only query."""
    _dot(state, annotations, mask)
    return _context(state, annotations, annotations, mask)


@implements(LuongContextGeneral[Tensor])
@follows_autocast
def luong_context_general(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "d_s d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Attention with scores sᵀWh; multiplying the state by W costs less than multiplying annotations."""
    _general(state, annotations, w, mask)
    return _context(project(state, w.mT), annotations, annotations, mask)


@implements(LuongContextLocation[Tensor])
@follows_autocast
def luong_context_location(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "m d_s"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Attention with scores W s, the rows of W being the keys."""
    _location(state, annotations, w, mask)
    return _context(state, w, annotations, mask)


@implements(AttentionalState[Tensor])
@follows_autocast
def attentional_state(
    state: Float[Tensor, "*#batch d_s"], context: Float[Tensor, "*#batch d_h"], w: Float[Tensor, "p_o d_s+d_h"]
) -> Float[Tensor, "*batch p_o"]:
    """tanh of a linear layer of the concatenated state and context."""
    _attentional(state, context, w)
    return wide_linear(concatenated(state, context), w).tanh().to(state.dtype)


@implements(ConcatOutput[Tensor])
@ignores_autocast
def concat_output(
    context: Float[Tensor, "*#batch d_h"], state: Float[Tensor, "*#batch d_s"]
) -> Float[Tensor, "*batch d_h+d_s"]:
    """Concatenate the context and the state, in this order."""
    _concat(context, state)
    return concatenated(context, state)


@implements(Embed[Tensor])
@ignores_autocast
def embed(tokens: Int[Tensor, "*batch n"], table: Float[Tensor, "vocabulary d"]) -> Float[Tensor, "*batch n d"]:
    """PyTorch's embedding; for half dtypes, gradients of repeated tokens are summed in float32.

    The tokens' range is checked on the CPU alone, and not under transforms such as ``torch.compile``.
    """
    _embed(tokens, table)
    refuse_out_of_range("embed", "tokens", tokens, table.shape[0] - 1)
    if needs_gradients(table):
        return embedding_rows(tokens, upcast(table)).to(table.dtype)
    return embedding_rows(tokens, table)


@implements(OutputDistribution[Tensor])
@follows_autocast
def output_distribution(
    state: Float[Tensor, "*batch d_s"], w: Float[Tensor, "vocabulary d_s"], b: Float[Tensor, " vocabulary"]
) -> Float[Tensor, "*batch vocabulary"]:
    """Softmax of a linear layer of the state."""
    _distribution(state, w, b)
    return token_probabilities(state, w, b)


def token_probabilities(states: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Probabilities of all tokens, in the dtype of w, from states of any dtype."""
    return wide_linear(states, w, b).softmax(-1).to(w.dtype)


@implements(EncoderContext[Tensor])
@ignores_autocast
def encoder_context(
    states: Float[Tensor, "*#batch t h"], *, lengths: Int[Tensor, "*#batch"] | None = None
) -> Float[Tensor, "*batch h"]:
    """Return the last state of each sequence; 0 for length 0."""
    shape = _encoder(states, lengths)
    t = states.shape[-2]
    refuse_out_of_range("encoder_context", "lengths", lengths, t)
    if t == 0:
        # The sum over no steps is 0 and stays in the autograd graph, so that gradients exist.
        return states.sum(-2).expand(shape).clone()
    if lengths is None:
        return states[..., -1, :].expand(shape).clone()
    if states.dim() == 3 and states.shape[:1] == lengths.shape:
        last_states = states[torch.arange(lengths.shape[0], device=states.device), lengths.long() - 1]
        return last_states.masked_fill((lengths == 0)[:, None], 0.0)
    last = lengths.long().expand(shape[:-1])[..., None]
    read = states.expand(*shape[:-1], *states.shape[-2:]).gather(
        -2, (last - 1).clamp(min=0)[..., None].expand(*shape[:-1], 1, shape[-1])
    )
    return torch.where(last > 0, read.squeeze(-2), 0.0)


@implements(DecoderStep[Tensor])
@follows_autocast
def decoder_step(
    token: Int[Tensor, "*#batch"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> tuple[Float[Tensor, "*batch vocabulary"], Float[Tensor, "*batch d_s"]]:
    """One decoder step: context, cell and output layer; half dtypes are float32 in between."""
    _step(token, state, annotations, parameters, mask)
    refuse_out_of_range("decoder_step", "token", token, parameters.b_o.shape[0] - 1)
    decoder = Decoder(annotations, parameters, mask, 1)
    following = decoder.single_step(token, upcast(state))
    return decoder.scores(following).softmax(-1).to(state.dtype), following.to(state.dtype)


@implements(TeacherForcedDecode[Tensor])
@follows_autocast
def teacher_forced_decode(
    tokens: Int[Tensor, "*#batch t"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> tuple[Float[Tensor, "*batch t vocabulary"], Float[Tensor, "*batch d_s"]]:
    """Decode known tokens, all embedded before the loop over states and scored after it."""
    (*batch, _, vocabulary) = _forced(tokens, state, annotations, parameters, mask)
    refuse_out_of_range("teacher_forced_decode", "tokens", tokens, vocabulary - 1)
    decoder = Decoder(annotations, parameters, mask, max(tokens.shape[-1], 2))
    latest, states = upcast(state).expand(*batch, state.shape[-1]), []
    for terms in decoder.token_terms(tokens).unbind(-2):
        latest = decoder.next_state(terms, latest)
        states.append(latest)
    all_states = torch.stack(states, -2) if states else latest.unsqueeze(-2)[..., :0, :]
    return decoder.scores(all_states).log_softmax(-1).to(state.dtype), latest.to(state.dtype, copy=True)


@implements(GreedyDecode[Tensor])
@follows_autocast
@torch.no_grad()
def greedy_decode(
    token: Int[Tensor, "*#batch"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    steps: int,
    eos: int,
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> tuple[Int[Tensor, "*batch {steps}"], Float[Tensor, "*batch"]]:
    """Decode greedily, without gradients, until all sentences have ended."""
    batch = _greedy(token, state, annotations, parameters, steps, eos, mask)
    _refuse_tokens("greedy_decode", token, eos, parameters)
    decoder = Decoder(annotations, parameters, mask, max(steps, 2))
    may_stop_early = readable(state)
    last, following = token.expand(batch), upcast(state).expand(*batch, state.shape[-1])
    tokens: list[Tensor] = []
    score, ended = following.new_zeros(batch), token.new_zeros(batch, dtype=torch.bool)
    for _ in range(steps):
        following = decoder.next_state(decoder.token_terms(last), following)
        scores = decoder.scores(following)
        best, place = scores.max(-1)
        last = torch.where(ended, eos, place)
        score = score + torch.where(ended, 0.0, best - scores.logsumexp(-1))
        tokens.append(last)
        ended = last == eos
        if may_stop_early and ended.all():
            break
    all_tokens = torch.stack(tokens, -1) if tokens else last.new_empty((*batch, 0), dtype=torch.int64)
    if len(tokens) < steps:
        all_tokens = functional.pad(all_tokens, (0, steps - len(tokens)), value=eos)
    return all_tokens, score.to(state.dtype)


@implements(BeamDecode[Tensor])
@follows_autocast
@torch.no_grad()
def beam_decode(
    token: Int[Tensor, "*#batch"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    steps: int,
    eos: int,
    beams: int,
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
    length_penalty: float = 0.0,
) -> tuple[Int[Tensor, "*batch {steps}"], Float[Tensor, "*batch"]]:
    """Beam search without gradients; all hypotheses of a source share its projected keys."""
    batch = _beam(token, state, annotations, parameters, steps, eos, beams, mask, length_penalty)
    _refuse_tokens("beam_decode", token, eos, parameters)
    if not -inf < length_penalty < inf:
        raise ValueError(f"beam_decode: length_penalty: expected a finite number; got {length_penalty}")
    decoder = Decoder(
        annotations.unsqueeze(-3), parameters, None if mask is None else mask.unsqueeze(-2), max(steps, 2)
    )
    vocabulary = parameters.b_o.shape[0]
    only_eos = torch.full((vocabulary,), -torch.inf, device=state.device, dtype=upcast(state).dtype)
    only_eos[eos] = 0.0
    may_stop_early = readable(state)
    last, following = token.expand(batch).unsqueeze(-1), upcast(state).expand(*batch, state.shape[-1]).unsqueeze(-2)
    tokens, scores = last.new_zeros((*batch, 1, 0), dtype=torch.int64), following.new_zeros((*batch, 1))
    ended, penalties = torch.zeros_like(scores, dtype=torch.bool), torch.ones_like(scores)
    for i in range(steps):
        following = decoder.next_state(decoder.token_terms(last), following)
        logarithms = decoder.scores(following).log_softmax(-1)
        extended = scores.unsqueeze(-1) + torch.where(ended.unsqueeze(-1), only_eos, logarithms)
        penalties = torch.where(ended, penalties, ((6 + i) / 6) ** length_penalty)
        ranked, extended = (extended / penalties.unsqueeze(-1)).flatten(-2), extended.flatten(-2)
        places = stable_top_k(ranked, min(beams, ranked.shape[-1]))
        scores, parents, last = extended.gather(-1, places), places // vocabulary, places % vocabulary
        penalties = penalties.gather(-1, parents)
        following = following.gather(-2, parents.unsqueeze(-1).expand(*parents.shape, following.shape[-1]))
        earlier = tokens.gather(-2, parents.unsqueeze(-1).expand(*parents.shape, i))
        tokens, ended = torch.cat((earlier, last.unsqueeze(-1)), -1), last == eos
        if may_stop_early and ended.all():
            tokens = functional.pad(tokens, (0, steps - 1 - i), value=eos)
            break
    scores = scores / penalties
    place = scores.argmax(-1, keepdim=True)
    best_tokens = tokens.gather(-2, place.unsqueeze(-1).expand(*place.shape, steps)).squeeze(-2)
    return best_tokens, scores.gather(-1, place).squeeze(-1).to(state.dtype)


def _refuse_tokens(operation: str, token: Tensor, eos: int, parameters: AttentionDecoderParameters[Tensor]) -> None:
    most = parameters.b_o.shape[0] - 1
    refuse_out_of_range(operation, "token", token, most)
    if not 0 <= eos <= most:
        raise ShapeError(operation, "eos", f"eos in 0..{most}", eos)
