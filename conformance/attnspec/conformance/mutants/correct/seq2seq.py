"""Correct formulas of embeddings, contexts and outputs of a decoder."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.conformance.mutants.correct.recurrent import Recurrent
from attnspec.spec.seq2seq import AttentionDecoderParameters


class Seq2Seq(Recurrent, Attention):
    """Contexts of decoders, and their steps."""

    def bahdanau_context(
        self, state: Numbers, annotations: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """The state attends additively to the annotations."""
        every_query = None if mask is None else mask[..., None, :]
        query = state[..., None, :]
        return self.additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]

    def luong_context_dot(self, state: Numbers, annotations: Numbers, *, mask: Numbers = None) -> Numbers:
        """The state attends to the annotations by dot products."""
        scores = self.dot_scores(state[..., None, :], annotations)
        return self.context(scores, annotations, mask)

    def luong_context_general(
        self, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """The state attends to the annotations by a bilinear form."""
        return self.context(self.general_scores(state[..., None, :], annotations, w), annotations, mask)

    def luong_context_location(
        self, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """The state attends to positions."""
        return self.context(self.location_scores(state[..., None, :], w), annotations, mask)

    def attentional_state(self, state: Numbers, context: Numbers, w: Numbers) -> Numbers:
        """A layer with the activation tanh on both."""
        rows = self.beside(state, context)[..., None, :]
        return np.tanh(self.project(rows, w))[..., 0, :]

    def concat_output(self, context: Numbers, state: Numbers) -> Numbers:
        """The context, then the state."""
        return self.beside(context, state)

    def embed(self, tokens: Numbers, table: Numbers) -> Numbers:
        """Rows of the table."""
        self.check_tokens(tokens, table.shape[0])
        return self.rows(table, tokens)

    def check_tokens(self, tokens: Numbers, count: int) -> None:
        """Raise for a token outside of the vocabulary."""
        if ((tokens < 0) | (tokens >= count)).any():
            raise ValueError(f"tokens: expected 0..{count - 1}")

    def rows(self, table: Numbers, tokens: Numbers) -> Numbers:
        """The rows with these numbers."""
        return table[tokens]

    def output_distribution(self, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Softmax of an affine map."""
        return self.normalized(self.logits(state, w, b))

    def logits(self, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Scores of all tokens."""
        return self.project(state[..., None, :], w)[..., 0, :] + b

    def encoder_context(self, states: Numbers, *, lengths: Numbers = None) -> Numbers:
        """The state at the length, or 0."""
        t = states.shape[-2]
        last = np.array(t) if lengths is None else lengths
        self.check_lengths(last, t)
        batch = np.broadcast_shapes(states.shape[:-2], last.shape)
        return self.state_at(np.broadcast_to(states, (*batch, *states.shape[-2:])), np.broadcast_to(last, batch))

    def state_at(self, states: Numbers, count: Numbers) -> Numbers:
        """Of states (*batch, t, h) the last one of the first so many, 0 of none."""
        before = np.zeros((*states.shape[:-2], 1, states.shape[-1]), states.dtype)
        return np.concatenate([before, states], axis=-2)[(*np.indices(count.shape), count)]

    def decoder_step(
        self,
        token: Numbers,
        state: Numbers,
        annotations: Numbers,
        parameters: AttentionDecoderParameters[Numbers],
        *,
        mask: Numbers = None,
    ) -> tuple[Numbers, Numbers]:
        """The distribution from the next state, and the next state."""
        p = parameters
        self.check_tokens(token, p.embedding.shape[0])
        following = self.next_state(token, state, annotations, p, mask)
        return self.output_distribution(following, p.w_o, p.b_o), following

    def teacher_forced_decode(
        self,
        tokens: Numbers,
        state: Numbers,
        annotations: Numbers,
        parameters: AttentionDecoderParameters[Numbers],
        *,
        mask: Numbers = None,
    ) -> tuple[Numbers, Numbers]:
        """The logarithms of the distributions from all states but the first, and the last state."""
        p = parameters
        self.check_tokens(tokens, p.embedding.shape[0])
        batches = [tokens.shape[:-1], state.shape[:-1], annotations.shape[:-2], () if mask is None else mask.shape[:-1]]
        states = [np.broadcast_to(state, (*np.broadcast_shapes(*batches), state.shape[-1]))]
        for i in range(tokens.shape[-1]):
            before = self.carried(states)
            states.append(self.next_state(self.fed(tokens, i), before, annotations, p, mask))
        every = np.concatenate([x[..., None, :] for x in states], axis=-2)
        return self.log_probabilities(every[..., 1:, :], p.w_o, p.b_o), states[-1]

    def fed(self, tokens: Numbers, i: int) -> Numbers:
        """The token that step i takes."""
        return tokens[..., i]

    def carried(self, states: list[Numbers]) -> Numbers:
        """The state that the next step takes, of all before."""
        return states[-1]

    def log_probabilities(self, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Logarithms of softmax."""
        scores = self.logits(states, w, b)
        shifted = scores - np.max(scores, axis=-1, keepdims=True)
        return shifted - np.log(self.total(np.exp(shifted)))

    def next_state(
        self,
        token: Numbers,
        state: Numbers,
        annotations: Numbers,
        p: AttentionDecoderParameters[Numbers],
        mask: Numbers,
    ) -> Numbers:
        """The cell on token and context, where the state before it is the query."""
        context = self.context_of(state, annotations, p, mask)
        return self.rnn_cell(self.cell_input(self.rows(p.embedding, token), context), state, p.cell)

    def context_of(
        self, state: Numbers, annotations: Numbers, p: AttentionDecoderParameters[Numbers], mask: Numbers
    ) -> Numbers:
        """What the decoder attends to."""
        return self.bahdanau_context(state, annotations, p.w_q, p.w_k, p.w_v, mask=mask)

    def cell_input(self, token: Numbers, context: Numbers) -> Numbers:
        """The embedded token, then the context."""
        return self.beside(token, context)

    def context(self, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
        """Annotations (…, m, d) pooled by scores (…, 1, m)."""
        return self.attend(scores, annotations, None if mask is None else mask[..., None, :], False)[..., 0, :]
