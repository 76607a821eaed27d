"""Multi-head attention: several attentions on projections of the same inputs, concatenated and projected back."""

from typing import Protocol

from jaxtyping import Bool, Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import S0, S3, S4


@operation(
    chapter="multihead",
    formula=r"o_i = W_o [h_1; \dots; h_h],\quad"
    r" h_r = \operatorname{softmax}(Q_r K_r^\top / \sqrt{p_q}) V_r,\quad Q_r = Q W_{q,r}^\top,\ \dots",
    sources=[
        *(S0.equation(number) for number in (7, 8, 9, 10, 11)),
        S3.passage("Multi-headed Attention"),
        S4.passage("Multi-Head Attention"),
    ],
)
class MultiHeadAttention(Protocol[Array]):
    """Scaled dot-product attention in h heads, concatenated in the order of the heads and projected.

    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w_q (h, p_q, d_q), w_k (h, p_q, d_k),
    w_v (h, p_v, d_v), w_o (p_o, h·p_v), weights (out, in), mask (*batch, n, m); result (*batch, n, p_o). The score is
    scaled by √p_q, the size multiplied in each head. `mask` has no head axis: it and `causal` hold in every head.
    Domain: Σ|q||k| of the projections must not overflow.
    Edges: a key counts for a query where `mask` is True and, with `causal`, j ≤ i, aligned top left also when n ≠ m;
    the others are left out, NaN and ∞ included. A query for which no key counts, as with m = 0, gives 0 and zero
    gradients. Batches broadcast; n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "h p_q d_q"],
        w_k: Float[Array, "h p_q d_k"],
        w_v: Float[Array, "h p_v d_v"],
        w_o: Float[Array, "p_o h*p_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n p_o"]:
        """The projected heads of every query."""
        ...
