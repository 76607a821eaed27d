"""Laws of embeddings, contexts and outputs of a decoder."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import LUONG, S0, S1, S2, S3
from attnspec.spec.seq2seq import (
    AttentionalState,
    BahdanauContext,
    ConcatOutput,
    Embed,
    LuongContextDot,
    LuongContextGeneral,
    LuongContextLocation,
    OutputDistribution,
)

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
    "A token below 0 or above the last row of its table raises.",
    formula=r"w_t \notin 0..|V|-1 \Rightarrow \text{raises}",
    governs=of(Embed),
)
DISTRIBUTION = law(
    "seq2seq.distribution",
    "Probabilities are not negative and sum to 1.",
    formula=r"P_w \ge 0,\quad \sum_w P_w = 1",
    governs=of(OutputDistribution),
    sources=[S0.equation(14)],
)
