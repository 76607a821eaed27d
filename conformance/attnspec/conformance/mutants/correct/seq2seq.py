"""Correct formulas of recurrent decoders: contexts, steps, greedy and beam search."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.conformance.mutants.correct.recurrent import Recurrent
from attnspec.spec.seq2seq import AttentionDecoderParameters


class Seq2Seq(Recurrent, Attention):
    """Contexts, steps and searches of decoders."""

    def bahdanau_context(
        self, state: Numbers, annotations: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """Additive attention of the state to the annotations."""
        every_query = None if mask is None else mask[..., None, :]
        query = state[..., None, :]
        return self.additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]

    def luong_context_dot(self, state: Numbers, annotations: Numbers, *, mask: Numbers = None) -> Numbers:
        """Attention of the state to the annotations by dot products."""
        scores = self.dot_scores(state[..., None, :], annotations)
        return self.context(scores, annotations, mask)

    def luong_context_general(
        self, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """Attention of the state to the annotations by a bilinear form."""
        return self.context(self.general_scores(state[..., None, :], annotations, w), annotations, mask)

    def luong_context_location(
        self, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """Attention to the annotations with scores from the state alone, one per position."""
        return self.context(self.location_scores(state[..., None, :], w), annotations, mask)

    def attentional_state(self, state: Numbers, context: Numbers, w: Numbers) -> Numbers:
        """tanh of a linear map of state and context."""
        rows = self.join_features(state, context)[..., None, :]
        return np.tanh(self.project(rows, w))[..., 0, :]

    def concat_output(self, context: Numbers, state: Numbers) -> Numbers:
        """Context and state, concatenated."""
        return self.join_features(context, state)

    def embed(self, tokens: Numbers, table: Numbers) -> Numbers:
        """Rows of the table at the tokens."""
        self.check_tokens(tokens, table.shape[0])
        return self.table_rows(table, tokens)

    def check_tokens(self, tokens: Numbers, count: int) -> None:
        """Raise ``ValueError`` for a token outside of 0…count − 1."""
        if ((tokens < 0) | (tokens >= count)).any():
            raise ValueError(f"tokens: expected 0..{count - 1}; got {tokens.min()}..{tokens.max()}")

    def table_rows(self, table: Numbers, tokens: Numbers) -> Numbers:
        """Rows of the table at the tokens, unchecked."""
        return table[tokens]

    def output_distribution(self, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Softmax of an affine map of the state."""
        return self.normalized(self.logits(state, w, b))

    def logits(self, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Scores of all tokens."""
        return self.project(state[..., None, :], w)[..., 0, :] + b

    def encoder_context(self, states: Numbers, *, lengths: Numbers = None) -> Numbers:
        """The last state within the length; 0 for length 0."""
        t = states.shape[-2]
        last = np.array(t) if lengths is None else lengths
        self.check_lengths(last, t)
        batch = np.broadcast_shapes(states.shape[:-2], last.shape)
        return self.state_at(np.broadcast_to(states, (*batch, *states.shape[-2:])), np.broadcast_to(last, batch))

    def state_at(self, states: Numbers, count: Numbers) -> Numbers:
        """State number ``count``, from 1, of states (*batch, t, h); 0 for count 0."""
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
        """The next state, with the distribution of tokens from it in front."""
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
        """Log-probabilities from every state but the initial one, and the last state."""
        p = parameters
        self.check_tokens(tokens, p.embedding.shape[0])
        batches = [tokens.shape[:-1], state.shape[:-1], annotations.shape[:-2], () if mask is None else mask.shape[:-1]]
        states = [np.broadcast_to(state, (*np.broadcast_shapes(*batches), state.shape[-1]))]
        for i in range(tokens.shape[-1]):
            before = self.previous_state(states)
            states.append(self.next_state(self.input_token(tokens, i), before, annotations, p, mask))
        all_states = np.concatenate([x[..., None, :] for x in states], axis=-2)
        return self.log_probabilities(all_states[..., 1:, :], p.w_o, p.b_o), states[-1]

    def input_token(self, tokens: Numbers, i: int) -> Numbers:
        """The input token of step i."""
        return tokens[..., i]

    def previous_state(self, states: list[Numbers]) -> Numbers:
        """Input state of the next step: the last of ``states``."""
        return states[-1]

    def log_probabilities(self, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Logarithms of the softmax of the logits."""
        scores = self.logits(states, w, b)
        shifted = scores - np.max(scores, axis=-1, keepdims=True)
        return shifted - np.log(self.total(np.exp(shifted)))

    def greedy_decode(
        self,
        token: Numbers,
        state: Numbers,
        annotations: Numbers,
        parameters: AttentionDecoderParameters[Numbers],
        steps: int,
        eos: int,
        *,
        mask: Numbers = None,
    ) -> tuple[Numbers, Numbers]:
        """The most probable token at every step, and the score of the sentence."""
        p = parameters
        self.check_tokens(np.append(token, eos), p.embedding.shape[0])
        batch = self.batch_of(token, state, annotations, mask)
        last, score = np.broadcast_to(token, batch), np.zeros(batch, state.dtype)
        ended, tokens = np.zeros(batch, bool), np.full((*batch, steps), eos)
        for i in range(steps):
            state = self.next_state(last, state, annotations, p, mask)
            logarithms = self.log_probabilities(state, p.w_o, p.b_o)
            last = np.where(ended, eos, self.best_token(logarithms))
            gain = self.score_gain(np.take_along_axis(logarithms, last[..., None], axis=-1)[..., 0], last, eos)
            score = score + np.where(ended, 0, gain).astype(state.dtype)
            ended = self.has_ended(last, eos)
            tokens[..., i] = last
        return tokens, score

    def batch_of(self, token: Numbers, state: Numbers, annotations: Numbers, mask: Numbers) -> tuple[int, ...]:
        """The common batch shape of a decoder's inputs."""
        masked = () if mask is None else mask.shape[:-1]
        return np.broadcast_shapes(token.shape, state.shape[:-1], annotations.shape[:-2], masked)

    def best_token(self, logarithms: Numbers) -> Numbers:
        """The most probable token; the first if several tie."""
        return np.argmax(logarithms, axis=-1)

    def score_gain(self, logarithm: Numbers, chosen: Numbers, eos: int) -> Numbers:
        """Increase of a score by the chosen token: its log-probability."""
        return logarithm

    def has_ended(self, last: Numbers, eos: int) -> Numbers:
        """True for sentences whose last token is ``eos``."""
        return last == eos

    def beam_decode(
        self,
        token: Numbers,
        state: Numbers,
        annotations: Numbers,
        parameters: AttentionDecoderParameters[Numbers],
        steps: int,
        eos: int,
        beams: int,
        *,
        mask: Numbers = None,
        length_penalty: float = 0.0,
    ) -> tuple[Numbers, Numbers]:
        """The tokens and the score of the best hypothesis of a beam search."""
        p = parameters
        vocabulary = p.embedding.shape[0]
        self.check_tokens(np.append(token, eos), vocabulary)
        batch = self.batch_of(token, state, annotations, mask)
        sources, beam_mask = annotations[..., None, :, :], None if mask is None else mask[..., None, :]
        hypotheses = self.initial_hypotheses(beams)
        last = np.broadcast_to(np.broadcast_to(token, batch)[..., None], (*batch, hypotheses))
        state = np.broadcast_to(state[..., None, :], (*batch, hypotheses, state.shape[-1]))
        tokens, scores = np.zeros((*batch, hypotheses, 0), int), np.zeros((*batch, hypotheses), state.dtype)
        ended, lengths = np.zeros(scores.shape, bool), np.zeros(scores.shape, int)
        for i in range(steps):
            state = self.next_state(last, state, sources, p, beam_mask)
            logarithms = self.log_probabilities(state, p.w_o, p.b_o)
            gains = self.score_gain(logarithms, np.broadcast_to(np.arange(vocabulary), logarithms.shape), eos)
            candidates = self.candidate_scores(scores, gains, ended, eos)
            lengths = self.lengths_after(lengths, ended, i + 1)
            ranked = candidates / self.penalty(lengths, length_penalty).astype(scores.dtype)[..., None]
            indices = self.survivors(ranked, self.beam_width(beams))
            scores = np.take_along_axis(candidates.reshape(*batch, candidates.shape[-2] * vocabulary), indices, -1)
            before, last = np.divmod(indices, vocabulary)
            state, lengths = self.reorder_states(state, before), np.take_along_axis(lengths, before, axis=-1)
            earlier = np.take_along_axis(tokens, before[..., None], axis=-2)
            tokens, ended = np.concatenate([earlier, last[..., None]], axis=-1), self.has_ended(last, eos)
        scores = scores / self.penalty(lengths, length_penalty).astype(scores.dtype)
        best = self.best_hypothesis(scores, tokens, eos)[..., None]
        sentence = np.take_along_axis(tokens, best[..., None], axis=-2)[..., 0, :]
        return sentence, np.take_along_axis(scores, best, axis=-1)[..., 0]

    def initial_hypotheses(self, beams: int) -> int:
        """Number of hypotheses before the first step: 1."""
        return 1

    def beam_width(self, beams: int) -> int:
        """Number of hypotheses kept after every step."""
        return beams

    def candidate_scores(self, scores: Numbers, gains: Numbers, ended: Numbers, eos: int) -> Numbers:
        """Scores (*batch, hypotheses, vocabulary) of all extensions; ended hypotheses allow only eos."""
        only = np.where(np.arange(gains.shape[-1]) == eos, 0, -np.inf).astype(gains.dtype)
        return scores[..., None] + np.where(ended[..., None], only, gains)

    def lengths_after(self, lengths: Numbers, ended: Numbers, step: int) -> Numbers:
        """Numbers of tokens of all hypotheses after a step; ended ones keep theirs."""
        return np.where(ended, lengths, step)

    def penalty(self, lengths: Numbers, exponent: float) -> Numbers:
        """Length penalty ((5 + |y|) / 6)^α."""
        return ((5 + lengths) / 6) ** exponent

    def survivors(self, candidates: Numbers, count: int) -> Numbers:
        """Indices of the best extensions, flattened; the first of those that tie."""
        flat = candidates.reshape(*candidates.shape[:-2], candidates.shape[-2] * candidates.shape[-1])
        return np.argsort(-flat, axis=-1, kind="stable")[..., :count]

    def reorder_states(self, states: Numbers, before: Numbers) -> Numbers:
        """The states of the hypotheses that the survivors extend."""
        return np.take_along_axis(states, before[..., None], axis=-2)

    def best_hypothesis(self, scores: Numbers, tokens: Numbers, eos: int) -> Numbers:
        """Index of the best hypothesis."""
        return np.argmax(scores, axis=-1)

    def next_state(
        self,
        token: Numbers,
        state: Numbers,
        annotations: Numbers,
        p: AttentionDecoderParameters[Numbers],
        mask: Numbers,
    ) -> Numbers:
        """The cell's next state, from token and context of the previous state."""
        context = self.context_of(state, annotations, p, mask)
        return self.rnn_cell(self.cell_input(self.table_rows(p.embedding, token), context), state, p.cell)

    def context_of(
        self, state: Numbers, annotations: Numbers, p: AttentionDecoderParameters[Numbers], mask: Numbers
    ) -> Numbers:
        """Context of a state by additive attention."""
        return self.bahdanau_context(state, annotations, p.w_q, p.w_k, p.w_v, mask=mask)

    def cell_input(self, token: Numbers, context: Numbers) -> Numbers:
        """The embedded token, then the context."""
        return self.join_features(token, context)

    def context(self, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
        """Annotations (…, m, d) pooled by scores (…, 1, m)."""
        return self.attend(scores, annotations, None if mask is None else mask[..., None, :], False)[..., 0, :]
