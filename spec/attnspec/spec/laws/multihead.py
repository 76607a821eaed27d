"""Laws of multi-head attention."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import PYTORCH, S0, S1, S2
from attnspec.spec.multihead import (
    BiasedMultiHeadAttention,
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
KEY_BIAS_CANCELS = law(
    "multihead.key-bias-cancels",
    "A bias of the keys changes nothing: it shifts all scores of a query alike, which softmax ignores.",
    formula=r"f(b_k) = f(0)",
    governs=of(BiasedMultiHeadAttention),
    sources=[PYTORCH.passage("MultiheadAttention: bias")],
)
BIASES_OF_THE_OUTPUT = law(
    "multihead.biases-of-the-output",
    "Biases of values and of the output add one vector to every row with an attendable key, since weights sum to 1.",
    formula=r"f(b_v, b_o) = f(0, 0) + W_o [b_{v,1}; \dots; b_{v,h}] + b_o",
    governs=of(BiasedMultiHeadAttention),
    sources=[PYTORCH.passage("MultiheadAttention: bias")],
)
HEAD_COLUMN_ORDER = law(
    "multihead.head-column-order",
    "The columns of a head are neighbours and the heads keep their order; splitting and merging undo each other.",
    formula=r"Y_{r,i,c} = x_{i,rp+c}",
    governs=of(SplitHeads, MergeHeads),
    sources=[S2.passage("Encoder Attention: heads")],
)
