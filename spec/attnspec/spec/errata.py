"""Errata of the sources: the printed form, the right form, and an example where they differ.

Each entry belongs to an operation. ``observed`` applied to the operation's result on ``example`` equals ``right_form``
and differs from ``printed_form``. This must hold for every correct implementation. Therefore the entries compute both
forms themselves and call no implementation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.sources import S0, S2, S3, S4, Citation

Numbers = np.ndarray[Any, Any]


def _itself(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Erratum:
    """One erratum. Both forms take the arguments in ``example``, by name."""

    identifier: str
    source: Citation
    operation: str
    printed: str
    right: str
    note: str
    printed_form: Callable[..., Any]
    right_form: Callable[..., Any]
    example: Mapping[str, Any]
    observed: Callable[[Any], Any] = _itself
    restriction: bool = False
    """True if the printed form is right where the source means it, and wrong beyond."""

    def __post_init__(self) -> None:
        names = list(OPERATIONS[self.operation].call.names)
        if not set(self.example) <= set(names):
            raise ValueError(f"erratum {self.identifier}: expected arguments among {names}; got {list(self.example)}")


def _softmax(scores: Numbers, mask: Any = True) -> Numbers:
    """Softmax over the attendable keys; 0 in a row without attendable keys."""
    attendable = np.where(mask, scores, -np.inf)
    highest = attendable.max(axis=-1, keepdims=True)
    exponentials = np.exp(attendable - np.where(np.isfinite(highest), highest, 0))
    total = exponentials.sum(axis=-1, keepdims=True)
    weights: Numbers = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
    return weights


def _quotient(exponentials: Numbers) -> Numbers:
    """Softmax as printed: powers over their sum, even if that is 0 or NaN."""
    with np.errstate(invalid="ignore"):
        result: Numbers = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def _kernel(query: Numbers, key: Numbers) -> Numbers:
    result: Numbers = np.exp(-np.square(query[:, None, :] - key[None, :, :]).sum(axis=-1) / 2)
    return result


def _padded(scores: Numbers, mask: Numbers) -> Numbers:
    with np.errstate(invalid="ignore"):
        added = scores + np.where(mask, 0, -np.inf)
        return _quotient(np.exp(added - added.max(axis=-1, keepdims=True)))


def _attention(query: Numbers, key: Numbers, value: Numbers, mask: Any = True, scale: float = 1) -> Numbers:
    result: Numbers = _softmax(query @ key.T * scale, mask) @ value
    return result


def _scaled(query: Numbers, key: Numbers, value: Numbers, mask: Any = True) -> Numbers:
    return _attention(query, key, value, mask, query.shape[-1] ** -0.5)


def _causal(query: Numbers, key: Numbers, value: Numbers) -> Numbers:
    return _scaled(query, key, value, np.tri(len(query), len(key), dtype=bool))


def _encoding(position: Numbers, n: int, d: int) -> Numbers:
    """Sinusoids for even d; ``position`` is the numerator over 10000^{2i/d}, as printed or right."""
    angle = np.broadcast_to(position, (n, d // 2)) / 10_000 ** (2 * np.arange(d // 2) / d)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, d)


def _attentional(state: Numbers, context: Numbers, w: Numbers) -> Numbers:
    result: Numbers = np.tanh(w @ np.concatenate([state, context]))
    return result


@dataclass(frozen=True)
class Misprint:
    """A printed mistake that no calculation can show."""

    identifier: str
    source: Citation
    printed: str
    right: str


@dataclass(frozen=True)
class _Heads:
    """Multi-head attention whose scale and number of joined heads can be replaced."""

    scale: Callable[[int, int], float] = lambda h, p_q: p_q**-0.5
    joined: Callable[[int, int], int] = lambda n, h: h

    def __call__(self, query: Any, key: Any, value: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Numbers:
        h, p_q, _ = w_q.shape
        heads = [
            _softmax(query @ w_q[r].T @ (key @ w_k[r].T).T * self.scale(h, p_q)) @ value @ w_v[r].T
            for r in range(self.joined(len(query), h))
        ]
        concatenated = np.concatenate(heads, axis=-1)
        result: Numbers = concatenated @ w_o[:, : concatenated.shape[-1]].T
        return result


_MULTI_HEAD = _Heads()


def _update_split_later(query: Any, key: Any, value: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Numbers:
    """One attention over all D columns; its result is split into heads and joined again before the projection."""
    h, p_q, _ = w_q.shape
    q, k, v = query @ np.concatenate(w_q).T, key @ np.concatenate(w_k).T, value @ np.concatenate(w_v).T
    update = _attention(q, k, v, scale=(h * p_q) ** -0.5)
    result: Numbers = update.reshape(len(query), h, -1).reshape(len(query), -1) @ w_o.T
    return result


_ANNOTATIONS = np.array([[1.0, 3.0, 9.0], [0.0, 0.0, 1.0], [5.0, -1.0, 2.0]])
_PRINTED_MATRIX = np.array([[1.0, 0.0, 5.0], [3.0, 0.0, -1.0], [0.0, 1.0, 2.0]])
_SEQUENCE = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
_TWO_HEADS: Mapping[str, Numbers] = {
    "query": _SEQUENCE[:2],
    "key": _SEQUENCE,
    "value": _SEQUENCE,
    "w_q": np.array([[[1.0, 0.0]], [[0.0, 1.0]]]),
    "w_k": np.array([[[1.0, 1.0]], [[0.0, 1.0]]]),
    "w_v": np.array([[[2.0, 0.0]], [[1.0, 1.0]]]),
    "w_o": np.array([[1.0, 0.0], [1.0, 1.0]]),
}
_THREE_HEADS = {
    **_TWO_HEADS,
    **{w: np.concatenate([_TWO_HEADS[w], [[[1.0, 2.0]]]]) for w in ("w_q", "w_k", "w_v")},
    "w_o": np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]),
}
_MASKED_DECODER = S2.passage("Masked Decoder Self-Attention")
_SOLUTION_2 = S2.passage("Justifying Scaled Self-Attention, solution 2")

_ENTRIES = (
    Erratum(
        "S2-variance",
        _SOLUTION_2,
        "dot_product_variance",
        printed="Var(qᵀk) = 2dσ²μᵀμ + dσ⁴ for μ ∈ ℝᵈ",
        right="Var(qᵀk) = 2σ²μᵀμ + dσ⁴",
        note="The line above it sums to the right form. The printed one holds where every coordinate has the same mean "
        "m and μᵀμ is read as m²; read as a product of vectors it would also grow with d², not with d.",
        printed_form=lambda mean, sigma: 2 * mean.size * sigma**2 * (mean @ mean) + mean.size * sigma**4,
        right_form=lambda mean, sigma: 2 * sigma**2 * (mean @ mean) + mean.size * sigma**4,
        example={"mean": np.array([1.0, 2.0, -1.0]), "sigma": 0.5},
    ),
    Erratum(
        "S2-independence",
        _SOLUTION_2,
        "dot_product_variance",
        printed="q, k ∼ N(μ, σ²I), without saying how they depend on each other",
        right="q and k are independent",
        note="Its fourth line replaces E[qqᵀkkᵀ] by E[qqᵀ]E[kkᵀ]. With k = q the variance is 4σ²μᵀμ + 2dσ⁴.",
        printed_form=lambda mean, sigma: 4 * sigma**2 * (mean @ mean) + 2 * mean.size * sigma**4,
        right_form=lambda mean, sigma: 2 * sigma**2 * (mean @ mean) + mean.size * sigma**4,
        example={"mean": np.array([1.0, 2.0, -1.0]), "sigma": 0.5},
    ),
    Erratum(
        "S0-mean",
        S0.equation(5),
        "dot_product_mean",
        printed="The dot product qᵀk has mean 0",
        right="μᵀμ: 0 only for centred vectors",
        note="It also needs q independent of k; the terms q = k of self-attention (17) have mean d(m² + σ²).",
        printed_form=lambda mean, d: 0.0,
        right_form=lambda mean, d: d * mean**2,
        example={"mean": 1.0, "d": 3},
    ),
    Erratum(
        "S0-variance",
        S0.equation(5),
        "dot_product_variance",
        printed="The dot product qᵀk has variance d",
        right="2σ²μᵀμ + dσ⁴, which is d for centred vectors of variance 1",
        note="It also needs q independent of k. Others may have variance d too: with m² = ¾, σ² = ½ and d = 3 it is 3.",
        printed_form=lambda mean, sigma, d: d,
        right_form=lambda mean, sigma, d: 2 * d * sigma**2 * mean**2 + d * sigma**4,
        example={"mean": 1.0, "sigma": 1.0, "d": 3},
    ),
    Erratum(
        "S0-softmax-of-a-scalar",
        S0.equation(2),
        "softmax",
        printed="α(q, kᵢ) = softmax(a(q, kᵢ))",
        right="α(q, kᵢ) = softmax(a(q, k₁), …, a(q, k_m))ᵢ, as its own right-hand side says",
        note="The softmax of one scalar is 1.",
        printed_form=lambda scores: _softmax(scores[..., None])[..., 0],
        right_form=_softmax,
        example={"scores": np.array([[0.0, 1.0, 3.0]])},
    ),
    Erratum(
        "S0-head-of-one-pair",
        S0.equation(7),
        "multi_head_attention",
        printed="hᵢ = f(Wᵢ⁽q⁾q, Wᵢ⁽k⁾k, Wᵢ⁽v⁾v) with one key k and one value v",
        right="f over all m pairs (Wᵢ⁽k⁾k_j, Wᵢ⁽v⁾v_j)",
        note="With one pair the weight is 1, and a head is W_v v whatever the query. (7) also lets p_q and p_k differ, "
        "which the dot product does not: only the additive score does.",
        printed_form=lambda key, value, **inputs: _MULTI_HEAD(key=key[:1], value=value[:1], **inputs),
        right_form=_MULTI_HEAD,
        example=_TWO_HEADS,
    ),
    Erratum(
        "S0-distinct-queries",
        S0.equation(6),
        "scaled_dot_product_attention",
        printed="n different queries yield n different weighted sums",
        right="They may agree: only the part of a query in the span of the differences of the keys affects the weights",
        note="Adding a number to all scores of a query changes no weight. With the keys (1, 0) and (2, 0), whose "
        "difference is (1, 0), the queries (1, 0) and (1, 5) give the same sum.",
        printed_form=lambda query, key, value: len(np.unique(query, axis=0)),
        right_form=lambda query, key, value: len(np.unique(_scaled(query, key, value), axis=0)),
        observed=lambda result: len(np.unique(result, axis=0)),
        example={
            "query": np.array([[1.0, 0.0], [1.0, 5.0]]),
            "key": np.array([[1.0, 0.0], [2.0, 0.0]]),
            "value": np.array([[1.0], [3.0]]),
        },
    ),
    Erratum(
        "S2-masked-decoder",
        _MASKED_DECODER,
        "causal_mask",
        printed="qᵢᵀkⱼ/√D if i ≤ j and −∞ otherwise",
        right="qᵢᵀkⱼ/√D if j ≤ i",
        note="i is the query and j the key, so the printed mask shows a position only itself and the future.",
        printed_form=lambda n, m: np.arange(n)[:, None] <= np.arange(m),
        right_form=lambda n, m: np.arange(m) <= np.arange(n)[:, None],
        example={"n": 3, "m": 3},
    ),
    Erratum(
        "S2-head-scale",
        S2.passage("Encoder Attention"),
        "multi_head_attention",
        printed="scores divided by √D, heads of size D/H, where Q, K and V are reshaped to heads",
        right="√(D/H), the size multiplied in each head",
        note="S2 reshapes 'any such update matrices': this entry reads them as Q, K and V, the next one as C. Divided "
        "by √D, the scores of standard normal vectors have variance 1/H in a head.",
        printed_form=_Heads(scale=lambda h, p_q: (h * p_q) ** -0.5),
        right_form=_MULTI_HEAD,
        example=_TWO_HEADS,
    ),
    Erratum(
        "S2-heads-of-the-update",
        S2.passage("Encoder Attention"),
        "multi_head_attention",
        printed="any such update matrix is reshaped from B×L×D to B×H×L×D/H, where C is called the update",
        right="Q, K and V are reshaped, before the scores",
        note="After the softmax, splitting the update into heads and merging it again changes nothing: one head.",
        printed_form=_update_split_later,
        right_form=_MULTI_HEAD,
        example=_TWO_HEADS,
    ),
    Erratum(
        "S4-number-of-heads",
        S4.passage("Multi-Head Attention"),
        "multi_head_attention",
        printed="Concat(head₁, …, headₙ) Wᴼ, n the number of queries",
        right="Concat(head₁, …, head_h) Wᴼ, h the number of projections",
        note="Q ∈ ℝ^{n×d} has n rows on the slide before; h is named one line above the formula.",
        printed_form=_Heads(joined=lambda n, h: n),
        right_form=_MULTI_HEAD,
        example=_THREE_HEADS,
    ),
    Erratum(
        "S2-key-and-query",
        S2.passage("Self-Attention in Transformer Networks"),
        "dot_product_attention",
        printed="the query is analogous to h_l, key and query are analogous to h_t",
        right="key and value are analogous to h_t",
        note="As printed, the decoder's state does not occur.",
        printed_form=lambda query, key, value: _attention(key, key, value),
        right_form=_attention,
        example={"query": _SEQUENCE[[1, 2, 0]], "key": _SEQUENCE, "value": _SEQUENCE},
    ),
    Erratum(
        "S2-first-state",
        S2.passage("Attention in RNNs"),
        "dot_product_attention",
        printed="a_t = Σ_{j=1}^{t−1} α_{t,j} h_j for every t",
        right="a₁ = 0: the first state has nothing to attend to",
        note="The softmax over no states is 0/0.",
        printed_form=lambda query, key, value, mask: _quotient(np.where(mask, np.exp(query @ key.T), 0)) @ value,
        right_form=_attention,
        example={"query": _SEQUENCE, "key": _SEQUENCE, "value": _SEQUENCE, "mask": np.tri(3, 3, -1, dtype=bool)},
    ),
    Erratum(
        "S2-range-of-the-sum",
        S2.passage("Attention in RNNs"),
        "dot_product_attention",
        printed="α_{t,l} = exp(e_{t,l}) / Σⱼ exp(e_{t,j}), without a range for j",
        right="j = 1 … t−1, the states that are attended to",
        note="Over all states, the weights of the earlier ones sum to less than 1.",
        printed_form=lambda query, key, value, mask: np.where(mask, _softmax(query @ key.T), 0) @ value,
        right_form=_attention,
        example={"query": _SEQUENCE, "key": _SEQUENCE, "value": _SEQUENCE, "mask": np.tri(3, 3, -1, dtype=bool)},
    ),
    Erratum(
        "S2-state-of-the-encoder",
        S2.passage("Luong Attention"),
        "attentional_state",
        printed="h̃_t = tanh(W_f[h_t; c_t]), where h_t are the states of the encoder",
        right="tanh(W_f[h_l; c]), with the state h_l of the decoder",
        note="With a single annotation the context is that annotation, and the decoder's state would not occur.",
        printed_form=lambda state, context, w: _attentional(context, context, w),
        right_form=_attentional,
        example={
            "state": np.array([1.0, -2.0]),
            "context": np.array([0.5, 3.0]),
            "w": np.array([[0.5, 0.25, 1, -0.5]]),
        },
    ),
    Erratum(
        "S0-dimension-of-the-context",
        S0.passage("Encoder-Decoder: Context"),
        "luong_context_dot",
        printed="Dimension of context = # hidden units in encoder RNN",
        right="the dimension of the annotations: twice that number where both directions are concatenated",
        note="As in S3 and in Bahdanau 2015. The function q of (13) may give any dimension.",
        printed_form=lambda state, annotations: annotations.shape[-1] // 2,
        right_form=lambda state, annotations: annotations.shape[-1],
        observed=lambda result: result.shape[-1],
        example={"state": np.ones(4), "annotations": np.concatenate([_SEQUENCE, _SEQUENCE[::-1]], axis=-1)},
    ),
    Erratum(
        "S2-adding-infinity",
        S2.passage("Encoder Attention: padding"),
        "softmax",
        printed="−∞ is added to the scores of positions that should be ignored",
        right="they are left out of the sum",
        note="A sequence that is all padding gives 0/0, and adding −∞ to NaN leaves NaN.",
        printed_form=_padded,
        right_form=_softmax,
        example={"scores": np.array([[0.0, 1.0], [0.0, 1.0]]), "mask": np.array([[True, False], [False, False]])},
    ),
    Erratum(
        "S2-no-way-to-know",
        S2.passage("Machine Translation, solution 1"),
        "scaled_dot_product_attention",
        printed="there is no way for the network to know positions: attention is symmetric in its inputs",
        right="true without a mask; a causal mask tells positions apart",
        note="Uniform scores and V = (1, 0, 0, 0) give 1, ½, ⅓, ¼.",
        printed_form=lambda query, key, value, causal: _scaled(query, key, value),
        right_form=lambda query, key, value, causal: _causal(query, key, value),
        example={"query": np.zeros((4, 1)), "key": np.zeros((4, 1)), "value": np.eye(4)[:, :1], "causal": True},
    ),
    Erratum(
        "S2-nearby-positions",
        S2.passage("Machine Translation, solution 1"),
        "sinusoidal_positional_encoding",
        printed="nearby position encodings have high inner product",
        right="the inner product is a function of the distance, and not monotone in it",
        note="Read as P₀ᵀP₃ > P₀ᵀP₆. Σᵢ cos(s/10000^{2i/d}) at d = 4: 0.01 for distance 3, 1.96 for distance 6.",
        printed_form=lambda n, d: True,
        right_form=lambda n, d: (
            np.sum(np.cos(3 / 10_000 ** (2 * np.arange(d // 2) / d)))
            > np.sum(np.cos(6 / 10_000 ** (2 * np.arange(d // 2) / d)))
        ),
        observed=lambda result: result[0] @ result[3] > result[0] @ result[6],
        example={"n": 7, "d": 4},
    ),
    Erratum(
        "S4-position",
        S4.passage("Positional Encoding"),
        "sinusoidal_positional_encoding",
        printed="p_{pos,2i} = sin(i/10000^{2i/d})",
        right="p_{pos,2i} = sin(pos/10000^{2i/d})",
        note="As printed every position has the same encoding.",
        printed_form=lambda n, d: _encoding(np.arange(d // 2), n, d),
        right_form=lambda n, d: _encoding(np.arange(n)[:, None], n, d),
        example={"n": 3, "d": 4},
    ),
    Erratum(
        "S4-unique-values",
        S4.passage("Positional Encoding"),
        "sinusoidal_positional_encoding",
        printed="Give each position-embedding pair a unique value",
        right="each position gets a vector of its own; the numbers in it repeat",
        note="P₀ = (0, 1, 0, 1, …).",
        printed_form=lambda n, d: n * d,
        right_form=lambda n, d: len(np.unique(_encoding(np.arange(n)[:, None], n, d))),
        observed=lambda result: len(np.unique(result)),
        example={"n": 1, "d": 4},
    ),
    Erratum(
        "S4-kernel",
        S4.passage("Attention Prompt"),
        "nadaraya_watson",
        printed="Σ K(x − xᵢ)yᵢ / Σ K(x − xⱼ)",
        right="softmax over −½(x − xᵢ)²: the same quotient, shifted by its greatest term",
        note="In floating point the printed quotient is 0/0 far from the keys; the nearest key decides.",
        printed_form=lambda query, key, value: _quotient(_kernel(query, key)) @ value,
        right_form=lambda query, key, value: _softmax(-np.square(query - key.T) / 2) @ value,
        example={
            "query": np.array([[100.0]]),
            "key": np.array([[0.0], [1.0], [3.0]]),
            "value": np.array([[5.0], [6.0], [7.0]]),
        },
        restriction=True,
    ),
    Erratum(
        "S3-average",
        S3.passage("Example: average pooling is context independent"),
        "average_pooling",
        printed="average = [2, 0.6, 1]",
        right="[2, ⅔, 4] for h¹ = [1, 3, 9] as printed",
        note="With h¹ = [1, 3, 0] it would be [2, ⅔, 1]; 0.6 is ⅔ cut off.",
        printed_form=lambda value: np.array([2, 0.6, 1]),
        right_form=lambda value: value.sum(axis=0) / len(value),
        example={"value": _ANNOTATIONS},
    ),
    Erratum(
        "S3-score-matrix",
        S3.passage("Example: Dot-Product Attention"),
        "dot_scores",
        printed="annotations as columns, third row [0 1 2] (three times): scores 3, 1, 1",
        right="third row [9 1 2]: scores 12, 1, 1",
        note="The printed matrix belongs to h¹ = [1, 3, 0], the printed vector is h¹ = [1, 3, 9].",
        printed_form=lambda query, key: query @ _PRINTED_MATRIX,
        right_form=lambda query, key: query @ key.T,
        example={"query": np.array([[0.0, 1.0, 1.0]]), "key": _ANNOTATIONS},
    ),
    Erratum(
        "S3-transposes",
        S3.passage("Example: Dot-Product Attention"),
        "dot_scores",
        printed="ᵀ at each row of the matrix whose columns are the annotations, in two of three places",
        right="ᵀ at the matrix, as in the third",
        note="Without it the product has other numbers: the first one is 5, not 3.",
        printed_form=lambda query, key: query @ key,
        right_form=lambda query, key: query @ key.T,
        example={"query": np.array([[0.0, 1.0, 1.0]]), "key": _PRINTED_MATRIX.T},
    ),
    Erratum(
        "S4-invariance",
        S4.passage("Inductive Bias"),
        "self_attention",
        printed="a graph network is invariant to permutations of its nodes",
        right="equivariant: its results are permuted with them; grids and time steps are equivariant to translations",
        note="Self-attention is such a network on the complete graph.",
        printed_form=lambda x: _scaled(x[::-1], x[::-1], x[::-1]),
        right_form=lambda x: _scaled(x, x, x),
        example={"x": _SEQUENCE},
    ),
    Erratum(
        "S3-order",
        S3.passage("Input Sequence Order"),
        "self_attention",
        printed="the attention encoder output does not depend on the order of the inputs",
        right="it is permuted with them: equivariant, not invariant",
        note="f(PX) = P f(X).",
        printed_form=lambda x: _scaled(x[::-1], x[::-1], x[::-1]),
        right_form=lambda x: _scaled(x, x, x),
        example={"x": _SEQUENCE},
    ),
    Erratum(
        "S3-concatenated-positions",
        S3.passage("Positional Encoding"),
        "add_positions",
        printed="The final input embeddings are the concatenation of … embeddings and the positional encoding",
        right="their sum, as its first line says: 'Add positional information'",
        note="d_emb is the width of both. `concat_positions` computes the printed form.",
        printed_form=lambda x, p: np.concatenate([x, p], axis=-1),
        right_form=lambda x, p: x + p,
        example={"x": _SEQUENCE, "p": np.array([[0.0, 1.0], [0.5, 0.75], [1.0, -0.5]])},
    ),
    Erratum(
        "S0-path-of-convolutions",
        S0.passage("Computational Complexity: CNN's"),
        "convolution_complexity",
        printed="Maximum path length: O(n/k)",
        right="⌈(n − 1)/(k − 1)⌉ layers, hence O(1 + n/k) for k ≥ 2; with k = 1 tokens never meet",
        note="n = 2 and k = 8: no path is shorter than one layer. As drawn, n = 5 and k = 3, it is two layers.",
        printed_form=lambda t, d_x, p_o, taps: t / taps,
        right_form=lambda t, d_x, p_o, taps: np.ceil((t - 1) / (taps - 1)),
        example={"t": 2, "d_x": 3, "p_o": 3, "taps": 8},
        observed=lambda cost: cost.maximum_path_length,
    ),
    Erratum(
        "S0-projections",
        S0.passage("Computational Complexity: self-attention"),
        "projected_self_attention_complexity",
        printed="Computational complexity: O(n²d), with queries, keys and values given",
        right="O(n²d + nd²): 2n²d for (17) alone, and 3nd² for the projections of S1 and S2",
        note="The CNN and the RNN of the comparison are counted with their weights. If n < d, projections cost more.",
        printed_form=lambda n, d_x, d_k, d_v: 2 * n**2 * d_k,
        right_form=lambda n, d_x, d_k, d_v: n**2 * (d_k + d_v) + n * d_x * (2 * d_k + d_v),
        example={"n": 4, "d_x": 32, "d_k": 32, "d_v": 32},
        observed=lambda cost: cost.multiply_adds,
        restriction=True,
    ),
    Erratum(
        "S0-sequential-operations",
        S0.passage("Computational Complexity: self-attention"),
        "decoder_attention_complexity",
        printed="Sequential operations: O(1)",
        right="O(1) where all tokens are given, as in training; O(n) where each is generated from those before it",
        note="A decoder layer is a chain of 8 matrix products, which generation repeats for every token.",
        printed_form=lambda m, n, d, generating: 8,
        right_form=lambda m, n, d, generating: 8 * n,
        example={"m": 3, "n": 5, "d": 4, "generating": True},
        observed=lambda cost: cost.sequential_operations,
        restriction=True,
    ),
    Erratum(
        "S2-projections",
        S2.passage("Machine Translation, solution 3"),
        "multi_head_attention_complexity",
        printed="(1) O(M²k) (2) O(MNk) (3) O(N²k)",
        right="(1) O(M²k + Mk²) (2) O(MNk + (M + N)k²) (3) O(N²k + Nk²)",
        note="Left out are W_Q, W_K and W_V of the section before, and W_O: 2k² multiply-adds per query and per key.",
        printed_form=lambda n, m, heads, d_q, d_k, d_v, p_q, p_v, p_o: 2 * n * m * d_q,
        right_form=lambda n, m, heads, d_q, d_k, d_v, p_q, p_v, p_o: 2 * n * m * d_q + 2 * (n + m) * d_q**2,
        example={"n": 3, "m": 4, "heads": 2, "d_q": 8, "d_k": 8, "d_v": 8, "p_q": 4, "p_v": 4, "p_o": 8},
        observed=lambda cost: cost.multiply_adds,
    ),
    Erratum(
        "S2-another-language",
        S2.passage("Machine Translation, solution 4"),
        "decoder_attention_complexity",
        printed="O(MN + N²) additional computation",
        right="O((MN + N²)k + (M + N)k²) where k counts, as in the answer before; for a fixed k the order holds",
        note="For fixed k, (M + N)k² ≤ k²(MN + N²).",
        printed_form=lambda m, n, d: m * n + n**2,
        right_form=lambda m, n, d: (2 * m * n + n * (n + 1)) * d + (6 * n + 2 * m) * d**2,
        example={"m": 3, "n": 5, "d": 4},
        observed=lambda cost: cost.multiply_adds,
    ),
)

ERRATA: Mapping[str, Erratum] = {e.identifier: e for e in _ENTRIES}
"""All errata, by identifier."""

_MISPRINTS = (
    Misprint(
        "S2-figure",
        S2.passage("Attention Mechanisms"),
        printed="as shown in Figure 5",
        right="Figure 1; Figure 5 shows the transformer",
    ),
    Misprint(
        "S3-GPT",
        S3.passage("Large Language Models (LLMs)"),
        printed="GPT-1/2/3/4: decoder-only 12-layer/12-headed transformers",
        right="only GPT-1 and the smallest GPT-2 and GPT-3; the largest GPT-3 has 96 layers and 96 heads. The same "
        "line gives BERT 12 and 12; the large BERT has 24 layers and 16 heads",
    ),
    Misprint(
        "S4-two-functions",
        S4.passage("Encoder-Decoder"),
        printed="C = g(H₁, …, H_t) and H_t = g(Y_{t−1}, C, H_{t−1})",
        right="two functions, which S0(13) and S0(15) call q and g",
    ),
    Misprint(
        "S4-function",
        S4.passage("Attention Prompt"),
        printed="f ∈ {(x₁, y₁), …, (xₙ, yₙ)}",
        right="f is fitted to these pairs, f(xᵢ) ≈ yᵢ; it is not one of them",
    ),
    Misprint(
        "S4-function-of-itself",
        S4.passage("Self-Attention"),
        printed="f ∈ {(xᵢ, xᵢ)}",
        right="f attends to these pairs of keys and values",
    ),
    Misprint(
        "S2-states-of-the-context",
        S2.passage("Luong Attention"),
        printed="a context vector c_t, which is a weighted sum of h_s",
        right="of the encoder's states h_t; nothing is called h_s",
    ),
)

MISPRINTS: Mapping[str, Misprint] = {m.identifier: m for m in _MISPRINTS}
"""All misprints, by identifier."""
