"""Attention: scores, normalised by softmax over the attendable keys, pool the values.

Key j is attendable for query i where `mask` is True and, with `causal`, j ≤ i (aligned top left also when n ≠ m);
both given means both must hold. Terms that are not attendable are left out of the sum, whatever is stored there.
A row without attendable keys is 0, and so are its gradients (semantics `fully_masked`, `no_keys`).
"""

from typing import Protocol

from jaxtyping import Bool, Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import LUONG, S0, S1, S2, S3, S4, VASWANI


@operation(
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q K^\top) V",
    sources=[
        S1.passage("Attention: definition"),
        S2.passage("Generalized Attention in Matrix Form"),
        S3.passage("Example: Dot-Product Attention"),
    ],
)
class DotProductAttention(Protocol[Array]):
    """Attention with the dot product as score.

    Where: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask (*batch, n, m);
    result (*batch, n, d_v).
    Domain: Σ|q||k| must not overflow.
    Edges: a key counts for a query where `mask` is True and, with `causal`, j ≤ i, aligned top left also when n ≠ m;
    the others are left out, NaN and ∞ included. A query for which no key counts, as with m = 0, gives 0 and zero
    gradients; one attendable key gives its value. Batches broadcast; n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]:
        """The pooled values of every query."""
        ...


@operation(
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q K^\top / \sqrt{d}) V",
    sources=[S0.equation(6), S3.passage("Attention Mapping"), S4.passage("Scoring Function")],
)
class ScaledDotProductAttention(Protocol[Array]):
    """Attention with the scaled dot product as score.

    Where: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask (*batch, n, m);
    result (*batch, n, d_v); d is the size of the vectors actually multiplied.
    Domain: Σ|q||k| must not overflow.
    Edges: a key counts for a query where `mask` is True and, with `causal`, j ≤ i, aligned top left also when n ≠ m;
    the others are left out, NaN and ∞ included. A query for which no key counts, as with m = 0, gives 0 and zero
    gradients; one attendable key gives its value. Batches broadcast; n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]:
        """The pooled values of every query."""
        ...


@operation(
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q W K^\top) V",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("general")],
)
class GeneralAttention(Protocol[Array]):
    """Attention with Luong's general score.

    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w (d_q, d_k), mask (*batch, n, m);
    result (*batch, n, d_v).
    Domain: Σ|q||W||k| must not overflow.
    Edges: a key counts for a query where `mask` is True and, with `causal`, j ≤ i, aligned top left also when n ≠ m;
    the others are left out, NaN and ∞ included. A query for which no key counts, as with m = 0, gives 0 and zero
    gradients; one attendable key gives its value. Batches broadcast; n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w: Float[Array, "d_q d_k"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]:
        """The pooled values of every query."""
        ...


@operation(
    chapter="attention",
    formula=r"o_i = \sum_j \operatorname{softmax}_j(w_v^\top \tanh(W_q q_i + W_k k_j))\, v_j",
    sources=[S0.equation(1), S0.equation(2), S0.equation(4)],
)
class AdditiveAttention(Protocol[Array]):
    """Attention with the additive score.

    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w_q (h, d_q), w_k (h, d_k), w_v (h),
    mask (*batch, n, m); result (*batch, n, d_v).
    Domain: W_q q and W_k k must not overflow; however large they are, tanh saturates and the result is finite.
    Edges: a key counts for a query where `mask` is True and, with `causal`, j ≤ i, aligned top left also when n ≠ m;
    the others are left out, NaN and ∞ included. A query for which no key counts, as with m = 0, gives 0 and zero
    gradients; one attendable key gives its value. Batches broadcast; n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "h d_q"],
        w_k: Float[Array, "h d_k"],
        w_v: Float[Array, " h"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]:
        """The pooled values of every query."""
        ...


@operation(
    chapter="attention",
    formula=r"y_i = \sum_j \operatorname{softmax}_j(x_i^\top x_j / \sqrt{d})\, x_j",
    sources=[S0.equation(17), S1.passage("Self-Attention"), S4.passage("Self-Attention")],
)
class SelfAttention(Protocol[Array]):
    """Self-attention without weights: every x is query, key and value, scored by the scaled dot product.

    Where: x (*batch, n, d), mask (*batch, n, n); result (*batch, n, d). S0 leaves the score open; it is (5) here.
    Domain: Σ|x||x| must not overflow.
    Edges: position j counts for i where `mask` is True and, with `causal`, j ≤ i; the others are left out, NaN and ∞
    included. A row for which nothing counts gives 0 and zero gradients; one attendable position gives its x. n = 0, or
    a batch of 0, gives an empty result.
    Errors: a mask that does not broadcast raises.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d"]:
        """One result for every x."""
        ...


@operation(
    chapter="attention",
    formula=r"Y = \operatorname{softmax}(Q K^\top / \sqrt{d_k}) V,"
    r"\quad Q = X W_q^\top,\ K = X W_k^\top,\ V = X W_v^\top",
    sources=[S1.passage("Self-Attention: independent linear transformations"), S2.passage("Encoder Attention")],
)
class ProjectedSelfAttention(Protocol[Array]):
    """Self-attention whose queries, keys and values are linear maps of x.

    Where: x (*batch, n, d_x), w_q (d_k, d_x), w_k (d_k, d_x), w_v (d_v, d_x), weights (out, in), mask (*batch, n, n);
    result (*batch, n, d_v). S1's form without 1/√d_k is `dot_product_attention` on the projections.
    Domain: Σ|q||k| of the projections must not overflow.
    Edges: position j counts for i where `mask` is True and, with `causal`, j ≤ i; the others are left out, NaN and ∞
    included. A row for which nothing counts gives 0 and zero gradients; one attendable position gives its value. n = 0,
    or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or a mask that does not broadcast, raise.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d_x"],
        w_q: Float[Array, "d_k d_x"],
        w_k: Float[Array, "d_k d_x"],
        w_v: Float[Array, "d_v d_x"],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]:
        """One result for every x."""
        ...


@operation(
    chapter="attention",
    formula=r"Y = \operatorname{softmax}(Q K^\top / \sqrt{d_k}) V,"
    r"\quad Q = X W_q^\top,\ K = M W_k^\top,\ V = M W_v^\top",
    sources=[
        S2.passage("Encoder-Decoder Attention"),
        S3.passage("Attending to the input (encoder)"),
        VASWANI.passage("encoder-decoder attention"),
    ],
)
class CrossAttention(Protocol[Array]):
    """Attention of one sequence to another: queries from x, keys and values from a memory.

    Where: x (*batch, n, d_x), memory (*batch, m, d_m), w_q (d_k, d_x), w_k (d_k, d_m), w_v (d_v, d_m), weights
    (out, in), mask (*batch, n, m); result (*batch, n, d_v). There is no `causal`: x and memory share no time axis.
    Domain: Σ|q||k| of the projections must not overflow.
    Edges: a key counts for a query where `mask` is True; the others are left out, NaN and ∞ included. A query for which
    no key counts, as with m = 0, gives 0 and zero gradients; one attendable key gives its value. Batches broadcast;
    n = 0, or a batch of 0, gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d_x"],
        memory: Float[Array, "*#batch m d_m"],
        w_q: Float[Array, "d_k d_x"],
        w_k: Float[Array, "d_k d_m"],
        w_v: Float[Array, "d_v d_m"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
    ) -> Float[Array, "*batch n d_v"]:
        """One result for every x."""
        ...
