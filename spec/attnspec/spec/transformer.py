"""Transformers: layers of attention and feed-forward networks around residual connections.

Edges: An empty batch gives an empty result. So does `n` = 0.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BA, S2, S3, S4, VASWANI
from attnspec.spec.multihead import MultiHeadParameters

__all__ = [
    "DecoderLayer",
    "DecoderLayerParameters",
    "DecoderStack",
    "EncoderLayer",
    "EncoderLayerParameters",
    "EncoderStack",
    "FeedForward",
    "FeedForwardParameters",
    "LayerNorm",
    "LayerNormParameters",
    "TransformerOperations",
    "TransformerTable",
]


@dataclass(frozen=True)
class LayerNormParameters(Generic[Array]):
    """Gain and bias (d) of a layer normalization."""

    gain: Float[Array, " d"]
    bias: Float[Array, " d"]


@dataclass(frozen=True)
class FeedForwardParameters(Generic[Array]):
    """Weights and biases of a network with one hidden layer, from d to f units and back."""

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
)
class LayerNorm(Protocol[Array]):
    """Layer normalization: features centred and divided by their standard deviation, times a gain, plus a bias.

    Where: The mean x̄ and the variance v are those of the d features, v with d in the denominator; ε = 10⁻⁵. Before gain
    and bias the variance is v/(v + ε). The result is in units of both.
    Domain: The sum of squares does not overflow.
    Edges: Where all features are equal, the result is the bias.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: LayerNormParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


@operation(
    "feed_forward",
    chapter="transformer",
    formula=r"y = W_2 \max(0, W_1 x + b_1) + b_2",
    sources=[S2.passage("Feedforward Layer"), S4.passage("Architecture: Encoder"), VASWANI.passage("3.3")],
    axes={"d": Axis.WIDTH},
)
class FeedForward(Protocol[Array]):
    """The feed-forward network of a transformer: one hidden layer of ReLUs, on every position by itself.

    Where: Weights are (out, in). The result is in units of b₂, which are those of W₂ × b₁.
    Domain: No sum overflows.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: FeedForwardParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


@dataclass(frozen=True)
class EncoderLayerParameters(Generic[Array]):
    """Self-attention and a feed-forward network, each with the normalization beside its residual connection."""

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
    sharpened={"parameters.attention.w_q": 1.0},
    features="norm=pre",
)
class EncoderLayer(Protocol[Array]):
    """One layer of a transformer's encoder: multi-head self-attention, then a feed-forward network for each position.

    Where: With norm "post", as in the paper, the sum of the residual connection is normalized; with "pre", the input of
    each sublayer is. FF is `feed_forward` and LN `layer_norm`. Weights are (out, in). The result has no unit for "post"
    and is in units of x for "pre".
    Domain: No intermediate overflows.
    Edges: Positions at which `mask` is False are left out of the attention of others, NaN and ∞ included. Where none is
    attendable, attention adds 0 (semantics `fully_masked`).
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
    """The encoder of a transformer: layers one after another, with the same mask and norm in each.

    Where: Layers may differ in their numbers of heads and hidden units. With norm "pre" there is no normalization after
    the last layer. Units are those of `encoder_layer`.
    Domain: In no layer does an intermediate overflow.
    Edges: Without layers the result is x. Each layer attends as `encoder_layer` does.
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
    """Self-attention, attention to a memory and a feed-forward network, each with its normalization."""

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
    sharpened={"parameters.attention.w_q": 1.0, "parameters.cross_attention.w_q": 1.0},
    causal="n",
    features="norm=pre",
)
class DecoderLayer(Protocol[Array]):
    """One layer of a transformer's decoder: causal self-attention, attention to a memory, a feed-forward network.

    Where: x holds the n targets, the memory Z what the encoder gives for the m sources. Self-attention is causal by
    definition: position i attends to j ≤ i for which `mask` is True as well. `memory_mask` says which sources each
    target may attend to. With norm "pre", the memory itself is not normalized. Units are those of `encoder_layer`.
    Domain: None of the intermediates overflows.
    Edges: What a mask hides is left out, NaN and ∞ included. Where no target or no source is attendable, as with m = 0,
    that attention adds 0 (semantics `fully_masked`).
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
    """The decoder of a transformer: layers one after another, with the same memory, masks and norm in each.

    Where: Every layer attends to the memory Z as it is. Layers may differ in their heads and hidden units. Units are
    those of `encoder_stack`.
    Domain: The domain is that of `decoder_layer`, in each layer.
    Edges: Without layers the result is x, repeated for the whole batch. Masks hide what they hide in `decoder_layer`.
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


class TransformerOperations(Generic[Array]):
    """The operations of transformers as methods of a backend class."""

    layer_norm: LayerNorm[Array]
    feed_forward: FeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]
    decoder_layer: DecoderLayer[Array]
    decoder_stack: DecoderStack[Array]


class TransformerTable(TypedDict, Generic[Array], total=False):
    """The operations of transformers by name."""

    layer_norm: LayerNorm[Array]
    feed_forward: FeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]
    decoder_layer: DecoderLayer[Array]
    decoder_stack: DecoderStack[Array]
