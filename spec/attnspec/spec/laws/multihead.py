"""Laws of multi-head attention."""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S1, S2
from attnspec.spec.multihead import (
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    SplitHeads,
)

ONE_HEAD = law(
    "multihead.one-head",
    "One head with identity projections is scaled dot-product attention.",
    formula=r"h = 1,\ W = I \Rightarrow f(q, k, v) = \operatorname{softmax}(qk^\top/\sqrt{d}) v",
    governs=of(MultiHeadAttention),
    sources=[S0.equation(7)],
)
HEAD_PERMUTATION = law(
    "multihead.head-permutation",
    "Permuting the heads together with their weights changes nothing.",
    formula=r"f(P W_q, P W_k, P W_v, W_o P^\top) = f(W_q, W_k, W_v, W_o)",
    governs=lambda operation: bool(operation.order_free(Axis.HEAD)),
    sources=[S0.equation(10), S0.equation(11)],
)
HEAD_SUM = law(
    "multihead.head-sum",
    "The result is the sum of what each head gives alone.",
    formula=r"f = \sum_r W_{o,r} h_r",
    governs=of(MultiHeadAttention, MultiHeadAdditiveAttention),
    sources=[S0.equation(10)],
)
HEAD_BLOCKS = law(
    "multihead.head-blocks",
    "Without W_o, the columns of each head are what this head gives alone.",
    formula=r"f = [f_1; \dots; f_h]",
    governs=of(ConcatHeadsAttention),
    sources=[S1.passage("Multi-Head Self-Attention")],
)
SPLIT_AND_MERGED = law(
    "multihead.split-and-merged",
    "Splitting into heads and merging them undo each other, bit for bit.",
    formula=r"\operatorname{merge}(\operatorname{split}(X)) = X,"
    r"\quad \operatorname{split}(\operatorname{merge}(Y)) = Y",
    governs=of(SplitHeads, MergeHeads),
    sources=[S2.passage("Encoder Attention: heads")],
)
HEAD_COLUMNS = law(
    "multihead.head-columns",
    "The columns of each head are neighbours, and the heads are in their order, bit for bit.",
    formula=r"Y_{r,i,c} = x_{i,rp+c}",
    governs=of(SplitHeads, MergeHeads),
    sources=[S2.passage("Encoder Attention: heads")],
)
