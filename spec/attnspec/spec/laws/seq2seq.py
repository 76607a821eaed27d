"""Laws of embeddings, contexts and outputs of a decoder."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import LUONG, S0, S1, S2, S3
from attnspec.spec.seq2seq import (
    AttentionalState,
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
from attnspec.spec.transformer import DecoderOnly, EncoderDecoder, EncoderOnly


def _takes_indices(operation: Operation) -> bool:
    return any(leaf.path in operation.indices for leaf in operation.leaves)


INDEPENDENT_STATES = law(
    "seq2seq.independent-states",
    "States of a decoder that share their annotations in a batch get the contexts that each gets alone.",
    formula=r"c(s_1, \dots, s_n; h)_i = c(s_i; h)",
    governs=of(BahdanauContext, LuongContextDot, LuongContextGeneral, LuongContextLocation),
    sources=[S0.equation(16)],
)
CONTEXT_FOLLOWS_CONTENT = law(
    "seq2seq.context-follows-content",
    "Weights depend on the annotations, not on their positions: exchanging two annotations changes nothing.",
    formula=r"c(s; h_1, h_2) = c(s; h_2, h_1)",
    governs=of(BahdanauContext, LuongContextDot, LuongContextGeneral),
    sources=[S3.passage("The math behind “attending to the input”")],
)
ATTENTIONAL_BOUND = law(
    "seq2seq.attentional-bound",
    "No element of an attentional state exceeds 1, and negating state and context negates it.",
    formula=r"|\tilde s| \le 1,\quad f(-s, -c) = -f(s, c)",
    governs=of(AttentionalState),
    sources=[LUONG.passage("3")],
)
CONTEXT_FIRST = law(
    "seq2seq.context-first",
    "The output begins with the context and ends with the state, bit for bit.",
    formula=r"f(a, s)_{1 \dots d_h} = a,\quad f(a, s)_{d_h + 1 \dots} = s",
    governs=of(ConcatOutput),
    sources=[S1.passage("Attention: in equations")],
)
EMBEDDING_ROWS = law(
    "seq2seq.embedding-rows",
    "A token is its row of the table, bit for bit, and no other row counts.",
    formula=r"x_t = E_{w_t}",
    governs=of(Embed),
    sources=[S2.passage("Input & Positional Embedding")],
)
VOCABULARY_RANGE = law(
    "seq2seq.vocabulary-range",
    "A token below 0 or above the last one of the vocabulary raises.",
    formula=r"w_t \notin 0..|V|-1 \Rightarrow \text{raises}",
    governs=_takes_indices,
)
DISTRIBUTION = law(
    "seq2seq.distribution",
    "Probabilities are not negative and sum to 1.",
    formula=r"P_w \ge 0,\quad \sum_w P_w = 1",
    governs=of(OutputDistribution, DecoderStep, EncoderDecoder, DecoderOnly, EncoderOnly),
    sources=[S0.equation(14)],
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
    "Of several sentences that are decoded from one source, each is decoded as it is alone: annotations depend on no "
    "token.",
    formula=r"f(y^1, \dots, y^n; h)_i = f(y^i; h)",
    governs=of(DecoderStep, TeacherForcedDecode, GreedyDecode, BeamDecode),
    sources=[S2.passage("Machine Translation, solution 4")],
)
LOG_DISTRIBUTION = law(
    "seq2seq.log-distribution",
    "Logarithms of probabilities are not positive, and the probabilities sum to 1.",
    formula=r"\log P_w \le 0,\quad \sum_w \exp \log P_w = 1",
    governs=of(TeacherForcedDecode),
    sources=[S0.equation(14)],
)
STEP_BY_STEP = law(
    "seq2seq.step-by-step",
    "Decoding in two parts, the second from the final state of the first, is decoding at once.",
    formula=r"f(y_1, \dots, y_{T'}; s_0) = [f(y_1, \dots, y_i; s_0);\ f(y_{i+1}, \dots, y_{T'}; s_i)]",
    governs=of(TeacherForcedDecode),
    sources=[S0.equation(15)],
)
SCORE_OF_TOKENS = law(
    "seq2seq.score-of-tokens",
    "The score is the sum of the logarithms of the probabilities of the tokens up to the end of the sentence, as they "
    "are where these tokens are given.",
    formula=r"\text{score} = \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'})",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.equation(14)],
)
SENTENCES_OF_A_BATCH = law(
    "seq2seq.sentences-of-a-batch",
    "Every sentence of a batch ends by itself, with the score of its own tokens.",
    formula=r"\text{score}_b = \sum_{t'} \log P(y_{b,t'+1} \mid y_{b,1}, \dots, y_{b,t'})",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.equation(14)],
)
GREEDY_CHOICE = law(
    "seq2seq.greedy-choice",
    "No token is more probable than the chosen one after the tokens that were chosen before.",
    formula=r"P(y_{t'+1} \mid y_1, \dots, y_{t'}) = \max_w P(w \mid y_1, \dots, y_{t'})",
    governs=of(GreedyDecode),
    sources=[S0.passage("Prediction: Token by Token")],
)
STOPS_AT_EOS = law(
    "seq2seq.stops-at-eos",
    "After the token that ends a sentence there is no other one.",
    formula=r"y_i = \langle\text{eos}\rangle \Rightarrow y_j = \langle\text{eos}\rangle\ \forall j > i",
    governs=of(GreedyDecode, BeamDecode),
    sources=[S0.passage("Encoder-Decoder RNN II")],
)
FIRST_OF_EQUALS = law(
    "seq2seq.first-of-equals",
    "Of tokens that are exactly as probable, the first of the vocabulary is chosen.",
    formula=r"P(w) = P(w')\ \forall w, w' \Rightarrow y_i = 0",
    governs=of(GreedyDecode, BeamDecode),
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
