"""Laws of multi-head attention."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S1, S2
from attnspec.spec.multihead import (
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    SplitHeads,
)

ONE_HEAD_IS_ATTENTION = law(
    "multihead.one-head-is-attention",
    "One head with identity projections is scaled dot-product attention.",
    formula=r"h = 1,\ W = I \Rightarrow f(q, k, v) = \operatorname{softmax}(qk^\top/\sqrt{d}) v",
    governs=of(MultiHeadAttention),
    sources=[S0.equation(7)],
)
HEADS_ADD_UP = law(
    "multihead.heads-add-up",
    "The result is the sum of the results of each head alone. Without the output projection W_o, the results of the "
    "heads stand side by side.",
    formula=r"f = \sum_r W_{o,r} h_r,\quad f = [f_1; \dots; f_h]",
    governs=of(MultiHeadAttention, MultiHeadAdditiveAttention, ConcatHeadsAttention),
    sources=[S0.equation(10), S1.passage("Multi-Head Self-Attention")],
)
HEAD_COLUMN_ORDER = law(
    "multihead.head-column-order",
    "The columns of a head are neighbours and the heads keep their order; splitting and merging undo each other.",
    formula=r"Y_{r,i,c} = x_{i,rp+c}",
    governs=of(SplitHeads, MergeHeads),
    sources=[S2.passage("Encoder Attention: heads")],
)
