"""Laws of embeddings, contexts and outputs of a decoder."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S1, S2, S3
from attnspec.spec.positional import ConcatPositions, LearnedPositions
from attnspec.spec.seq2seq import (
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
    TeacherForcedDecode,
)

CONTEXT_FIRST = law(
    "seq2seq.context-first",
    "A concatenation is its parts in order, bit for bit: the context, then the state; or the embedding, then its "
    "position.",
    formula=r"f(a, s)_{1 \dots d_h} = a,\quad f(a, s)_{d_h + 1 \dots} = s",
    governs=of(ConcatOutput, ConcatPositions),
    sources=[S1.passage("Attention: in equations"), S3.passage("Positional Encoding")],
)
EMBEDDING_ROWS = law(
    "seq2seq.embedding-rows",
    "A token, or a learned position, is its row of the table, bit for bit, and no other row counts.",
    formula=r"x_t = E_{w_t},\quad P_t = T_t",
    governs=of(Embed, LearnedPositions),
    sources=[S2.passage("Input & Positional Embedding"), S2.passage("Machine Translation, solution 1")],
)
LAST_STATE = law(
    "seq2seq.last-state",
    "The context of an encoder is its last state that is no padding, bit for bit; no other state counts.",
    formula=r"q(h_1, \dots, h_T) = h_T",
    governs=of(EncoderContext),
    sources=[S0.equation(13)],
)
ONE_ANNOTATION = law(
    "seq2seq.one-annotation",
    "Where a source has one annotation, it is the context: the weights of the scores change nothing.",
    formula=r"T = 1 \Rightarrow c = h_1",
    governs=of(DecoderStep, TeacherForcedDecode, GreedyDecode, BeamDecode),
    sources=[S0.equation(16)],
)
SHARED_SOURCE = law(
    "seq2seq.shared-source",
    "States and sentences that share the annotations of one source in a batch get what each gets alone: annotations "
    "depend on no state and no token.",
    formula=r"c(s_1, \dots, s_n; h)_i = c(s_i; h),\quad f(y^1, \dots, y^n; h)_i = f(y^i; h)",
    governs=of(
        *(BahdanauContext, LuongContextDot, LuongContextGeneral, LuongContextLocation),
        *(DecoderStep, TeacherForcedDecode, GreedyDecode, BeamDecode),
    ),
    sources=[S0.equation(16), S2.passage("Machine Translation, solution 4")],
)
SCORE_OF_TOKENS = law(
    "seq2seq.score-of-tokens",
    "The score is the sum of the logarithms of the probabilities of the tokens up to the end of the sentence, as they "
    "are where these tokens are given, for every sentence of a batch by itself.",
    formula=r"\text{score} = \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'})",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.equation(14)],
)
GREEDY_CHOICE = law(
    "seq2seq.greedy-choice",
    "No token is more probable than the one that is chosen greedily after those before; of tokens that are exactly as "
    "probable, the first of the vocabulary is chosen.",
    formula=r"P(y_{t'+1} \mid y_1, \dots, y_{t'}) = \max_w P(w \mid y_1, \dots, y_{t'}),"
    r"\quad P(w) = P(w')\ \forall w, w' \Rightarrow y_i = 0",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
STOPS_AT_EOS = law(
    "seq2seq.stops-at-eos",
    "After the token that ends a sentence there is no other one.",
    formula=r"y_i = \langle\text{eos}\rangle \Rightarrow y_j = \langle\text{eos}\rangle\ \forall j > i",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.passage("Encoder-Decoder RNN II")],
)
BEAM_OF_ONE = law(
    "seq2seq.beam-of-one",
    "A beam of one hypothesis is greedy.",
    formula=r"k = 1 \Rightarrow \text{beam} = \text{greedy}",
    governs=of(BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
EXHAUSTIVE_BEAM = law(
    "seq2seq.exhaustive-beam",
    "A beam as wide as there are sentences finds the most probable one.",
    formula=r"k \ge |V|^{T'} \Rightarrow \text{score} = \max_y \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'})",
    governs=of(BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
