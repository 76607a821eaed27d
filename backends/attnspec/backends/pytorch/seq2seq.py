"""Sequence to sequence. Protocols: ``attnspec.spec.seq2seq``."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention, dot_attention
from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, product, widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.greatest import first_greatest
from attnspec.backends.pytorch.runtime.ranges import refuse_outside
from attnspec.backends.pytorch.runtime.transforms import intercepted
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
from attnspec.spec.contract.tree import flatten, mapped

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
@lowers
def bahdanau_context(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w_q: Float[Tensor, "h d_s"],
    w_k: Float[Tensor, "h d_h"],
    w_v: Float[Tensor, " h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Additive attention of one query, the state, to the annotations."""
    _bahdanau(state, annotations, w_q, w_k, w_v, mask)
    query, rows = state.unsqueeze(-2), _for_query(mask)
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=rows).squeeze(-2)


def _for_query(mask: Tensor | None) -> Tensor | None:
    """A mask of annotations (*batch, m) with an axis for the only query."""
    return None if mask is None else mask.unsqueeze(-2)


def _context(query: Tensor, key: Tensor, annotations: Tensor, mask: Tensor | None) -> Tensor:
    """Annotations (*batch, m, d_h) pooled by the dot products of a query (*batch, d) with keys (*batch, m, d)."""
    rows = _for_query(mask)
    return dot_attention(query.unsqueeze(-2), key, annotations, mask=rows, causal=False, scale=1.0).squeeze(-2)


@implements(LuongContextDot[Tensor])
@lowers
def luong_context_dot(
    state: Float[Tensor, "*#batch d_h"],
    annotations: Float[Tensor, "*#batch m d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Attention of one query, the state, to the annotations."""
    _dot(state, annotations, mask)
    return _context(state, annotations, annotations, mask)


@implements(LuongContextGeneral[Tensor])
@lowers
def luong_context_general(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "d_s d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """The same with the state multiplied by W, which costs less than the annotations would."""
    _general(state, annotations, w, mask)
    return _context(product(state.unsqueeze(-2), w).squeeze(-2), annotations, annotations, mask)


@implements(LuongContextLocation[Tensor])
@lowers
def luong_context_location(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "m d_s"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Scores from the state alone are dot products with keys that are the rows of W."""
    _location(state, annotations, w, mask)
    return _context(state, w, annotations, mask)


@implements(AttentionalState[Tensor])
@lowers
def attentional_state(
    state: Float[Tensor, "*#batch d_s"], context: Float[Tensor, "*#batch d_h"], w: Float[Tensor, "p_o d_s+d_h"]
) -> Float[Tensor, "*batch p_o"]:
    """tanh of two products, one with the columns of W for the state, one with those for the context."""
    _attentional(state, context, w)
    of_state, of_context = w[:, : state.shape[-1]], w[:, state.shape[-1] :]
    summed = widened(state) @ widened(of_state).mT + widened(context) @ widened(of_context).mT
    return summed.tanh().to(state.dtype)


@implements(ConcatOutput[Tensor])
@keeps
def concat_output(
    context: Float[Tensor, "*#batch d_h"], state: Float[Tensor, "*#batch d_s"]
) -> Float[Tensor, "*batch d_h+d_s"]:
    """The context, then the state."""
    _concat(context, state)
    batch = broadcast(context.shape[:-1], state.shape[:-1])
    return torch.cat([x.expand(*batch, x.shape[-1]) for x in (context, state)], -1)


@implements(Embed[Tensor])
@keeps
def embed(tokens: Int[Tensor, "*batch n"], table: Float[Tensor, "vocabulary d"]) -> Float[Tensor, "*batch n d"]:
    """PyTorch's embedding; gradients of tokens that occur several times are summed in float32 for half dtypes.

    Looking at the tokens waits for the device; under transforms such as ``torch.compile`` they are taken on trust.
    """
    _embed(tokens, table)
    refuse_outside("embed", "tokens", tokens, table.shape[0] - 1)
    if torch.is_grad_enabled() and table.requires_grad:
        return rows(tokens, widened(table)).to(table.dtype)
    return rows(tokens, table)


def rows(tokens: Tensor, table: Tensor) -> Tensor:
    """The rows (*batch, d) of a table (vocabulary, d) with these numbers (*batch)."""
    return functional.embedding(tokens if tokens.dtype in (torch.int32, torch.int64) else tokens.long(), table)


@implements(OutputDistribution[Tensor])
@lowers
def output_distribution(
    state: Float[Tensor, "*batch d_s"], w: Float[Tensor, "vocabulary d_s"], b: Float[Tensor, " vocabulary"]
) -> Float[Tensor, "*batch vocabulary"]:
    """Softmax of a linear layer."""
    _distribution(state, w, b)
    return distribution(widened(state), w, b)


def distribution(states: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The probability of every token, from states in float32 or wider, in the dtype of the weights."""
    return functional.linear(states, widened(w), widened(b)).softmax(-1).to(w.dtype)


@implements(EncoderContext[Tensor])
@keeps
def encoder_context(
    states: Float[Tensor, "*#batch t h"], *, lengths: Int[Tensor, "*#batch"] | None = None
) -> Float[Tensor, "*batch h"]:
    """The last state, or those that the lengths name."""
    shape = _encoder(states, lengths)
    t = states.shape[-2]
    refuse_outside("encoder_context", "lengths", lengths, t)
    if t == 0:
        # a sum of nothing, so that gradients have a way back
        return states.sum(-2).expand(shape).clone()
    if lengths is None:
        return states[..., -1, :].expand(shape).clone()
    last = lengths.long().expand(shape[:-1])[..., None]
    read = states.expand(*shape[:-1], *states.shape[-2:]).gather(
        -2, (last - 1).clamp(min=0)[..., None].expand(*shape[:-1], 1, shape[-1])
    )
    return torch.where(last > 0, read.squeeze(-2), 0.0)


LARGE, MANY_STEPS = 2**15, 4
"""The numbers in projected keys, and steps, from which on a kernel is faster than PyTorch's operations."""


class Decoder:
    """Bahdanau's decoder for source sentences whose annotations are projected once; numbers are in float32 or float64.

    ``annotations`` (*batch, m, d_h) and ``mask`` (*batch, m) are those of the operations. Where gradients are tracked,
    and for few or small steps, the context is computed by PyTorch's operations.
    """

    def __init__(
        self, annotations: Tensor, parameters: AttentionDecoderParameters[Tensor], mask: Tensor | None, steps: int = 1
    ) -> None:
        half = annotations.dtype in HALF_DTYPES
        self.parameters = p = mapped(parameters, lambda _, x: widened(x)) if half else parameters
        self.mask, source = mask, widened(annotations)
        taken = (source, *flatten(p).values()) if torch.is_grad_enabled() else ()
        large = steps >= MANY_STEPS and source.shape[:-1].numel() * p.w_v.shape[0] >= LARGE
        by_kernel = large and not any(x.requires_grad for x in taken)
        if mask is not None and not by_kernel:
            # What is left out is 0, so that where all is, whatever the weights, the context is 0.
            source = torch.where(mask.unsqueeze(-1), source, 0.0)
            some = mask.any(-1, keepdim=True)
            self.bias = torch.zeros_like(mask, dtype=source.dtype).masked_fill(some & ~mask, -torch.inf)
        self.source, self.projected = source, source @ p.w_k.mT
        self.keys = additive.prepare_keys(self.projected, p.w_v, source) if by_kernel else None
        self.of_token, of_context = p.cell.w_xh.split([p.embedding.shape[-1], source.shape[-1]])
        self.of_both = torch.cat((of_context, p.cell.w_hh))

    def token_terms(self, tokens: Tensor) -> Tensor:
        """What tokens (*batch) add to the pre-activation of the cell, with its bias: (*batch, d_s)."""
        return functional.linear(rows(tokens, self.parameters.embedding), self.of_token.mT, self.parameters.cell.b_h)

    def context(self, state: Tensor) -> Tensor:
        """The context (*batch, d_h) of states (*batch, d_s)."""
        query = state @ self.parameters.w_q.mT
        if self.keys is not None:
            return additive.step(self.keys, query, mask=self.mask)
        scores = (query.unsqueeze(-2) + self.projected).tanh() @ self.parameters.w_v
        weights = (scores if self.mask is None else scores + self.bias).softmax(-1)
        return (weights.unsqueeze(-2) @ self.source).squeeze(-2)

    def following(self, terms: Tensor, state: Tensor) -> Tensor:
        """The next state (*batch, d_s), from what the token adds and the state before."""
        context = self.context(state)
        if context.shape[:-1] != state.shape[:-1]:
            state = state.expand(*broadcast(context.shape[:-1], state.shape[:-1]), state.shape[-1])
        summed: Tensor = terms + torch.cat((context, state), -1) @ self.of_both
        return summed.tanh()

    def scores(self, states: Tensor) -> Tensor:
        """The scores (*batch, vocabulary) of all tokens."""
        return functional.linear(states, self.parameters.w_o, self.parameters.b_o)


@implements(DecoderStep[Tensor])
@lowers
def decoder_step(
    token: Int[Tensor, "*#batch"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> tuple[Float[Tensor, "*batch vocabulary"], Float[Tensor, "*batch d_s"]]:
    """A context, a cell and an output layer, without rounding in between."""
    _step(token, state, annotations, parameters, mask)
    refuse_outside("decoder_step", "token", token, parameters.b_o.shape[0] - 1)
    decoder = Decoder(annotations, parameters, mask)
    following = decoder.following(decoder.token_terms(token), widened(state))
    return decoder.scores(following).softmax(-1).to(state.dtype), following.to(state.dtype)


@implements(TeacherForcedDecode[Tensor])
@lowers
def teacher_forced_decode(
    tokens: Int[Tensor, "*#batch t"],
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    parameters: AttentionDecoderParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> tuple[Float[Tensor, "*batch t vocabulary"], Float[Tensor, "*batch d_s"]]:
    """Only states wait for each other: tokens are embedded before, and scored after, all steps at once."""
    (*batch, _, vocabulary) = _forced(tokens, state, annotations, parameters, mask)
    refuse_outside("teacher_forced_decode", "tokens", tokens, vocabulary - 1)
    decoder = Decoder(annotations, parameters, mask, tokens.shape[-1])
    last, states = widened(state).expand(*batch, state.shape[-1]), []
    for terms in decoder.token_terms(tokens).unbind(-2):
        last = decoder.following(terms, last)
        states.append(last)
    every = torch.stack(states, -2) if states else last.unsqueeze(-2)[..., :0, :]
    return decoder.scores(every).log_softmax(-1).to(state.dtype), last.to(state.dtype, copy=True)


@implements(GreedyDecode[Tensor])
@lowers
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
    """Steps until all sentences have ended, which is asked for after each; no gradients."""
    batch = _greedy(token, state, annotations, parameters, steps, eos, mask)
    _refuse_tokens("greedy_decode", token, eos, parameters)
    decoder = Decoder(annotations, parameters, mask, steps)
    last, following = token.expand(batch), widened(state).expand(*batch, state.shape[-1])
    tokens = torch.full((*batch, steps), eos, device=token.device)
    score, ended = following.new_zeros(batch), token.new_zeros(batch, dtype=torch.bool)
    for i in range(steps):
        following = decoder.following(decoder.token_terms(last), following)
        scores = decoder.scores(following)
        best, place = scores.max(-1)
        last = torch.where(ended, eos, place)
        score = score + torch.where(ended, 0.0, best - scores.logsumexp(-1))
        tokens[..., i] = last
        ended = last == eos
        if not intercepted() and ended.all():
            break
    return tokens, score.to(state.dtype)


@implements(BeamDecode[Tensor])
@lowers
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
) -> tuple[Int[Tensor, "*batch {steps}"], Float[Tensor, "*batch"]]:
    """All hypotheses of a source read its keys, which are projected once; no gradients."""
    batch = _beam(token, state, annotations, parameters, steps, eos, beams, mask)
    _refuse_tokens("beam_decode", token, eos, parameters)
    decoder = Decoder(annotations.unsqueeze(-3), parameters, None if mask is None else mask.unsqueeze(-2), steps)
    vocabulary = parameters.b_o.shape[0]
    only_eos = torch.full((vocabulary,), -torch.inf, device=state.device, dtype=widened(state).dtype)
    only_eos[eos] = 0.0
    last, following = token.expand(batch).unsqueeze(-1), widened(state).expand(*batch, state.shape[-1]).unsqueeze(-2)
    tokens, scores = last.new_zeros((*batch, 1, 0), dtype=torch.int64), following.new_zeros((*batch, 1))
    ended = torch.zeros_like(scores, dtype=torch.bool)
    for i in range(steps):
        following = decoder.following(decoder.token_terms(last), following)
        logarithms = decoder.scores(following).log_softmax(-1)
        extended = (scores.unsqueeze(-1) + torch.where(ended.unsqueeze(-1), only_eos, logarithms)).flatten(-2)
        places = first_greatest(extended, min(beams, extended.shape[-1]))
        scores, before, last = extended.gather(-1, places), places // vocabulary, places % vocabulary
        following = following.gather(-2, before.unsqueeze(-1).expand(*before.shape, following.shape[-1]))
        earlier = tokens.gather(-2, before.unsqueeze(-1).expand(*before.shape, i))
        tokens, ended = torch.cat((earlier, last.unsqueeze(-1)), -1), last == eos
        if not intercepted() and ended.all():
            tokens = functional.pad(tokens, (0, steps - 1 - i), value=eos)
            break
    place = scores.argmax(-1, keepdim=True)
    found = tokens.gather(-2, place.unsqueeze(-1).expand(*place.shape, steps)).squeeze(-2)
    return found, scores.gather(-1, place).squeeze(-1).to(state.dtype)


def _refuse_tokens(operation: str, token: Tensor, eos: int, parameters: AttentionDecoderParameters[Tensor]) -> None:
    """Raise for a token, or an end of sentences, that is not in the vocabulary."""
    most = parameters.b_o.shape[0] - 1
    refuse_outside(operation, "token", token, most)
    if not 0 <= eos <= most:
        raise ShapeError(operation, "eos", f"eos in 0..{most}", eos)
