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

CONCATENATION_ORDER = law(
    "seq2seq.concatenation-order",
    "A concatenation holds its parts in order, bit for bit: the context, then the state; or the embedding, then its "
    "position.",
    formula=r"f(a, s)_{1 \dots d_h} = a,\quad f(a, s)_{d_h + 1 \dots} = s",
    governs=of(ConcatOutput, ConcatPositions),
    sources=[S1.passage("Attention: in equations"), S3.passage("Positional Encoding")],
)
EMBEDDING_IS_TABLE_ROW = law(
    "seq2seq.embedding-is-table-row",
    "The embedding of a token, or of a learned position, is its row of the table, bit for bit; no other row counts.",
    formula=r"x_t = E_{w_t},\quad P_t = T_t",
    governs=of(Embed, LearnedPositions),
    sources=[S2.passage("Input & Positional Embedding"), S2.passage("Machine Translation, solution 1")],
)
CONTEXT_IS_LAST_STATE = law(
    "seq2seq.context-is-last-state",
    "The context of an encoder is its last state that is not padding, bit for bit; no other state counts.",
    formula=r"q(h_1, \dots, h_T) = h_T",
    governs=of(EncoderContext),
    sources=[S0.equation(13)],
)
ONE_ANNOTATION_IS_CONTEXT = law(
    "seq2seq.one-annotation-is-context",
    "If a source has a single annotation, that is the context, whatever the parameters of the scores.",
    formula=r"T = 1 \Rightarrow c = h_1",
    governs=of(DecoderStep, TeacherForcedDecode, GreedyDecode, BeamDecode),
    sources=[S0.equation(16)],
)
SHARED_SOURCE_EQUALS_SEPARATE = law(
    "seq2seq.shared-source-equals-separate",
    "States and sentences that share one source in a batch get the results that each gets alone: annotations depend "
    "on no state and no token.",
    formula=r"c(s_1, \dots, s_n; h)_i = c(s_i; h),\quad f(y^1, \dots, y^n; h)_i = f(y^i; h)",
    governs=of(
        *(BahdanauContext, LuongContextDot, LuongContextGeneral, LuongContextLocation),
        *(DecoderStep, TeacherForcedDecode, GreedyDecode, BeamDecode),
    ),
    sources=[S0.equation(16), S2.passage("Machine Translation, solution 4")],
)
SCORE_SUMS_LOG_PROBABILITIES = law(
    "seq2seq.score-sums-log-probabilities",
    "The score of a sentence is the sum of the log-probabilities of its tokens up to its end, each given the tokens "
    "before it; beam search divides it by the length penalty. It does not depend on the other sentences of a batch.",
    formula=r"\text{score} = \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'}) / \operatorname{lp}(y),"
    r"\quad \operatorname{lp}(y) = \left(\tfrac{5 + |y|}{6}\right)^{\alpha}",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.equation(14)],
)
GREEDY_TAKES_MOST_PROBABLE = law(
    "seq2seq.greedy-takes-most-probable",
    "Greedy decoding takes the most probable token after those before it. Of equally probable tokens it takes the "
    "first of the vocabulary.",
    formula=r"P(y_{t'+1} \mid y_1, \dots, y_{t'}) = \max_w P(w \mid y_1, \dots, y_{t'}),"
    r"\quad P(w) = P(w')\ \forall w, w' \Rightarrow y_i = 0",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
NOTHING_AFTER_EOS = law(
    "seq2seq.nothing-after-eos",
    "After the token that ends a sentence, only that token follows.",
    formula=r"y_i = \langle\text{eos}\rangle \Rightarrow y_j = \langle\text{eos}\rangle\ \forall j > i",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.passage("Encoder-Decoder RNN II")],
)
BEAM_OF_ONE_IS_GREEDY = law(
    "seq2seq.beam-of-one-is-greedy",
    "Beam search with a beam of one hypothesis and without a length penalty is greedy decoding.",
    formula=r"k = 1 \Rightarrow \text{beam} = \text{greedy}",
    governs=of(BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
EXHAUSTIVE_BEAM_IS_OPTIMAL = law(
    "seq2seq.exhaustive-beam-is-optimal",
    "A beam as wide as the number of possible sentences finds the one with the greatest score: without a length "
    "penalty, the most probable one.",
    formula=r"k \ge |V|^{T'} \Rightarrow \text{score} ="
    r" \max_y \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'}) / \operatorname{lp}(y)",
    governs=of(BeamDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
