"""Kernels: attention as it runs in practice, with grouped heads, windows, caps, sinks and caches."""

from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Bool, Float, Int

from attnspec.spec.contract.annotations import Array, Array_co, sizes
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import (
    AINSLIE,
    BELTAGY,
    DAO,
    DEEPSEEK,
    GEMMA,
    JIANG,
    KRELL,
    KWON,
    MIAO,
    ONNX,
    OPENAI,
    PENG,
    PRESS,
    QIU,
    RAFFEL,
    RAMAPURAM,
    SRIVASTAVA,
    SU,
    TRANSFORMERS,
    VASWANI,
    WANG_QWEN,
    XIAO,
)

__all__ = [
    "AlibiSlopes",
    "AttentionWeights",
    "AxialRotaryEmbedding",
    "DocumentMask",
    "Dropout",
    "GatedOutput",
    "GroupedQueryAttention",
    "KernelsOperations",
    "KernelsTable",
    "LatentAttention",
    "MergeAttention",
    "PagedAttention",
    "PositionsFromMask",
    "RelativePositionBias",
    "RollingBufferPositions",
    "RotaryEmbedding",
    "RotaryFrequencies",
    "SigmoidAttention",
    "SlidingWindowMask",
    "TreeMask",
    "VariableLengthAttention",
]


@depends_on("head_groups")
@depends_on("alibi_distances")
@depends_on("logarithms")
@depends_on("sink_alone")
@depends_on("length_alignment")
@depends_on("window_left")
@operation(
    "grouped_query_attention",
    chapter="kernels",
    formula=r"o_{ri} = \sum_j \alpha_{rij} v_{hj},\quad h = \lfloor r / g \rfloor,\quad"
    r" \alpha_{rij} = e^{s_{rij}} / Z_{ri},\ Z_{ri} = e^{b_r} + \sum_{j \in A_i} e^{s_{rij}},\quad"
    r" s_{rij} = c \tanh(\lambda q_{ri}^\top k_{hj} / c) + B_{rij} - m_r |i - j|,\quad \ell_{ri} = \log Z_{ri}",
    sources=[
        AINSLIE.passage("2.2 Grouped-query attention"),
        ONNX.passage("Attention-25"),
        DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation"),
        JIANG.passage("2 Architectural details: sliding window attention"),
        GEMMA.passage("2 Model architecture: logit soft-capping"),
        PRESS.passage("3 Attention with linear biases"),
        OPENAI.passage("Architecture: Attention"),
        XIAO.passage("3.3 Pre-training LLMs with attention sinks"),
    ],
    linear="value",
    ordered="window slopes key_lengths",
    features="scale window softcap bias slopes sinks key_lengths log_sum_exp",
    results="output log_sum_exp",
    lengths={"key_lengths": "m"},
    trial_values={"scale": (0.25, -0.5), "window": ((2, 0), (None, 1), (256, 256)), "softcap": (2.0, 50.0)},
    parts={
        "scale": ScoreEffect.SCALE,
        "softcap": ScoreEffect.CAP,
        "bias": ScoreEffect.BIAS,
        "slopes": ScoreEffect.SLOPES,
        "sinks": ScoreEffect.SINK,
    },
)
class GroupedQueryAttention(Protocol[Array]):
    """Attention whose query heads share key and value heads (GQA), with options of common models.

    Where: g is `group`: the first g query heads use the first key head, and so on, or heads take turns (semantics
    `head_groups`). λ is `scale`, 1/√d if not given; c is `softcap`, B `bias`, mᵣ `slopes`, bᵣ `sinks`, each left out if
    not given. A sink is the score of an additional key with value 0, a number per head as in gpt-oss; Xiao's sink is a
    token with key and value. The distance |i − j| is counted from the diagonal
    on which a causal mask is aligned; it may be signed (semantics `alibi_distances`). The mask is the same for all
    heads. `log_sum_exp` is the natural logarithm of Z (semantics `logarithms`). The output is in units of value; scores
    and logarithms have no unit.
    Domain: Σ|q||k| does not overflow. The softcap is positive.
    Edges: Key j is attendable for query i if all options allow it: `mask` is True, j ≤ i with `causal`, i − left ≤ j ≤
    i + right with `window`, where None is any distance (semantics `window_left`), and j < `key_lengths`. If n ≠ `m`,
    query 0 is aligned with key 0 (semantics `causal_alignment`, and `length_alignment` with `key_lengths`). Keys that
    are not attendable are left out after scores are capped, with their values, NaN and ∞ included. A query without
    attendable keys gives 0, and −∞ for the logarithm or, if there is one, its sink (semantics `sink_alone`); its
    gradients are those of the sink. An empty batch gives an empty result. So does `n` = 0.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads n d"], sizes(heads="heads_k*group")],
        key: Float[Array, "*#batch heads_k m d"],
        value: Float[Array, "*#batch heads_k m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        bias: Annotated[Float[Array, "*#batch #heads #n #m"], sizes(heads="heads_k*group")] | None = None,
        slopes: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        sinks: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        key_lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[
        Annotated[Float[Array, "*batch heads n d_v"], sizes(heads="heads_k*group")],
        Annotated[Float[Array, "*batch heads n"], sizes(heads="heads_k*group")] | None,
    ]: ...


@depends_on("head_groups")
@depends_on("alibi_distances")
@depends_on("length_alignment")
@depends_on("window_left")
@operation(
    "attention_weights",
    chapter="kernels",
    formula=r"\alpha_{rij} = e^{s_{rij}} / Z_{ri},\quad Z_{ri} = e^{b_r} + \sum_{j \in A_i} e^{s_{rij}},\quad"
    r" s_{rij} = c \tanh(\lambda q_{ri}^\top k_{hj} / c) + B_{rij} - m_r |i - j|,\quad h = \lfloor r / g \rfloor",
    sources=[VASWANI.passage("3.2.1 Scaled dot-product attention"), ONNX.passage("Attention-25")],
    ordered="window slopes key_lengths",
    features="scale window softcap bias slopes sinks key_lengths",
    lengths={"key_lengths": "m"},
    trial_values={"scale": (0.25, -0.5), "window": ((2, 0), (None, 1), (256, 256)), "softcap": (2.0, 50.0)},
    parts={
        "scale": ScoreEffect.SCALE,
        "softcap": ScoreEffect.CAP,
        "bias": ScoreEffect.BIAS,
        "slopes": ScoreEffect.SLOPES,
        "sinks": ScoreEffect.SINK,
    },
)
class AttentionWeights(Protocol[Array]):
    """Weights by which `grouped_query_attention` pools its values, one matrix per query head.

    Where: All options are those of `grouped_query_attention`. Averaged weights, which PyTorch's `MultiheadAttention`
    returns by default, are their mean over heads. Weights have no unit.
    Domain: Σ|q||k| does not overflow. The softcap is positive.
    Edges: The weight of a key that is not attendable is 0, whatever the key holds. Without attendable keys all weights
    are 0. With a sink, the weights of a row sum to less than 1.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads n d"], sizes(heads="heads_k*group")],
        key: Float[Array, "*#batch heads_k m d"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        bias: Annotated[Float[Array, "*#batch #heads #n #m"], sizes(heads="heads_k*group")] | None = None,
        slopes: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        sinks: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        key_lengths: Int[Array, "*#batch"] | None = None,
    ) -> Annotated[Float[Array, "*batch heads n m"], sizes(heads="heads_k*group")]: ...


@depends_on("head_groups")
@depends_on("alibi_distances")
@depends_on("logarithms")
@depends_on("sink_alone")
@depends_on("window_left")
@operation(
    "variable_length_attention",
    chapter="kernels",
    formula=r"o_i = \frac{1}{Z_i} \sum_j e^{s_{ij}} v_j,\quad Z_i = e^{b_r} + \sum_j e^{s_{ij}},\quad"
    r" s_{ij} = c \tanh(\lambda q_i^\top k_j / c) - m_r |(i - a_s) - (j - b_s)|,\quad"
    r" i \in [a_s, a_{s+1}),\ j \in [b_s, b_{s+1})",
    sources=[
        KRELL.passage("Abstract"),
        DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation"),
        PRESS.passage("3 Attention with linear biases"),
        OPENAI.passage("Architecture: Attention"),
    ],
    axes={"n": Axis.QUERY | Axis.TIME, "m": Axis.KEY | Axis.TIME},
    linear="value",
    features="causal scale window softcap slopes sinks key_lengths log_sum_exp",
    results="output log_sum_exp",
    cumulative={"query_ends": "n", "key_ends": "m"},
    generated_below={"key_lengths": 7},
    trial_values={"scale": (0.25, -0.5), "window": ((1, 0), (256, 0)), "softcap": (2.0, 50.0)},
    parts={
        "scale": ScoreEffect.SCALE,
        "softcap": ScoreEffect.CAP,
        "slopes": ScoreEffect.SLOPES,
        "sinks": ScoreEffect.SINK,
    },
)
class VariableLengthAttention(Protocol[Array]):
    """Attention of several sequences packed into one, each to its own keys.

    Where: a and b are `query_ends` and `key_ends`: sequence s has the queries a_s … a_{s+1}−1 and the keys
    b_s … b_{s+1}−1, of which only the first `key_lengths`[s] are used if these are given (`seqused_k` of
    FlashAttention). Each sequence is computed as in `grouped_query_attention`. Its first query is aligned with its
    first key, or its last query with the last key used (semantics `causal_alignment`): from there the distances of
    `slopes` count, too. The output is in units of value.
    Domain: Σ|q||k| does not overflow. The softcap is positive, and no length negative.
    Edges: A sequence may have no queries or no keys. Queries without keys give 0, and −∞ for the logarithm or, if there
    is one, its sink (semantics `sink_alone`). Unused keys have no effect, NaN and ∞ included. A length
    beyond the keys of a sequence uses all of them.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads n d"], sizes(heads="heads_k*group")],
        key: Float[Array, "*#batch heads_k m d"],
        value: Float[Array, "*#batch heads_k m d_v"],
        query_ends: Annotated[Int[Array, " ends"], sizes(ends="1+sequences")],
        key_ends: Annotated[Int[Array, " ends"], sizes(ends="1+sequences")],
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        slopes: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        sinks: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        key_lengths: Int[Array, " sequences"] | None = None,
    ) -> tuple[
        Annotated[Float[Array, "*batch heads n d_v"], sizes(heads="heads_k*group")],
        Annotated[Float[Array, "*batch heads n"], sizes(heads="heads_k*group")] | None,
    ]: ...


@depends_on("head_groups")
@depends_on("alibi_distances")
@depends_on("logarithms")
@depends_on("sink_alone")
@depends_on("window_left")
@operation(
    "paged_attention",
    chapter="kernels",
    formula=r"o_i = \frac{1}{Z_i} \sum_{j < \ell} e^{s_{ij}} v_j,\quad Z_i = e^{b_r} + \sum_{j < \ell} e^{s_{ij}},\quad"
    r" s_{ij} = c \tanh(\lambda q_i^\top k_j / c) - m_r |\ell - n + i - j|,\quad"
    r" k_j = K_{t_{\lfloor j / p \rfloor},\ j \bmod p}",
    sources=[
        KWON.passage("4.1 PagedAttention"),
        ONNX.passage("Attention-24"),
        PRESS.passage("3 Attention with linear biases"),
        OPENAI.passage("Architecture: Attention"),
    ],
    axes={"n": Axis.QUERY | Axis.TIME},
    features="causal scale window softcap slopes sinks log_sum_exp",
    results="output log_sum_exp",
    indices={"block_table": "pages"},
    lengths={"key_lengths": "blocks*page"},
    trial_values={"scale": (0.25, -0.5), "window": ((2, 0), (256, 0)), "softcap": (2.0, 50.0)},
    parts={
        "scale": ScoreEffect.SCALE,
        "softcap": ScoreEffect.CAP,
        "slopes": ScoreEffect.SLOPES,
        "sinks": ScoreEffect.SINK,
    },
)
class PagedAttention(Protocol[Array]):
    """Attention to a key–value cache stored in pages, which a block table puts in order.

    Where: K are `key_pages`, p is `page`, the number of rows per page, t `block_table` and ℓ `key_lengths`. The queries
    are the last n of the ℓ positions: query i is at position ℓ − n + i, from which `causal`, `window` and `slopes`
    count. All else is as in `grouped_query_attention`. The output is in units of the values.
    Domain: Σ|q||k| does not overflow. The softcap is positive.
    Edges: Rows of pages from ℓ on and pages outside of the table have no effect, NaN and ∞ included. A page may occur
    several times in the table, also for several elements of the batch.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads n d"], sizes(heads="heads_k*group")],
        key_pages: Float[Array, "pages heads_k page d"],
        value_pages: Float[Array, "pages heads_k page d_v"],
        block_table: Int[Array, "*#batch blocks"],
        key_lengths: Int[Array, "*#batch"],
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        slopes: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
        sinks: Annotated[Float[Array, " heads"], sizes(heads="heads_k*group")] | None = None,
    ) -> tuple[
        Annotated[Float[Array, "*batch heads n d_v"], sizes(heads="heads_k*group")],
        Annotated[Float[Array, "*batch heads n"], sizes(heads="heads_k*group")] | None,
    ]: ...


@operation(
    "latent_attention",
    chapter="kernels",
    formula=r"o_{ri} = W^V_r \sum_j \alpha_{rij} c_j,\quad"
    r" \alpha_{rij} = \operatorname{softmax}_j\left(\lambda (q_{ri}^\top W^K_r c_j + \hat q_{ri}^\top \hat k_j)\right)",
    sources=[
        DEEPSEEK.passage("2.1.2 Low-rank key-value joint compression"),
        DEEPSEEK.passage("2.1.3 Decoupled rotary position embedding"),
    ],
    axes={"d_c": Axis.WIDTH, "d_r": Axis.FEATURE},
    linear="w_v",
    features="scale",
    trial_values={"scale": (0.25, -0.5)},
    parts={"scale": ScoreEffect.SCALE},
)
class LatentAttention(Protocol[Array]):
    """Multi-head latent attention (MLA): keys and values of all heads come from one latent vector.

    Where: c is `latent`, one vector per position. q̂ and k̂ are `query_rope` and `key_rope`, already rotated; all heads
    share k̂. λ is `scale`, 1/√(d + d_r) if not given. Weights are (out, in), one matrix per head. Two orders compute the
    same result: plain, from keys W^K c and values W^V c of every head; and absorbed, from queries (W^K)ᵀq and the
    pooled c alone. The result is in units of w_v × latent.
    Domain: After projection, Σ|q||k| stays finite.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch heads n d"],
        query_rope: Float[Array, "*#batch heads n d_r"],
        latent: Float[Array, "*#batch m d_c"],
        key_rope: Float[Array, "*#batch m d_r"],
        w_k: Float[Array, "heads d d_c"],
        w_v: Float[Array, "heads d_v d_c"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Float[Array, "*batch heads n d_v"]: ...


@operation(
    "sigmoid_attention",
    chapter="kernels",
    formula=r"o_i = \sum_{j \in A_i} \sigma(q_i^\top k_j / \sqrt{d} + b)\, v_j,\quad \sigma(x) = 1 / (1 + e^{-x})",
    sources=[RAMAPURAM.passage("2 Sigmoid attention")],
    linear="value",
    features="bias",
    trial_values={"bias": (-3.0, 1.5)},
)
class SigmoidAttention(Protocol[Array]):
    """Attention whose weights are sigmoids of the scores; the weights of a row are not normalised.

    Where: b is `bias`; its authors choose −log m. The result is in units of value.
    Domain: Σ|q||k| does not overflow.
    Edges: A query without attendable keys gives 0, and so does every query if m = 0. Masked keys and values have no
    effect, not even NaN and ∞.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
        bias: float = 0.0,
    ) -> Float[Array, "*batch n d_v"]: ...


@depends_on("logarithms")
@operation(
    "merge_attention",
    chapter="kernels",
    formula=r"o = \sum_p e^{\ell_p - \ell} o_p,\quad \ell = \log \sum_p e^{\ell_p}",
    sources=[DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation")],
    axes={"parts": Axis.KEY},
    linear="outputs",
    results="output log_sum_exp",
)
class MergeAttention(Protocol[Array]):
    """Attention to all keys, merged from partial outputs and their log-sum-exps.

    Where: Batch dimensions are all that the parts share: batch elements, heads and queries. Logarithms are
    natural (semantics `logarithms`). The output is in units of outputs.
    Edges: A part with a logarithm of −∞ has no keys and is left out with its output, NaN included. If no part has keys,
    or there are no parts, the output is 0 and the logarithm −∞.
    """

    def __call__(
        self,
        outputs: Float[Array, "*#batch parts d_v"],
        log_sum_exps: Float[Array, "*#batch parts"],
    ) -> tuple[Float[Array, "*batch d_v"], Float[Array, "*batch"]]: ...


@depends_on("rotary_pairs")
@operation(
    "rotary_embedding",
    chapter="kernels",
    formula=r"y_{2i} = x_{2i} \cos t\theta_i - x_{2i+1} \sin t\theta_i,\quad"
    r" y_{2i+1} = x_{2i} \sin t\theta_i + x_{2i+1} \cos t\theta_i,\quad \theta_i = \Theta^{-2i/d}",
    sources=[
        SU.passage("3.2.2 General form"),
        SU.passage("3.4.2 Computational efficient realization of rotary matrix multiplication"),
    ],
    axes={"n": Axis.TIME, "pairs": Axis.FEATURE},
    linear="x",
    features="positions theta",
    generated_below={"positions": 140_000},
    trial_values={"theta": (500.0,)},
)
class RotaryEmbedding(Protocol[Array]):
    """Rotary position embedding: pairs of features rotated by an angle proportional to the position.

    Where: t is the position, counted from 0 if `positions` are not given, and Θ is `theta`. Angles are in radians. The
    features of a pair are neighbours, or i and i + d/2 (semantics `rotary_pairs`). The result is in units of x.
    Edges: An odd number of features raises. At position 0 x is unchanged.
    """

    def __call__(
        self,
        x: Annotated[Float[Array, "*#batch n d"], sizes(d="2*pairs")],
        positions: Int[Array, "*#batch n"] | None = None,
        *,
        theta: float = 10000.0,
    ) -> Annotated[Float[Array, "*batch n d"], sizes(d="2*pairs")]: ...


@depends_on("rotary_pairs")
@operation(
    "axial_rotary_embedding",
    chapter="kernels",
    formula=r"y_{2i} = x_{2i} \cos \varphi_i - x_{2i+1} \sin \varphi_i,\quad"
    r" y_{2i+1} = x_{2i} \sin \varphi_i + x_{2i+1} \cos \varphi_i,\quad \varphi_i = \sum_a t_a \omega_{ai}",
    sources=[
        SU.passage("3.2.2 General form"),
        WANG_QWEN.passage("2.1 Multimodal rotary position embedding (M-RoPE)"),
    ],
    axes={"n": Axis.TIME, "pairs": Axis.FEATURE, "rest": Axis.SPARE, "axes": Axis.WIDTH},
    linear="x",
    generated_below={"positions": 140_000},
)
class AxialRotaryEmbedding(Protocol[Array]):
    """Rotary embedding along several axes, such as time, height and width, with given frequencies.

    Where: t is the position along each axis, and ω are `frequencies`, in radians per position. Where a pair belongs to
    one axis, as in M-RoPE, its frequencies along the others are 0; where a pair is not rotated, all are. Only the first
    2·`pairs` features are rotated, in the pairs that `rotary_embedding` would form of them; the rest is unchanged
    (partial rotary embedding). Frequencies may be scaled, as `rotary_frequencies` does. The result is in units of x.
    Edges: At position 0 x is unchanged.
    """

    def __call__(
        self,
        x: Annotated[Float[Array, "*#batch n d"], sizes(d="2*pairs+rest")],
        positions: Int[Array, "*#batch n axes"],
        frequencies: Float[Array, "axes pairs"],
    ) -> Annotated[Float[Array, "*batch n d"], sizes(d="2*pairs+rest")]: ...


@depends_on("rotary_ramp")
@operation(
    "rotary_frequencies",
    chapter="kernels",
    formula=r"\omega_i = \gamma_i \theta_i + (1 - \gamma_i) \theta_i / s,\quad \theta_i = \Theta^{-i/p},\quad"
    r" \gamma_i = \min(1, \max(0, (r_i - \alpha) / (\beta - \alpha))),\quad r_i = L \theta_i / 2 \pi",
    sources=[PENG.passage("3.2 Loss of relative local information: the NTK-by-parts interpolation")],
    axes={"pairs": Axis.WIDTH},
    features="theta factor length low high",
    trial_values={"theta": (10_000.0,), "factor": (2.0,), "length": (256.0,), "low": (2.0, 0.5), "high": (32.0,)},
)
class RotaryFrequencies(Protocol[Array_co]):
    """Frequencies of a rotary embedding, interpolated for longer sequences as in Llama 3 and YaRN.

    Where: p is `pairs`, Θ `theta`, s `factor`, L `length`, the longest sequence before, α `low` and β `high`. A pair
    that makes β rotations or more within L positions keeps its frequency, one with at most α has it divided by s, and
    between them the share of both changes linearly (semantics `rotary_ramp`). Defaults are those of Llama 3.1; YaRN has
    β = 32. Frequencies are in radians per position.
    Domain: Θ > 1, s > 0, β > α > 0 and L > 2πα.
    Edges: With s = 1 frequencies are those of `rotary_embedding`.
    """

    def __call__(
        self,
        pairs: int,
        *,
        theta: float = 500_000.0,
        factor: float = 8.0,
        length: float = 8192.0,
        low: float = 1.0,
        high: float = 4.0,
    ) -> Float[Array_co, "{pairs}"]: ...


@operation(
    "alibi_slopes",
    chapter="kernels",
    formula=r"m_r = 2^{-8(r+1)/H} \text{ for } r < H,\quad m_{H+r} = 2^{-4(2r+1)/H},"
    r"\quad H = 2^{\lfloor \log_2 h \rfloor}",
    sources=[PRESS.passage("3 Attention with linear biases")],
)
class AlibiSlopes(Protocol[Array_co]):
    """The slopes of ALiBi's linear biases, one per head.

    Where: h is `heads`, and H the largest power of two up to h. If h is no power of two, the remaining heads have every
    other slope of 2H heads, starting with the first, as in the authors' code. The result has no unit.
    """

    def __call__(self, heads: int) -> Float[Array_co, "{heads}"]: ...


@operation(
    "relative_position_bias",
    chapter="kernels",
    formula=r"B_{rij} = T_{b(t_j - s_i),\, r},\quad b(x) = h\,[x > 0] + c(|x|) \text{ or } c(\max(-x, 0)),\quad"
    r" c(x) = x \text{ for } x < e,\quad"
    r" c(x) = \min(h - 1,\, e + \lfloor (h - e) \log(x / e) / \log(D / e) \rfloor),\quad e = \lfloor h / 2 \rfloor",
    sources=[RAFFEL.passage("2.1 Model: relative position embeddings")],
    axes={"quarters": Axis.TAP},
    linear="table",
    features="bidirectional max_distance",
    generated_below={"query_positions": 1200, "key_positions": 1200},
    trial_values={"max_distance": (40,)},
)
class RelativePositionBias(Protocol[Array]):
    """Bias of T5: a learned number per head for every bucket of distances.

    Where: T is `table`, s and t are the positions of queries and keys, and D is `max_distance`. Of the h buckets for
    one direction, the first half holds a single distance each, the others grow up to D, and the last one has no end. If
    `bidirectional`, half of all buckets are for later keys. Otherwise all are for earlier keys, and later keys have
    distance 0. The floor is that of the real number: at the limits of buckets a rounded logarithm could miss it. The
    result is in units of table; pass it to attention as `bias`.
    Domain: D > e.
    Edges: With m = 0 the bias is empty.
    """

    def __call__(
        self,
        table: Annotated[Float[Array, "buckets heads"], sizes(buckets="4*quarters")],
        query_positions: Int[Array, "*#batch n"],
        key_positions: Int[Array, "*#batch m"],
        *,
        bidirectional: bool = True,
        max_distance: int = 128,
    ) -> Float[Array, "*batch heads n m"]: ...


@depends_on("window_left")
@operation(
    "sliding_window_mask",
    chapter="kernels",
    formula=r"M_{ij} = [\,i - l \le j \le i + r\,]",
    sources=[
        BELTAGY.passage("3.1 Attention pattern: sliding window"),
        JIANG.passage("2 Architectural details: sliding window attention"),
    ],
    trial_values={"window": ((0, 0), (2, 0), (1, 3), (None, 1), (3, None), (256, 256), (65_536, 300))},
)
class SlidingWindowMask(Protocol[Array_co]):
    """Sliding-window mask: queries may attend to keys at most l before and r after.

    Where: (l, r) is `window`, both ends included (semantics `window_left`). None is any distance; without `window` all
    keys are allowed. In the result, True = may attend. Positions of queries and of keys are both counted from 0.
    Edges: With m = 0 or n = 0 the mask is empty.
    """

    def __call__(
        self, n: int, m: int, *, window: tuple[int | None, int | None] | None = None
    ) -> Bool[Array_co, "{n} {m}"]: ...


@operation(
    "document_mask",
    chapter="kernels",
    formula=r"M_{ij} = [\,D_i = E_j\,]",
    sources=[KRELL.passage("Abstract")],
    generated_below={"query_documents": 3, "key_documents": 3},
)
class DocumentMask(Protocol[Array]):
    """Document mask: a query may attend to the keys of its own document.

    Where: D and E are the document numbers of queries and keys, any integers. In the result, True = may attend.
    Edges: With m = 0 the mask is empty.
    """

    def __call__(
        self, query_documents: Int[Array, "*#batch n"], key_documents: Int[Array, "*#batch m"]
    ) -> Bool[Array, "*batch n m"]: ...


@operation(
    "rolling_buffer_positions",
    chapter="kernels",
    formula=r"p_s = \max(-1,\ \ell - 1 - ((\ell - 1 - s) \bmod w))",
    sources=[JIANG.passage("2 Architectural details: rolling buffer cache")],
    axes={"slots": Axis.LENGTH},
    generated_below={"lengths": 140_000},
)
class RollingBufferPositions(Protocol[Array]):
    """Positions of the keys in a rolling buffer, the cache of the last w.

    Where: w is `slots`, and ℓ `lengths`, the number of positions stored so far. Position p is stored in slot p mod w,
    where it replaces position p − w. Masks and rotary embeddings need these positions, not the slots.
    Domain: Lengths are not negative.
    Edges: A slot that was never written has position −1.
    """

    def __call__(self, lengths: Int[Array, "*batch"], slots: int) -> Int[Array, "*batch {slots}"]: ...


@depends_on("padding_positions")
@operation(
    "positions_from_mask",
    chapter="kernels",
    formula=r"p_i = \sum_{j < i} [\,M_j\,] \text{ where } M_i",
    sources=[TRANSFORMERS.passage("generation: position_ids from attention_mask")],
    causal="t",
)
class PositionsFromMask(Protocol[Array]):
    """Positions of the tokens of padded sequences: each is the number of tokens before it.

    Where: M is `mask`, True for tokens, False for padding, which may be on the left, on the right or between. Padding
    has position 0 or another one that no token is computed from (semantics `padding_positions`).
    """

    def __call__(self, mask: Bool[Array, "*batch t"]) -> Int[Array, "*batch t"]: ...


@operation(
    "tree_mask",
    chapter="kernels",
    formula=r"M_{ij} = [\,j = i\,] \lor (0 \le p_i < i \land M_{p_i j})",
    sources=[MIAO.passage("4.2 Tree-based parallel decoding: topology-aware causal mask")],
    axes={"n": Axis.TIME},
    generated_below={"parents": 12},
)
class TreeMask(Protocol[Array]):
    """Mask of a tree of tokens: a token may attend to itself and to its ancestors.

    Where: p is `parents`, the number of the token before each token on its path, as in speculative decoding with a tree
    of drafts. In the result, True = may attend.
    Edges: A token whose parent is not an earlier token, such as −1, is a root. With `n` = 0 the mask is empty.
    """

    def __call__(self, parents: Int[Array, "*batch n"]) -> Bool[Array, "*batch n n"]: ...


@operation(
    "dropout",
    chapter="kernels",
    formula=r"y_{ij} = [\,K_{ij}\,]\, \alpha_{ij} / (1 - p)",
    sources=[SRIVASTAVA.passage("4 Model description"), VASWANI.passage("5.4 Regularization: residual dropout")],
    linear="weights",
    trial_values={"rate": (0.25, 0.9)},
)
class Dropout(Protocol[Array]):
    """Weights after dropout: some become 0, the others are scaled up to keep the mean.

    Where: K is `keep`, True = stays, and p is `rate`, the probability of dropping a weight. The result is in units of
    weights.
    Domain: The rate is in [0, 1).
    Edges: A dropped weight is 0 even if it was NaN or ∞. Without `keep` all weights stay and are scaled up.
    """

    def __call__(
        self,
        weights: Float[Array, "*#batch n m"],
        *,
        keep: Bool[Array, "*#batch #n #m"] | None = None,
        rate: float = 0.0,
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "gated_output",
    chapter="kernels",
    formula=r"y_{if} = \sigma(g_{if})\, x_{if},\quad \sigma(z) = 1 / (1 + e^{-z})",
    sources=[QIU.passage("Abstract")],
    linear="x",
)
class GatedOutput(Protocol[Array]):
    """Output of attention multiplied by the sigmoid of a gate, as in Qwen3-Next.

    Where: The gate has a number per feature, or one per query for all features. It is projected from the same input
    as the query. Heads are a batch dimension, or joined in d_v. The result is in units of x.
    """

    def __call__(
        self, x: Float[Array, "*#batch n d_v"], gate: Float[Array, "*#batch #n #d_v"]
    ) -> Float[Array, "*batch n d_v"]: ...


class KernelsOperations(Generic[Array]):
    """The operations of kernels as methods of a backend class."""

    grouped_query_attention: GroupedQueryAttention[Array]
    attention_weights: AttentionWeights[Array]
    variable_length_attention: VariableLengthAttention[Array]
    paged_attention: PagedAttention[Array]
    latent_attention: LatentAttention[Array]
    sigmoid_attention: SigmoidAttention[Array]
    merge_attention: MergeAttention[Array]
    rotary_embedding: RotaryEmbedding[Array]
    axial_rotary_embedding: AxialRotaryEmbedding[Array]
    rotary_frequencies: RotaryFrequencies[Array]
    alibi_slopes: AlibiSlopes[Array]
    relative_position_bias: RelativePositionBias[Array]
    sliding_window_mask: SlidingWindowMask[Array]
    document_mask: DocumentMask[Array]
    rolling_buffer_positions: RollingBufferPositions[Array]
    positions_from_mask: PositionsFromMask[Array]
    tree_mask: TreeMask[Array]
    dropout: Dropout[Array]
    gated_output: GatedOutput[Array]


class KernelsTable(TypedDict, Generic[Array], total=False):
    """The operations of kernels by name, as a typed dictionary."""

    grouped_query_attention: GroupedQueryAttention[Array]
    attention_weights: AttentionWeights[Array]
    variable_length_attention: VariableLengthAttention[Array]
    paged_attention: PagedAttention[Array]
    latent_attention: LatentAttention[Array]
    sigmoid_attention: SigmoidAttention[Array]
    merge_attention: MergeAttention[Array]
    rotary_embedding: RotaryEmbedding[Array]
    axial_rotary_embedding: AxialRotaryEmbedding[Array]
    rotary_frequencies: RotaryFrequencies[Array]
    alibi_slopes: AlibiSlopes[Array]
    relative_position_bias: RelativePositionBias[Array]
    sliding_window_mask: SlidingWindowMask[Array]
    document_mask: DocumentMask[Array]
    rolling_buffer_positions: RollingBufferPositions[Array]
    positions_from_mask: PositionsFromMask[Array]
    tree_mask: TreeMask[Array]
    dropout: Dropout[Array]
    gated_output: GatedOutput[Array]
