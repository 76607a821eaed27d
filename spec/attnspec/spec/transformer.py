"""Transformers: layers of attention and feed-forward networks around residual connections.

Edges: An empty batch gives an empty result. So does `n` = 0.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypedDict

from jaxtyping import Bool, Float, Int

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import BA, DEVLIN, GEMMA, HENDRYCKS, RADFORD, S2, S3, S4, SHAZEER, VASWANI, ZHANG
from attnspec.spec.multihead import MultiHeadParameters

__all__ = [
    "GELU",
    "AddRMSNorm",
    "CachedDecoderStep",
    "DecoderLayer",
    "DecoderLayerParameters",
    "DecoderOnly",
    "DecoderStack",
    "EncoderDecoder",
    "EncoderDecoderParameters",
    "EncoderLayer",
    "EncoderLayerParameters",
    "EncoderOnly",
    "EncoderStack",
    "FeedForward",
    "FeedForwardParameters",
    "GatedFeedForward",
    "GatedFeedForwardParameters",
    "KeyValueCache",
    "LanguageModelParameters",
    "LayerNorm",
    "LayerNormParameters",
    "RMSNorm",
    "TransformerOperations",
    "TransformerTable",
]


@dataclass(frozen=True)
class LayerNormParameters(Generic[Array]):
    """Gain and bias of a layer normalization, both (d,)."""

    gain: Float[Array, " d"]
    bias: Float[Array, " d"]


@dataclass(frozen=True)
class FeedForwardParameters(Generic[Array]):
    """Weights and biases of a network with one hidden layer, of f units."""

    w_1: Float[Array, "f d"]
    b_1: Float[Array, " f"]
    w_2: Float[Array, "d f"]
    b_2: Float[Array, " d"]


@operation(
    "layer_norm",
    chapter="transformer",
    formula=r"y = g \odot \frac{x - \bar x}{\sqrt{v + \varepsilon}} + b,\quad"
    r" \bar x = \tfrac1d \sum_i x_i,\ v = \tfrac1d \sum_i (x_i - \bar x)^2",
    sources=[S4.passage("Architecture: Others"), VASWANI.passage("3.1"), BA.passage("3")],
    axes={"d": Axis.WIDTH},
    features="epsilon",
    trial_values={"epsilon": (1e-3, 0.25)},
)
class LayerNorm(Protocol[Array]):
    """Layer normalization: features standardized per position, times a gain, plus a bias.

    Where: x̄ and v are mean and variance of the d features, v with d in the denominator; ε is `epsilon`. Before gain and
    bias the variance is v/(v + ε). The result is in units of gain and bias.
    Domain: The sum of squares does not overflow. ε is positive.
    Edges: Where all features are equal, the result is the bias.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: LayerNormParameters[Array], *, epsilon: float = 1e-5
    ) -> Float[Array, "*batch d"]: ...


@depends_on("rms_weight")
@operation(
    "rms_norm",
    chapter="transformer",
    formula=r"y = w \odot \frac{x}{\sqrt{s + \varepsilon}},\quad s = \tfrac1d \sum_i x_i^2",
    sources=[ZHANG.passage("3 RMSNorm"), GEMMA.passage("2 Model architecture: RMSNorm")],
    axes={"d": Axis.WIDTH},
    features="epsilon",
    wider="weight",
    trial_values={"epsilon": (1e-3, 0.25)},
)
class RMSNorm(Protocol[Array]):
    """Root mean square normalization: features divided by their root mean square, times a weight.

    Where: s is the mean of the d squares, not centred; ε is `epsilon`. The weight is the factor, or 1 less than it
    (semantics `rms_weight`). QK-norm is this operation on the d features of a head. A backend that rounds
    x/√(s + ε) to 16 bits before the product with the weight declares `eager-bfloat16` or `eager-float16`. The result is
    in units of the weight.
    Domain: The sum of squares does not overflow. ε is positive.
    Edges: A row of zeros gives 0.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], weight: Float[Array, " d"], *, epsilon: float = 1e-6
    ) -> Float[Array, "*batch d"]: ...


@depends_on("rms_weight")
@operation(
    "add_rms_norm",
    chapter="transformer",
    formula=r"y = \operatorname{RMSNorm}(z; w, \varepsilon),\quad z = x + r",
    sources=[ZHANG.passage("3 RMSNorm"), VASWANI.passage("3.1")],
    axes={"d": Axis.WIDTH},
    results="output sum",
    features="epsilon",
    wider="weight",
    trial_values={"epsilon": (1e-3, 0.25)},
)
class AddRMSNorm(Protocol[Array]):
    """RMS normalization of x plus a residual, and that sum, for the next layer.

    Where: r is `residual`, z the sum; all else is as in `rms_norm`. A backend that rounds z to 16 bits before it is
    normalized declares `eager-bfloat16` or `eager-float16`. The output is in units of the weight, the sum in units of
    x.
    Domain: The sum of squares does not overflow. ε is positive.
    Edges: Where the sum is 0, so is the output.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch d"],
        residual: Float[Array, "*#batch d"],
        weight: Float[Array, " d"],
        *,
        epsilon: float = 1e-6,
    ) -> tuple[Float[Array, "*batch d"], Float[Array, "*batch d"]]: ...


@operation(
    "feed_forward",
    chapter="transformer",
    formula=r"y = W_2 \max(0, W_1 x + b_1) + b_2",
    sources=[S2.passage("Feedforward Layer"), S4.passage("Architecture: Encoder"), VASWANI.passage("3.3")],
    axes={"d": Axis.WIDTH},
)
class FeedForward(Protocol[Array]):
    """Feed-forward network of a transformer: one hidden ReLU layer, applied to every position separately.

    Where: Weights are (out, in). The result is in units of b₂, which are those of W₂ × b₁.
    Domain: No sum overflows.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: FeedForwardParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


@depends_on("gelu_form")
@operation(
    "gelu",
    chapter="transformer",
    formula=r"y = \tfrac12 x (1 + \operatorname{erf}(x/\sqrt2));\quad \text{by tanh: }"
    r" y = \tfrac12 x (1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715\,x^3)))",
    sources=[HENDRYCKS.passage("2 GELU formulation")],
    axes={"d": Axis.WIDTH},
)
class GELU(Protocol[Array]):
    """Gaussian error linear unit: every feature times the probability that a normal variable is below it.

    Where: The variable has mean 0 and variance 1. The probability is computed by erf, or by an approximation with tanh
    that differs from GELU by up to 0.0005 (semantics `gelu_form`). The result is in units of x.
    Domain: x³ does not overflow.
    Edges: GELU of 0 is 0.
    """

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]: ...


@dataclass(frozen=True)
class GatedFeedForwardParameters(Generic[Array]):
    """Weights of a gated network with f hidden units, without biases."""

    w_gate: Float[Array, "f d"]
    w_up: Float[Array, "f d"]
    w_down: Float[Array, "d f"]


@operation(
    "gated_feed_forward",
    chapter="transformer",
    formula=r"y = W_d\,(\operatorname{silu}(W_g x) \odot W_u x),\quad \operatorname{silu}(z) = \frac{z}{1 + e^{-z}}",
    sources=[SHAZEER.passage("2 Gated linear units (GLU) and variants")],
    axes={"d": Axis.WIDTH},
)
class GatedFeedForward(Protocol[Array]):
    """Feed-forward network with a gate, SwiGLU: hidden units are products of two projections.

    Where: W_g is `w_gate`, the projection that silu is applied to; W_u is `w_up`, W_d is `w_down`. Weights are
    (out, in). Llama's `gate_proj`, `up_proj` and `down_proj` are these three. The result is in units of W_d × W_u x.
    Domain: No sum overflows.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: GatedFeedForwardParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


@dataclass(frozen=True)
class EncoderLayerParameters(Generic[Array]):
    """Weights of self-attention and a feed-forward network, each with its layer normalization."""

    attention: Annotated[MultiHeadParameters[Array], sizes(d_q="d", d_k="d", d_v="d", p_o="d")]
    attention_norm: LayerNormParameters[Array]
    feed_forward: FeedForwardParameters[Array]
    feed_forward_norm: LayerNormParameters[Array]


@operation(
    "encoder_layer",
    chapter="transformer",
    formula=r"Y = \operatorname{LN}(X' + \operatorname{FF}(X')),\quad"
    r" X' = \operatorname{LN}(X + \operatorname{MHA}(X, X, X));\quad \text{pre-norm: }"
    r" Y = X' + \operatorname{FF}(\operatorname{LN}(X')),\ X' = X + \operatorname{MHA}(\operatorname{LN}(X), \dots)",
    sources=[
        S2.passage("Feedforward Layer"),
        S3.passage("Transformer Machine Translation"),
        S4.passage("Architecture: Encoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    scores_scale_with={"parameters.attention.w_q": 1.0},
    features="norm=pre",
)
class EncoderLayer(Protocol[Array]):
    """One encoder layer of a transformer: multi-head self-attention, then a feed-forward network.

    Where: With norm "post", as in the paper, x plus the sublayer's output is normalized; with "pre", the input of the
    sublayer is normalized. FF is `feed_forward` and LN `layer_norm`. Weights are (out, in). The result has no unit for
    "post" and is in units of x for "pre".
    Domain: No intermediate overflows.
    Edges: Positions at which `mask` is False are left out of the attention of others, NaN and ∞ included. If no
    position is attendable, attention adds 0 (semantics `fully_masked`).
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        parameters: EncoderLayerParameters[Array],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


@operation(
    "encoder_stack",
    chapter="transformer",
    formula=r"Y = f_N(\dots f_2(f_1(X)) \dots),\quad f_i \text{ the encoder layer with the parameters of layer } i",
    sources=[
        S3.passage("Transformer Machine Translation"),
        S4.passage("Architecture: Encoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    features="norm=pre",
)
class EncoderStack(Protocol[Array]):
    """The encoder of a transformer: encoder layers applied one after another.

    Where: All layers use the same mask and norm. They may differ in their numbers of heads and hidden units. With norm
    "pre" there is no normalization after the last layer. Units are those of `encoder_layer`.
    Domain: No intermediate overflows in any layer.
    Edges: Without layers the result is x. Masks act in each layer as in `encoder_layer`.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        layers: tuple[EncoderLayerParameters[Array], ...],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


@dataclass(frozen=True)
class DecoderLayerParameters(Generic[Array]):
    """Weights of self-attention, attention to a memory and a feed-forward network, each with its normalization."""

    attention: Annotated[MultiHeadParameters[Array], sizes(d_q="d", d_k="d", d_v="d", p_o="d")]
    attention_norm: LayerNormParameters[Array]
    cross_attention: Annotated[MultiHeadParameters[Array], sizes(d_q="d", d_k="d_m", d_v="d_m", p_o="d")]
    cross_attention_norm: LayerNormParameters[Array]
    feed_forward: FeedForwardParameters[Array]
    feed_forward_norm: LayerNormParameters[Array]


@operation(
    "decoder_layer",
    chapter="transformer",
    formula=r"Y = \operatorname{LN}(X'' + \operatorname{FF}(X'')),\quad"
    r" X'' = \operatorname{LN}(X' + \operatorname{MHA}(X', Z, Z)),\quad"
    r" X' = \operatorname{LN}(X + \operatorname{MHA}_{j \le i}(X, X, X));\quad \text{pre-norm: }"
    r" X' = X + \operatorname{MHA}_{j \le i}(\operatorname{LN}(X), \dots),"
    r"\ X'' = X' + \operatorname{MHA}(\operatorname{LN}(X'), Z, Z),"
    r"\ Y = X'' + \operatorname{FF}(\operatorname{LN}(X''))",
    sources=[
        S2.passage("Transformer Decoder"),
        S3.passage("Self-attention"),
        S4.passage("Architecture: Decoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    scores_scale_with={"parameters.attention.w_q": 1.0, "parameters.cross_attention.w_q": 1.0},
    causal="n",
    features="norm=pre",
)
class DecoderLayer(Protocol[Array]):
    """One decoder layer of a transformer: causal self-attention, attention to a memory, a feed-forward network.

    Where: x holds the n targets, the memory Z the encoder's rows for the m sources. Self-attention is always causal:
    position i attends to j ≤ i where `mask` is True as well. `memory_mask` says which sources each target may attend
    to. With norm "pre", the memory itself is not normalized. Units are those of `encoder_layer`.
    Domain: No intermediate overflows.
    Edges: Masked rows are left out, NaN and ∞ included. If no target or no source is attendable, as with m = 0, that
    attention adds 0 (semantics `fully_masked`).
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        memory: Float[Array, "*#batch m d_m"],
        parameters: DecoderLayerParameters[Array],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        memory_mask: Bool[Array, "*#batch #n #m"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


@operation(
    "decoder_stack",
    chapter="transformer",
    formula=r"Y = f_N(\dots f_2(f_1(X, Z), Z) \dots, Z),"
    r"\quad f_i \text{ the decoder layer with the parameters of layer } i",
    sources=[
        S2.passage("Transformer Decoder"),
        S3.passage("Self-attention"),
        S4.passage("Architecture: Decoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    causal="n",
    features="norm=pre",
)
class DecoderStack(Protocol[Array]):
    """The decoder of a transformer: decoder layers applied one after another.

    Where: All layers use the same memory Z, unchanged, and the same masks and norm. They may differ in heads and hidden
    units. Units are those of `encoder_stack`.
    Domain: Each layer stays in the domain of `decoder_layer`.
    Edges: Without layers the result is x, broadcast to the whole batch. Masks act as in `decoder_layer`.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        memory: Float[Array, "*#batch m d_m"],
        layers: tuple[DecoderLayerParameters[Array], ...],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        memory_mask: Bool[Array, "*#batch #n #m"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


@dataclass(frozen=True)
class KeyValueCache(Generic[Array]):
    """The keys and values of earlier positions, projected for every head of a layer."""

    key: Float[Array, "*#batch heads cached p_q"]
    value: Float[Array, "*#batch heads cached p_v"]


@operation(
    "cached_decoder_step",
    chapter="transformer",
    formula=r"(y_t, C_t) = f(x_t, C_{t-1}, Z),\quad y_t = \operatorname{Decoder}(x_0, \dots, x_t; Z)_t,\quad"
    r" C_t = (K_{\le t}, V_{\le t})",
    sources=[S2.passage("Machine Translation, solution 4"), VASWANI.passage("3.1")],
    axes={"cached": Axis.KEY, "d": Axis.WIDTH},
    features="norm=pre",
    results="output key value",
)
class CachedDecoderStep(Protocol[Array]):
    """One new position through a decoder layer, with cached keys and values of earlier positions.

    Where: The row x is the new position. The result is its row of `decoder_layer`, and the cache with its key and value
    appended. The step is causal, since no later position exists. `mask` says which cached positions the new one may
    attend to; it always attends to itself. Both attentions have the same number and widths of heads. A decoder of
    several layers has one cache per layer.
    Domain: No intermediate of `decoder_layer` overflows.
    Edges: Masked positions stay in the cache, NaN and ∞ included, and have no effect. With an empty cache the position
    attends to itself alone. If no source is attendable, the memory adds 0 (semantics `fully_masked`).
    """

    def __call__(
        self,
        x: Float[Array, "*#batch d"],
        cache: KeyValueCache[Array],
        memory: Float[Array, "*#batch m d_m"],
        parameters: DecoderLayerParameters[Array],
        *,
        mask: Bool[Array, "*#batch #cached"] | None = None,
        memory_mask: Bool[Array, "*#batch #m"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> tuple[Float[Array, "*batch d"], Annotated[KeyValueCache[Array], sizes(cached="cached+1")]]: ...


@dataclass(frozen=True)
class EncoderDecoderParameters(Generic[Array]):
    """Embeddings of source and target, layers of encoder and decoder, and the output layer. Weights are (out, in)."""

    source_embedding: Float[Array, "source_vocabulary d"]
    target_embedding: Float[Array, "vocabulary d"]
    encoder: tuple[EncoderLayerParameters[Array], ...]
    decoder: Annotated[tuple[DecoderLayerParameters[Array], ...], sizes(d_m="d")]
    w: Float[Array, "vocabulary d"]
    b: Float[Array, " vocabulary"]


@operation(
    "encoder_decoder",
    chapter="transformer",
    formula=r"P(y_{t+1} = w \mid y_0, \dots, y_t, x) = \operatorname{softmax}_w(W s_t + b),\quad"
    r" S = \operatorname{Decoder}(\sqrt d\, E'_y + \mathrm{PE}, Z),"
    r"\quad Z = \operatorname{Encoder}(\sqrt d\, E_x + \mathrm{PE})",
    sources=[
        S2.passage("Transformers"),
        S3.passage("Transformer"),
        S3.passage("Transformer Machine Translation"),
        S4.passage("Architecture"),
        VASWANI.passage("3"),
    ],
    axes={
        "n": Axis.SELF,
        "m": Axis.KEY | Axis.TIME,
        "d": Axis.WIDTH,
        "source_vocabulary": Axis.VOCABULARY,
    },
    indices={"source": "parameters.source_vocabulary", "target": "vocabulary"},
    causal="n",
)
class EncoderDecoder(Protocol[Array]):
    """The transformer: for every target token, the probability of each possible next token.

    Where: Embeddings are multiplied by √d before PE, the sinusoids, are added, as in section 3.4 of the paper. Layers
    are post-norm; the result is the `output_distribution` of the decoder's rows. Row t predicts the token after target
    t, so targets begin with a start token. `source_mask` excludes padding, in the encoder and in the attention to its
    memory. `mask` further restricts the decoder's causal self-attention. Probabilities have no unit. The paper uses
    one table for both embeddings and W: pass the same array.
    Domain: Neither the layers nor the product with W overflow.
    Edges: Without decoder layers a row depends only on its own token and position, not on the source. Table rows that
    no token names have no effect, NaN and ∞ included. If all of the source is masked, or m = 0, the memory adds 0
    (semantics `fully_masked`). A token outside of its vocabulary raises.
    """

    def __call__(
        self,
        source: Int[Array, "*#batch m"],
        target: Int[Array, "*#batch n"],
        parameters: EncoderDecoderParameters[Array],
        *,
        source_mask: Bool[Array, "*#batch #m"] | None = None,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
    ) -> Float[Array, "*batch n vocabulary"]: ...


@dataclass(frozen=True)
class LanguageModelParameters(Generic[Array]):
    """Embeddings of tokens and positions, layers, and the output layer, whose weights are (out, in)."""

    embedding: Float[Array, "vocabulary d"]
    positions: Float[Array, "rows d"]
    layers: tuple[EncoderLayerParameters[Array], ...]
    w: Float[Array, "vocabulary d"]
    b: Float[Array, " vocabulary"]


@operation(
    "decoder_only",
    chapter="transformer",
    formula=r"P(x_{t+1} = w \mid x_0, \dots, x_t) = \operatorname{softmax}_w(W s_t + b),\quad"
    r" S = \operatorname{Encoder}_{j \le i}(E_x + T)",
    sources=[
        S3.passage("Transformer Language Pre-Training"),
        S3.passage("Large Language Models (LLMs)"),
        RADFORD.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    indices={"tokens": "vocabulary"},
    causal="n",
)
class DecoderOnly(Protocol[Array]):
    """A decoder-only transformer (GPT): for every token, the probability of each possible next token.

    Where: A decoder without a memory is an encoder under the causal mask, so its layers have the parameters of encoder
    layers. Row t of the learned positions is added to the embedding of token t, which is not scaled. Layers are
    post-norm as in GPT-1 (Radford 2018); GPT-2 and GPT-3 are pre-norm with a final normalization. Feed-forward networks
    have ReLUs, those of GPT GELUs. Probabilities have no unit; the paper's W is the table of the embeddings.
    Domain: Neither the layers nor W s + b overflow.
    Edges: `mask` restricts attention further; if it leaves no token, attention adds 0 (semantics `fully_masked`).
    Without layers every token is predicted from the token before it and that token's position. Rows of positions beyond
    n and of tokens that do not occur have no effect. A token outside the vocabulary raises, and so do more tokens than
    positions.
    """

    def __call__(
        self,
        tokens: Int[Array, "*#batch n"],
        parameters: Annotated[LanguageModelParameters[Array], sizes(rows="n+spare")],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
    ) -> Float[Array, "*batch n vocabulary"]: ...


@operation(
    "encoder_only",
    chapter="transformer",
    formula=r"P(w \text{ at } t \mid x) = \operatorname{softmax}_w(W s_t + b),\quad"
    r" S = \operatorname{Encoder}(E_x + T)",
    sources=[S3.passage("Large Language Models (LLMs)"), DEVLIN.passage("3")],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    indices={"tokens": "vocabulary"},
)
class EncoderOnly(Protocol[Array]):
    """An encoder-only transformer (BERT): for every position, the probability of each token there.

    Where: Every position sees the whole text. The caller replaces a token to be predicted by a mask token, which has
    nothing to do with `mask`. Learned positions are added to embeddings, layers are post-norm with ReLUs, and the
    output is that of `output_distribution`. Left out are the paper's segment embeddings and two parts of its released
    code: the normalization of the embeddings and the hidden layer before W.
    Domain: Neither the layers nor the output layer overflow.
    Edges: `mask` says which positions each may attend to; if none is left, attention adds 0 (semantics `fully_masked`).
    Without layers every position is predicted from its own token and position. Unused rows of both tables may hold
    anything. Tokens outside of the vocabulary and tokens without a position raise.
    """

    def __call__(
        self,
        tokens: Int[Array, "*#batch n"],
        parameters: Annotated[LanguageModelParameters[Array], sizes(rows="n+spare")],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
    ) -> Float[Array, "*batch n vocabulary"]: ...


class TransformerOperations(Generic[Array]):
    """The operations of transformers as methods of a backend class."""

    layer_norm: LayerNorm[Array]
    rms_norm: RMSNorm[Array]
    add_rms_norm: AddRMSNorm[Array]
    feed_forward: FeedForward[Array]
    gelu: GELU[Array]
    gated_feed_forward: GatedFeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]
    decoder_layer: DecoderLayer[Array]
    decoder_stack: DecoderStack[Array]
    cached_decoder_step: CachedDecoderStep[Array]
    encoder_decoder: EncoderDecoder[Array]
    decoder_only: DecoderOnly[Array]
    encoder_only: EncoderOnly[Array]


class TransformerTable(TypedDict, Generic[Array], total=False):
    """The operations of transformers by name, as a typed dictionary."""

    layer_norm: LayerNorm[Array]
    rms_norm: RMSNorm[Array]
    add_rms_norm: AddRMSNorm[Array]
    feed_forward: FeedForward[Array]
    gelu: GELU[Array]
    gated_feed_forward: GatedFeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]
    decoder_layer: DecoderLayer[Array]
    decoder_stack: DecoderStack[Array]
    cached_decoder_step: CachedDecoderStep[Array]
    encoder_decoder: EncoderDecoder[Array]
    decoder_only: DecoderOnly[Array]
    encoder_only: EncoderOnly[Array]
